"""Tilings for fprop whose vector lanes are channels, and what each would cost."""

from __future__ import annotations

from implicit_conv.arch import CpuArch
from implicit_conv.kernels import schedule as integers
from implicit_conv.kernels.cpu.sizes import register_filters
from implicit_conv.kernels.geometry import Geometry
from implicit_conv.problem import Problem
from implicit_conv.schedule import geometry
from implicit_conv.tiling import (
    BUFFER_SHARE,
    FAR_SHARE,
    FMA_LATENCY,
    FMAS_PER_CYCLE,
    ITEM_CYCLES,
    Estimate,
    balanced,
    divide,
    stream_cycles,
    thread_count,
)

PANEL_FILTERS = 64  # whose sums leave a staging tile together
LOAD_CYCLES = 0.9  # of a row's vector: rows a power of two apart share few sets of a cache
L2_BYTES_PER_CYCLE = 43  # likewise, more, where it comes from L2
WIDENED_LOADS = 2  # loads that take as long as one that widens 16-bit floats
PIXEL_CYCLES = 3  # of a pixel of a register tile: its share in adding up lanes, and its store
TILE_CYCLES = 4  # of a register tile, beside its pixels and products


def channel_lanes_candidates(view: Problem, arch: CpuArch) -> list[Geometry]:
    """Tilings of the row of pixels that `view` is, by the pixels of a register tile.

    Of an item's pixels, which are read again for each few filters, half of L2 holds all channels.
    """
    lanes = arch.lanes(view.itemsize)
    near = int(arch.l2_bytes * BUFFER_SHARE) // (view.C * view.itemsize)
    found = []
    pixels = 1
    while pixels <= min(lanes, view.output[1]):
        filters = lanes // pixels
        panel = integers.ceil_div(balanced(view.K, PANEL_FILTERS), filters) * filters
        for share in (1, 2, 4, 8):
            columns = balanced(view.output[1], max(pixels, near // share))
            found.append(
                geometry(view, tile=(1, 1, columns), tile_m=pixels, tile_c=view.C, tile_k=panel)
            )
        pixels *= 2
    return sorted(set(found))


def channel_lanes_estimate(view: Problem, arch: CpuArch, g: Geometry) -> Estimate:
    """Cycles of one core: an FMA a pixel, filter and vector of channels, then sums of lanes."""
    lanes = arch.lanes(view.itemsize)
    pixels, filters = g.tile_m, register_filters(g, lanes)
    loads = (pixels + filters) * LOAD_CYCLES * (WIDENED_LOADS if view.converted else 1)
    element = max(pixels * filters / FMAS_PER_CYCLE, loads, FMA_LATENCY)
    if g.tile_q * g.C * view.itemsize > arch.l1_bytes / 2:
        element += pixels * lanes * view.itemsize / L2_BYTES_PER_CYCLE
    tile = integers.ceil_div(g.C, lanes) * element + pixels * PIXEL_CYCLES + TILE_CYCLES
    tiles = integers.ceil_div(g.tile_q, pixels) * integers.ceil_div(g.K, filters)
    filter_bytes = g.K * g.C * (2 if view.converted else view.itemsize)
    far = 0.0 if filter_bytes <= arch.l2_bytes else stream_cycles(filter_bytes)
    stream = max(tiles * tile, far) + FAR_SHARE * min(tiles * tile, far)
    chosen, chunk = divide(g, thread_count(view, arch), view.itemsize, stream, ITEM_CYCLES)
    return Estimate(integers.tile_count(g) * chosen, chunk)
