"""Repeated calls that run without a function of Python: compiled code compares the arrays with
those of the call that was made before, makes the result, and runs a program.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
from collections.abc import Callable
from typing import Any

import numpy as np

from implicit_conv.kernels.cpu.runtime import active_threads, objects
from implicit_conv.kernels.cpu.runtime.code import builtin, python_code
from implicit_conv.kernels.cpu.runtime.pool import LEAST_BYTES, PAGE
from implicit_conv.kernels.cpu.runtime.program import BLOCK_BYTES, MOST_THREADS, Words
from implicit_conv.kernels.cpu.runtime.same_arrays import RANK, Record

# Words of the state of a repeated call; then come the dimensions of a new result, and the record.
PROCESS, PROGRAM, NONE, DTYPE, AXES, NEW, VIEW, KEEP, KIND, BYTE, SIZE, SHAPE = range(12)
RECORD = SHAPE + RANK
# The exponent of the most bytes that a call takes, 1 MiB. Calls with more take so long that those
# of Python cost little, and threads that call at once would each allocate what one block lacks.
LARGEST = 20
# Places of PyArray_Empty, PyArray_NewFromDescr, PyArray_SetBaseObject and PyArray_Type in the table
# of numpy's C interface.
EMPTY, FROM_DTYPE, SET_BASE, TYPE = 184, 94, 282, 2

BYTES = np.dtype(np.uint8)

# run(process, program, x, w, bias, residual, y): whether compiled code has run a program on what is
# at these addresses, without the GIL
run = python_code(".runtime.compiled.program:RUN_PROGRAM")
_of_owner = builtin(".runtime.compiled.repeated:AGAIN")


def again(record: Record, program: Words, y: Any, bias: Any = None) -> Callable[..., Any] | None:
    """A function of (x, w, bias, residual, out, ...): the result of the program, which is `out` or
    a new array like `y`. It returns None if the arrays are not those of the record, or if the call
    is for Python to make: while programs are paused, where there is no memory, or no team yet.

    There is none if the program does not read a bias like this one, or takes much memory, or
    threads that compiled code cannot start, or if this Python stores objects in another way; see
    `objects`.
    """
    if objects.differing():
        return None
    if bias is not None and not program.reads_bias(
        bias.dtype.name, bias.shape, bias.strides, bias.ctypes.data
    ):
        return None
    if program.words[BLOCK_BYTES] > 1 << LARGEST:
        return None
    if program.words[MOST_THREADS] > 1 and not active_threads.starter():
        return None
    words = np.zeros(RECORD + record.words.size, np.int64)
    words[:SHAPE] = (
        active_threads.ADDRESS,
        program.address,
        id(None),
        id(y.dtype),
        y.ndim,
        *(numpy_function(place) for place in (EMPTY, FROM_DTYPE, SET_BASE, TYPE)),
        id(BYTES),
        y.nbytes + PAGE if y.nbytes >= LEAST_BYTES else 0,
    )
    words[SHAPE : SHAPE + y.ndim] = y.shape
    words[RECORD:] = record.words.ravel()
    return _of_owner((words, record, program, y.dtype))


@functools.cache
def numpy_function(place: int) -> int:
    """The address of a function or type of numpy's C interface, by its place in the table."""
    package = "numpy._core" if np.lib.NumpyVersion(np.__version__) >= "2.0.0" else "numpy.core"
    table = importlib.import_module(f"{package}.multiarray")._ARRAY_API
    pointer = ctypes.PYFUNCTYPE(ctypes.c_size_t, ctypes.py_object, ctypes.c_char_p)
    address = pointer(("PyCapsule_GetPointer", ctypes.pythonapi))(table, None)
    return ctypes.c_size_t.from_address(address + place * ctypes.sizeof(ctypes.c_size_t)).value
