"""Access memory by address in compiled code: the CPU engine passes addresses (int64), like a GPU
kernel.

Strides are in bytes and may be zero or negative. Copies of elements move bits, whatever their type.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from implicit_conv.kernels.cpu.emit import internals
from implicit_conv.kernels.cpu.emit.internals import intrinsic, ir, types
from implicit_conv.kernels.cpu.emit.vector import BYTES, I32, I64, Intrinsic, Values

INT = types.int64


def _intrinsic(result: Any, parameters: list[Any], emit: Callable[..., Any]) -> Intrinsic:
    """What @intrinsic wants: a signature, and code from `emit(builder, *values)`, which returns the
    value or None.
    """

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Values) -> Any:
        value = emit(builder, *args)
        return context.get_dummy_value() if value is None else value

    return result(*parameters), codegen


def named(definition: Callable[..., Any], *variant: object) -> Any:
    """The intrinsic that `definition` defines, with the variant in its name."""
    definition.__name__ += "".join(f"_{part}" for part in variant)
    definition.__qualname__ = definition.__name__
    return intrinsic(definition)


@intrinsic
def read(typingctx: Any, address: Any) -> Intrinsic:
    """The int64 at `address`."""

    def emit(builder: ir.IRBuilder, address: ir.Value) -> ir.Value:
        return builder.load(builder.inttoptr(address, I64.as_pointer()))

    return _intrinsic(INT, [INT], emit)


@intrinsic
def write(typingctx: Any, address: Any, value: Any) -> Intrinsic:
    """Store an int64 at `address`."""

    def emit(builder: ir.IRBuilder, address: ir.Value, value: ir.Value) -> None:
        builder.store(value, builder.inttoptr(address, I64.as_pointer()))

    return _intrinsic(types.void, [INT, INT], emit)


@intrinsic
def settle(typingctx: Any) -> Intrinsic:
    """Let all threads see what this one stored past the caches, before what it stores next."""

    def emit(builder: ir.IRBuilder) -> None:
        builder.fence("seq_cst")

    return _intrinsic(types.void, [], emit)


@intrinsic
def read_float(typingctx: Any, address: Any) -> Intrinsic:
    """The float64 at `address`."""

    def emit(builder: ir.IRBuilder, address: ir.Value) -> ir.Value:
        return builder.load(builder.inttoptr(address, ir.DoubleType().as_pointer()))

    return _intrinsic(types.float64, [INT], emit)


@intrinsic
def fetch_add(typingctx: Any, address: Any, value: Any) -> Intrinsic:
    """Add to the int64 at `address`, atomically; returns the value before the addition."""

    def emit(builder: ir.IRBuilder, address: ir.Value, value: ir.Value) -> ir.Value:
        pointer = builder.inttoptr(address, I64.as_pointer())
        return builder.atomic_rmw("add", pointer, value, "monotonic")

    return _intrinsic(INT, [INT, INT], emit)


@intrinsic
def copy(typingctx: Any, destination: Any, source: Any, size: Any) -> Intrinsic:
    """memcpy of `size` bytes; the two must not overlap."""

    def emit(
        builder: ir.IRBuilder, destination: ir.Value, source: ir.Value, size: ir.Value
    ) -> None:
        pointers = [builder.inttoptr(address, BYTES) for address in (destination, source)]
        internals.raw_memcpy(builder, *pointers, size, 1)

    return _intrinsic(types.void, [INT, INT, INT], emit)


@intrinsic
def copy_bits(typingctx: Any, destination: Any, source: Any, mask: Any) -> Intrinsic:
    """Copy the bits in `mask` of the 32-bit word at `source`; the others become zero."""

    def emit(
        builder: ir.IRBuilder, destination: ir.Value, source: ir.Value, mask: ir.Value
    ) -> None:
        word = builder.load(builder.inttoptr(source, I32.as_pointer()))
        word.align = 1
        word = builder.and_(word, builder.trunc(mask, I32))
        builder.store(word, builder.inttoptr(destination, I32.as_pointer())).align = 1

    return _intrinsic(types.void, [INT, INT, INT], emit)


@intrinsic
def prefetch(typingctx: Any, address: Any) -> Intrinsic:
    """Prefetch the cache line at `address` into L2; the address need not be valid."""

    def emit(builder: ir.IRBuilder, address: ir.Value) -> None:
        kind = ir.FunctionType(ir.VoidType(), [BYTES, *[ir.IntType(32)] * 3])
        function = internals.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        flags = [ir.Constant(ir.IntType(32), value) for value in (0, 2, 1)]
        builder.call(function, [builder.inttoptr(address, BYTES), *flags])

    return _intrinsic(types.void, [INT], emit)


@intrinsic
def zero(typingctx: Any, destination: Any, size: Any) -> Intrinsic:
    """Fill `size` bytes with zero."""

    def emit(builder: ir.IRBuilder, destination: ir.Value, size: ir.Value) -> None:
        pointer = builder.inttoptr(destination, BYTES)
        internals.memset(builder, pointer, size, 0)

    return _intrinsic(types.void, [INT, INT], emit)


@intrinsic
def stack(typingctx: Any, size: Any) -> Intrinsic:
    """Address of `size` bytes, a constant, on the stack until the calling function returns."""
    if not isinstance(size, types.IntegerLiteral):
        raise internals.RequireLiteralValue("stack: size must be a constant")

    def emit(builder: ir.IRBuilder, _: object) -> ir.Value:
        with builder.goto_entry_block():
            room = builder.alloca(ir.ArrayType(ir.IntType(8), size.literal_value))
        room.align = 64
        return builder.ptrtoint(room, I64)

    return _intrinsic(INT, [size], emit)


@functools.cache
def record_at(dtype: Any) -> Any:
    """An intrinsic (address): the record of this dtype of numpy there."""
    record = internals.from_dtype(dtype)

    def record_there(typingctx: Any, address: Any) -> Intrinsic:
        def codegen(context: Any, builder: ir.IRBuilder, _: Any, args: Values) -> Any:
            return builder.inttoptr(args[0], context.get_value_type(record))

        return record(INT), codegen

    return intrinsic(record_there)


@functools.cache
def copy_bytes(size: int) -> Any:
    """An intrinsic (destination, source): copy `size` bytes, unaligned addresses allowed."""
    kind = ir.IntType(8 * size) if size <= I64.width // 8 else ir.VectorType(I64, size // 8)

    def copy_fixed(typingctx: Any, destination: Any, source: Any) -> Intrinsic:
        def emit(builder: ir.IRBuilder, destination: ir.Value, source: ir.Value) -> None:
            value = builder.load(builder.inttoptr(source, kind.as_pointer()))
            value.align = 1
            builder.store(value, builder.inttoptr(destination, kind.as_pointer())).align = 1

        return _intrinsic(types.void, [INT, INT], emit)

    return named(copy_fixed, size)
