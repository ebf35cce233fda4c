"""Sizes of depthwise convolution, and how rows of its outputs are cut into register tiles.

Groups of a few channels, which share vectors, have them too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from implicit_conv.kernels import schedule
from implicit_conv.kernels.cpu.runtime.layout import Layout, ScratchLayout, buffer_bytes
from implicit_conv.kernels.cpu.tile.storage import Stored
from implicit_conv.kernels.geometry import CIRCULAR, ZEROS, Geometry

DEPTHWISE_PACK_BYTES = 64 << 10  # bytes of filters that a thread packs in about 3 us (EPYC 9005)

# Bytes of x and y together from which on x in place is prefetched: before, prefetched lines only
# push others out of L1 (EPYC 9004, 2026-11: 10 to 20 % of layers with stride 2).
FAR_BYTES = 8 << 20

# Vectors of a block of channels from which one more vector, so that all but two are aligned in x,
# is faster than loads of which each crosses a line (EPYC 9004, 2026-11).
ALIGNED_VECTORS = 5


@dataclass(frozen=True)
class DepthwiseLayout(Layout):
    """Sizes with the channels of all groups as those of one group in `g`.

    A panel is the filters of a block of channels, and has whole vectors.
    """

    group: tuple[int, int] = (1, 1)  # (channels, filters) of a true group
    by_columns: bool = False  # whether taps are added one by one, column by column
    rows: int = 1  # output rows of a register tile; see `Rows`

    @property
    def packs_in_loop(self) -> bool:
        """Whether each thread packs the whole filter, which is then faster than another launch."""
        return self.packed_bytes <= DEPTHWISE_PACK_BYTES

    @property
    def group_bytes(self) -> int:
        """Bytes of the packed filters of one block of channels."""
        return self.group[0] * int(schedule.taps(self.g)) * self.g.tile_k * self.itemsize

    @property
    def packed_bytes(self) -> int:
        """Bytes of the packed filters of all blocks of channels."""
        return self.group_bytes * int(schedule.block_count(self.g))

    def scratch(self, packs: bool) -> ScratchLayout:
        """Buffers have one more vector: with fewer channels than lanes, loads run over the end."""
        g, itemsize = self.g, self.itemsize
        buffer = buffer_bytes(g, itemsize) + self.lanes * itemsize
        image_rows = g.T * self.together.span if self.together else 0
        more = max(schedule.taps(g) * self._edges, image_rows)
        return ScratchLayout(
            buffer=0 if self.in_place else buffer,
            staging=g.tile_n * g.tile_p * g.tile_q * g.tile_k * itemsize,
            runs=16 * (schedule.filter_rows(g) + schedule.taps(g) + more),
            panel=self.packed_bytes if packs else 0,
        )

    @property
    def together(self) -> Rows | None:
        """The output rows of a register tile, if there are several."""
        g = self.g
        return Rows(self.rows, g.stride_h, g.R, g.T) if self.rows > 1 else None

    @property
    def _edges(self) -> int:
        """Output columns of a tile, at most, that may need a tap table of their own: those read in
        place whose windows meet padding that repeats pixels.
        """
        g = self.g
        return min(g.tile_q, schedule.edge_columns(g)) if self.in_place else 0


class Row(NamedTuple):
    """A filter row whose taps share what they read; windows may reach into the padding."""

    taps: int
    stride: int
    before: int = 0  # padding pixels at the beginning of the span of all windows
    after: int = 0  # padding pixels at its end
    sources: tuple[Source, ...] = ()  # what these pixels repeat, in order; empty if they are zeros


class Rows(NamedTuple):
    """The output rows of a register tile, which share the image rows that they read.

    The tap table has an entry for each image row, plane by plane: (byte offset from `a`, 0 where it
    is padding of zeros). The weights of all rows of a filter plane are kept in registers.
    """

    tile: int
    step: int  # image rows from an output row to the next one
    taps: int  # filter rows
    planes: int  # filter planes

    @property
    def span(self) -> int:
        """Image rows that a tile reads in a plane."""
        return (self.tile - 1) * self.step + self.taps


class Variant(NamedTuple):
    """What a microkernel is compiled for."""

    pixels: int  # of each output row
    row: Row | None  # None: the tap table lists every tap
    group: tuple[int, int]  # channels and filters of a group
    read_as: Stored  # formats of what is read, of sums and of y, as keys of storage.SIZES
    sum_type: str
    y_type: Stored
    chain: int  # entries of the tap table whose products one chain adds up; 0: all of them
    rows: Rows | None = None  # None: one output row

    @property
    def outputs(self) -> int:
        """Output pixels of a register tile."""
        return self.pixels * (self.rows.tile if self.rows else 1)

    @property
    def reads(self) -> int:
        """Pixels from the first one that a tile reads to the first one of the next tile."""
        return self.pixels * (self.row.stride if self.row else 1)


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
