"""Sources: what makers return, and LLVM's assembly of it.

A source is a signature and a function, in Python or an intrinsic. All that it calls becomes part of
the same object.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any, NamedTuple

from implicit_conv.kernels.cpu.emit import internals
from implicit_conv.kernels.cpu.emit.internals import ir, types
from implicit_conv.kernels.cpu.emit.vector import I8, I64, VOID, Emitter, i64
from implicit_conv.kernels.cpu.runtime.compiled.entry import BLOB_POINTER, ENTRY
from implicit_conv.kernels.cpu.runtime.compiled.part import Part, body
from implicit_conv.kernels.cpu.runtime.objects import FIELDS, differing
from implicit_conv.kernels.cpu.translate.function import translate
from implicit_conv.kernels.cpu.translate.module import Module
from implicit_conv.kernels.cpu.translate.values import as_kind

# The types of arguments that Python gives: numbers, arrays for their addresses, and objects for
# their own.
INT, ARRAY, OBJECT = types.int64, types.voidptr, types.uintp
CALL = INT(INT, INT, INT)  # of self, the address of the arguments, and their number


class Caller(enum.Enum):
    """Who calls compiled code."""

    CODE = enum.auto()  # compiled code does, by address
    PYTHON = enum.auto()  # Python does; the code runs without the GIL
    LOCKED = enum.auto()  # Python does; the code runs with the GIL


class Source(NamedTuple):
    """What is compiled to one function.

    Its signature has numbers and pointers to records, and one number or void as the result.
    """

    signature: Any
    function: Any  # a Python function, or an intrinsic
    caller: Caller = Caller.CODE


def of_function(signature: Any, function: Any) -> Source:
    """A function that is called by address."""
    return Source(signature, function)


def entry(function: Any) -> Source:
    """A function that threads of a launch call, ``function(blob, thread)``."""
    return of_function(ENTRY, function)


def translated(declared: Any, function: Any) -> Source:
    """A declared part, from a function that has the parameters of the declaration."""
    declaration: Part = declared.part
    code = function.__code__
    assert code.co_varnames[: code.co_argcount] == declaration.parameters, declaration
    return of_function(declaration.signature(BLOB_POINTER), function)


def emitted(declared: Any, emit: Callable[[ir.IRBuilder, dict[str, ir.Value]], None]) -> Source:
    """A declared part whose whole body is emitted, by ``emit(builder, at)``.

    `at` maps the names of its parameters to LLVM values.
    """
    declaration: Part = declared.part
    return Source(declaration.signature(BLOB_POINTER), body(declaration, emit))


def microkernel(
    declared: Any, emit: Callable[..., None], tile: Any, lanes: int, itemsize: int, fma: bool
) -> Source:
    """A declared part for vectors of `lanes`, whose body ``emit(tile, emitter, at)`` emits."""
    return emitted(
        declared, lambda builder, at: emit(tile, Emitter(builder, lanes, itemsize, fma), at)
    )


def _call_python(
    builder: ir.IRBuilder, name: str, result: ir.Type, *arguments: ir.Value
) -> ir.Value:
    """Call a function of Python's C interface."""
    kind = ir.FunctionType(result, [argument.type for argument in arguments])
    function = internals.get_or_insert_function(builder.module, kind, name)
    return builder.call(function, arguments)


def _read(builder: ir.IRBuilder, address: ir.Value) -> ir.Value:
    return builder.load(builder.inttoptr(address, I64.as_pointer()))


def _unpack(
    builder: ir.IRBuilder, kinds: Any, objects: ir.Value, count: ir.Value
) -> list[ir.Value]:
    """The values of the arguments; returns to Python if they are not what the function takes."""
    fail = builder.append_basic_block()
    with builder.goto_block(fail):
        builder.ret(i64(0))
    following = builder.append_basic_block()
    wrong = builder.append_basic_block()
    builder.cbranch(builder.icmp_signed("==", count, i64(len(kinds))), following, wrong)
    builder.position_at_end(wrong)
    _call_python(builder, "PyErr_BadArgument", ir.IntType(32))
    builder.branch(fail)
    builder.position_at_end(following)
    values = []
    for place, kind in enumerate(kinds):
        found = _read(builder, builder.add(objects, i64(8 * place)))
        if kind == OBJECT:
            values.append(found)
            continue
        if kind == ARRAY and "array" not in differing():
            values.append(_read(builder, builder.add(found, i64(FIELDS.data))))
            continue
        values.append(_call_python(builder, "PyLong_AsLongLong", I64, found))
        with builder.if_then(builder.icmp_signed("==", values[-1], i64(-1)), likely=False):
            error = _call_python(builder, "PyErr_Occurred", I64)
            following = builder.append_basic_block()
            builder.cbranch(builder.icmp_signed("!=", error, i64(0)), fail, following)
            builder.position_at_end(following)
    return values


def for_python(signature: Any, function: Any) -> Source:
    """A function that Python calls, with arguments INT and ARRAY, for an INT or void.

    It gets integers, and the addresses of numpy arrays that are given in place of integers; it runs
    without the GIL. Arrays are not checked.
    """
    return Source(signature, function, Caller.PYTHON)


def for_python_locked(signature: Any, function: Any) -> Source:
    """A short function that Python calls, with arguments INT, ARRAY and OBJECT, for an INT or void.

    It keeps the GIL, so that no thread of Python changes an object that it reads.
    """
    return Source(signature, function, Caller.LOCKED)


def assembly(source: Source, symbol: str, triple: str) -> str:
    """LLVM's assembly of a source, with a function named `symbol`.

    CPython calls one for Python by its protocol METH_FASTCALL: its arguments are an array.
    """
    result, arguments = source.signature
    module = Module(triple, translate)

    def emit(module: Module, builder: ir.IRBuilder, values: list[Any]) -> Any:
        return module.call(builder, source.function, values)

    def emit_for_python(module: Module, builder: ir.IRBuilder, values: list[Any]) -> Any:
        _, objects, count = values
        values = _unpack(builder, arguments, objects, count)
        if source.caller is Caller.LOCKED:
            value = emit(module, builder, values)
        else:
            state = _call_python(builder, "PyEval_SaveThread", I64)
            value = emit(module, builder, values)
            _call_python(builder, "PyEval_RestoreThread", VOID, state)
        if result != types.void:
            value = as_kind(builder, value, I64)
            return _call_python(builder, "PyLong_FromLongLong", I64, value)
        none = ir.GlobalVariable(builder.module, I8, "_Py_NoneStruct")
        none = builder.ptrtoint(none, I64)
        _call_python(builder, "Py_IncRef", VOID, none)
        return none

    if source.caller is Caller.CODE:
        module.export(symbol, source.signature, emit)
    else:
        module.export(symbol, CALL, emit_for_python)
    return module.text()
