"""Compile parts: functions that compiled code and launches call by address.

Every part is compiled once, on demand, and cached on disk. If callers inlined parts instead, each
of them would optimise the same thousand vector instructions again, and first calls would take
seconds longer.
"""

from collections.abc import Callable
from types import FunctionType
from typing import Any

from llvmlite import ir

from implicit_conv.kernels.cpu.runtime.entry import BLOB_POINTER
from implicit_conv.kernels.cpu.runtime.native import Entry, entry
from implicit_conv.kernels.cpu.translate.module import Module

LIMITS = ("low", "high")  # float64 parameters of the parts that clamp what they store
BOUND: Any = object()  # the value of a template's globals before `compile_part` binds them


def compile_function(signature: Any, template: Any, name: str, **bound: Any) -> Any:
    """Compile `template` over its module's globals, with the values in `bound` for some of them.

    Values that a variant needs are globals; the template's module declares them as BOUND. Every
    variant has a name of its own, and thus a cache entry of its own.
    """
    assert all(template.__globals__.get(variable) is BOUND for variable in bound), bound.keys()
    namespace = {**template.__globals__, **bound}
    function = FunctionType(template.__code__, namespace, name)
    function.__qualname__ = name
    return entry(signature)(function)


def compile_part(declared: Any, template: Any, variant: str, **bound: Any) -> Any:
    """Compile a declared part from a template, whose parameters are those of the declaration."""
    part, code = declared.part, template.__code__
    assert code.co_varnames[: code.co_argcount] == part.parameters, part
    return compile_function(
        part.signature(BLOB_POINTER), template, f"{part.name}_{variant}", **bound
    )


def compile_emitted(
    declared: Any, variant: str, emit: Callable[[ir.IRBuilder, dict[str, ir.Value]], None]
) -> Any:
    """Compile a declared part whose whole body is emitted, by ``emit(builder, at)``.

    `at` maps the names of its parameters to LLVM values.
    """
    part = declared.part

    def body(module: Module, builder: ir.IRBuilder, arguments: list[ir.Value]) -> None:
        emit(builder, dict(zip(part.parameters, arguments, strict=True)))

    return Entry(f"{part.name}_{variant}", compile_emitted, part.signature(BLOB_POINTER), body)
