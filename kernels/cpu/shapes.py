"""Shapes of the register tiles and panels that a Geometry is cut into; each needs a microkernel."""

import itertools
from typing import NamedTuple

from implicit_conv.kernels import schedule

ROW_TAPS = 128  # of a filter row, times channels, that depthwise kernels unroll, at most
ROW_SHAPES = 32  # of register tiles of depthwise rows, at most


def register_tiles(g):
    """All (groups, inner) shapes of register tiles that the tiles of `g` are cut into."""
    shapes = set()
    for n, p, q in tile_extents(g):
        _, group, inner = schedule.by_role(g, n, p, q)
        for width in _segment_widths(g) if schedule.skips_columns(g) else {inner}:
            shapes |= _stacked(g, group, width)
    return sorted(shapes)


def _stacked(g, group, inner):
    """Shapes that `group` rows of `inner` pixels are cut into."""
    heights = _heights(g, inner)
    band = schedule.rows_together(min(heights), g.tile_m)
    steps = {height: schedule.rows_together(height, g.tile_m) for height in heights}
    return {
        (count, height)
        for height, step in steps.items()
        for rows in {min(band, group), group % band}
        for count in {min(step, rows), rows % step} - {0}
    }


def _segment_widths(g):
    """Columns of the segments that rows of load tiles are cut into."""
    widths, column = set(), 0
    while column < g.Q:
        end = min(g.Q, (column // g.tile_q + 1) * g.tile_q)
        stop, _, _ = schedule.column_segment(g, column, end)
        widths.add(stop - column)
        column = stop
    return widths


def box_tiles(g, m):
    """Likewise for Winograd, whose register tiles span the boxes of a load tile."""
    extents = tile_extents(g)
    return sorted({(1, h) for n, p, q in extents for h in _heights(g, n * p * q // m**2)})


def _heights(g, pixels):
    """Heights of the register tiles that `pixels` are cut into."""
    return {height for height, count in schedule.cuts(pixels, g.tile_m) if count}


class Piece(NamedTuple):
    """Register tiles of an output row, one behind the other, whose windows lie alike in x: of the
    pixels that such a window spans, the first `before` and the last `after` are padding.
    """

    column: int
    pixels: int
    tiles: int
    before: int
    after: int

    @property
    def shape(self):
        """What a kernel is made for."""
        return self.pixels, self.before, self.after


def row_pieces(g):
    """The pieces of an output row of depthwise, load tile by load tile, as lists."""
    return [_pieces(g, q, min(g.tile_q, g.Q - q)) for q in range(0, g.Q, g.tile_q)]


def _pieces(g, column, columns):
    pieces = []
    for pixels, count in schedule.cuts(columns, g.tile_m):
        span = (pixels - 1) * g.stride_w + g.S
        for _ in range(count):
            first = column * g.stride_w - g.pad_w
            before, after = (min(span, max(0, n)) for n in (-first, first + span - g.W))
            piece = Piece(column, pixels, 1, before, after)
            if pieces and pieces[-1].shape == piece.shape == (pixels, 0, 0):
                pieces[-1] = pieces[-1]._replace(tiles=pieces[-1].tiles + 1)
            else:
                pieces.append(piece)
            column += pixels
    return pieces


def row_shapes(g):
    """The shapes of all pieces."""
    return sorted({piece.shape for pieces in row_pieces(g) for piece in pieces})


def depthwise_row(g, in_place, group_channels=1):
    """(taps, stride) of depthwise kernels that take a filter row at once; None where taps lie
    apart.
    """
    stride = g.stride_w if in_place else schedule.column_step(g)
    together = g.dilation_w == 1 and (in_place or g.phases_w == 1)
    unrolled = 2 <= g.S and g.S * group_channels <= ROW_TAPS
    if not together or stride > 2 or not unrolled or (in_place and len(row_shapes(g)) > ROW_SHAPES):
        return None
    return g.S, stride


def tile_extents(g):
    """All (images, rows, columns) that tiles of `g` have: whole ones and the last."""
    axes = ((g.N, g.tile_n), (g.P, g.tile_p), (g.Q, g.tile_q))
    return list(itertools.product(*({min(size, t), size % t} - {0} for size, t in axes)))


def panel_widths(g, lanes):
    """Vectors of the panels of `g`: 2 for a whole one, 1 for a last one that one holds."""
    rest = g.K % g.tile_k
    widths = {g.tile_k // lanes} if g.K >= g.tile_k else set()
    return sorted(widths | ({schedule.ceil_div(rest, lanes)} if rest else set()))
