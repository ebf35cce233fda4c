"""Pack filters into panels of channel pairs, which dot products of bfloat16 multiply.

An element of buffers and panels is a pair, as wide as a float32: ``[...][pair][filter][2]``. The
last pair of an odd number of channels is completed with a zero.
"""

import functools

from llvmlite import ir
from numba import types

from implicit_conv.kernels.cpu.emit import memory
from implicit_conv.kernels.cpu.emit.vector import I32, Emitter
from implicit_conv.kernels.cpu.runtime.cache import kernel
from implicit_conv.kernels.cpu.runtime.table import TRANSPOSE_WORDS
from implicit_conv.kernels.cpu.tile import convert
from implicit_conv.kernels.cpu.tile.transpose import make_transpose_block

BFLOAT, PAIR = 2, 4  # bytes of a bfloat16, and of a pair
copy_bfloat = memory.copy_bytes(BFLOAT)


@functools.cache
def _make_join(lanes):
    """join(to, low, low_bits, high, high_bits): store a vector of pairs, whose two elements are
    halves of the words at `low` and at `high`.

    A half begins at bit 0 or 16 of its word.
    """

    def join(typingctx, to, low, low_bits, high, high_bits):
        def codegen(context, builder, signature, args):
            e = Emitter(builder, lanes, PAIR, False)
            words = ir.VectorType(I32, lanes)
            to, *halves = args
            low, high = (
                builder.lshr(
                    builder.bitcast(e.load(half), words),
                    builder.bitcast(
                        e.splat(builder.bitcast(builder.trunc(bits, I32), e.scalar)), words
                    ),
                )
                for half, bits in (halves[:2], halves[2:])
            )
            low = builder.and_(low, ir.Constant(words, [0xFFFF] * lanes))
            high = builder.shl(high, ir.Constant(words, [16] * lanes))
            e.store(builder.bitcast(builder.or_(low, high), e.vector), to)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 5), codegen

    return memory.named(join, lanes)


@functools.cache
def _make_zip(lanes):
    """zip_rows(to, low, high): store a vector of pairs of the elements at `low` and `high`."""

    def zip_rows(typingctx, to, low, high):
        def codegen(context, builder, signature, args):
            e = Emitter(builder, lanes, PAIR, False)
            e.store(convert.load_pairs(e, args[1:]), args[0])
            return context.get_dummy_value()

        return types.void(*[types.int64] * 3), codegen

    return memory.named(zip_rows, lanes)


@kernel()
def gather_pair(call, target, source, filters, channels):
    """One pair of channels of `filters` filters, element by element, for any strides of `w`; with
    one channel the second element is zero.
    """
    for k in range(filters):
        at, to = source + k * call.w_k, target + k * PAIR
        copy_bfloat(to, at)
        if channels > 1:
            copy_bfloat(to + BFLOAT, at + call.w_c)
        else:
            memory.zero(to + BFLOAT, BFLOAT)


@functools.cache
def make_pack_taps(lanes):
    """Make pack_taps() for pairs, which has the arguments of pack_taps() in `panels`."""
    vector = lanes * PAIR
    transpose_words = make_transpose_block(TRANSPOSE_WORDS, lanes)
    join, zip_rows = _make_join(lanes), _make_zip(lanes)

    @kernel()
    def transpose_pairs(call, target, source, filters, channels, pitch):
        """One tap of filters with contiguous channels: pairs need no change, only a transpose."""
        pairs = channels // 2
        for k in range(0, filters, lanes):
            for pair in range(0, pairs, lanes):
                at, to = source + k * call.w_k + pair * PAIR, target + pair * pitch + k * PAIR
                rows, columns = min(lanes, filters - k), min(lanes, pairs - pair)
                transpose_words(call.kernels, 1, at, call.w_k, to, pitch, rows, columns)
        if channels % 2:
            gather_pair(call, target + pairs * pitch, source + pairs * PAIR, filters, 1)

    @kernel()
    def transpose_taps(call, target, source, filters, channels, taps, pitch, places):
        """All taps of filters with contiguous taps: words of two neighbouring elements are
        transposed into a block, from which pairs are joined.
        """
        chunk, block = 2 * lanes, places + 8 * taps
        for k in range(0, filters, lanes):
            rows = min(lanes, filters - k)
            if rows < lanes:
                memory.zero(block, min(channels, chunk) * taps * PAIR * lanes // 2)
            for c in range(0, channels, chunk):
                count = min(chunk, channels - c)
                words = count * taps // 2
                at = source + k * call.w_k + c * taps * BFLOAT
                for word in range(0, words, lanes):
                    columns = min(lanes, words - word)
                    first, to = at + word * PAIR, block + word * vector
                    transpose_words(call.kernels, 1, first, call.w_k, to, vector, rows, columns)
                if count * taps % 2:
                    gather_pair(call, block + words * vector, at + words * PAIR, rows, 1)
                for i in range(0, count, 2):
                    for tap in range(taps):
                        first = i * taps + tap
                        second = first + taps
                        high = block + second // 2 * vector if i + 1 < count else call.zeros
                        to = memory.read(places + 8 * tap) + (c + i) // 2 * pitch + k * PAIR
                        low = block + first // 2 * vector
                        join(target + to, low, first % 2 * 16, high, second % 2 * 16)

    @kernel()
    def zip_filters(call, target, source, filters, channels, pitch):
        """One tap of contiguous filters: the rows of two channels are interleaved."""
        whole = filters // lanes * lanes
        for c in range(0, channels, 2):
            at, to = source + c * call.w_c, target + c // 2 * pitch
            for k in range(0, whole, lanes):
                high = at + call.w_c + k * BFLOAT if c + 1 < channels else call.zeros
                zip_rows(to + k * PAIR, at + k * BFLOAT, high)
            rest = filters - whole
            gather_pair(call, to + whole * PAIR, at + whole * BFLOAT, rest, min(2, channels - c))

    @kernel()
    def pack_taps(call, g, target, source, filters, channels, pitch, places):
        """All taps of `filters` filters and `channels` channels, by the fastest way for `w`."""
        taps = g.R * g.S
        rows_follow = g.R == 1 or call.w_r == g.S * BFLOAT
        taps_follow = rows_follow and (g.S == 1 or call.w_s == BFLOAT)
        if taps > 1 and taps_follow and call.w_c == taps * BFLOAT:
            transpose_taps(call, target, source, filters, channels, taps, pitch, places)
            return
        for tap in range(taps):
            at = source + tap // g.S * call.w_r + tap % g.S * call.w_s
            to = target + memory.read(places + 8 * tap)
            if call.w_c == BFLOAT:
                transpose_pairs(call, to, at, filters, channels, pitch)
            elif call.w_k == BFLOAT:
                zip_filters(call, to, at, filters, channels, pitch)
            else:
                for c in range(0, channels, 2):
                    count = min(2, channels - c)
                    gather_pair(call, to + c // 2 * pitch, at + c * call.w_c, filters, count)

    return pack_taps
