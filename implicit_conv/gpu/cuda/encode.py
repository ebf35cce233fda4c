"""Tensor maps as the driver encodes them: 128 bytes that a kernel receives by value."""

from __future__ import annotations

from typing import Any

from implicit_conv.gpu.cuda import driver
from implicit_conv.gpu.maps import BoxMap
from implicit_conv.tma.encoding import call_arguments, map_bytes
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
        return map_bytes(_encode_box(map))
    return map_bytes(encode_arguments({**map.arguments, "l2Promotion": L2_PROMOTION}))


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
    return driver.call(a["function"], *call_arguments(driver.bindings(), a))


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
