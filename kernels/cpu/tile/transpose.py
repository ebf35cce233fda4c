"""Transpose lanes x lanes elements in registers: how NCHW becomes channels-last, and back.

One emitter serves the loads (channels x pixels), the filter panels (filters x taps) and the way
out (pixels x filters): read `rows` rows of consecutive elements, write `columns` rows of `lanes`,
evenly apart or where a table has them.
"""

import functools
from typing import NamedTuple

from llvmlite import ir

from implicit_conv.kernels.cpu.emit.vector import BYTES, I64, Emitter, i64
from implicit_conv.kernels.cpu.runtime.cache import kernel
from implicit_conv.kernels.cpu.runtime.table import (
    TRANSPOSE_IN,
    TRANSPOSE_OUT,
    TRANSPOSE_TAPS,
    TRANSPOSE_WORDS,
    compile_emitted,
    run_part,
    transpose_slot,
)
from implicit_conv.kernels.cpu.tile import storage

ARGUMENTS = ("source", "source_stride", "target", "target_stride", "rows", "columns")
AHEAD_BYTES = 1024  # how far ahead filters are asked for, into L2: each row is a stream of its own


def butterfly(e, rows):
    """The transpose of a square of vectors: swap off-diagonal blocks of 1, 2, 4, ... lanes."""
    block = 1
    while block < e.lanes:
        swapped = list(rows)
        for i in range(e.lanes):
            if not i & block:
                swapped[i], swapped[i + block] = exchange(e, rows[i], rows[i + block], block)
        rows = swapped
        block *= 2
    return rows


def exchange(e, low, high, block):
    """`low` and `high` with the lanes of the one that have bit `block` in their number in the place
    of the lanes of the other that have not.
    """
    take_low, take_high = [], []
    for lane in range(e.lanes):
        other = lane & block
        take_low.append(lane + e.lanes - block if other else lane)
        take_high.append(lane + e.lanes if other else lane + block)
    return tuple(
        e.builder.shuffle_vector(low, high, ir.Constant(e.words, taken))
        for taken in (take_low, take_high)
    )


class Variant(NamedTuple):
    """What a transpose is compiled for."""

    lanes: int
    source: str  # what numbers are stored as, on both sides
    target: str
    paired: bool  # an element is a pair of numbers, of two source rows
    step: int  # every step-th column becomes a target row
    scattered: bool  # the target's stride is the address of a table of its rows' offsets
    full: bool  # `lanes` columns, and rows for as many elements


def _emit(e, variant, source, source_stride, target, target_stride, rows, columns):
    """Block of `rows` source rows; every step-th of its `columns` becomes a target row.

    Where the block is not full, rows past the last repeat it (their lanes are masked in the stores;
    the second half of a pair is zero) and columns past the last are neither read nor written.
    """
    builder, full, step = e.builder, variant.full, variant.step
    source, target = (builder.inttoptr(address, BYTES) for address in (source, target))
    last = builder.sub(rows, i64(1))
    mask = None if full else e.below(columns)

    def address(i):
        if not full:
            i = builder.select(builder.icmp_signed("<", i64(i), last), i64(i), last)
        return e.at(source, builder.mul(source_stride, i64(i) if full else i))

    def pair(i):
        there = builder.icmp_signed("<=", i64(2 * i + 1), last)
        second = None if full else builder.select(there, mask, ir.Constant(mask.type, None))
        return storage.load_pairs(e, (address(2 * i), address(2 * i + 1)), (mask, second))

    if variant.paired:
        vectors = butterfly(e, [pair(i) for i in range(e.lanes)])
        rows = builder.ashr(builder.add(rows, i64(1)), i64(1))
    else:
        if variant.scattered and full:
            for i in range(e.lanes):
                e.prefetch(e.at(address(i), AHEAD_BYTES), 2)
        vectors = [storage.load(e, variant.source, address(i), mask) for i in range(e.lanes)]
        vectors = butterfly(e, vectors)
    kept = None if full else e.below(rows)
    stored = "float32" if variant.paired else variant.target

    def target_row(i):
        if variant.scattered:
            table = builder.inttoptr(target_stride, I64.as_pointer())
            return e.at(target, builder.load(builder.gep(table, [i64(i)])))
        return e.at(target, builder.mul(target_stride, i64(i)))

    for i in range(0, e.lanes, step):
        if full:
            storage.store(e, stored, vectors[i], target_row(i // step))
        else:
            with builder.if_then(builder.icmp_signed("<", i64(i), columns)):
                storage.store(e, stored, vectors[i], target_row(i // step), kept)


@functools.cache
def compile_transpose(variant):
    """The compiled transpose of one variant; its `.address` goes into the kernel table."""
    lanes, source, target, paired, step, scattered, full = variant
    kind = f"{source}_{target}{'_paired' if paired else ''}{'_scattered' if scattered else ''}"
    name = f"transpose_{lanes}x{kind}_step{step}_{'full' if full else 'edge'}"
    itemsize = max(4, storage.SIZES[source])

    def emit(builder, at):
        _emit(Emitter(builder, lanes, itemsize, True), variant, **at)

    return compile_emitted(name, ARGUMENTS, (), emit)


def transposes(way, step, lanes, form):
    """The transposes of one way, which keep every step-th column, by their slots."""
    paired = form.channels > 1
    kind = {
        TRANSPOSE_IN: (form.x, form.buffer, paired, step, False),
        TRANSPOSE_OUT: (form.sums, form.y, False, step, False),
        TRANSPOSE_WORDS: (form.sums, form.sums, False, step, False),
        TRANSPOSE_TAPS: (form.x, form.buffer, False, step, True),
    }[way]
    return {
        transpose_slot(way, step, not full): compile_transpose(Variant(lanes, *kind, full))
        for full in (True, False)
    }


@functools.cache
def make_transpose_block(way, lanes, channels=1):
    """transpose_block for vectors of `lanes`; `way` says which transposes it calls.

    `channels` numbers of as many rows make an element.
    """
    whole = lanes * channels

    @kernel()
    def transpose_block(kernels, step, source, source_stride, target, target_stride, rows, columns):
        """Transpose rows x columns numbers; every step-th column becomes a target row."""
        slot = transpose_slot(way, step, rows < whole or columns < lanes)
        run_part(kernels, slot, source, source_stride, target, target_stride, rows, columns)

    return transpose_block
