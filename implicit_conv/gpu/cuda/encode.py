"""Tensor maps as the driver encodes them: 128 bytes that a kernel receives by value."""

from __future__ import annotations

from typing import Any

import numpy as np

from implicit_conv.errors import DriverError
from implicit_conv.gpu.cuda import driver
from implicit_conv.gpu.maps import BoxMap
from implicit_conv.kernels.gpu.sizes import MAP_BYTES
from implicit_conv.tma.driver import driver_arguments
from implicit_conv.tma.maps import TensorMap

L2_PROMOTION = "CU_TENSOR_MAP_L2_PROMOTION_L2_128B"  # a pixel's row is 64 or 128 bytes


def encode(map: TensorMap | BoxMap) -> bytes:
    """The 128 bytes of a tensor map.

    Raises
    ------
    DriverError
        The driver refuses it; older drivers lack the function for the wide form.
    """
    if isinstance(map, BoxMap):
        encoded = _encode_box(map)
    else:
        encoded = encode_arguments({**driver_arguments(map), "l2Promotion": L2_PROMOTION})
    words = np.array([int(word) for word in encoded.opaque], np.uint64)
    return bytes(words.tobytes()[:MAP_BYTES])


def _words(name: str, values: Any) -> list[Any]:
    kind = getattr(driver.bindings(), name)
    return [kind(int(value)) for value in values]


def _enum(kind: str, name: str) -> Any:
    return getattr(getattr(driver.bindings(), kind), name)


def encode_arguments(a: dict[str, Any]) -> Any:
    """The CUtensorMap that the driver makes of arguments with the names of cuda.h.

    Raises
    ------
    DriverError
        The driver refuses the arguments, or the bindings lack the function.
    """
    if not hasattr(driver.bindings(), a["function"]):
        raise DriverError(f"cuda-bindings lacks {a['function']}: install version 13 or later")
    head = (
        _enum("CUtensorMapDataType", a["tensorDataType"]),
        a["tensorRank"],
        a["globalAddress"],
        _words("cuuint64_t", a["globalDim"]),
        _words("cuuint64_t", a["globalStrides"]),
    )
    tail = (
        _enum("CUtensorMapSwizzle", a["swizzle"]),
        _enum("CUtensorMapL2promotion", a["l2Promotion"]),
        _enum("CUtensorMapFloatOOBfill", a["oobFill"]),
    )
    interleave = _enum("CUtensorMapInterleave", a["interleave"])
    counts = (
        a["channelsPerPixel"],
        a["pixelsPerColumn"],
        _words("cuuint32_t", a["elementStrides"]),
    )
    if "mode" in a:
        corners = (a["pixelBoxLowerCornerWidth"], a["pixelBoxUpperCornerWidth"])
        mode = _enum("CUtensorMapIm2ColWideMode", a["mode"])
        return driver.call(a["function"], *head, *corners, *counts, interleave, mode, *tail)
    corners = (list(a["pixelBoxLowerCorner"]), list(a["pixelBoxUpperCorner"]))
    return driver.call(a["function"], *head, *corners, *counts, interleave, *tail)


def _encode_box(map: BoxMap) -> Any:
    return driver.call(
        "cuTensorMapEncodeTiled",
        _enum("CUtensorMapDataType", f"CU_TENSOR_MAP_DATA_TYPE_{map.dtype.upper()}"),
        len(map.shape),
        map.address,
        _words("cuuint64_t", map.shape[::-1]),
        _words("cuuint64_t", map.strides[::-1]),
        _words("cuuint32_t", (map.channels, 1, map.box_rows)),
        _words("cuuint32_t", (1, 1, 1)),
        _enum("CUtensorMapInterleave", "CU_TENSOR_MAP_INTERLEAVE_NONE"),
        _enum("CUtensorMapSwizzle", f"CU_TENSOR_MAP_SWIZZLE_{map.swizzle}"),
        _enum("CUtensorMapL2promotion", L2_PROMOTION),
        _enum("CUtensorMapFloatOOBfill", "CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE"),
    )
