"""Tensor maps of a GPU kernel: im2col maps of the activation, a tiled map of the filter."""

from __future__ import annotations

import math
from dataclasses import replace

from implicit_conv.kernels.gpu.call import Call
from implicit_conv.kernels.gpu.variant import Variant
from implicit_conv.kernels.gpu.wgrad_variant import ImageCopy, SplitSum, WgradVariant
from implicit_conv.problem.problem import Problem
from implicit_conv.tma.maps.maps import TensorMap
from implicit_conv.tma.maps.tiled import TiledMap
from implicit_conv.tma.run.lowering_choice import maps_for
from implicit_conv.tma.run.wide_lowering import WideLowering


def maps_of(
    view: Problem, v: Variant | WgradVariant | SplitSum | ImageCopy, call: Call
) -> tuple[TensorMap | TiledMap, ...]:
    """The maps of a launch at its addresses: of x and w, or of x and dy of a weight gradient; none
    where a kernel loads without. Errors are those of `activation_map`.
    """
    if isinstance(v, Variant) and v.producer == "tma":
        return activation_map(view, v, call.x), filter_map(view, v, call.w)
    if isinstance(v, WgradVariant) and v.producer == "tma":
        return wgrad_maps(view, v, call.x, call.y)
    return ()


def moved_as(dtype: str) -> str:
    """The numpy type by which copies move `dtype`: uint16 bits for the 16-bit types."""
    return "float32" if dtype == "float32" else "uint16"


def activation_map(problem: Problem, v: Variant, address: int | None = None) -> TensorMap:
    """The map of a channels-last activation.

    Raises
    ------
    ValueError
        No map can express these sizes; the message gives all reasons.
    """
    mode = "im2col" if not v.wide else "w_sm90" if v.permuted else "w"
    lowering = maps_for(
        problem,
        mode,
        tile_m=v.tile_m,
        channels=v.tile_c,
        dtype=moved_as(problem.dtype),
        swizzle=_swizzle(v),
        address=address,
    )
    if not isinstance(lowering, WideLowering):
        return lowering.maps[0]
    longest = max(range(lowering.buffers), key=lowering.halo)
    return lowering.maps[longest]  # it has rows enough for every buffer


def filter_map(problem: Problem, v: Variant, address: int | None = None) -> TiledMap:
    """The map of a KRSC filter; a box holds the tile's filters at one tap and channel block."""
    taps = math.prod(problem.kernel)
    row = problem.C * problem.itemsize
    return TiledMap(
        shape=(problem.K, taps, problem.C),
        dtype=moved_as(problem.dtype),
        strides=(taps * row, row),
        box=(v.tile_n, 1, v.tile_c),
        swizzle=_swizzle(v),
        address=address,
    )


def wgrad_maps(
    problem: Problem, v: WgradVariant, x: int | None = None, dy: int | None = None
) -> tuple[TensorMap, TensorMap]:
    """The maps of channels-last x and dy at these addresses; a copy has a panel of a k-block.

    dy is read as the activation of a filter of one tap. Errors are those of `activation_map`.
    """
    gradient = replace(
        problem,
        C=problem.K,
        size=problem.output,
        kernel=(1, 1),
        stride=(1, 1),
        dilation=(1, 1),
        pad_lo=(0, 0),
        pad_hi=(0, 0),
    )
    first, second = (
        maps_for(
            each,
            tile_m=v.tile_k,
            channels=v.panel,
            dtype=moved_as(problem.dtype),
            address=address,
        ).maps[0]
        for each, address in ((problem, x), (gradient, dy))
    )
    return first, second


def _swizzle(v: Variant) -> str:
    """The name of the swizzle mode whose span is a row."""
    return f"{v.row_bytes}B"
