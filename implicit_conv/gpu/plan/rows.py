"""Kernels by rows: which problems they compute, their tiles, and their estimate.

They are for layers of at most four channels, the first of most networks. A tile is some output rows
of 16 pixels a warp, and a panel of filters (kernels/gpu/rows.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from implicit_conv.kernels.geometry import Geometry
from implicit_conv.kernels.gpu.sizes import CHUNK_COLUMNS
from implicit_conv.kernels.gpu.variant import STAGED_CHANNELS, STAGED_TOGETHER, Rows, Variant
from implicit_conv.kernels.schedule import ceil_div
from implicit_conv.problem.problem import Problem

MOST_STEPS = 4  # of a filter row: 16 columns
MOST_FILTER_ROWS = 16  # their steps are unrolled
WARPS = (8, 7, 6, 5, 4, 2, 1)  # of a block
PANELS = (32, 64, 96)  # filters of a tile
TILE_ROWS = (4, 2, 1)  # output rows of a tile
MOST_SUMS = 64  # accumulators of a thread; it has 128 registers in two blocks of 7 or 8 warps

# Constants of the estimate: instructions of a warp, counted in the SASS of a 7x7/2 layer.
ROW_INSTRUCTIONS = 40  # of a filter row, beside products and loads
WINDOW_INSTRUCTIONS = 4  # of a filter row and an output row
STAGE_INSTRUCTIONS = 120  # of each round in which all lanes stage a group of pixels
ELEMENTS_TIMES = 3  # so many times as many, element by element
TILE_INSTRUCTIONS = 60
CHUNK_INSTRUCTIONS = 50  # to store 16 x 32 results
ELEMENT_STORES = 250  # the same, element by element
ISSUED = {1: 1.2, 2: 1.8}  # instructions of a cycle, by blocks of a multiprocessor, on an H200


def few_channels_rule(view: Problem) -> str:
    """The reason why rows cannot be staged with four channels a pixel, or an empty string."""
    if view.groups > 1 or not 0 < view.C <= STAGED_CHANNELS:
        return (
            f"a pixel has {view.C} channels in {view.groups} groups; rows are staged with at most "
            f"{STAGED_CHANNELS} channels in one group"
        )
    if view.dtype == "float32":
        return "mma.sync multiplies 16-bit elements; float32 is summed by fma"
    if view.dilation != (1, 1):
        return f"windows of a dilation of {view.dilation} are no runs of a row"
    R, S = view.kernel
    if R > MOST_FILTER_ROWS or S > MOST_STEPS * 4 or not R * S:
        return f"a filter has {R} x {S} taps; steps are unrolled for 1 to {MOST_FILTER_ROWS} x 16"
    return ""


def rows_rule(view: Problem, v: Variant) -> str:
    """The reason why a kernel cannot compute a problem, or an empty string."""
    band = v.band
    assert band
    reason = few_channels_rule(view)
    if reason:
        return reason
    if (band.channels, band.kernel, band.stride) != (view.C, view.kernel, view.stride):
        return (
            f"it is compiled for {band.kernel} filters of stride {band.stride} on {band.channels}"
        )
    if v.producer != "elements" and view.size[1] % STAGED_TOGETHER:
        return f"a row of {view.size[1]} pixels is no multiple of {STAGED_TOGETHER}"
    return ""


class RowTiles(NamedTuple):
    """Numbers of a launch: tiles down an image, across it, and in all images."""

    down: int
    across: int
    all: int


def row_tiles(g: Geometry, v: Variant) -> RowTiles:
    """How the output pixels are divided into tiles."""
    assert v.band
    down, across = int(ceil_div(g.P, v.band.rows)), int(ceil_div(g.Q, v.row_columns))
    return RowTiles(down, across, g.N * down * across)


def row_bytes(v: Variant) -> tuple[int, int]:
    """Shared memory of (the rows of x, the filters of a panel)."""
    assert v.band
    rows = v.band.held * v.band.copies * v.band.pitch(v.row_columns)
    return rows, v.band.kernel[0] * v.tile_n * v.row_bytes


def rows_variants(view: Problem) -> Iterator[Variant]:
    """The kernels to consider: none where rows cannot be staged."""
    if few_channels_rule(view):
        return
    outputs = view.output_shape[2 if view.layout == "NHWC" else 3]
    whole = view.size[1] % STAGED_TOGETHER == 0
    producer = "vectors" if whole and view.layout == "NHWC" else "planes" if whole else "elements"
    copies = 1 + view.stride[1] % 2
    counts = [w for w in WARPS if w % copies == 0]
    least = min(-(-outputs // (16 * warps)) * warps for warps in counts)
    warps = next(w for w in counts if -(-outputs // (16 * w)) * w == least)
    panel = next((n for n in PANELS if n >= view.K), 64)
    kernel, stride = (view.kernel[0], view.kernel[1]), (view.stride[0], view.stride[1])
    for rows in TILE_ROWS:
        if rows * panel // 2 <= MOST_SUMS:
            band = Rows(rows, view.C, kernel, stride)
            for resident in (2, 1):  # the second where shared memory is small
                yield rows_variant(producer, view.dtype, band, warps, panel, resident)


def rows_variant(
    producer: str, dtype: str, band: Rows, warps: int, panel: int, resident: int = 2
) -> Variant:
    """The kernel of a tile of the band's output rows, 16 * `warps` columns and `panel` filters."""
    return Variant(
        mode="im2col",
        producer=producer,
        consumer="rows",
        dtype=dtype,
        tile_m=band.rows * 16 * warps,
        tile_n=panel,
        row_bytes=64 if band.steps <= 2 else 128,
        warps_m=warps,
        warps_n=1,
        band=band,
        resident=resident,
    )


def rows_cycles(v: Variant) -> float:
    """Cycles of a multiprocessor for a tile, which it takes to issue the tile's instructions."""
    band, tiles_n = v.band, v.tiles_n
    assert band
    (R, _), steps, rows = band.kernel, band.steps, band.rows
    products = steps * (rows * tiles_n + rows + tiles_n // 2)
    summed = R * (products + ROW_INSTRUCTIONS + WINDOW_INSTRUCTIONS * rows)
    rounds = -(-band.fresh * band.groups(v.row_columns) // v.threads)
    staged = rounds * STAGE_INSTRUCTIONS * (ELEMENTS_TIMES if v.producer == "elements" else 1)
    chunk = CHUNK_INSTRUCTIONS if v.packed else ELEMENT_STORES
    stored = rows * v.tile_n // CHUNK_COLUMNS * chunk
    return v.warps_m * (summed + staged + stored + TILE_INSTRUCTIONS) / ISSUED[v.resident]
