"""A repeated call, from objects of Python to its result, with the GIL but while a program runs."""

from __future__ import annotations

from implicit_conv.kernels.cpu.emit import memory
from implicit_conv.kernels.cpu.emit.internals import types
from implicit_conv.kernels.cpu.emit.intrinsics import function_at
from implicit_conv.kernels.cpu.emit.vector import I32, I64
from implicit_conv.kernels.cpu.runtime import repeated as words
from implicit_conv.kernels.cpu.runtime.compiled.known_calls import run, state_word
from implicit_conv.kernels.cpu.runtime.compiled.source import CALL, INT, of_function
from implicit_conv.kernels.cpu.runtime.compiled.start import differing
from implicit_conv.kernels.cpu.runtime.layout import LINE
from implicit_conv.kernels.cpu.runtime.objects import FIELDS, TUPLE_ITEMS, WORD
from implicit_conv.kernels.cpu.runtime.pool import APART, PAGE
from implicit_conv.kernels.cpu.runtime.same_arrays import ALIGNED, WRITEABLE

IN_ORDER = 1 | ALIGNED | WRITEABLE  # flags of an array in C order

_hold = types.ExternalFunction("Py_IncRef", INT(INT))  # whose result is void
_drop = types.ExternalFunction("Py_DecRef", INT(INT))

# PyObject *PyArray_Empty(int axes, npy_intp *shape, PyArray_Descr *dtype, int fortran)
_new = function_at("new", I64, I32, I64, I64, I32)
# PyObject *PyArray_NewFromDescr(PyTypeObject *kind, PyArray_Descr *dtype, int axes,
# npy_intp *shape, npy_intp *strides, void *data, int flags, PyObject *like)
_view = function_at("view", I64, I64, I64, I32, I64, I64, I64, I32, I64)
# int PyArray_SetBaseObject(PyArrayObject *array, PyObject *base)
_keep = function_at("keep", I32, I64, I64)


def result(state: int, out: int, x: int) -> int:
    """A new reference to `out`, or a new array as of `pool.new_array` for x at address `x`; 0 after
    an error.
    """
    if out != state_word(state, words.NONE):
        _hold(out)
        return out
    dtype, axes = state_word(state, words.DTYPE), state_word(state, words.AXES)
    shape, new = state + WORD * words.SHAPE, state_word(state, words.NEW)
    if state_word(state, words.SIZE) == 0:
        _hold(dtype)  # which numpy takes over
        return _new(new, axes, shape, dtype, 0)
    byte = state_word(state, words.BYTE)
    _hold(byte)
    block = _new(new, 1, state + WORD * words.SIZE, byte, 0)
    if block == 0:
        return 0
    block_data = memory.read(block + FIELDS.data)
    start = block_data + (x // LINE * LINE + APART - block_data) % PAGE
    kind, view = state_word(state, words.KIND), state_word(state, words.VIEW)
    _hold(dtype)
    y = _view(view, kind, dtype, axes, shape, 0, start, IN_ORDER, 0)
    if y == 0:
        _drop(block)
    elif _keep(state_word(state, words.KEEP), y, block) != 0:  # it takes the block over
        _drop(y)
        return 0
    return y


def data(state: int, array: int) -> int:
    """The address of the elements of an array; 0 of None."""
    if array == state_word(state, words.NONE):
        return 0
    return memory.read(array + FIELDS.data)


def again(owner: int, objects: int, count: int) -> int:
    """The result of a call, a new reference to an array or to None; 0 after an error."""
    state = memory.read(memory.read(owner + TUPLE_ITEMS) + FIELDS.data)
    x, w = memory.read(objects), memory.read(objects + WORD)
    bias, residual = memory.read(objects + 2 * WORD), memory.read(objects + 3 * WORD)
    out = memory.read(objects + 4 * WORD)
    if differing(state + WORD * words.RECORD, x, w, bias, residual, out) == 0:
        y = result(state, out, data(state, x))
        if y == 0:
            return 0
        process, program = state_word(state, words.PROCESS), state_word(state, words.PROGRAM)
        added, to = data(state, residual), data(state, y)
        if run(process, program, data(state, x), data(state, w), data(state, bias), added, to):
            return y
        _drop(y)
    none = state_word(state, words.NONE)
    _hold(none)
    return none


AGAIN = of_function(CALL, again)  # again(x, w, bias, residual, out, ...): see `repeated.again`
