"""Where a tile and its rows are: the order of the grid, and the schedule's formulas of a pixel.

The formulas are those of schedule.py, with divisions by multiplication. As a plain division of
64-bit integers each would be a call of a subroutine.
"""

from __future__ import annotations

from typing import Any

from implicit_conv.kernels.geometry import Geometry
from implicit_conv.kernels.gpu.call import Call, Ints, Params
from implicit_conv.kernels.gpu.integer import divide, quotient
from implicit_conv.kernels.gpu.ptx import device
from implicit_conv.kernels.gpu.variant import Variant


@device
def tile_at(call: Call, index: int) -> tuple[int, int, int]:
    """(group, gemm_m tile, gemm_n tile) of the index-th tile.

    gemm_n varies fastest, so blocks that run at the same time share activations, which are the
    larger operand, and all filters stay in L2.
    """
    group = divide(index, call.by_group)
    rest = index - group * (call.tiles_m * call.tiles_n)
    tile_m = divide(rest, call.by_panel)
    return group, tile_m, rest - tile_m * call.tiles_n


def make_pixel(v: Variant) -> Any:
    """pixel(params, tile, row): (n, p, q, kept) of a row of a gemm_m tile.

    With im2col::w, q is the slot. Rows past the last pixel and slots past Q are not kept. Of a
    volume, p counts the rows of all planes.
    """
    tile_rows = v.tile_m
    rows = device(lambda g: g.Z * g.P) if v.volume else device(lambda g: g.P)

    @device
    def pixel(params: Params, tile: int, row: int) -> tuple[int, int, int, bool]:
        g, call = params.geometry, params.call
        m = tile * tile_rows + row
        n = divide(m, call.by_image)
        m -= n * (rows(g) * g.Q)
        p = divide(m, call.by_row)
        return n, p, m - p * g.Q, n < g.N

    @device
    def slot(params: Params, tile: int, row: int) -> tuple[int, int, int, bool]:
        g, call = params.geometry, params.call
        p = divide(tile, call.by_row)
        m = (tile - p * call.row_tiles) * tile_rows + row
        n = divide(m, call.by_image)
        q = m - n * g.slots
        return n, p, q, (n < g.N) & (q < g.Q)

    return slot if v.wide else pixel


def make_plane(v: Variant) -> Any:
    """plane(g, p): (the first plane of x that an output row reads, the row in its own plane)."""

    @device
    def plane(g: Geometry, p: int) -> tuple[int, int]:
        z = quotient(p, g.P)
        return z * g.stride_d - g.pad_d, p - z * g.P

    return plane if v.volume else device(lambda g, p: (0, p))


def make_filter_rows(v: Variant) -> Any:
    """(rows(g), plane(g, r)): how many rows a filter has, and of a row its (plane, row in it)."""

    @device
    def plane(g: Geometry, r: int) -> tuple[int, int]:
        t = quotient(r, g.R)
        return t, r - t * g.R

    if v.volume:
        return device(lambda g: g.T * g.R), plane
    return device(lambda g: g.R), device(lambda g, r: (0, r))


def make_load_rows(v: Variant) -> Any:
    """load_rows(params, p): (first, end) of the filter rows that a tile loads."""
    rows, _ = make_filter_rows(v)

    @device
    def all_rows(params: Params, p: int) -> tuple[int, int]:
        return 0, rows(params.geometry)

    @device
    def rows_inside(params: Params, p: int) -> tuple[int, int]:
        """Those inside the image for the tile's only output row."""
        g, call = params.geometry, params.call
        top, round_up = p * g.stride_h - g.pad_h, g.dilation_h - 1
        first = min(g.R, divide(max(0, -top) + round_up, call.by_dilation))
        end = min(g.R, divide(max(0, g.H - top) + round_up, call.by_dilation))
        return first, max(first, end)

    return rows_inside if v.wide else all_rows


def make_locate_row(v: Variant) -> Any:
    """locate_row(params, tile, row): the addresses of its pixel of y and residual, and `kept`.

    For a kernel by rows, `tile` is (image, output row, first column) of a warp's pixels.
    """
    pixel, tile_rows = make_pixel(v), v.tile_m
    step = v.band.copies if v.band else 1

    @device
    def locate_column(params: Params, tile: Ints, row: int) -> tuple[int, int, bool]:
        g, call, (n, p, q) = params.geometry, params.call, tile
        q += row * step
        y = call.y + n * call.y_n + p * call.y_p + q * call.y_q
        residual = call.residual + n * call.residual_n + p * call.residual_p + q * call.residual_q
        return y, residual, (p < g.P) & (q < g.Q)

    @device
    def locate_pixel(params: Params, tile: int, row: int) -> tuple[int, int, bool]:
        call = params.call
        n, p, q, kept = pixel(params, tile, row)
        y = call.y + n * call.y_n + p * call.y_p + q * call.y_q
        residual = call.residual + n * call.residual_n + p * call.residual_p + q * call.residual_q
        return y, residual, kept

    @device
    def locate_row(params: Params, tile: int, row: int) -> tuple[int, int, bool]:
        call = params.call
        m = tile * tile_rows + row
        return call.y + m * call.y_q, call.residual + m * call.residual_q, m < call.rows

    if v.band:
        return locate_column
    return locate_row if v.linear else locate_pixel
