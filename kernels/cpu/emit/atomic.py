"""Words in memory that several threads read and write: int64, atomic, sequentially consistent."""

from __future__ import annotations

import platform
from typing import Any

from implicit_conv.kernels.cpu.emit import internals
from implicit_conv.kernels.cpu.emit.internals import ir, types
from implicit_conv.kernels.cpu.emit.intrinsics import emitting
from implicit_conv.kernels.cpu.emit.vector import I32, I64, VOID

INT = types.int64
ORDER = "seq_cst"
PAUSES = {  # what a thread that spins executes: intrinsic, arguments
    **dict.fromkeys(("x86_64", "AMD64"), ("llvm.x86.sse2.pause", [])),
    **dict.fromkeys(("aarch64", "arm64"), ("llvm.aarch64.isb", [15])),
}


def _pointer(builder: ir.IRBuilder, address: ir.Value) -> ir.Value:
    return builder.inttoptr(address, I64.as_pointer())


@emitting(INT(INT))
def load(builder: ir.IRBuilder, address: ir.Value) -> ir.Value:
    """The word at `address`."""
    return builder.load_atomic(_pointer(builder, address), ORDER, 8)


@emitting(types.void(INT, INT))
def store(builder: ir.IRBuilder, address: ir.Value, value: ir.Value) -> None:
    """Write the word at `address`."""
    builder.store_atomic(value, _pointer(builder, address), ORDER, 8)


def _changes(operation: str) -> Any:
    @emitting(INT(INT, INT))
    def change(builder: ir.IRBuilder, address: ir.Value, value: ir.Value) -> ir.Value:
        return builder.atomic_rmw(operation, _pointer(builder, address), value, ORDER)

    return change


# Each changes the word at an address, and returns what was there before.
add, set_bits, keep_bits = _changes("add"), _changes("or"), _changes("and")
exchange = _changes("xchg")


@emitting(types.boolean(INT, INT, INT))
def swap(builder: ir.IRBuilder, address: ir.Value, expected: ir.Value, value: ir.Value) -> ir.Value:
    """Compare and swap: whether `value` was written, because the word was `expected`."""
    pair = builder.cmpxchg(_pointer(builder, address), expected, value, ORDER, ORDER)
    return builder.extract_value(pair, 1)


@emitting(INT(INT))
def lowest_bit(builder: ir.IRBuilder, mask: ir.Value) -> ir.Value:
    """The number of the lowest bit that is set; 64 if none is."""
    return builder.cttz(mask, ir.Constant(ir.IntType(1), 0))


@emitting(types.void())
def pause(builder: ir.IRBuilder) -> None:
    """Let a thread that spins rest for some cycles."""
    if platform.machine() in PAUSES:
        name, arguments = PAUSES[platform.machine()]
        values = [ir.Constant(I32, value) for value in arguments]
        kind = ir.FunctionType(VOID, [value.type for value in values])
        builder.call(internals.get_or_insert_function(builder.module, kind, name), values)
