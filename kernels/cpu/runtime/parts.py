"""Compile parts: functions that compiled code and launches call by address.

Every part is compiled once, on demand, and cached on disk. If callers inlined parts instead, each
of them would optimise the same thousand vector instructions again, and first calls would take
seconds longer.
"""

from collections.abc import Callable
from types import FunctionType
from typing import Any

from llvmlite import ir
from numba import types

from implicit_conv.kernels.cpu.runtime.native import Entry, entry
from implicit_conv.kernels.cpu.translate.module import Module

LIMITS = ("low", "high")  # float64 arguments of the parts that clamp what they store
BOUND: Any = object()  # the value of a template's globals before `compile_part` binds them


def compile_part(signature: Any, template: Any, name: str, **bound: Any) -> Any:
    """Compile `template` over its module's globals, with the values in `bound` for some of them.

    Values that a variant needs are globals; the template's module declares them as BOUND. Every
    variant has a name of its own, and thus a cache entry of its own.
    """
    assert all(template.__globals__.get(variable) is BOUND for variable in bound), bound.keys()
    namespace = {**template.__globals__, **bound}
    function = FunctionType(template.__code__, namespace, name)
    function.__qualname__ = name
    return entry(signature)(function)


def compile_emitted(
    name: str,
    integers: tuple[str, ...],
    floats: tuple[str, ...],
    emit: Callable[[ir.IRBuilder, dict[str, ir.Value]], None],
) -> Any:
    """Compile a part whose whole body is emitted, by ``emit(builder, at)``.

    `integers` and `floats` name the part's int64 arguments and the float64 arguments after them;
    `at` maps every name to its LLVM value.
    """
    names = (*integers, *floats)

    def body(module: Module, builder: ir.IRBuilder, arguments: list[ir.Value]) -> None:
        emit(builder, dict(zip(names, arguments, strict=True)))

    signature = types.void(*[types.int64] * len(integers), *[types.float64] * len(floats))
    return Entry(name, compile_emitted, signature, body)
