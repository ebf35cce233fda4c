"""Access memory by address in compiled code: the CPU engine passes addresses (int64), like a GPU
kernel.

Strides are in bytes and may be zero or negative. Copies of elements move bits, whatever their type.
"""

from __future__ import annotations

import functools
from typing import Any

from implicit_conv.kernels.cpu.emit import internals
from implicit_conv.kernels.cpu.emit.internals import ir, types
from implicit_conv.kernels.cpu.emit.intrinsics import emitting
from implicit_conv.kernels.cpu.emit.vector import BYTES, I32, I64, Intrinsic, Values

INT = types.int64


@emitting(INT(INT))
def read(builder: ir.IRBuilder, address: ir.Value) -> ir.Value:
    """The int64 at `address`."""
    return builder.load(builder.inttoptr(address, I64.as_pointer()))


@emitting(types.void(INT, INT))
def write(builder: ir.IRBuilder, address: ir.Value, value: ir.Value) -> None:
    """Store an int64 at `address`."""
    builder.store(value, builder.inttoptr(address, I64.as_pointer()))


@emitting(types.void())
def settle(builder: ir.IRBuilder) -> None:
    """Let all threads see what this one stored past the caches, before what it stores next."""
    builder.fence("seq_cst")


@emitting(types.float64(INT))
def read_float(builder: ir.IRBuilder, address: ir.Value) -> ir.Value:
    """The float64 at `address`."""
    return builder.load(builder.inttoptr(address, ir.DoubleType().as_pointer()))


@emitting(INT(INT, INT))
def fetch_add(builder: ir.IRBuilder, address: ir.Value, value: ir.Value) -> ir.Value:
    """Add to the int64 at `address`, atomically; returns the value before the addition."""
    pointer = builder.inttoptr(address, I64.as_pointer())
    return builder.atomic_rmw("add", pointer, value, "monotonic")


@emitting(types.void(INT, INT, INT))
def copy(builder: ir.IRBuilder, destination: ir.Value, source: ir.Value, size: ir.Value) -> None:
    """memcpy of `size` bytes; the two must not overlap."""
    to, at = (builder.inttoptr(address, BYTES) for address in (destination, source))
    internals.raw_memcpy(builder, to, at, size)


@emitting(types.void(INT, INT, INT))
def copy_bits(
    builder: ir.IRBuilder, destination: ir.Value, source: ir.Value, mask: ir.Value
) -> None:
    """Copy the bits in `mask` of the 32-bit word at `source`; the others become zero."""
    word = builder.load(builder.inttoptr(source, I32.as_pointer()))
    word.align = 1
    word = builder.and_(word, builder.trunc(mask, I32))
    builder.store(word, builder.inttoptr(destination, I32.as_pointer())).align = 1


@emitting(types.void(INT))
def prefetch(builder: ir.IRBuilder, address: ir.Value) -> None:
    """Prefetch the cache line at `address` into L2; the address need not be valid."""
    kind = ir.FunctionType(ir.VoidType(), [BYTES, *[ir.IntType(32)] * 3])
    function = internals.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
    flags = [ir.Constant(ir.IntType(32), value) for value in (0, 2, 1)]
    builder.call(function, [builder.inttoptr(address, BYTES), *flags])


@emitting(types.void(INT, INT))
def zero(builder: ir.IRBuilder, destination: ir.Value, size: ir.Value) -> None:
    """Fill `size` bytes with zero."""
    internals.memset(builder, builder.inttoptr(destination, BYTES), size, 0)


@types.Intrinsic
def stack(size: Any) -> Intrinsic:
    """Address of `size` bytes, a constant, on the stack until the calling function returns."""
    if not isinstance(size, types.Literal):
        raise types.LiteralError("stack: size must be a constant")

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Values) -> Any:
        with builder.goto_entry_block():
            room = builder.alloca(ir.ArrayType(ir.IntType(8), size.value))
        room.align = 64
        return builder.ptrtoint(room, I64)

    return INT(size), codegen


@functools.cache
def record_at(dtype: Any) -> Any:
    """An intrinsic (address): the record of this dtype of numpy there."""
    record = types.from_dtype(dtype)

    def record_there(address: Any) -> Intrinsic:
        def codegen(context: Any, builder: ir.IRBuilder, _: Any, args: Values) -> Any:
            return builder.inttoptr(args[0], context.get_value_type(record))

        return record(INT), codegen

    return types.Intrinsic(record_there)


@functools.cache
def copy_bytes(size: int) -> Any:
    """An intrinsic (destination, source): copy `size` bytes, unaligned addresses allowed."""
    kind = ir.IntType(8 * size) if size <= I64.width // 8 else ir.VectorType(I64, size // 8)

    @emitting(types.void(INT, INT), size)
    def copy_fixed(builder: ir.IRBuilder, destination: ir.Value, source: ir.Value) -> None:
        value = builder.load(builder.inttoptr(source, kind.as_pointer()))
        value.align = 1
        builder.store(value, builder.inttoptr(destination, kind.as_pointer())).align = 1

    return copy_fixed
