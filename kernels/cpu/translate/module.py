"""LLVM modules of translated functions, and calls between intrinsics and them."""

from collections.abc import Callable
from types import FunctionType
from typing import Any, NamedTuple

from implicit_conv.kernels.cpu.emit.internals import ir, types
from implicit_conv.kernels.cpu.emit.vector import BYTES, VOID
from implicit_conv.kernels.cpu.translate import values
from implicit_conv.kernels.cpu.translate.values import (
    TranslationError,
    Typed,
    UnsupportedError,
    as_kind,
    flat_types,
    flatten,
    rebuild,
    shape_of,
)
from implicit_conv.process.preparation import give_way

TOGETHER = 16  # instructions whose texts are made, in 0.1 ms, before other threads may run


class Context:
    """What the code of intrinsics asks of its compiler."""

    def get_dummy_value(self) -> None:
        """The value of an intrinsic that returns nothing."""

    def get_value_type(self, kind: types.Record) -> ir.Type:
        """The type of a pointer to a record."""
        return BYTES


class Callee(NamedTuple):
    """A translated function."""

    function: ir.Function
    result: Any  # the shape of what it returns


Translate = Callable[["Module", FunctionType, list[Any]], Callee]


class Module:
    """An LLVM module with one function that C code may call, and all that it calls.

    Parameters
    ----------
    triple : str
        The target, in LLVM's words.
    translate : function
        Adds a function to a module, for arguments of given shapes.
    """

    def __init__(self, triple: str, translate: Translate) -> None:
        self.ir = ir.Module()
        self.ir.triple = triple
        self._translate = translate
        self._callees: dict[Any, Callee | None] = {}

    def export(self, name: str, signature: Any, emit: Callable[..., Any]) -> None:
        """Add the function `name` for C, of this signature.

        ``emit(module, builder, arguments)`` emits the code, and gives its result.
        """
        result = signature.return_type
        returned = VOID if result == types.void else values.LLVM[result]
        kinds = [values.LLVM.get(kind, BYTES) for kind in signature.args]
        function = ir.Function(self.ir, ir.FunctionType(returned, kinds), name)
        builder = ir.IRBuilder(function.append_basic_block())
        arguments = [
            argument if kind in values.LLVM else Typed(argument, kind)
            for argument, kind in zip(function.args, signature.args, strict=True)
        ]
        value = emit(self, builder, arguments)
        if returned == VOID:
            builder.ret_void()
            return
        try:
            builder.ret(as_kind(builder, value, returned))
        except UnsupportedError as error:
            raise TranslationError(f"{name} returns {error}") from None

    def text(self) -> str:
        """LLVM's assembly of the finished module, whose instructions keep their texts."""
        for block in (block for function in self.ir.functions for block in function.blocks):
            for place, instruction in enumerate(block.instructions):
                if place % TOGETHER == 0:
                    give_way()
                str(instruction)
        return str(self.ir)

    def call(self, builder: ir.IRBuilder, function: Any, arguments: list[Any]) -> Any:
        """Call an intrinsic, or a plain function with all its arguments; that is translated for
        each combination of shapes.
        """
        if isinstance(function, types.Intrinsic):
            return call_intrinsic(builder, function.definition, arguments)
        shapes = [shape_of(argument) for argument in arguments]
        key = (function, *shapes)
        if key not in self._callees:
            self._callees[key] = None  # until it is translated
            self._callees[key] = self._translate(self, function, shapes)
        callee = self._callees[key]
        if callee is None:
            raise UnsupportedError(f"a recursive call of {function.__name__}")
        pairs = zip(arguments, shapes, strict=True)
        value = builder.call(
            callee.function, [part for pair in pairs for part in flatten(builder, *pair)]
        )
        count = len(flat_types(callee.result))
        parts = [builder.extract_value(value, i) for i in range(count)] if count > 1 else [value]
        return rebuild(callee.result, iter(parts))


def call_intrinsic(
    builder: ir.IRBuilder, definition: Callable[..., Any], arguments: list[Any]
) -> Any:
    """Call an intrinsic, by its definition."""
    signature, codegen = definition(*map(_type_of, arguments))
    pairs = zip(arguments, signature.args, strict=True)
    given = [_cast(builder, *pair) for pair in pairs]
    result = codegen(Context(), builder, signature, given)
    kind = signature.return_type
    if kind == types.void:
        return None
    return result if kind in values.LLVM else Typed(result, kind)


def _type_of(value: Any) -> Any:
    if isinstance(value, Typed):
        return value.type
    if isinstance(value, ir.Value):
        return values.TYPES[value.type]
    if isinstance(value, bool):
        return types.boolean
    if isinstance(value, int):
        return types.literal(value)
    if isinstance(value, float):
        return types.float64
    raise UnsupportedError(f"the argument {value} of an intrinsic")


def _cast(builder: ir.IRBuilder, value: Any, kind: Any) -> ir.Value:
    """A value as an argument of the type `kind`."""
    if isinstance(value, Typed):
        if types.unliteral(kind) in values.LLVM:
            raise UnsupportedError(f"a record in place of a number of type {kind}")
        return value.pointer
    return as_kind(builder, value, values.LLVM[types.unliteral(kind)])
