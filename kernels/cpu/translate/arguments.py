"""The arguments of calls in translated code, bound to names as Python binds them."""

from collections.abc import Callable, Iterable
from typing import Any

from implicit_conv.kernels.cpu.translate.values import UnsupportedError


def bound(
    name: str,
    parameters: Iterable[str],
    defaults: dict[str, Any],
    arguments: list[Any],
    keywords: dict[str, Any],
) -> list[Any]:
    """The arguments of a call of `name` in the order of its parameters.

    Raises
    ------
    UnsupportedError
        There are too many, one is missing or given twice, or no parameter has its name.
    """
    names = list(parameters)
    if len(arguments) > len(names):
        raise UnsupportedError(
            f"a call of {name} with {len(arguments)} arguments; it takes {len(names)}"
        )
    given = dict(zip(names, arguments, strict=False))
    for keyword, value in keywords.items():
        if keyword not in names:
            raise UnsupportedError(f"a call of {name}, which has no parameter {keyword}")
        if keyword in given:
            raise UnsupportedError(f"a call of {name} that gives {keyword} twice")
        given[keyword] = value
    missing = [each for each in names if each not in given and each not in defaults]
    if missing:
        raise UnsupportedError(f"a call of {name} without {', '.join(missing)}")
    return [given[each] if each in given else defaults[each] for each in names]


def of_function(function: Callable[..., Any], skipped: int = 0) -> tuple[list[str], dict[str, Any]]:
    """The parameters of a plain function but for the first `skipped`, and their defaults."""
    code, defaults = function.__code__, function.__defaults__ or ()
    names = list(code.co_varnames[: code.co_argcount])
    return names[skipped:], dict(zip(names[len(names) - len(defaults) :], defaults, strict=True))
