"""Load and store elements of every format as vectors of floats or integers.

float16 and bfloat16 are summed in float32. They are widened when they are loaded into buffers and
panels, and rounded once, to nearest even, when they are stored; all of it vector by vector, with
16-bit elements as integers. Integers are widened to those of their sums.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from implicit_conv.kernels.cpu.emit import internals, masks, memory
from implicit_conv.kernels.cpu.emit.internals import ir, types
from implicit_conv.kernels.cpu.emit.intrinsics import emitting
from implicit_conv.kernels.cpu.emit.vector import (
    I8,
    I32,
    SCALAR,
    Emitter,
    Integers,
    Values,
)
from implicit_conv.kernels.cpu.tile.storage import (
    HARD_BFLOAT16,
    SIZES,
    SOFT_FLOAT16,
    Stored,
    dtype_of,
    is_integer,
)

I16 = ir.IntType(16)


def emitter(builder: ir.IRBuilder, lanes: int, dtype: Stored, fma: bool = False) -> Emitter:
    """The Emitter of vectors that are computed in `dtype`, or in float32 for 16-bit floats."""
    if is_integer(dtype):
        return Integers(builder, lanes, SIZES[dtype])
    return Emitter(builder, lanes, max(4, SIZES[dtype]), fma)


def load(e: Emitter, dtype: Any, address: ir.Value, mask: ir.Value | None = None) -> ir.Value:
    """A vector of elements stored as `dtype`, as elements of `e`; lanes outside `mask` are zero."""
    raw = _load_bits(e, dtype, address, mask)
    if is_integer(dtype) and raw.type != e.vector:
        extend = e.builder.zext if dtype.startswith("uint") else e.builder.sext
        return extend(raw, e.vector)
    if dtype_of(dtype) == "bfloat16":
        high = e.builder.shl(e.builder.zext(raw, e.words), e.word(16))
        return e.builder.bitcast(high, e.vector)
    if dtype == "float16":
        half = e.builder.bitcast(raw, ir.VectorType(ir.HalfType(), e.lanes))
        return e.builder.fpext(half, e.vector)
    if dtype == SOFT_FLOAT16:
        return _widen_half(e, e.builder.zext(raw, e.words))
    return raw


def load_words(e: Emitter, addresses: Values, masks: Sequence[ir.Value | None]) -> ir.Value:
    """A vector of 32-bit words, each of one element from every address; those of the first address
    are in the lowest bits.

    Two addresses are those of 16-bit elements, four those of 8-bit elements. Lanes outside their
    mask are zero.
    """
    bits = 32 // len(addresses)
    words = e.word(0)
    for i, (address, mask) in enumerate(zip(addresses, masks, strict=True)):
        part = e.builder.zext(_load_bits(e, f"int{bits}", address, mask), e.words)
        words = e.builder.or_(words, e.builder.shl(part, e.word(i * bits)))
    return e.builder.bitcast(words, e.vector)


def store(
    e: Emitter, dtype: Stored, value: ir.Value, address: ir.Value, mask: ir.Value | None = None
) -> None:
    """Store elements of `e` as `dtype`, floats rounded to nearest even; lanes outside `mask` are
    not written.
    """
    if dtype == HARD_BFLOAT16 and e.arm:
        half = e.builder.fptrunc(value, ir.VectorType(internals.BFloat(), e.lanes))
        value = e.builder.bitcast(half, ir.VectorType(I16, e.lanes))
    elif dtype == HARD_BFLOAT16 and e.lanes in (8, 16):
        value = _round_bfloat_at_once(e, value)
    elif dtype_of(dtype) == "bfloat16":
        value = _round_bfloat(e, value)
    elif dtype == "float16":
        half = e.builder.fptrunc(value, ir.VectorType(ir.HalfType(), e.lanes))
        value = e.builder.bitcast(half, ir.VectorType(I16, e.lanes))
    elif dtype == SOFT_FLOAT16:
        value = e.builder.trunc(_narrow_half(e, value), ir.VectorType(I16, e.lanes))
    _store_bits(e, dtype, value, address, mask)


def spread(
    e: Emitter, dtype: Stored, step: int, to: ir.Value, at: ir.Value, count: ir.Value
) -> None:
    """Write `count` contiguous elements with a stride of `step` elements, and nothing in between.

    `count` is at most the number of lanes; all elements are stored as `dtype`.
    """
    elements = _load_bits(e, dtype, at, e.below(count))
    for first in range(0, step * e.lanes, e.lanes):
        places = range(first, first + e.lanes)
        taken = ir.Constant(e.words, [place // step for place in places])
        kept = ir.Constant(ir.VectorType(ir.IntType(1), e.lanes), [p % step == 0 for p in places])
        kept = e.builder.and_(kept, e.builder.icmp_signed("<", taken, e.splat_word(count)))
        value = e.builder.shuffle_vector(elements, elements, taken)
        _store_bits(e, dtype, value, e.at(to, first * SIZES[dtype]), kept)


def _bits_type(e: Emitter, dtype: Stored) -> ir.Type:
    """The type that the bits of an element are loaded as."""
    size = SIZES[dtype]
    return e.scalar if size == e.itemsize else {1: I8, 2: I16, 4: I32}[size]


def _load_bits(e: Emitter, dtype: Stored, address: ir.Value, mask: ir.Value | None) -> ir.Value:
    kind = ir.VectorType(_bits_type(e, dtype), e.lanes)
    pointer = e.pointer(address, kind)
    if mask is not None:
        return masks.load(e.builder, pointer, kind, mask, SIZES[dtype])
    value = e.builder.load(pointer)
    value.align = SIZES[dtype]
    return value


def _store_bits(
    e: Emitter, dtype: Stored, value: ir.Value, address: ir.Value, mask: ir.Value | None
) -> None:
    pointer = e.pointer(address, value.type)
    if mask is None:
        e.builder.store(value, pointer).align = SIZES[dtype]
    else:
        masks.store(e.builder, value, pointer, mask, SIZES[dtype])


def _to_even(e: Emitter, bits: ir.Value, dropped: int) -> ir.Value:
    """`bits` plus what rounds them to nearest even when `dropped` low bits are cut off."""
    odd = e.builder.and_(e.builder.lshr(bits, e.word(dropped)), e.word(1))
    return e.builder.add(e.builder.add(bits, odd), e.word((1 << (dropped - 1)) - 1))


def _round_bfloat_at_once(e: Emitter, value: ir.Value) -> ir.Value:
    """`_round_bfloat` by an instruction, except where it would flush a subnormal to zero."""
    builder, bits = e.builder, 32 * e.lanes
    kind = ir.FunctionType(ir.VectorType(ir.IntType(1), e.lanes), [e.vector, I32])
    classify = internals.get_or_insert_function(
        builder.module, kind, f"llvm.x86.avx512.fpclass.ps.{bits}"
    )
    subnormal = builder.call(classify, [value, ir.Constant(I32, 0x20)])
    lanes = ir.IntType(e.lanes)
    some = builder.icmp_unsigned("!=", builder.bitcast(subnormal, lanes), ir.Constant(lanes, 0))
    with builder.if_else(some, likely=False) as (rare, usual):
        with rare:
            exact, exact_end = _round_bfloat(e, value), builder.block
        with usual:
            kind = ir.FunctionType(ir.VectorType(internals.BFloat(), e.lanes), [e.vector])
            name = f"llvm.x86.avx512bf16.cvtneps2bf16.{bits}"
            convert = internals.get_or_insert_function(builder.module, kind, name)
            rounded = builder.bitcast(builder.call(convert, [value]), exact.type)
            rounded_end = builder.block
    result = builder.phi(exact.type)
    result.add_incoming(exact, exact_end)
    result.add_incoming(rounded, rounded_end)
    return result


def _round_bfloat(e: Emitter, value: ir.Value) -> ir.Value:
    """Floats rounded to bfloat16, to nearest even, by integer arithmetic."""
    bits = e.builder.bitcast(value, e.words)
    quiet = e.builder.or_(bits, e.word(1 << 22))  # else a NaN might lose its last bit, or carry
    chosen = e.builder.select(
        e.builder.fcmp_unordered("uno", value, value), quiet, _to_even(e, bits, 16)
    )
    return e.builder.trunc(e.builder.lshr(chosen, e.word(16)), ir.VectorType(I16, e.lanes))


def _widen_half(e: Emitter, half: ir.Value) -> ir.Value:
    """float16 in the low halves as float32, by integer arithmetic and one exact product."""
    builder = e.builder
    shifted = builder.shl(builder.and_(half, e.word(0x7FFF)), e.word(13))
    scaled = builder.fmul(builder.bitcast(shifted, e.vector), e.constant(2.0**112))  # exponent bias
    endless = builder.icmp_unsigned(">=", shifted, e.word(0x7C00 << 13))
    bits = builder.select(
        endless, builder.or_(shifted, e.word(0x7F800000)), builder.bitcast(scaled, e.words)
    )
    sign = builder.shl(builder.and_(half, e.word(0x8000)), e.word(16))
    return builder.bitcast(builder.or_(bits, sign), e.vector)


def _narrow_half(e: Emitter, value: ir.Value) -> ir.Value:
    """float32 rounded to float16 in the low halves, by integer arithmetic and one rounding sum."""
    builder = e.builder
    bits = builder.bitcast(value, e.words)
    size = builder.and_(bits, e.word(0x7FFFFFFF))
    rebiased = builder.sub(_to_even(e, size, 13), e.word(112 << 23))
    half = builder.lshr(rebiased, e.word(13))
    # In a sum with 0.5 the last bit of a float32 is the last bit of a subnormal float16.
    beside = builder.fadd(builder.bitcast(size, e.vector), e.constant(0.5))
    small = builder.sub(builder.bitcast(beside, e.words), e.word(0x3F000000))
    half = builder.select(builder.icmp_unsigned("<", size, e.word(0x38800000)), small, half)
    large = builder.icmp_unsigned(">=", size, e.word(0x47800000))
    half = builder.select(large, e.word(0x7C00), half)
    nan = builder.icmp_unsigned(">", size, e.word(0x7F800000))
    half = builder.select(nan, e.word(0x7E00), half)
    sign = builder.lshr(builder.and_(bits, e.word(0x80000000)), e.word(16))
    return builder.or_(half, sign)


@functools.cache
def make_convert(source: Stored, target: Stored, lanes: int) -> Any:
    """An intrinsic (to, at): `lanes` elements converted from `source` to `target`."""

    @emitting(types.void(types.int64, types.int64), source, target, lanes)
    def convert(builder: ir.IRBuilder, to: ir.Value, at: ir.Value) -> None:
        e = emitter(builder, lanes, target if is_integer(target) else source)
        store(e, target, load(e, source, at), to)

    return convert


@functools.cache
def make_move_element(source: Stored, target: Stored) -> Any:
    """move_element(to, at): copy one element and convert it."""
    return make_move_vector(source, target, 1)


def make_move_vector(source: Stored, target: Stored, lanes: int) -> Any:
    """move_vector(to, at): copy `lanes` contiguous elements and convert them."""
    if source == target:
        return memory.copy_bytes(lanes * SIZES[source])
    return make_convert(source, target, lanes)


@functools.cache
def make_move(source: Stored, target: Stored, lanes: int) -> Callable[..., Any]:
    """move(to, at, count): copy `count` contiguous elements and convert them."""
    at_size, to_size = SIZES[source], SIZES[target]
    if source == target:

        def copy(to: int, at: int, count: int) -> None:
            """Copy `count` elements, which need no conversion."""
            memory.copy(to, at, count * at_size)

        return copy
    vector, element = (make_convert(source, target, width) for width in (lanes, 1))

    def move(to: int, at: int, count: int) -> None:
        """Convert `count` elements, by vectors if they fill one."""
        if count < lanes:
            for i in range(count):
                element(to + i * to_size, at + i * at_size)
            return
        for i in range(0, count - lanes, lanes):
            vector(to + i * to_size, at + i * at_size)
        rest = count - lanes  # the last vector may overlap the one before
        vector(to + rest * to_size, at + rest * at_size)

    return move


@functools.cache
def make_read(dtype: Stored) -> Any:
    """read(address): one element as float64; an int64 is rounded to nearest even."""

    @emitting(types.float64(types.int64), dtype)
    def read(builder: ir.IRBuilder, address: ir.Value) -> ir.Value:
        e = emitter(builder, 1, dtype)
        value = builder.extract_element(load(e, dtype, address), ir.Constant(I32, 0))
        if is_integer(dtype):
            return builder.sitofp(value, SCALAR[8])
        return builder.fpext(value, SCALAR[8]) if e.itemsize == 4 else value

    return read


@functools.cache
def make_write(dtype: Stored) -> Any:
    """write(address, value): store one float64, rounded."""

    @emitting(types.void(types.int64, types.float64), dtype)
    def write(builder: ir.IRBuilder, address: ir.Value, value: ir.Value) -> None:
        e = emitter(builder, 1, dtype)
        store(e, dtype, e.splat(e.narrow(value)), address)

    return write
