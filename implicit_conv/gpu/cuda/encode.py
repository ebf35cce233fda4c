"""Tensor maps as the driver encodes them: 128 bytes that a kernel receives by value."""

from __future__ import annotations

from typing import Any

import numpy as np

from implicit_conv.gpu.cuda import driver
from implicit_conv.gpu.cuda.arch import Capability
from implicit_conv.tma.maps.driver import data_type
from implicit_conv.tma.maps.encoding import call_arguments, map_bytes
from implicit_conv.tma.maps.maps import TensorMap
from implicit_conv.tma.maps.tiled import TiledMap

L2_PROMOTION = "CU_TENSOR_MAP_L2_PROMOTION_L2_128B"  # a pixel's row is 64 or 128 bytes
# Drivers before 595.71 set this bit of word 1, and Blackwell may then read past a small allocation
# (known issue of the release notes: illegal accesses, Xid 13). Hopper ignores the bit.
DENSE_BIT, DENSE_BYTES = np.uint64(1 << 21), 128 << 10


def encode(map: TensorMap | TiledMap, cc: Capability) -> bytes:
    """The 128 bytes of a tensor map for a GPU of compute capability `cc`.

    Raises
    ------
    DriverError
        The driver refuses it; older drivers lack the function for the wide form.
    """
    return encode_for({**map.arguments, "l2Promotion": L2_PROMOTION}, cc)


def encode_for(a: dict[str, Any], cc: Capability) -> bytes:
    """The 128 bytes that a kernel is given of a map with these arguments; see `encode`."""
    encoded = map_bytes(encode_arguments(a))
    return without_dense_bit(encoded) if cc[0] >= 10 and reach(a) < DENSE_BYTES else encoded


def reach(a: dict[str, Any]) -> int:
    """Bytes from a tensor's first element to the end of its last, by the driver's arguments."""
    itemsize: int = data_type(a["tensorDataType"])[0]  # type: ignore[index]
    steps = (itemsize, *a["globalStrides"])
    pairs = zip(a["globalDim"], steps, strict=True)
    return itemsize + int(sum((size - 1) * step for size, step in pairs))


def without_dense_bit(encoded: bytes) -> bytes:
    """A map without the bit that lets Blackwell read past a tensor of less than `DENSE_BYTES`."""
    words = np.frombuffer(encoded, np.uint64).copy()
    words[1] &= ~DENSE_BIT
    return words.tobytes()


def encode_arguments(a: dict[str, Any]) -> Any:
    """The CUtensorMap that the driver makes of arguments with the names of cuda.h.

    Raises
    ------
    DriverError
        The driver refuses the arguments, or the bindings lack the function.
    """
    return driver.call(a["function"], *call_arguments(driver.bindings(), a))
