"""Treat subnormals as zeros in this thread, by bits of its floating-point control word.

The control word is MXCSR on x86 (Intel SDM vol. 1, 10.2.3) and FPCR on 64-bit Arm (Arm ARM, C5.2).
Other processors are not supported, and keep subnormals.
"""

from __future__ import annotations

import platform
from typing import Any

from implicit_conv.kernels.cpu.emit import internals
from implicit_conv.kernels.cpu.emit.internals import intrinsic, ir, types
from implicit_conv.kernels.cpu.emit.vector import BYTES, I32, I64, VOID, Intrinsic, Values

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


@intrinsic
def control_word(typingctx: Any) -> Intrinsic:
    """The control word of this thread, an int64."""

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Values) -> Any:
        if platform.machine() in X86:
            word = internals.alloca_once(builder, I32)
            _call(builder, "llvm.x86.sse.stmxcsr", VOID, [builder.bitcast(word, BYTES)])
            return builder.zext(builder.load(word), I64)
        if platform.machine() in ARM:
            return _call(builder, "llvm.aarch64.get.fpcr", I64, [])
        return ir.Constant(I64, 0)

    return types.int64(), codegen


@intrinsic
def set_control_word(typingctx: Any, value: Any) -> Intrinsic:
    """Set the control word of this thread."""

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Values) -> Any:
        if platform.machine() in X86:
            word = internals.alloca_once_value(builder, builder.trunc(args[0], I32))
            _call(builder, "llvm.x86.sse.ldmxcsr", VOID, [builder.bitcast(word, BYTES)])
        elif platform.machine() in ARM:
            _call(builder, "llvm.aarch64.set.fpcr", VOID, [args[0]])
        return context.get_dummy_value()

    return types.void(types.int64), codegen
