"""Transpose lanes x lanes elements in registers: how NCHW becomes channels-last, and back.

One emitter serves the loads (channels x pixels), the filter panels (filters x taps) and the way
out (pixels x filters): read `rows` rows of consecutive elements, write `columns` rows of `lanes`.
"""

import functools

from llvmlite import ir
from numba import types

from implicit_conv.kernels.cpu import storage
from implicit_conv.kernels.cpu.cache import kernel
from implicit_conv.kernels.cpu.table import (
    TRANSPOSE_IN,
    TRANSPOSE_OUT,
    compile_emitted,
    run_part,
    transpose_slot,
)
from implicit_conv.kernels.cpu.vector import BYTES, I32, I64, Emitter, i64


def _butterfly(e, rows):
    """The transpose of a square of vectors: swap off-diagonal blocks of 1, 2, 4, ... lanes."""
    block = 1
    while block < e.lanes:
        swapped = list(rows)
        for i in range(e.lanes):
            if i & block:
                continue
            low, high = rows[i], rows[i + block]
            take_low, take_high = [], []
            for lane in range(e.lanes):
                other = lane & block
                take_low.append(lane + e.lanes - block if other else lane)
                take_high.append(lane + e.lanes if other else lane + block)
            kind = ir.VectorType(I32, e.lanes)
            swapped[i] = e.builder.shuffle_vector(low, high, ir.Constant(kind, take_low))
            swapped[i + block] = e.builder.shuffle_vector(low, high, ir.Constant(kind, take_high))
        rows = swapped
        block *= 2
    return rows


def _mask(e, count):
    """Lanes below `count`."""
    kind = ir.VectorType(I64, e.lanes)
    limit = ir.Constant(kind, ir.Undefined)
    limit = e.builder.insert_element(limit, count, ir.Constant(I32, 0))
    zeros = ir.Constant(ir.VectorType(I32, e.lanes), [0] * e.lanes)
    limit = e.builder.shuffle_vector(limit, limit, zeros)
    return e.builder.icmp_signed("<", ir.Constant(kind, list(range(e.lanes))), limit)


def _emit(e, form, step, full, source, source_stride, target, target_stride, rows, columns):
    """Block of `rows` source rows; every `step`-th of its `columns` becomes a target row.

    `form` is what numbers are stored as in (source, target). A `full` block has `lanes` rows and
    columns; else rows past the last repeat it (their lanes are masked in the stores) and columns
    past the last are neither read nor written.
    """
    builder = e.builder
    source, target = (builder.inttoptr(address, BYTES) for address in (source, target))
    last = builder.sub(rows, i64(1))
    mask = None if full else _mask(e, columns)
    vectors = []
    for i in range(e.lanes):
        row = (
            i64(i) if full else builder.select(builder.icmp_signed("<", i64(i), last), i64(i), last)
        )
        address = e.at(source, builder.mul(source_stride, row))
        vectors.append(storage.load(e, form[0], address, mask))
    vectors = _butterfly(e, vectors)
    lanes = None if full else _mask(e, rows)
    for i in range(0, e.lanes, step):
        address = e.at(target, builder.mul(target_stride, i64(i // step)))
        if full:
            storage.store(e, form[1], vectors[i], address)
        else:
            with builder.if_then(builder.icmp_signed("<", i64(i), columns)):
                storage.store(e, form[1], vectors[i], address, lanes)


SIGNATURE = types.void(*[types.int64] * 6)


def transpose(source, source_stride, target, target_stride, rows, columns):
    """Template of all transposes."""
    body(source, source_stride, target, target_stride, rows, columns)  # noqa: F821, bound


@functools.cache
def compile_transpose(lanes, source, target, step, full):
    """The compiled transpose of one variant; its `.address` goes into the kernel table."""
    edge = "full" if full else "edge"
    name = f"transpose_{lanes}x{source}_{target}_step{step}_{edge}"
    itemsize = max(storage.SIZES[source], storage.SIZES[target])

    def emit(builder, args):
        _emit(Emitter(builder, lanes, itemsize, True), (source, target), step, full, *args)

    return compile_emitted(SIGNATURE, transpose, name, emit)


def transposes(lanes, form):
    """All transposes that operators on numbers of `form` call, by their slots."""
    kinds = [
        (TRANSPOSE_IN, 1, form.x, form.sums),
        (TRANSPOSE_IN, 2, form.x, form.sums),
        (TRANSPOSE_OUT, 1, form.sums, form.y),
    ]
    return {
        transpose_slot(way, step, not full): compile_transpose(lanes, source, target, step, full)
        for way, step, source, target in kinds
        for full in (True, False)
    }


@functools.cache
def make_transpose_block(way, lanes):
    """transpose_block for vectors of `lanes`; `way` says whether numbers come in or go out."""

    @kernel()
    def transpose_block(kernels, step, source, source_stride, target, target_stride, rows, columns):
        """Transpose rows x columns elements; every step-th column becomes a target row."""
        slot = transpose_slot(way, step, rows < lanes or columns < lanes)
        run_part(kernels, slot, source, source_stride, target, target_stride, rows, columns)

    return transpose_block
