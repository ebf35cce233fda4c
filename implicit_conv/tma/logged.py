"""Log the tensor maps that a program encodes, for `implicit-conv lint` to read."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from implicit_conv.tma.encoding import PARAMETERS


def log_maps(path: str | Path) -> None:
    """Append the arguments of every later cuTensorMapEncode call of this process to a file.

    The file has a JSON object a line, with the names of cuda.h; ``implicit-conv lint FILE`` checks
    them all. Calls through ``cuda.bindings.driver`` are seen, also those that fail, if their caller
    looks the function up in that module when it calls. Not seen are calls of C or C++ code, so
    those of CUTLASS, Triton or cuda.core, and functions that were imported by name before.

    Parameters
    ----------
    path : path-like
        The file; it is made empty first.

    Raises
    ------
    ImportError
        cuda-bindings is not installed.
    """
    from cuda.bindings import driver

    Path(path).write_text("", encoding="utf-8")
    for function, parameters in PARAMETERS.items():
        call = getattr(driver, function, None)
        if call is not None:  # older bindings lack the wide form
            call = getattr(call, "__wrapped__", call)  # a second log replaces the first
            setattr(driver, function, _logged(call, function, parameters, Path(path)))


def _logged(
    call: Callable[..., Any], function: str, parameters: tuple[str, ...], path: Path
) -> Callable[..., Any]:
    """The function, which writes its arguments before it calls."""

    @functools.wraps(call)
    def logged(*values: Any, **named: Any) -> Any:
        given = {**dict(zip(parameters, values, strict=False)), **named}
        record = {"function": function, **{name: _plain(value) for name, value in given.items()}}
        with path.open("a", encoding="utf-8") as log:
            log.write(json.dumps(record) + "\n")
        return call(*values, **named)

    return logged


def _plain(value: Any) -> Any:
    """A value of the bindings as JSON: integers, lists of integers, or text."""
    if isinstance(value, Iterable) and not isinstance(value, str):
        return [_plain(entry) for entry in value]
    try:
        return int(value)
    except (TypeError, ValueError):
        return None if value is None else str(value)
