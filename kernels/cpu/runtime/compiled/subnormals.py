"""Treat subnormals as zeros in this thread, by bits of its floating-point control word.

The control word is MXCSR on x86 (Intel SDM vol. 1, 10.2.3) and FPCR on 64-bit Arm (Arm ARM, C5.2).
Other processors are not supported, and keep subnormals.
"""

from __future__ import annotations

import platform

from implicit_conv.kernels.cpu.emit import internals
from implicit_conv.kernels.cpu.emit.internals import ir, types
from implicit_conv.kernels.cpu.emit.intrinsics import emitting
from implicit_conv.kernels.cpu.emit.vector import BYTES, I32, I64, VOID, Values

DENORMALS_ARE_ZERO, FLUSH_TO_ZERO = 1 << 6, 1 << 15  # bits of MXCSR: for operands, for results
FLUSH_BOTH = 1 << 24  # the bit of FPCR for operands and results
X86, ARM = ("x86_64", "AMD64"), ("aarch64", "arm64")  # names in platform.machine()
FLUSH = {  # bits of this CPU's control word that treat subnormals as zeros; 0 if unsupported
    **dict.fromkeys(X86, DENORMALS_ARE_ZERO | FLUSH_TO_ZERO),
    **dict.fromkeys(ARM, FLUSH_BOTH),
}.get(platform.machine(), 0)


def _call(builder: ir.IRBuilder, name: str, result: ir.Type, arguments: Values) -> ir.Value:
    """Emit a call of the LLVM intrinsic `name`."""
    kind = ir.FunctionType(result, [argument.type for argument in arguments])
    function = internals.get_or_insert_function(builder.module, kind, name)
    return builder.call(function, arguments)


@emitting(types.int64())
def control_word(builder: ir.IRBuilder) -> ir.Value:
    """The control word of this thread, an int64."""
    if platform.machine() in X86:
        word = internals.alloca_once(builder, I32)
        _call(builder, "llvm.x86.sse.stmxcsr", VOID, [builder.bitcast(word, BYTES)])
        return builder.zext(builder.load(word), I64)
    if platform.machine() in ARM:
        return _call(builder, "llvm.aarch64.get.fpcr", I64, [])
    return ir.Constant(I64, 0)


@emitting(types.void(types.int64))
def set_control_word(builder: ir.IRBuilder, value: ir.Value) -> None:
    """Set the control word of this thread."""
    if platform.machine() in X86:
        word = internals.alloca_once_value(builder, builder.trunc(value, I32))
        _call(builder, "llvm.x86.sse.ldmxcsr", VOID, [builder.bitcast(word, BYTES)])
    elif platform.machine() in ARM:
        _call(builder, "llvm.aarch64.set.fpcr", VOID, [value])
