"""Tensor maps as the driver encodes them: 128 bytes that a kernel receives by value."""

from __future__ import annotations

from typing import Any

from implicit_conv.gpu.cuda import driver
from implicit_conv.tma.encoding import call_arguments, map_bytes
from implicit_conv.tma.maps import TensorMap

L2_PROMOTION = "CU_TENSOR_MAP_L2_PROMOTION_L2_128B"  # a pixel's row is 64 or 128 bytes


def encode(map: TensorMap) -> bytes:
    """The 128 bytes of a tensor map.

    Raises
    ------
    DriverError
        The driver refuses it; older drivers lack the function for the wide form.
    """
    return map_bytes(encode_arguments({**map.arguments, "l2Promotion": L2_PROMOTION}))


def encode_arguments(a: dict[str, Any]) -> Any:
    """The CUtensorMap that the driver makes of arguments with the names of cuda.h.

    Raises
    ------
    DriverError
        The driver refuses the arguments, or the bindings lack the function.
    """
    return driver.call(a["function"], *call_arguments(driver.bindings(), a))
