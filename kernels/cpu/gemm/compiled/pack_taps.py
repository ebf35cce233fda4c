"""Ways to pack a filter: which is fastest depends on how its elements lie in memory.

Every way is a function ``pack_taps(call, g, target, source, filters, channels, pitch, places)``,
which packs all taps of `filters` filters and `channels` channels from address `source` on;
`places` is a table of each tap's byte offset in the panel, followed by the scratch that
`packing_bytes` counts. Only the way that a filter needs is compiled.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from implicit_conv.kernels import schedule
from implicit_conv.kernels.cpu.emit import memory
from implicit_conv.kernels.cpu.gemm.compiled import words
from implicit_conv.kernels.cpu.gemm.compiled.words import Block
from implicit_conv.kernels.cpu.gemm.layout import Way
from implicit_conv.kernels.cpu.runtime.call import Call
from implicit_conv.kernels.cpu.runtime.table import (
    FEW_COLUMNS,
    TRANSPOSE_FILTERS,
    TRANSPOSE_TAPS,
)
from implicit_conv.kernels.cpu.tile import storage
from implicit_conv.kernels.cpu.tile.compiled import convert
from implicit_conv.kernels.cpu.tile.compiled.few_columns import transpose_few
from implicit_conv.kernels.cpu.tile.compiled.filters import (
    lowest_tap,
    lowest_tap_of_row,
    row_offset,
    row_span,
    tap_span,
)
from implicit_conv.kernels.cpu.tile.compiled.transpose import make_transpose_block
from implicit_conv.kernels.cpu.tile.storage import Format
from implicit_conv.kernels.geometry import Geometry

CHANNELS_AHEAD = 2  # channels between the one that is packed and the one that is prefetched
CACHE_LINE = 64  # bytes
# Bytes of a row between the filters that are packed and those that are prefetched, which are of a
# later panel: with those of the next panel, a line that two panels share would be waited for.
AHEAD_BYTES = 256


@functools.cache
def make_pack_taps(lanes: int, form: Format, way: Way) -> Callable[..., Any]:
    """Make pack_taps() for filters of one way."""
    return words.make_pack_taps(lanes, form) if way == Way.WORDS else _MAKERS[way](lanes, form)


def _make_taps(lanes: int, form: Format) -> Callable[..., Any]:
    size, itemsize = storage.SIZES[form.w], storage.SIZES[form.panel]  # of w, and of panels
    scatter_block = make_transpose_block(TRANSPOSE_TAPS, lanes)

    def pack_taps(call: Call, g: Geometry, block: Block, places: int) -> None:
        """Element e of a filter is of channel e // taps."""
        target, source, filters, channels, pitch = block
        taps = schedule.taps(g)
        for e in range(taps, min(lanes, channels) * taps):
            memory.write(places + 8 * e, memory.read(places + 8 * (e - taps)) + pitch)
        for k in range(0, filters, lanes):
            rows = min(lanes, filters - k)
            for c in range(0, channels, lanes):
                elements = min(lanes, channels - c) * taps
                to = target + c * pitch + k * itemsize
                at = source + k * call.w.k + c * taps * size
                for e in range(0, elements, lanes):
                    columns, first = min(lanes, elements - e), at + e * size
                    offsets = places + 8 * e
                    scatter_block(call.kernels, 1, first, call.w.k, to, offsets, rows, columns)

    return pack_taps


