"""How the rows of depthwise outputs are cut into register tiles, padding included."""

from __future__ import annotations

from typing import NamedTuple

from implicit_conv.kernels import schedule
from implicit_conv.kernels.geometry import Geometry

ROW_TAPS = 128  # taps of a filter row, times channels, that a kernel unrolls at most
ROW_SHAPES = 32  # shapes of register tiles of rows at most: each is a kernel to compile


class Piece(NamedTuple):
    """Consecutive register tiles of an output row whose windows meet x in the same way.

    Of the pixels that such a window spans, the first `before` and the last `after` are padding.
    """

    column: int
    pixels: int
    tiles: int
    before: int
    after: int

    @property
    def shape(self) -> tuple[int, int, int]:
        """What a kernel is compiled for."""
        return self.pixels, self.before, self.after


def row_pieces(g: Geometry) -> list[list[Piece]]:
    """The pieces of an output row, load tile by load tile."""
    return [_pieces(g, q, min(g.tile_q, g.Q - q)) for q in range(0, g.Q, g.tile_q)]


def _pieces(g: Geometry, column: int, columns: int) -> list[Piece]:
    pieces: list[Piece] = []
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


def row_shapes(g: Geometry) -> list[tuple[int, int, int]]:
    """The shapes of all pieces."""
    return sorted({piece.shape for pieces in row_pieces(g) for piece in pieces})


def depthwise_row(g: Geometry, in_place: bool, group_channels: int = 1) -> tuple[int, int] | None:
    """(taps, stride) of kernels that take a filter row at once; None where its taps are not
    consecutive pixels, or too many.
    """
    stride = g.stride_w if in_place else schedule.column_step(g)
    consecutive = g.dilation_w == 1 and (in_place or g.phases_w == 1)
    unrolled = 2 <= g.S and g.S * group_channels <= ROW_TAPS
    if not consecutive or stride > 2 or not unrolled:
        return None
    if in_place and len(row_shapes(g)) > ROW_SHAPES:
        return None
    return g.S, int(stride)
