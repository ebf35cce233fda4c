"""Tensor maps as the driver encodes them, through cuda-bindings."""

from __future__ import annotations

from typing import Any

import numpy as np

from implicit_conv.errors import DriverError, install
from implicit_conv.tma.maps.driver import Arguments

MAP_BYTES = 128  # of a CUtensorMap
ENUM_TYPES = {
    "tensorDataType": "CUtensorMapDataType",
    "interleave": "CUtensorMapInterleave",
    "mode": "CUtensorMapIm2ColWideMode",
    "swizzle": "CUtensorMapSwizzle",
    "l2Promotion": "CUtensorMapL2promotion",
    "oobFill": "CUtensorMapFloatOOBfill",
}
WORD_TYPES = {
    "globalDim": "cuuint64_t",
    "globalStrides": "cuuint64_t",
    "boxDim": "cuuint32_t",
    "elementStrides": "cuuint32_t",
}
HEAD = ("tensorDataType", "tensorRank", "globalAddress", "globalDim", "globalStrides")
TAIL = ("swizzle", "l2Promotion", "oobFill")
CORNERS = ("pixelBoxLowerCorner", "pixelBoxUpperCorner", "channelsPerPixel", "pixelsPerColumn")
WIDE_CORNERS = (
    *("pixelBoxLowerCornerWidth", "pixelBoxUpperCornerWidth"),
    *("channelsPerPixel", "pixelsPerColumn"),
)
PARAMETERS = {  # in the order of cuda.h, after the map itself
    "cuTensorMapEncodeTiled": (*HEAD, "boxDim", "elementStrides", "interleave", *TAIL),
    "cuTensorMapEncodeIm2col": (*HEAD, *CORNERS, "elementStrides", "interleave", *TAIL),
    "cuTensorMapEncodeIm2colWide": (
        *(*HEAD, *WIDE_CORNERS, "elementStrides", "interleave", "mode"),
        *TAIL,
    ),
}


def call_arguments(cuda: Any, arguments: Arguments) -> list[Any]:
    """The positional arguments of `arguments["function"]` as the bindings `cuda` take them.

    Raises
    ------
    DriverError
        The bindings lack the function.
    """
    function = arguments["function"]
    if not hasattr(cuda, function):
        raise DriverError(f"cuda-bindings lacks {function}: install version 13 or later")
    return [_converted(cuda, name, arguments[name]) for name in PARAMETERS[function]]


def _converted(cuda: Any, name: str, value: Any) -> Any:
    if name in ENUM_TYPES:
        return getattr(getattr(cuda, ENUM_TYPES[name]), value)
    if name in WORD_TYPES:
        kind = getattr(cuda, WORD_TYPES[name])
        return [kind(int(entry)) for entry in value]
    return list(value) if isinstance(value, tuple) else value


def encode(arguments: Arguments) -> bytes:
    """The 128 bytes of the tensor map that these arguments describe.

    Raises
    ------
    ValueError
        The arguments have no address.
    DriverError
        The bindings or the driver are missing, or the driver refuses the arguments.
    """
    if arguments["globalAddress"] is None:
        raise ValueError("the map has no address; pass address=, the tensor's in global memory")
    try:
        from cuda.bindings import driver
    except ImportError as error:
        raise DriverError(
            f"encoding a tensor map needs cuda-bindings: {install('cuda-bindings>=13,<14')}"
        ) from error
    given = call_arguments(driver, arguments)
    try:
        status, *results = getattr(driver, arguments["function"])(*given)
    except RuntimeError as error:
        raise DriverError(
            f"no CUDA driver could be loaded ({error}); tensor maps are encoded where one is"
        ) from error
    if status != driver.CUresult.CUDA_SUCCESS:
        raise DriverError(
            f"{arguments['function']} failed with {getattr(status, 'name', status)}; "
            "implicit_conv.tma.lint explains what a tensor map must satisfy"
        )
    return map_bytes(results[0])


def map_bytes(encoded: Any) -> bytes:
    """The bytes of a CUtensorMap of the bindings."""
    words = np.array([int(word) for word in encoded.opaque], np.uint64)
    return bytes(words.tobytes()[:MAP_BYTES])
