"""Kernels on the CUDA cores: which problems they compute, their tiles, and their estimate.

They are for depthwise convolutions and groups of few channels, which would fill a small part of a
matrix instruction. A tile is a panel of neighbouring filters, of as many groups as that takes, and
output pixels along W in strips, one for each thread that has the same filters.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from implicit_conv.kernels.geometry import Geometry
from implicit_conv.kernels.gpu.sizes import ITEMSIZES, VECTOR_BYTES, WARP
from implicit_conv.kernels.gpu.variant import Strip, Variant
from implicit_conv.kernels.schedule import ceil_div
from implicit_conv.problem.problem import Problem

MOST_C, MOST_K = 8, 32  # channels and filters of a group
PANEL_BYTES = (128, 64, 32)  # of the filters of a tile at one pixel of y, whole sectors
WARPS = (12, 4, 2)  # of a block; few where there are few tiles
# float32 values of a thread that fit its registers besides addresses: accumulators, pixels, taps.
# A thread has 168 registers in a block of 12 warps; with 16 warps some kernels would spill.
MOST_VALUES = 120
MOST_COLUMNS = 15  # of a filter row whose multiplications are unrolled

# Constants of the estimate, per multiprocessor; orders of magnitude, none is measured yet.
L1_BYTES_PER_CYCLE = 64  # and a pixel of a panel per cycle, since pixels are in lines of their own
LOAD_INSTRUCTIONS = 8  # of a load: address, bounds, zeros
ROW_CYCLES = 500  # latency of the loads of a filter row, which nothing hides at its worst


def narrow_rule(view: Problem) -> str:
    """The reason why a problem has too many channels for the CUDA cores, or an empty string."""
    c, k = _group(view)
    if not c or not k:
        return "there are no channels or no filters to multiply"
    if c > MOST_C or k > MOST_K:
        return (
            f"a group has {c} channels and {k} filters; the CUDA cores multiply groups of at most "
            f"{MOST_C} and {MOST_K}"
        )
    return ""


def direct_rule(view: Problem, v: Variant) -> str:
    """The reason why a kernel cannot compute a problem, or an empty string."""
    strip = v.strip
    assert strip
    c, k = _group(view)
    reason = narrow_rule(view)
    if reason:
        return reason
    if (strip.group_c, strip.group_k) != (c, k):
        return f"it is compiled for groups of {strip.group_c} channels and {strip.group_k} filters"
    compiled = strip.columns, strip.stride, strip.dilation
    if strip.columns > 1 and compiled != (view.kernel[1], view.stride[1], view.dilation[1]):
        return "it is compiled for {} filter columns of stride {} and dilation {}".format(*compiled)
    return _vectors_rule(view, v, strip) if v.producer == "vectors" else ""


def _vectors_rule(view: Problem, v: Variant, strip: Strip) -> str:
    if view.layout != "NHWC":
        return f"vectors of channels need a channels-last x (NHWC), not {view.layout}"
    row, k = view.K * view.itemsize, strip.group_k
    if row % VECTOR_BYTES:
        return f"a pixel of y has {row} bytes of filters, which is no multiple of {VECTOR_BYTES}"
    if k % v.filters and v.filters % k:
        return f"{v.filters} filters of a thread are no whole groups of {k} filters"
    size = strip.channels(v.filters) * v.itemsize
    if size not in (2, 4, 8) and size % VECTOR_BYTES:
        return (
            f"the {v.filters} filters of a thread read {size} bytes of channels, which is no vector"
        )
    return ""


def load_bytes(v: Variant) -> int:
    """Bytes of a load of x, which its addresses and strides are multiples of."""
    return v.load_elements * v.itemsize


class Tiles(NamedTuple):
    """Numbers of a launch: panels of filters, tiles of a panel, and strips of an output row."""

    panels: int
    tiles_m: int
    strips: int


def direct_tiles(g: Geometry, v: Variant) -> Tiles:
    """How a problem is divided into tiles."""
    assert v.strip
    strips = int(ceil_div(g.Q, v.strip.pixels))
    tiles_m = int(ceil_div(g.N * g.P * strips * v.strip.pixels, v.tile_m))
    return Tiles(int(ceil_div(g.groups * g.K, v.tile_n)), tiles_m, strips)


def filter_bytes(g: Geometry, v: Variant) -> int:
    """Shared memory of a panel: float32 taps, and rows of biases and scales."""
    return (g.R * g.S * g.C + 2) * v.tile_n * 4


def direct_variants(view: Problem) -> Iterator[Variant]:
    """The kernels to consider: those that load vectors, else one of these and those that do not.

    Where a group has too many channels there is a single one.
    """
    c, k = _group(view)
    if narrow_rule(view):
        strip = Strip(1, 1, 1, 1, max(1, c), max(1, k))
        yield direct_variant("elements", view.dtype, strip, 1, 4)
        return
    itemsize = ITEMSIZES[view.dtype]
    strip = fitting_strip(view, VECTOR_BYTES // itemsize)
    for warps in WARPS:
        for size in PANEL_BYTES:
            v = direct_variant("vectors", view.dtype, strip, size // itemsize, warps)
            yield v
            if _vectors_rule(view, v, strip):  # of every other tile, too
                yield from (direct_elements(view, view.layout == "NHWC", w) for w in WARPS)
                return


def direct_elements(view: Problem, channels_last: bool, warps: int = WARPS[0]) -> Variant:
    """The kernel for any layout: lanes are neighbouring filters, or pixels of a channel's plane."""
    strip = fitting_strip(view, 1, pixels=(4, 2, 1) if channels_last else (1,))
    tile_n = PANEL_BYTES[0] // ITEMSIZES[view.dtype] if channels_last else 1
    return direct_variant("elements", view.dtype, strip, tile_n, warps)