def _make_each_tap(pack_tap: Callable[..., Any]) -> Callable[..., Any]:
    """A way that packs tap by tap, by ``pack_tap(call, block)`` for the tap of the first filter and
    channel at the block's source.
    """

    def pack_taps(call: Call, g: Geometry, block: Block, places: int) -> None:
        target, source, filters, channels, pitch = block
        for tap in range(schedule.taps(g)):
            at = source + row_offset(call, g, tap // g.S) + tap % g.S * call.w.s
            to = target + memory.read(places + 8 * tap)
            pack_tap(call, Block(to, at, filters, channels, pitch))

    return pack_taps


def _make_filters(lanes: int, form: Format) -> Callable[..., Any]:
    size, itemsize = storage.SIZES[form.w], storage.SIZES[form.panel]
    move = convert.make_move(form.w, form.panel, lanes)
    move_vector = convert.make_move_vector(form.w, form.panel, lanes)

    def move_filters(call: Call, block: Block) -> None:
        target, source, filters, channels, pitch = block
        whole = filters // lanes * lanes
        for i in range(channels):
            row, to = source + i * call.w.c, target + i * pitch
            for line in range(0, filters * size, CACHE_LINE):
                memory.prefetch(row + AHEAD_BYTES + line)
            for k in range(0, whole, lanes):
                move_vector(to + k * itemsize, row + k * size)
            if whole < filters:
                move(to + whole * itemsize, row + whole * size, filters - whole)

    return _make_each_tap(move_filters)


def _make_channels(lanes: int, form: Format) -> Callable[..., Any]:
    size, itemsize = storage.SIZES[form.w], storage.SIZES[form.panel]
    transpose_block = make_transpose_block(TRANSPOSE_FILTERS, lanes)

    def transpose_filters(call: Call, block: Block) -> None:
        target, source, filters, channels, pitch = block
        for k in range(0, filters, lanes):
            rows = min(lanes, filters - k)
            for c in range(0, channels, lanes):
                at, to = source + k * call.w.k + c * size, target + c * pitch + k * itemsize
                columns = min(lanes, channels - c)
                transpose_block(call.kernels, 1, at, call.w.k, to, pitch, rows, columns)

    return _make_each_tap(transpose_filters)


def _make_any(lanes: int, form: Format) -> Callable[..., Any]:
    itemsize = storage.SIZES[form.panel]
    move_element = convert.make_move_element(form.w, form.panel)

    def gather_filters(call: Call, block: Block) -> None:
        target, source, filters, channels, pitch = block
        for c in range(channels):
            for k in range(filters):
                at = source + c * call.w.c + k * call.w.k
                move_element(target + c * pitch + k * itemsize, at)

    return _make_each_tap(gather_filters)


def prefetch_filters(call: Call, at: int, filters: int) -> None:
    """Prefetch a channel of filters that are near."""
    for line in range(0, filters * call.w.k, CACHE_LINE):
        memory.prefetch(at + line)


@functools.cache
def _make_write_places(size: int) -> Callable[..., Any]:
    def write_places(
        call: Call,
        g: Geometry,
        places: int,
        first_row: int,
        end_row: int,
        first: int,
        span: int,
        table: int,
    ) -> None:
        """Write the byte offset in the panel of each of the `span` elements from byte offset
        `first` on, among which the taps of filter rows are. An element that is no tap has the place
        of the next tap, which overwrites it.
        """
        for e in range(span):
            memory.write(table + 8 * e, -1)
        for tap in range(first_row * g.S, end_row * g.S):
            at = row_offset(call, g, tap // g.S) + tap % g.S * call.w.s - first
            memory.write(table + 8 * (at // size), memory.read(places + 8 * tap))
        for e in range(span - 2, -1, -1):
            if memory.read(table + 8 * e) < 0:
                memory.write(table + 8 * e, memory.read(table + 8 * e + 8))

    return write_places


def _make_rows(lanes: int, form: Format) -> Callable[..., Any]:
    size, itemsize = storage.SIZES[form.w], storage.SIZES[form.panel]
    write_places = _make_write_places(size)

    def pack_taps(call: Call, g: Geometry, block: Block, places: int) -> None:
        """Filter row by filter row, whose taps are among FEW elements."""
        target, source, filters, channels, pitch = block
        rows, span = schedule.filter_rows(g), row_span(call, g, size)
        table = places + 8 * schedule.taps(g)
        for j in range(rows):
            first = row_offset(call, g, j) + lowest_tap_of_row(call, g)
            write_places(call, g, places, j, j + 1, first, span, table + 8 * j * span)
        for c in range(channels):
            at = source + c * call.w.c
            prefetch_filters(call, at + CHANNELS_AHEAD * call.w.c, filters)
            for k in range(0, filters, lanes):
                count = min(lanes, filters - k)
                to = target + c * pitch + k * itemsize
                for j in range(rows):
                    row = at + k * call.w.k + row_offset(call, g, j) + lowest_tap_of_row(call, g)
                    transpose_few(
                        call.kernels,
                        slot=FEW_COLUMNS + (count < lanes),
                        source=row,
                        source_stride=call.w.k,
                        target=to,
                        offsets=table + 8 * j * span,
                        rows=count,
                        columns=span,
                    )

    return pack_taps


def _make_spans(lanes: int, form: Format) -> Callable[..., Any]:
    size, itemsize = storage.SIZES[form.w], storage.SIZES[form.panel]
    scatter_block = make_transpose_block(TRANSPOSE_TAPS, lanes)
    write_places = _make_write_places(size)

    def pack_taps(call: Call, g: Geometry, block: Block, places: int) -> None:
        """The elements among which all taps of a filter are, in any order."""
        target, source, filters, channels, pitch = block
        span, lowest = tap_span(call, g, size), lowest_tap(call, g)
        table = places + 8 * schedule.taps(g)
        write_places(call, g, places, 0, schedule.filter_rows(g), lowest, span, table)
        first = source + lowest
        for c in range(channels):
            prefetch_filters(call, source + (c + CHANNELS_AHEAD) * call.w.c, filters)
            for k in range(0, filters, lanes):
                rows = min(lanes, filters - k)
                to = target + c * pitch + k * itemsize
                for e in range(0, span, lanes):
                    at = first + c * call.w.c + k * call.w.k + e * size
                    columns, offsets = min(lanes, span - e), table + 8 * e
                    scatter_block(call.kernels, 1, at, call.w.k, to, offsets, rows, columns)

    return pack_taps


_MAKERS = {
    Way.TAPS: _make_taps,
    Way.FILTERS: _make_filters,
    Way.ROWS: _make_rows,
    Way.SPANS: _make_spans,
    Way.CHANNELS: _make_channels,
    Way.ANY: _make_any,
}
