"""Words in memory that several threads read and write: int64, atomic, sequentially consistent."""

from __future__ import annotations

import platform
from typing import Any

from implicit_conv.kernels.cpu.emit import internals
from implicit_conv.kernels.cpu.emit.internals import intrinsic, ir, types
from implicit_conv.kernels.cpu.emit.vector import I32, I64, VOID, Intrinsic, Values

INT = types.int64
ORDER = "seq_cst"
PAUSES = {  # what a thread that spins executes: intrinsic, arguments
    **dict.fromkeys(("x86_64", "AMD64"), ("llvm.x86.sse2.pause", [])),
    **dict.fromkeys(("aarch64", "arm64"), ("llvm.aarch64.isb", [15])),
}


def _pointer(builder: ir.IRBuilder, address: ir.Value) -> ir.Value:
    return builder.inttoptr(address, I64.as_pointer())


@intrinsic
def load(typingctx: Any, address: Any) -> Intrinsic:
    """The word at `address`."""

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Values) -> Any:
        return builder.load_atomic(_pointer(builder, args[0]), ORDER, 8)

    return INT(INT), codegen


@intrinsic
def store(typingctx: Any, address: Any, value: Any) -> Intrinsic:
    """Write the word at `address`."""

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Values) -> Any:
        builder.store_atomic(args[1], _pointer(builder, args[0]), ORDER, 8)
        return context.get_dummy_value()

    return types.void(INT, INT), codegen


def _changes(operation: str) -> Any:
    @intrinsic
    def change(typingctx: Any, address: Any, value: Any) -> Intrinsic:
        def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Values) -> Any:
            return builder.atomic_rmw(operation, _pointer(builder, args[0]), args[1], ORDER)

        return INT(INT, INT), codegen

    return change


# Each changes the word at an address, and returns what was there before.
add, set_bits, keep_bits = _changes("add"), _changes("or"), _changes("and")
exchange = _changes("xchg")


@intrinsic
def swap(typingctx: Any, address: Any, expected: Any, value: Any) -> Intrinsic:
    """Compare and swap: whether `value` was written, because the word was `expected`."""

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Values) -> Any:
        pair = builder.cmpxchg(_pointer(builder, args[0]), args[1], args[2], ORDER, ORDER)
        return builder.extract_value(pair, 1)

    return types.boolean(INT, INT, INT), codegen


@intrinsic
def lowest_bit(typingctx: Any, mask: Any) -> Intrinsic:
    """The number of the lowest bit that is set; 64 if none is."""

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Values) -> Any:
        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 0))

    return INT(INT), codegen


@intrinsic
def pause(typingctx: Any) -> Intrinsic:
    """Let a thread that spins rest for some cycles."""

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Values) -> Any:
        if platform.machine() in PAUSES:
            name, arguments = PAUSES[platform.machine()]
            values = [ir.Constant(I32, value) for value in arguments]
            kind = ir.FunctionType(VOID, [value.type for value in values])
            builder.call(internals.get_or_insert_function(builder.module, kind, name), values)
        return context.get_dummy_value()

    return types.void(), codegen
