"""What the doors to libraries of lazy arrays share: their functions, and a task's threads."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from implicit_conv.operators.preparation import imports
from implicit_conv.scale.operation import OPERATORS, REFUSED, operation, signature
from implicit_conv.settings import current, local


@imports
def _image_operation() -> Any:
    from implicit_conv.scale import image_operation

    return image_operation


def functions(
    lazy: Callable[..., Any], convolution: str, image_filter: str
) -> Callable[[str], list[Any]]:
    """A function that makes those of a door by their names, which are separated by spaces.

    Parameters
    ----------
    lazy : function of (made, name, x, arguments)
        It makes the lazy array; ``made(name, x, arguments)`` is the `Operation` of tasks.
    convolution, image_filter : str
        The documentation of a function of `implicit_conv`, and of one of `implicit_conv.ndimage`,
        with {name} in place of the name.
    """

    def function(name: str) -> Any:
        def convolved(x: Any, w: Any, *args: Any, **kwargs: Any) -> Any:
            return lazy(operation, name, x, w, *args, **kwargs)

        def filtered(input: Any, *args: Any, **kwargs: Any) -> Any:  # scipy's name
            return lazy(_image_operation().image_filter, name, input, *args, **kwargs)

        is_filter = name not in OPERATORS
        made: Any = filtered if is_filter else convolved
        made.__name__ = made.__qualname__ = name
        made.__doc__ = (image_filter if is_filter else convolution).format(name=name)
        if not is_filter:
            own = signature(name)
            kept = [part for part in own.parameters.values() if part.name not in REFUSED]
            made.__signature__ = own.replace(parameters=kept, return_annotation=Any)
        return made

    return lambda names: [function(name) for name in names.split()]


def task_threads() -> AbstractContextManager[None]:
    """The threads of a task: one, as a worker runs one on each of its threads, if no other number
    is set.
    """
    return local(num_threads=current().num_threads or 1)
