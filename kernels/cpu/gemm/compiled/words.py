"""Pack filters into panels of words, which dot products of several channels multiply.

An element of buffers and panels is a word of 32 bits, as wide as a sum: two channels of bfloat16 or
four of 8-bit integers, ``[...][word][filter][channel of the word]``. The last word of a number of
channels that does not fill it is completed with zeros.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

from implicit_conv.kernels import schedule
from implicit_conv.kernels.cpu.emit import memory
from implicit_conv.kernels.cpu.emit.internals import ir, types
from implicit_conv.kernels.cpu.emit.intrinsics import emitting
from implicit_conv.kernels.cpu.emit.vector import I32, Integers
from implicit_conv.kernels.cpu.runtime.call import Call
from implicit_conv.kernels.cpu.runtime.table import TRANSPOSE_WORDS
from implicit_conv.kernels.cpu.tile import storage
from implicit_conv.kernels.cpu.tile.compiled import convert
from implicit_conv.kernels.cpu.tile.compiled.filters import row_offset, taps_follow
from implicit_conv.kernels.cpu.tile.compiled.transpose import make_transpose_block
from implicit_conv.kernels.cpu.tile.storage import Format
from implicit_conv.kernels.geometry import Geometry

WORD = 4  # bytes of a word


@functools.cache
def _make_join(lanes: int, channels: int) -> Any:
    """join(to, places): store a vector of words, each of `channels` elements.

    `places` is a table of (address of words, first bit of the element in them) of each element.
    """
    bits = 8 * WORD // channels

    @emitting(types.void(types.int64, types.int64), lanes, channels)
    def join(builder: ir.IRBuilder, to: ir.Value, places: ir.Value) -> None:
        e = Integers(builder, lanes, WORD)
        words = e.constant(0)
        for i in range(channels):
            entry = builder.add(places, ir.Constant(places.type, 16 * i))
            address, first = (
                builder.load(e.pointer(builder.add(entry, offset), entry.type))
                for offset in (ir.Constant(places.type, 0), ir.Constant(places.type, 8))
            )
            part = builder.lshr(e.load(address), e.splat(builder.trunc(first, I32)))
            part = builder.and_(part, e.constant((1 << bits) - 1))
            words = builder.or_(words, builder.shl(part, e.constant(i * bits)))
        e.store(words, to)

    return join


@functools.cache
def _make_zip(lanes: int, channels: int) -> Any:
    """zip_rows(to, at, step): store a vector of words of the elements at `at`, `at + step`, ..."""

    @emitting(types.void(*[types.int64] * 3), lanes, channels)
    def zip_rows(builder: ir.IRBuilder, to: ir.Value, at: ir.Value, step: ir.Value) -> None:
        e = Integers(builder, lanes, WORD)
        offsets = (builder.mul(step, ir.Constant(step.type, i)) for i in range(channels))
        rows = [builder.add(at, offset) for offset in offsets]
        e.store(convert.load_words(e, rows, [None] * channels), to)

    return zip_rows


class Block(NamedTuple):
    """A block of a filter, and where in a panel it is packed."""

    target: int  # addresses
    source: int
    filters: int
    channels: int
    pitch: int  # byte stride of channels, or of words of several, in the panel


@functools.cache
def make_pack_taps(lanes: int, form: Format) -> Callable[..., Any]:
    """Make pack_taps() for words, which has the arguments of pack_taps() in `panels`."""
    vector, word_channels = lanes * WORD, form.channels
    size = storage.SIZES[form.w]
    bits = 8 * size
    transpose_words = make_transpose_block(TRANSPOSE_WORDS, lanes)
    join, zip_rows = _make_join(lanes, word_channels), _make_zip(lanes, word_channels)
    copy_element = memory.copy_bytes(size)
    table_bytes = 16 * word_channels

    def gather_words(call: Call, target: int, source: int, filters: int, channels: int) -> None:
        """One word of `filters` filters, element by element, for any strides of `w`; of a word with
        fewer than its channels the last elements are zero.
        """
        for k in range(filters):
            at, to = source + k * call.w.k, target + k * WORD
            memory.zero(to, WORD)
            for c in range(channels):
                copy_element(to + c * size, at + c * call.w.c)

    def transpose_channels(call: Call, block: Block) -> None:
        """One tap of filters with contiguous channels: words need no change, only a transpose."""
        target, source, filters, channels, pitch = block
        words = channels // word_channels
        for k in range(0, filters, lanes):
            for word in range(0, words, lanes):
                at, to = source + k * call.w.k + word * WORD, target + word * pitch + k * WORD
                rows, columns = min(lanes, filters - k), min(lanes, words - word)
                transpose_words(call.kernels, 1, at, call.w.k, to, pitch, rows, columns)
        rest = channels - words * word_channels
        if rest:
            gather_words(call, target + words * pitch, source + words * WORD, filters, rest)

    def gather_elements(call: Call, target: int, source: int, filters: int, count: int) -> None:
        """One word of `count` neighbouring elements of each filter."""
        for k in range(filters):
            for element in range(count):
                at = element * size
                copy_element(target + k * WORD + at, source + k * call.w.k + at)

    def transpose_taps(
        call: Call,
        target: int,
        source: int,
        filters: int,
        channels: int,
        taps: int,
        pitch: int,
        places: int,
    ) -> None:
        """All taps of filters with contiguous taps: words of neighbouring elements are transposed
        into a block, from which words of one tap are joined.
        """
        chunk, block = word_channels * lanes, places + 8 * taps
        elements = memory.stack(table_bytes)
        for k in range(0, filters, lanes):
            rows = min(lanes, filters - k)
            if rows < lanes:
                memory.zero(block, min(channels, chunk) * taps * lanes * size)
            for c in range(0, channels, chunk):
                count = min(chunk, channels - c)
                words = count * taps // word_channels
                at = source + k * call.w.k + c * taps * size
                for word in range(0, words, lanes):
                    columns = min(lanes, words - word)
                    first, to = at + word * WORD, block + word * vector
                    transpose_words(call.kernels, 1, first, call.w.k, to, vector, rows, columns)
                rest = count * taps - words * word_channels
                if rest:
                    gather_elements(call, block + words * vector, at + words * WORD, rows, rest)
                for i in range(0, count, word_channels):
                    for tap in range(taps):
                        for j in range(word_channels):
                            element = (i + j) * taps + tap
                            there = i + j < count
                            word = block + element // word_channels * vector
                            memory.write(elements + 16 * j, word if there else call.zeros)
                            memory.write(elements + 16 * j + 8, element % word_channels * bits)
                        to = memory.read(places + 8 * tap) + (c + i) // word_channels * pitch
                        join(target + to + k * WORD, elements)

    def zip_filters(call: Call, block: Block) -> None:
        """One tap of contiguous filters: the rows of the channels of a word are interleaved."""
        target, source, filters, channels, pitch = block
        for c in range(0, channels, word_channels):
            at, to = source + c * call.w.c, target + c // word_channels * pitch
            count = min(word_channels, channels - c)
            whole = filters // lanes * lanes if count == word_channels else 0
            for k in range(0, whole, lanes):
                zip_rows(to + k * WORD, at + k * size, call.w.c)
            gather_words(call, to + whole * WORD, at + whole * size, filters - whole, count)

    def pack_taps(call: Call, g: Geometry, block: Block, places: int) -> None:
        """All taps, by the fastest way for `w`."""
        target, source, filters, channels, pitch = block
        taps = schedule.taps(g)
        if taps > 1 and taps_follow(call, g, size) and call.w.c == taps * size:
            transpose_taps(call, target, source, filters, channels, taps, pitch, places)
            return
        for tap in range(taps):
            at = source + row_offset(call, g, tap // g.S) + tap % g.S * call.w.s
            to = target + memory.read(places + 8 * tap)
            if call.w.c == size:
                transpose_channels(call, Block(to, at, filters, channels, pitch))
            elif call.w.k == size:
                zip_filters(call, Block(to, at, filters, channels, pitch))
            else:
                for c in range(0, channels, word_channels):
                    count = min(word_channels, channels - c)
                    word = to + c // word_channels * pitch
                    gather_words(call, word, at + c * call.w.c, filters, count)

    return pack_taps
