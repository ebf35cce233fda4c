"""Intrinsics: functions of compiled code whose bodies are emitted, or stand at an address."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from implicit_conv.kernels.cpu.emit.internals import ir, types
from implicit_conv.kernels.cpu.emit.vector import I64, VOID


def defined(
    name: str,
    parameters: Iterable[str],
    define: Callable[..., Any],
    defaults: tuple[float, ...] = (),
    part: Any = None,
) -> Any:
    """An intrinsic with these parameters, whose names and defaults compilers read.

    ``define(*types)`` returns its signature and what emits it; the last parameters have `defaults`.
    """
    listed = ", ".join(parameters)
    scope: dict[str, Any] = {"define": define}
    exec(f"def made({listed}): return define({listed})", scope)
    made = scope["made"]
    made.__name__ = made.__qualname__ = name
    made.__defaults__ = defaults
    return types.Intrinsic(made, part)


def emitting(signature: Any, *variant: object) -> Callable[[Callable[..., Any]], Any]:
    """Make an intrinsic of ``emit(builder, *values)``, which returns its result or None.

    The intrinsic has the name of `emit`, with the variant behind it, and its other parameters.
    """

    def made(emit: Callable[..., Any]) -> Any:
        def codegen(context: Any, builder: ir.IRBuilder, _: Any, values: Any) -> Any:
            value = emit(builder, *values)
            return context.get_dummy_value() if value is None else value

        name, code = "_".join(map(str, (emit.__name__, *variant))), emit.__code__
        names = code.co_varnames[1 : code.co_argcount]
        return defined(name, names, lambda *_: (signature, codegen))

    return made


def function_at(name: str, result: ir.Type, *kinds: ir.Type) -> Any:
    """An intrinsic that calls a C function, whose address is its first argument.

    Integers of C are int64 in compiled code.
    """

    def codegen(context: Any, builder: ir.IRBuilder, _: Any, values: Any) -> Any:
        address, *given = values
        pointer = builder.inttoptr(address, ir.FunctionType(result, kinds).as_pointer())
        pairs = zip(given, kinds, strict=True)
        passed = [v if kind == I64 else builder.trunc(v, kind) for v, kind in pairs]
        value = builder.call(pointer, passed)
        if result == VOID:
            return context.get_dummy_value()
        return value if result == I64 else builder.sext(value, I64)

    returned = types.void if result == VOID else types.int64
    signature = returned(*[types.int64] * (1 + len(kinds)))
    names = ["function", *(f"argument_{place}" for place in range(len(kinds)))]
    return defined(name, names, lambda *_: (signature, codegen))
