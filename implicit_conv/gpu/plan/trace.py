"""The planned loads of a GPU kernel, in the order in which the producer of a tile issues them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

from implicit_conv.gpu.plan.candidate import Choice
from implicit_conv.gpu.plan.direct import direct_tiles
from implicit_conv.gpu.plan.layout import buffer_rows, buffers
from implicit_conv.gpu.plan.rows import row_tiles
from implicit_conv.kernels import schedule
from implicit_conv.kernels.gpu.variant import STAGED_BYTES, STAGED_TOGETHER, Rows, Strip
from implicit_conv.problem.schedule import KBlock, Load, Tap, check_load_count


def trace(choice: Choice) -> list[Load]:
    """All loads of a launch, tile by tile; coordinates are of the arrays of the choice's view."""
    g, v, tiles = choice.geometry, choice.variant, math.prod(choice.tiles)
    taps = v.strip.columns if v.strip else int(schedule.load_taps(g, v.wide))
    blocks = tiles * int(schedule.taps(g)) // taps * schedule.block_count(g)
    check_load_count(tiles * 2 if v.band else blocks * (buffers(v, g) + taps))
    planned = (block for tile in range(tiles) for block in k_blocks(choice, tile))
    return [load for block in planned for load in block.loads]


def k_blocks(choice: Choice, tile: int) -> Iterator[KBlock]:
    """The k-blocks of one tile: an activation load and the filter taps that multiply it."""
    g, v = choice.geometry, choice.variant
    if v.strip:
        yield from _direct_blocks(choice, tile, v.strip)
        return
    if v.band:
        yield _rows_block(choice, tile, v.band)
        return
    _, tiles_m, tiles_n = choice.tiles
    group, m, panel = tile // (tiles_m * tiles_n), tile // tiles_n % tiles_m, tile % tiles_n
    n, p, q = schedule.gemm_m_pixel(g, v.wide, m, 0)
    z, p = divmod(p, g.P)
    planes, rows = range(g.T), range(*schedule.load_rows(g, v.wide, p))
    columns = range(0, g.S, schedule.load_taps(g, v.wide))
    for t, r, first, c in itertools.product(planes, rows, columns, range(0, g.C, g.tile_c)):
        taps = range(first, first + schedule.load_taps(g, v.wide))
        activations = (
            _activation_load(choice, b, (n, z, p, q), (t, r, first, group * g.C + c))
            for b in range(buffers(v, g))
        )
        k = group * g.K + panel * v.tile_n
        plane = (t,) if v.volume else ()
        filters = (_filter_load(choice, (k, *plane, r, s, c)) for s in taps)
        yield KBlock(
            (*activations, *filters),
            tuple(Tap(r, s, *schedule.tap_view(g, v.wide, s), t) for s in taps),
        )


def _direct_blocks(choice: Choice, tile: int, strip: Strip) -> Iterator[KBlock]:
    """The k-blocks of a tile on the CUDA cores: pixels into registers, and the taps they meet.

    The filters of a panel are loaded once for all of a block's tiles, and are listed in each.
    """
    g, v = choice.geometry, choice.variant
    _, tiles_m, strips_of_row = direct_tiles(g, v)
    strips = v.tile_m // strip.pixels
    panel, first = tile // tiles_m, tile % tiles_m * strips
    n, p = divmod(first // strips_of_row, g.P)
    q = first % strips_of_row * strip.pixels
    h, w = p * g.stride_h - g.pad_h, q * g.stride_w - g.pad_w
    k, columns = panel * v.tile_n, strip.columns
    c = k // strip.group_k * g.C
    pixels = strips * len(strip.positions)
    size = pixels * (v.tile_n // v.filters) * strip.channels(v.filters) * v.itemsize
    for r, s in itertools.product(range(g.R), range(0, g.S, columns)):
        offsets = (r * g.dilation_h, s * g.dilation_w)
        taps = range(s, s + columns)
        filters = v.tile_n * columns * g.C * v.itemsize
        yield KBlock(
            (
                Load("x", "im2col", (n, h, w, c), offsets, 0, 0, -1, pixels, size),
                Load("w", "tile", (k, r, s, 0), None, 0, 0, -1, v.tile_n, filters),
            ),
            tuple(Tap(r, t, -1, (t - s) * strip.dilation) for t in taps),
        )


def _rows_block(choice: Choice, tile: int, band: Rows) -> KBlock:
    """The one k-block of a tile by rows: the rows that the tile above has not staged, and filters.

    The filters of a panel are loaded once for all of a block's tiles, and are listed in each.
    """
    g, v = choice.geometry, choice.variant
    down, across, of_panel = row_tiles(g, v)
    panel, rest = divmod(tile, of_panel)
    strip, row = divmod(rest, down)
    n, column = divmod(strip, across)
    staged = band.fresh if row else band.staged
    h = row * band.rows * g.stride_h - g.pad_h + band.staged - staged
    w = column * v.row_columns * g.stride_w - g.pad_w
    size = staged * band.copies * band.groups(v.row_columns) * STAGED_TOGETHER * STAGED_BYTES
    filters = g.R * v.tile_n * v.row_bytes
    return KBlock(
        (
            Load("x", "im2col", (n, h, w, 0), (0, 0), 0, 0, 0, staged, size),
            Load("w", "tile", (panel * v.tile_n, 0, 0, 0), None, 0, 0, 0, v.tile_n, filters),
        ),
        tuple(Tap(r, s, 0, r) for r in range(g.R) for s in range(g.S)),
    )


def _activation_load(
    choice: Choice, b: int, pixel: tuple[int, int, int, int], step: tuple[int, int, int, int]
) -> Load:
    """The load of phase buffer `b` for pixel (n, z, p, q), filter tap (t, r, s) and channel c."""
    g, v = choice.geometry, choice.variant
    (n, z, p, q), (t, r, s, c) = pixel, step
    h, w, rows = p * g.stride_h - g.pad_h, q * g.stride_w - g.pad_w, buffer_rows(v, g, b)
    w //= choice.view.C if v.folded else 1  # columns of a folded load are elements
    size = rows * v.row_bytes
    if not v.wide:
        plane = (z * g.stride_d - g.pad_d,) if v.volume else ()
        planes = (t * g.dilation_d,) if v.volume else ()
        offsets = (*planes, r * g.dilation_h, s * g.dilation_w)
        return Load("x", "im2col", (n, *plane, h, w, c), offsets, 0, 0, 0, rows, size)
    halo, offset = rows - v.tile_m, int(schedule.column_offset(g, b))
    return Load("x", "w", (n, h + r * g.dilation_h, w, c), None, halo, offset, b, rows, size)


def _filter_load(choice: Choice, coords: tuple[int, ...]) -> Load:
    """The load of the tile's filters at coordinates (k, [t,] r, s, c)."""
    rows = choice.variant.tile_n
    return Load("w", "tile", coords, None, 0, 0, 0, rows, choice.layout.b_load)
