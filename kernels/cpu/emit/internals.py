"""All that emits code for CPUs takes from llvmlite, and what llvmlite lacks."""

from __future__ import annotations

from llvmlite import ir

from implicit_conv.kernels.cpu.emit import types

__all__ = [
    "BFloat",
    "alloca_once",
    "alloca_once_value",
    "get_or_insert_function",
    "global_constant",
    "ir",
    "memset",
    "raw_memcpy",
    "types",
]

I8 = ir.IntType(8)
FALSE = ir.Constant(ir.IntType(1), 0)


class BFloat(ir.Type):  # type: ignore[misc]  # llvmlite publishes no types
    """LLVM's bfloat, which llvmlite lacks."""

    def _to_string(self) -> str:
        return "bfloat"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BFloat)

    def __hash__(self) -> int:
        return hash(BFloat)


def get_or_insert_function(module: ir.Module, kind: ir.FunctionType, name: str) -> ir.Function:
    """The function of this name, which is declared if the module lacks it."""
    return module.globals.get(name) or ir.Function(module, kind, name)


def alloca_once(builder: ir.IRBuilder, kind: ir.Type) -> ir.Value:
    """Room on the stack for a value of this type, zero at first."""
    with builder.goto_entry_block():
        room = builder.alloca(kind)
        builder.store(kind(None), room)
    return room


def alloca_once_value(builder: ir.IRBuilder, value: ir.Value) -> ir.Value:
    """Room on the stack that has a value."""
    room = alloca_once(builder, value.type)
    builder.store(value, room)
    return room


def global_constant(builder: ir.IRBuilder, name: str, value: ir.Constant) -> ir.Value:
    """A constant in memory."""
    constant = ir.GlobalVariable(builder.module, value.type, builder.module.get_unique_name(name))
    constant.linkage, constant.global_constant, constant.initializer = "internal", True, value
    return constant


def memset(builder: ir.IRBuilder, at: ir.Value, size: ir.Value, value: int) -> None:
    """Fill `size` bytes."""
    at = builder.bitcast(at, I8.as_pointer())
    function = builder.module.declare_intrinsic("llvm.memset", (at.type, size.type))
    builder.call(function, [at, ir.Constant(I8, value), size, FALSE])


def raw_memcpy(builder: ir.IRBuilder, to: ir.Value, at: ir.Value, size: ir.Value) -> None:
    """Copy `size` bytes between arrays that do not overlap."""
    to, at = (builder.bitcast(each, I8.as_pointer()) for each in (to, at))
    function = builder.module.declare_intrinsic("llvm.memcpy", [to.type, at.type, size.type])
    builder.call(function, [to, at, size, FALSE])
