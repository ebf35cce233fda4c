"""A repeated call, from objects of Python to its result, with the GIL but while a program runs."""

from __future__ import annotations

from implicit_conv.kernels.cpu.emit import memory
from implicit_conv.kernels.cpu.emit.internals import types
from implicit_conv.kernels.cpu.emit.intrinsics import function_at
from implicit_conv.kernels.cpu.emit.vector import I32, I64
from implicit_conv.kernels.cpu.runtime.active_threads import BORROWED_STARTER, OWN_STARTER
from implicit_conv.kernels.cpu.runtime.compiled.program import run_in_block
from implicit_conv.kernels.cpu.runtime.compiled.source import CALL, INT, of_function
from implicit_conv.kernels.cpu.runtime.compiled.start import differing
from implicit_conv.kernels.cpu.runtime.layout import LINE
from implicit_conv.kernels.cpu.runtime.objects import FIELDS, TUPLE_ITEMS, WORD
from implicit_conv.kernels.cpu.runtime.pool import APART, PAGE
from implicit_conv.kernels.cpu.runtime.repeated import (
    AXES,
    BLOCKS,
    BYTE,
    DTYPE,
    KEEP,
    KIND,
    NEW,
    NONE,
    PAUSED,
    PROGRAM,
    RECORD,
    SHAPE,
    SIZE,
    THREADS,
    VIEW,
)
from implicit_conv.kernels.cpu.runtime.same_arrays import ALIGNED, WRITEABLE

IN_ORDER = 1 | ALIGNED | WRITEABLE  # flags of an array in C order

_hold = types.ExternalFunction("Py_IncRef", INT(INT))  # whose result is void
_drop = types.ExternalFunction("Py_DecRef", INT(INT))
_release = types.ExternalFunction("PyEval_SaveThread", INT())
_acquire = types.ExternalFunction("PyEval_RestoreThread", INT(INT))

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
    if out != memory.read(state + WORD * NONE):
        _hold(out)
        return out
    dtype, axes = memory.read(state + WORD * DTYPE), memory.read(state + WORD * AXES)
    shape, new = state + WORD * SHAPE, memory.read(state + WORD * NEW)
    if memory.read(state + WORD * SIZE) == 0:
        _hold(dtype)  # which numpy takes over
        return _new(new, axes, shape, dtype, 0)
    byte = memory.read(state + WORD * BYTE)
    _hold(byte)
    block = _new(new, 1, state + WORD * SIZE, byte, 0)
    if block == 0:
        return 0
    block_data = memory.read(block + FIELDS.data)
    start = block_data + (x // LINE * LINE + APART - block_data) % PAGE
    kind, view = memory.read(state + WORD * KIND), memory.read(state + WORD * VIEW)
    _hold(dtype)
    y = _view(view, kind, dtype, axes, shape, 0, start, IN_ORDER, 0)
    if y == 0:
        _drop(block)
    elif _keep(memory.read(state + WORD * KEEP), y, block) != 0:  # it takes the block over
        _drop(y)
        return 0
    return y


def data(state: int, array: int) -> int:
    """The address of the elements of an array; 0 of None."""
    if array == memory.read(state + WORD * NONE):
        return 0
    return memory.read(array + FIELDS.data)


def again(owner: int, objects: int, count: int) -> int:
    """The result of a call, a new reference to an array or to None; 0 after an error."""
    state = memory.read(memory.read(owner + TUPLE_ITEMS) + FIELDS.data)
    x, w = memory.read(objects), memory.read(objects + WORD)
    bias, residual = memory.read(objects + 2 * WORD), memory.read(objects + 3 * WORD)
    out, blocks = memory.read(objects + 4 * WORD), memory.read(state + WORD * BLOCKS)
    paused = memory.read(blocks + WORD * PAUSED) != 0
    if not paused and differing(state + WORD * RECORD, x, w, bias, residual, out) == 0:
        y = result(state, out, data(state, x))
        if y == 0 or run(state, blocks, x, w, bias, residual, y):
            return y
        _drop(y)
    none = memory.read(state + WORD * NONE)
    _hold(none)
    return none


def run(state: int, blocks: int, x: int, w: int, bias: int, residual: int, y: int) -> bool:
    """Run the program on arrays, whose callers hold them; False if it cannot be run."""
    threads = memory.read(state + WORD * THREADS)
    starter = memory.read(threads + BORROWED_STARTER)
    if starter == 0:
        starter = memory.read(threads + OWN_STARTER)
    program = memory.read(state + WORD * PROGRAM)
    read, filters, sums = data(state, x), data(state, w), data(state, bias)
    added, to = data(state, residual), data(state, y)
    thread = _release()
    done = run_in_block(blocks, program, read, filters, sums, added, to, starter)
    _acquire(thread)
    return done


AGAIN = of_function(CALL, again)  # again(x, w, bias, residual, out, ...): see `repeated.again`
