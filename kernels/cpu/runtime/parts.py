"""Compile parts: functions that compiled code and launches call by address.

Every part is compiled once, on demand, and cached on disk. If callers inlined parts instead, each
of them would optimise the same thousand vector instructions again, and first calls would take
seconds longer.
"""

import functools
from collections.abc import Callable
from types import CodeType, FunctionType
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from implicit_conv.kernels.cpu.runtime.cache import entry

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

    def body(typingctx: Any, *arguments: Any) -> Any:
        def codegen(context: Any, builder: ir.IRBuilder, _: Any, args: Any) -> Any:
            values = cgutils.unpack_tuple(builder, args[0])
            emit(builder, dict(zip(names, values, strict=True)))
            return context.get_dummy_value()

        return types.void(types.StarArgTuple.from_types(arguments)), codegen

    signature = types.void(*[types.int64] * len(integers), *[types.float64] * len(floats))
    template = FunctionType(_template(names), {"__name__": __name__, "body": BOUND})
    return compile_part(signature, template, name, body=intrinsic(body))


@functools.cache
def _template(names: tuple[str, ...]) -> CodeType:
    """The code of ``def part(a, b, ...): body(a, b, ...)`` with arguments of these names.

    A C callback takes its arguments one by one, so Numba needs a function that lists them. Its
    source is generated from the one tuple of names. It claims to be in this file, since the cache
    needs the file of a function.
    """
    listed = ", ".join(names)
    namespace: dict[str, FunctionType] = {}
    exec(compile(f"def part({listed}): body({listed})", __file__, "exec"), namespace)
    return namespace["part"].__code__
