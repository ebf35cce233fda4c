"""What the doors to libraries of lazy arrays share: their functions, and a task's threads."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from implicit_conv.process.preparation import imports
from implicit_conv.scale.documentation import Door, convolution, image_filter
from implicit_conv.scale.operation import OPERATORS, REFUSED, operation, signature
from implicit_conv.settings import current, local


@imports
def _image_operation() -> Any:
    from implicit_conv.scale import image_operation

    return image_operation


def functions(lazy: Callable[..., Any], door: Door) -> Callable[[str], list[Any]]:
    """A function that makes those of a door by their names, which are separated by spaces.

    Parameters
    ----------
    lazy : function of (made, name, x, arguments)
        It makes the lazy array; ``made(name, x, arguments)`` is the `Operation` of tasks.
    door : Door
        Whose functions they are: the words of their documentation.
    """

    def function(name: str) -> Any:
        def convolved(x: Any, w: Any, *args: Any, **kwargs: Any) -> Any:
            return lazy(operation, name, x, w, *args, **kwargs)

        def filtered(input: Any, *args: Any, **kwargs: Any) -> Any:  # scipy's name
            return lazy(_image_operation().image_filter, name, input, *args, **kwargs)

        made: Any = convolved if name in OPERATORS else filtered
        made.__name__ = made.__qualname__ = name
        made.__module__ = f"implicit_conv.{door.name}"
        if made is filtered:
            made.__doc__ = image_filter(door, name)
            return made
        own = signature(name)
        kept = [part for part in own.parameters.values() if part.name not in REFUSED]
        made.__doc__ = convolution(door, name, (part.name for part in kept))
        made.__signature__ = own.replace(parameters=kept, return_annotation=Any)
        return made

    return lambda names: [function(name) for name in names.split()]


def task_threads() -> AbstractContextManager[None]:
    """The threads of a task: one, as a worker runs one on each of its threads, if no other number
    is set.
    """
    return local(num_threads=current().num_threads or 1)
