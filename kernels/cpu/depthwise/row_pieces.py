"""How the rows of depthwise outputs are cut into register tiles, padding included."""

from __future__ import annotations

from typing import NamedTuple

from implicit_conv.kernels import schedule
from implicit_conv.kernels.geometry import CIRCULAR, ZEROS, Geometry

ROW_TAPS = 128  # taps of a filter row, times channels, that a kernel unrolls at most
ROW_SHAPES = 32  # shapes of register tiles of rows at most: each is a kernel to compile


class Source(NamedTuple):
    """What a pixel of padding repeats: the pixel number `pixel` of the span of all windows, but
    `turns` image rows further on.
    """

    pixel: int
    turns: int


class Shape(NamedTuple):
    """What a kernel is compiled for.

    Of the pixels that the windows of `pixels` outputs span, the first `before` and the last `after`
    are padding. `sources` says what these repeat, in order; it is empty if they are zeros.
    """

    pixels: int
    before: int
    after: int
    sources: tuple[Source, ...] = ()


class Piece(NamedTuple):
    """Consecutive register tiles of an output row whose windows meet x in the same way."""

    column: int
    tiles: int
    shape: Shape


def row_pieces(g: Geometry) -> list[list[Piece]]:
    """The pieces of an output row, load tile by load tile."""
    return [_pieces(g, t) for t in range(schedule.ceil_div(g.Q, g.tile_q))]


def _pieces(g: Geometry, t: int) -> list[Piece]:
    """The pieces of load tile `t` of an output row."""
    pieces: list[Piece] = []
    column = t * g.tile_q
    columns = min(g.tile_q, g.Q - column)
    for pixels, count in schedule.cuts(columns, g.tile_m):
        span = (pixels - 1) * g.stride_w + g.S
        for _ in range(count):
            first = column * g.stride_w - g.pad_w
            before, after = (min(span, max(0, n)) for n in (-first, first + span - g.W))
            padding = [*range(before), *range(span - after, span)]
            piece = Piece(column, 1, Shape(pixels, before, after, _sources(g, first, padding)))
            if pieces and pieces[-1].shape == piece.shape == Shape(pixels, 0, 0):
                pieces[-1] = pieces[-1]._replace(tiles=pieces[-1].tiles + 1)
            else:
                pieces.append(piece)
            column += pixels
    return pieces


def _sources(g: Geometry, first: int, padding: list[int]) -> tuple[Source, ...]:
    """What the pixels `padding` of a span repeat, where the span begins at column `first`."""
    if g.padding_mode == ZEROS:
        return ()
    moves = [schedule.source_column(g, first + i, g.Q) - (first + i) for i in padding]
    if g.padding_mode == CIRCULAR:
        turn = schedule.columns_in_turn(g)
        return tuple(Source(i, move // turn) for i, move in zip(padding, moves, strict=True))
    return tuple(Source(i + move, 0) for i, move in zip(padding, moves, strict=True))


def row_shapes(g: Geometry) -> list[Shape]:
    """The shapes of all pieces.

    Load tiles away from the image's first and last pixel have the shapes of their neighbours, so
    the time does not depend on the length of a row.
    """
    last = schedule.ceil_div(g.Q, g.tile_q) - 1
    span = (g.tile_m - 1) * g.stride_w + g.S
    found = {0, last}
    for edge in (g.pad_w, g.pad_w + g.W):
        first, end = ((w // g.stride_w) // g.tile_q for w in (edge - span, edge))
        found.update(range(max(0, first - 1), min(last, end + 1) + 1))
    return sorted({piece.shape for t in found for piece in _pieces(g, t)})


def depthwise_row(g: Geometry, in_place: bool, group_channels: int = 1) -> tuple[int, int] | None:
    """(taps, stride) of kernels that take a filter row at once; None where its taps are not
    consecutive pixels, or too many.
    """
    stride = g.stride_w if in_place else schedule.column_step(g)
    consecutive = g.dilation_w == 1 and (in_place or g.phases_w == 1)
    unrolled = 2 <= g.S and g.S * group_channels <= ROW_TAPS
    if not consecutive or stride > 2 or not unrolled:
        return None
    if in_place and (_repeats_far(g) or len(row_shapes(g)) > ROW_SHAPES):
        return None
    return g.S, int(stride)


def _repeats_far(g: Geometry) -> bool:
    """Whether padding repeats pixels, and a window may lie in it as a whole: then each of the first
    register tiles would be a shape of its own.
    """
    last = (g.Q - 1) * g.stride_w + g.S - 1 - g.pad_w
    return g.padding_mode != ZEROS and max(g.pad_w, last - g.W + 1) >= g.S
