"""Fold products: each element of y is a sum over the windows that reach it.

    y[n, k, d, h, u] = sum over taps (t, r, s) of tile[n, pixel, (k, t, r, s)], where
        pixel * stride + tap - pad = position, along each axis

The tile has the products of a GEMM: for each pixel a row of windows, one of each filter. Sums are
made in a buffer that has parts of rows of y, one whole stride after another: the elements of a
stride are contiguous in each window that reaches them, so that vectors add without a transpose.

One work item is some rows of a plane and a few filters, whose windows share cache lines. Rows that
the same rows of taps reach are summed together:

    for each remainder of rows modulo the stride:
        for each filter:
            for each plane and row of taps:  tile -> buffer
            buffer -> residual, activation, rounding -> y
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from implicit_conv.kernels import schedule
from implicit_conv.kernels.cpu.emit.internals import ir
from implicit_conv.kernels.cpu.emit.vector import BYTES, Builder, Emitter, Value, Values, i64
from implicit_conv.kernels.cpu.runtime.call import Call
from implicit_conv.kernels.cpu.runtime.compiled.entry import Blob, fields
from implicit_conv.kernels.cpu.runtime.compiled.part import declare
from implicit_conv.kernels.cpu.runtime.compiled.source import Source, emitted
from implicit_conv.kernels.cpu.runtime.table import FOLD_EDGE, FOLD_INSIDE
from implicit_conv.kernels.cpu.tile.compiled.epilogue import Rows, finish_rows
from implicit_conv.kernels.cpu.tile.compiled.work import operator
from implicit_conv.kernels.geometry import Geometry, Place

UNROLLED = 4  # vectors of a stride that need no loop, at most

# The address of sums in the buffer, and of the window of the pixel whose first taps reach them; for
# each the byte stride of rows; the byte stride of pixels; the address of the initial sum, which is
# the first addend where sums `start`, else what is in the buffer is. Rows x strides are summed.
PARAMETERS = "to to_row source source_row pixel sums start rows strides"
add_inside = declare(FOLD_INSIDE, "add_inside", PARAMETERS)
# The windows of the pixels first .. end - 1 before that pixel are added alone.
add_edge = declare(FOLD_EDGE, "add_edge", f"{PARAMETERS} first end")


class Windows(NamedTuple):
    """The windows of a row: each pixel has one of `taps` elements, `stride` elements after that of
    the pixel before it.
    """

    taps: int
    stride: int

    @property
    def overlap(self) -> int:
        """The windows that reach an element at most."""
        return int(schedule.ceil_div(self.taps, self.stride))

    @property
    def last(self) -> int:
        """The elements of a stride that the last of these windows reaches."""
        return self.taps - (self.overlap - 1) * self.stride


class Piece(NamedTuple):
    """Elements of a stride that the same windows reach, as vectors."""

    first: int
    width: int  # elements of a vector: a power of two
    vectors: int
    windows: int


def pieces(windows: Windows, lanes: int) -> Iterator[Piece]:
    """The pieces of a stride: the last window may reach a part of it."""
    first = 0
    for end, reaching in (
        (windows.last, windows.overlap),
        (windows.stride, windows.overlap - 1),
    ):
        width = lanes
        while first < end:
            vectors = (end - first) // width
            if vectors:
                yield Piece(first, width, vectors, reaching)
            first += vectors * width
            width //= 2


@dataclass(frozen=True)
class Strides:
    """What emits the sums of strides.

    ``add(e, sums, windows, element)`` adds `windows` vectors to `sums`: ``element(number)`` loads
    from the window of the pixel which is `number` pixels before.
    """

    windows: Windows
    lanes: int
    itemsize: int
    builder: Builder
    at: dict[str, Value]
    add: Callable[[Emitter, Value, int, Callable[[Value], Value]], Value]

    def vectors(self, lanes: int) -> Emitter:
        """What emits vectors of `lanes` elements."""
        return Emitter(self.builder, lanes, self.itemsize, fma=False)

    def emit(self, group: int) -> None:
        """Emit the loops over rows and strides; `group` strides are one vector."""
        builder, at = self.builder, self.at
        to, source = (builder.inttoptr(at[name], BYTES) for name in ("to", "source"))
        rest = builder.and_(at["strides"], i64(group - 1))
        whole = builder.sub(at["strides"], rest)

        def rows(starts: bool) -> None:
            def row(_: object, carried: Values) -> list[Value]:
                if group > 1:
                    e.loop(whole, group, [], lambda m, _: self._group(starts, group, carried, m))
                    done = [
                        e.at(place, builder.mul(whole, step))
                        for place, step in zip(carried, (self._stride, at["pixel"]), strict=True)
                    ]
                    e.loop(rest, 1, [], lambda m, _: self._single(starts, done, m))
                else:
                    e.loop(whole, 1, [], lambda m, _: self._single(starts, carried, m))
                return [
                    e.at(place, at[name])
                    for place, name in zip(carried, ("to_row", "source_row"), strict=True)
                ]

            e.loop(at["rows"], 1, [to, source], row)

        e = self.vectors(self.lanes)
        with builder.if_else(builder.icmp_signed("!=", at["start"], i64(0))) as (first, later):
            with first:
                rows(starts=True)
            with later:
                rows(starts=False)

    @property
    def _stride(self) -> Value:
        return i64(self.windows.stride * self.itemsize)

    def _before(self, e: Emitter, starts: bool, place: Value) -> Value:
        """What windows are added to."""
        return e.broadcast(e.builder.inttoptr(self.at["sums"], BYTES)) if starts else e.load(place)

    def _earlier(self, number: Value) -> Value:
        """Bytes from an element in the window of a pixel to that in the window `number` before."""
        return self.builder.mul(number, self.builder.sub(self._stride, self.at["pixel"]))

    def _single(self, starts: bool, row: Values, m: Value) -> list[Value]:
        """One stride, piece by piece; a row is its addresses in the buffer and in the tile."""
        e, builder, (to, source) = self.vectors(self.lanes), self.builder, row
        place = e.at(to, builder.mul(m, self._stride))
        window = e.at(source, builder.mul(m, self.at["pixel"]))
        for piece in pieces(self.windows, self.lanes):
            offset = piece.first * self.itemsize
            self._piece(starts, piece, e.at(place, offset), e.at(window, offset))
        return []

    def _piece(self, starts: bool, piece: Piece, place: Value, window: Value) -> None:
        """The vectors of a piece."""
        e, size = self.vectors(piece.width), piece.width * self.itemsize

        def vector(index: Value, _: object) -> list[Value]:
            offset = e.builder.mul(index, i64(size))

            def element(number: Value) -> Value:
                return e.load(e.at(e.at(window, offset), self._earlier(number)))

            out = e.at(place, offset)
            e.store(self.add(e, self._before(e, starts, out), piece.windows, element), out)
            return []

        if piece.vectors <= UNROLLED:
            for index in range(piece.vectors):
                vector(i64(index), [])
        else:
            e.loop(i64(piece.vectors), 1, [], vector)

    def _group(self, starts: bool, group: int, row: Values, m: Value) -> list[Value]:
        """Several strides, which are one vector."""
        e, builder, windows = self.vectors(self.lanes), self.builder, self.windows
        to, source = row
        place = e.at(to, builder.mul(m, self._stride))
        sums = self._before(e, starts, place)
        for number in range(windows.overlap):
            width = windows.last if number == windows.overlap - 1 else windows.stride
            narrow = self.vectors(width)
            first = e.at(source, self._earlier(i64(number)))
            parts = [
                narrow.load(e.at(first, builder.mul(builder.add(m, i64(i)), self.at["pixel"])))
                for i in range(group)
            ]
            sums = e.add(sums, joined(builder, self.itemsize, parts, width, windows.stride))
        e.store(sums, place)
        return []


def joined(builder: Builder, itemsize: int, parts: Values, width: int, stride: int) -> Value:
    """One vector of `parts` of `width` elements, each of which is filled up with zeros to `stride`
    elements.
    """
    words = ir.IntType(32)

    def shuffled(a: Value, b: Value, places: list[int]) -> Value:
        kind = ir.VectorType(words, len(places))
        return builder.shuffle_vector(a, b, ir.Constant(kind, places))

    if width < stride:
        zeros = ir.Constant(parts[0].type, [0.0] * width)
        places = [min(lane, width) for lane in range(stride)]
        parts = [shuffled(part, zeros, places) for part in parts]
        width = stride
    while len(parts) > 1:
        width *= 2
        places = list(range(width))
        parts = [shuffled(*pair, places) for pair in zip(parts[::2], parts[1::2], strict=True)]
    return parts[0]


def strides_together(windows: Windows, lanes: int) -> int:
    """The strides of a vector; 1 where a stride is a vector of its own or several."""
    whole = lanes % windows.stride == 0 and windows.last & (windows.last - 1) == 0
    return lanes // windows.stride if whole else 1


def make_inside(taps: int, stride: int, lanes: int, itemsize: int) -> Source:
    """The part that sums strides which all windows of a row reach."""

    def emit(builder: Builder, at: dict[str, Value]) -> None:
        def add(e: Emitter, sums: Value, reaching: int, element: Callable[[Value], Value]) -> Value:
            for number in range(reaching):
                sums = e.add(sums, element(i64(number)))
            return sums

        windows = Windows(taps, stride)
        strides = Strides(windows, lanes, itemsize, builder, at, add)
        strides.emit(strides_together(windows, lanes))

    return emitted(add_inside, emit)


def make_edge(taps: int, stride: int, lanes: int, itemsize: int) -> Source:
    """The part that sums strides at the ends of a row, which some windows do not reach."""

    def emit(builder: Builder, at: dict[str, Value]) -> None:
        def add(e: Emitter, sums: Value, reaching: int, element: Callable[[Value], Value]) -> Value:
            below = builder.icmp_signed("<", at["end"], i64(reaching))
            end = builder.select(below, at["end"], i64(reaching))

            def one(number: Value, carried: Values) -> list[Value]:
                return [e.add(carried[0], element(builder.add(at["first"], number)))]

            return e.loop(builder.sub(end, at["first"]), 1, [sums], one)[0]

        Strides(Windows(taps, stride), lanes, itemsize, builder, at, add).emit(1)

    return emitted(add_edge, emit)


class Span(NamedTuple):
    """The strides first .. end - 1 of rows of the buffer, which begin `row` bytes apart."""

    buffer: int
    row: int
    rows: int
    first: int
    end: int


def fill(call: Call, g: Geometry, span: Span, sums: int) -> None:
    """Write the initial sum to a span."""
    add_edge(
        call.kernels,
        to=span.buffer,
        to_row=span.row,
        source=span.buffer,
        source_row=0,
        pixel=0,
        sums=sums,
        start=1,
        rows=span.rows,
        strides=span.end - span.first,
        first=0,
        end=0,
    )


def add_rows(call: Call, g: Geometry, span: Span, source: int, sums: int, start: int) -> None:
    """Add the windows at `source`, those of the pixels of its first row, to a span; `start` says
    that its sums begin with the element at `sums`.
    """
    overlap = schedule.ceil_div(g.S, g.stride_w)
    stride = g.stride_w * call.itemsize
    inside = min(max(span.first, overlap - 1), span.end)
    outside = max(min(g.W, span.end), inside)
    add_inside(
        call.kernels,
        to=span.buffer + (inside - span.first) * stride,
        to_row=span.row,
        source=source + inside * call.x.w,
        source_row=call.x.h,
        pixel=call.x.w,
        sums=sums,
        start=start,
        rows=span.rows,
        strides=outside - inside,
    )
    for low, high in ((span.first, inside), (outside, span.end)):
        for m in range(low, high):
            add_edge(
                call.kernels,
                to=span.buffer + (m - span.first) * stride,
                to_row=span.row,
                source=source + m * call.x.w,
                source_row=call.x.h,
                pixel=call.x.w,
                sums=sums,
                start=start,
                rows=span.rows,
                strides=1,
                first=max(0, m - g.W + 1),
                end=min(overlap, m + 1),
            )


def sum_rows(call: Call, g: Geometry, span: Span, image: int, k: int, z: int, row: int) -> None:
    """Sum rows of filter `k` of plane `z`: every stride-th row from `row` on; `image` is the
    address of the tile.
    """
    z_stride, z_tap = divmod(z + g.pad_d, g.stride_d)
    h_stride, h_tap = divmod(row + g.pad_h, g.stride_h)
    sums = call.bias.address + k * call.bias.panel
    start = 1
    for t in range(z_tap, g.T, g.stride_d):
        d = z_stride - t // g.stride_d
        if 0 <= d < g.D:
            for r in range(h_tap, g.R, g.stride_h):
                h = h_stride - r // g.stride_h  # the pixels that reach the first row
                low, high = max(0, -h), min(span.rows, g.H - h)
                if low < high:
                    if start and high - low < span.rows:
                        fill(call, g, span, sums)
                        start = 0
                    source = image + d * call.x.d + (h + low) * call.x.h
                    source += ((k * g.T + t) * g.R + r) * g.S * call.itemsize
                    reached = Span(
                        span.buffer + low * span.row, span.row, high - low, span.first, span.end
                    )
                    add_rows(call, g, reached, source, sums, start)
                    start = 0
    if start:
        fill(call, g, span, sums)


def run_item(
    blob: Blob, group: int, origin: Place, first_filter: int, end_filter: int, scratch: int
) -> None:
    """One work item: rows of a plane from `origin` on, of some filters."""
    call, g = fields(blob).call, fields(blob).geometry
    plane, p, q = origin
    _, rows, columns = schedule.tile_extent(g, plane, p, q)
    n, z = plane // g.Z, plane % g.Z
    buffer = scratch + call.scratch.staging
    first = (q + g.pad_w) // g.stride_w
    end = (q + columns - 1 + g.pad_w) // g.stride_w + 1
    skipped = (q + g.pad_w - first * g.stride_w) * call.itemsize
    pitch = (end - first) * g.stride_w * call.itemsize
    image = call.x.address + n * call.x.n
    for row in range(p, p + min(rows, g.stride_h)):
        count = schedule.ceil_div(p + rows - row, g.stride_h)
        span = Span(buffer, pitch, count, first, end)
        for k in range(first_filter, end_filter):
            sum_rows(call, g, span, image, k, z, row)
            y = call.y.address + n * call.y.n + z * call.y.z + row * call.y.p
            y += q * call.y.q + k * call.y.k
            residual = call.residual.address + n * call.residual.n + z * call.residual.z
            residual += row * call.residual.p + q * call.residual.q + k * call.residual.k
            together = count
            if call.scale.address:  # that of a row is the scale of its filter
                together = 1
            for i in range(0, count, together):
                sums = Rows(buffer + skipped + i * pitch, pitch)
                added = Rows(
                    residual + i * g.stride_h * call.residual.p, g.stride_h * call.residual.p
                )
                out = Rows(y + i * g.stride_h * call.y.p, g.stride_h * call.y.p)
                finish_rows(call, k, sums, added, out, together, columns, 0)


FOLD = operator(run_item)  # the entry that folds