def fitting_strip(view: Problem, filters: int, pixels: tuple[int, ...] = (4, 2, 1)) -> Strip:
    """The longest strip of `filters` filters that fits registers and shares pixels among columns.

    Where none does, each column loads pixels of its own.
    """
    columns, (c, k) = view.kernel[1], _group(view)
    if 1 < columns <= MOST_COLUMNS:
        for count in pixels:
            strip = Strip(count, columns, view.stride[1], view.dilation[1], c, k)
            if values(strip, filters) <= MOST_VALUES:
                return strip
    apart = (Strip(count, 1, 1, 1, c, k) for count in pixels)
    return next((s for s in apart if values(s, filters) <= MOST_VALUES), Strip(1, 1, 1, 1, c, k))


def values(strip: Strip, filters: int) -> int:
    """float32 values that a thread of `filters` filters holds at the same time."""
    pixels = len(strip.positions) * strip.channels(filters)
    return strip.pixels * filters + pixels + filters


def direct_variant(producer: str, dtype: str, strip: Strip, tile_n: int, warps: int) -> Variant:
    """The kernel of a strip with panels of `tile_n` filters; its tile follows."""
    filters = VECTOR_BYTES // ITEMSIZES[dtype] if producer == "vectors" else 1
    return Variant(
        mode="im2col",
        producer=producer,
        consumer="direct",
        dtype=dtype,
        tile_m=WARP * warps * filters // tile_n * strip.pixels,
        tile_n=tile_n,
        warps_m=warps,
        warps_n=1,
        packed=producer == "vectors",
        strip=strip,
    )


def with_epilogue_of(v: Variant, other: Variant) -> Variant:
    """A direct kernel with bias, residual and activation of another kernel."""
    return replace(
        v,
        plain=other.plain,
        biased=other.biased,
        scaled=other.scaled,
        residual=other.residual,
        activation=other.activation,
    )


def tile_cycles(g: Geometry, v: Variant, fma_flops: int) -> tuple[float, float]:
    """(cycles of multiplying, cycles of loading) a tile.

    A tile multiplies for as long as it takes to issue its instructions: fma, conversions and loads.
    """
    strip = v.strip
    assert strip
    steps = g.R * (g.S // strip.columns)
    read = v.tile_m // strip.pixels * steps * len(strip.positions)  # pixels of the panel
    loaded = read * (v.tile_n // v.filters) * strip.channels(v.filters)
    products = v.tile_m * v.tile_n * g.R * g.S * g.C
    converted = loaded if v.itemsize == 2 else 0
    issued = products + converted + LOAD_INSTRUCTIONS * loaded / v.load_elements
    moved = max(loaded * v.itemsize / L1_BYTES_PER_CYCLE, read)
    return issued / (fma_flops / 2) + g.R * ROW_CYCLES, moved


def _group(view: Problem) -> tuple[int, int]:
    return view.C // view.groups, view.K // view.groups
