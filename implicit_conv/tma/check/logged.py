"""Log the tensor maps that a program encodes, for `implicit-conv lint` to read."""

from __future__ import annotations

import functools
import importlib
import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from implicit_conv.errors import install
from implicit_conv.tma.maps.encoding import PARAMETERS

FUNCTIONS = {
    "fill_tma_descriptor_tiled": "cuTensorMapEncodeTiled",
    "fill_tma_descriptor_im2col": "cuTensorMapEncodeIm2col",
}
L2_128B = 2  # CU_TENSOR_MAP_L2_PROMOTION_L2_128B


def driver_arguments(name: str, values: Sequence[Any]) -> dict[str, Any]:
    """The arguments of the driver's call that a function of Triton's driver makes.

    Parameters
    ----------
    name : str
        One of `FUNCTIONS`.
    values : sequence
        Its arguments: address, swizzle, bytes and type of an element, block, shape, strides in
        elements, padding, and for im2col the corners and the element strides. All are row-major.
    """
    address, swizzle, size, kind, block, shape, strides, padding, *corners = values
    given: dict[str, Any] = {
        "function": FUNCTIONS[name],
        "tensorDataType": kind,
        "tensorRank": len(shape),
        "globalAddress": address,
        "globalDim": _reversed(shape),
        "globalStrides": [size * stride for stride in _reversed(strides)[1:]],
        "elementStrides": _reversed(corners[2]) if corners else [1] * len(shape),
        "interleave": 0,
        "swizzle": swizzle,
        "l2Promotion": L2_128B,
        "oobFill": padding,
    }
    if not corners:
        return given | {"boxDim": _reversed(block)}
    lower, upper, _ = corners
    given |= {"pixelBoxLowerCorner": _reversed(lower), "pixelBoxUpperCorner": _reversed(upper)}
    return given | {"pixelsPerColumn": block[0], "channelsPerPixel": block[1]}


def _reversed(values: Sequence[int]) -> list[int]:
    return list(values)[::-1]


def log_maps(path: str | Path) -> None:
    """Append the arguments of every later cuTensorMapEncode call of this process to a file.

    The file has a JSON object a line, with the names of cuda.h; ``implicit-conv lint FILE`` checks
    them all. Seen are calls through ``cuda.bindings.driver``, if their caller looks the function up
    in that module when it calls, and those that Triton makes for descriptors of the host; also
    those that fail. Not seen are other calls of C or C++ code, so those of CUTLASS or cuda.core,
    and functions that were imported by name before.

    Parameters
    ----------
    path : path-like
        The file; it is made empty first.

    Raises
    ------
    ImportError
        Neither cuda-bindings nor Triton is installed.

    Examples
    --------
    >>> from implicit_conv import tma
    >>> tma.log_maps("maps.jsonl")  # doctest: +SKIP
    """
    hooks = [hook for hook in (_hook_bindings, _hook_triton) if hook(Path(path))]
    if not hooks:
        raise ImportError(
            "logging tensor maps needs cuda-bindings or Triton, which encode them: "
            + install("cuda-bindings>=13,<14")
        )
    Path(path).write_text("", encoding="utf-8")


def _hook_bindings(path: Path) -> bool:
    """Log the calls through cuda-bindings; whether these are installed."""
    try:
        from cuda.bindings import driver
    except ImportError:
        return False
    for function in PARAMETERS:
        call = getattr(driver, function, None)
        if call is not None:  # older bindings lack the wide form
            record = functools.partial(_binding_record, function)
            setattr(driver, function, _logged(call, record, path))
    return True


def _hook_triton(path: Path) -> bool:
    """Log the calls of Triton's driver, now and whenever it is made; whether it is installed."""
    try:
        utils = importlib.import_module("triton.backends.nvidia.driver").CudaUtils
    except ImportError:
        return False

    def hook(made: Any) -> None:
        for name in FUNCTIONS:
            record = functools.partial(_triton_record, name)
            setattr(made, name, _logged(getattr(made, name), record, path))

    initialise = getattr(utils.__init__, "__wrapped__", utils.__init__)

    @functools.wraps(initialise)
    def initialised(self: Any) -> None:
        initialise(self)
        hook(self)

    utils.__init__ = initialised
    if hasattr(utils, "instance") and hasattr(utils.instance, next(iter(FUNCTIONS))):
        hook(utils.instance)
    return True


def _binding_record(function: str, *values: Any, **named: Any) -> dict[str, Any]:
    given = dict(zip(PARAMETERS[function], values, strict=False))
    return {"function": function, **given, **named}


def _triton_record(name: str, *values: Any) -> dict[str, Any]:
    return driver_arguments(name, values)


def _logged(
    call: Callable[..., Any], record: Callable[..., dict[str, Any]], path: Path
) -> Callable[..., Any]:
    """The function, which writes the record of its arguments before it calls."""
    call = getattr(call, "__wrapped__", call)  # a second log replaces the first

    @functools.wraps(call)
    def logged(*values: Any, **named: Any) -> Any:
        given = {name: _plain(value) for name, value in record(*values, **named).items()}
        with path.open("a", encoding="utf-8") as log:
            log.write(json.dumps(given) + "\n")
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
