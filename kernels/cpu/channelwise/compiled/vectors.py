"""The vectors of a pixel: blocks of several, and then one that is masked."""

from __future__ import annotations

from collections.abc import Callable

from implicit_conv.kernels.cpu.emit.vector import Builder, Emitter, Value, i64
from implicit_conv.kernels.cpu.tile.compiled import convert
from implicit_conv.kernels.cpu.tile.storage import SIZES, Stored

VECTOR_BYTES = 64  # of sums; LLVM makes several vectors of one where registers are narrower
BLOCKS = 4, 2, 1  # vectors of a block: several hide the latency of an addition

# emit(offset, vectors, mask): the vectors from a byte offset on, the only one within a mask
Emit = Callable[[Value, int, Value | None], None]


def emitter(builder: Builder, dtype: Stored) -> Emitter:
    """What emits the vectors of elements that are stored as `dtype`."""
    return convert.emitter(builder, VECTOR_BYTES // max(4, SIZES[dtype]), dtype)


def over_channels(e: Emitter, count: Value, size: int, emit: Emit) -> None:
    """Emit what computes `count` channels, of elements of `size` bytes."""
    builder = e.builder

    def loop(first: Value, end: Value, vectors: int) -> None:
        def body(index: Value, _: object) -> list[Value]:
            channel = builder.add(first, index)
            emit(builder.mul(channel, i64(size)), vectors, None)
            return []

        e.loop(builder.sub(end, first), vectors * e.lanes, [], body)

    done = i64(0)
    for vectors in BLOCKS:
        whole = builder.and_(count, i64(-vectors * e.lanes))
        loop(done, whole, vectors)
        done = whole
    rest = builder.sub(count, done)
    with builder.if_then(builder.icmp_signed(">", rest, i64(0))):
        emit(builder.mul(done, i64(size)), 1, e.below(rest))
