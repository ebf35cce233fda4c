"""Compiled functions that Python calls, with as little as possible around them.

A function gets integers, and the addresses of numpy arrays that are given in place of integers; it
runs without the GIL. CPython calls it by its protocol METH_FASTCALL: its arguments are an array.
"""

import ctypes
import functools
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils, sigutils

from implicit_conv.kernels.cpu.emit.vector import I8, I64, VOID, i64
from implicit_conv.kernels.cpu.runtime.native import Entry
from implicit_conv.kernels.cpu.translate.module import Module
from implicit_conv.kernels.cpu.translate.values import as_kind

INT, ARRAY = types.int64, types.voidptr  # the types of arguments
CALL = INT(INT, INT, INT)  # of self, the address of the arguments, and their number
METH_FASTCALL = 0x80
DATA = object.__basicsize__  # offset of the address of its elements in an array


class _Method(ctypes.Structure):
    """PyMethodDef."""

    _fields_ = [  # ctypes reads a list
        ("name", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    ]


_new_function = ctypes.PYFUNCTYPE(
    ctypes.py_object, ctypes.POINTER(_Method), ctypes.c_void_p, ctypes.c_void_p
)(("PyCFunction_NewEx", ctypes.pythonapi))


def _call_python(
    builder: ir.IRBuilder, name: str, result: ir.Type, *arguments: ir.Value
) -> ir.Value:
    """Call a function of Python's C interface."""
    kind = ir.FunctionType(result, [argument.type for argument in arguments])
    function = cgutils.get_or_insert_function(builder.module, kind, name)
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
        if kind == ARRAY:
            values.append(_read(builder, builder.add(found, i64(DATA))))
            continue
        values.append(_call_python(builder, "PyLong_AsLongLong", I64, found))
        with builder.if_then(builder.icmp_signed("==", values[-1], i64(-1)), likely=False):
            error = _call_python(builder, "PyErr_Occurred", I64)
            following = builder.append_basic_block()
            builder.cbranch(builder.icmp_signed("!=", error, i64(0)), fail, following)
            builder.position_at_end(following)
    return values


class PythonFunction(functools.partial[Any]):
    """What Python calls.

    Attributes
    ----------
    py_func : function
        What was compiled.
    compiled : Entry
        The code.
    """

    py_func: Any
    compiled: Entry
    _method: _Method


def python_function(signature: Any) -> Callable[[Any], PythonFunction]:
    """Compile a function that Python calls, with arguments INT and ARRAY, for an INT or void.

    Compiled code may call it too. Arrays are not checked.
    """
    kinds, result = sigutils.normalize_signature(signature)

    def decorate(function: Any) -> PythonFunction:
        def emit(module: Module, builder: ir.IRBuilder, arguments: list[Any]) -> Any:
            _, objects, count = arguments
            values = _unpack(builder, kinds, objects, count)
            state = _call_python(builder, "PyEval_SaveThread", I64)
            value = module.call(builder, function, values)
            _call_python(builder, "PyEval_RestoreThread", VOID, state)
            if result != types.void:
                value = as_kind(builder, value, I64)
                return _call_python(builder, "PyLong_FromLongLong", I64, value)
            none = ir.GlobalVariable(builder.module, I8, "_Py_NoneStruct")
            none = builder.ptrtoint(none, I64)
            _call_python(builder, "Py_IncRef", VOID, none)
            return none

        name = function.__qualname__
        compiled = Entry(f"{name}_{result}{kinds}", function, CALL, emit)
        method = _Method(name.encode(), compiled.address, METH_FASTCALL, None)
        called = PythonFunction(_new_function(method, None, None))
        functools.update_wrapper(called, function)
        called.py_func, called.compiled, called._method = function, compiled, method
        return called

    return decorate
