"""Tensor maps as Triton encodes them: `fill_tma_descriptor_tiled` and `_im2col` of its driver."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

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
