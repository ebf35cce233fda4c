"""Faults in memory, and the words by which a child that meets a fault shares them with its parent.

Functions that take memory are compiled: numpy frees arrays while an exception is on its way, where
no code of Python's may run.
"""

import ctypes
import functools
import json
import mmap
from typing import Any, NamedTuple

import numpy as np

SET_HANDLER = 304  # the place of PyDataMem_SetHandler in the table of numpy's C interface
TEXT = 1 << 16  # bytes of a report at most
NEVER = 1 << 60  # the number of a first call that no call reaches


class Fault(NamedTuple):
    """The call of number `first`, counted from 1, fails; `forever`: and all later ones."""

    first: int
    forever: bool = False


# Words that a child and its parent share. Calls are counted while faults are armed.
ARMED, FIRST, FOREVER, CALLS, LIVE, WORDS = range(6)


def strikes(words: Any) -> bool:
    """Count a call; whether it fails."""
    if words[ARMED] == 0:
        return False
    words[CALLS] += 1
    later = words[CALLS] > words[FIRST] and words[FOREVER] != 0
    return later or words[CALLS] == words[FIRST]


class Shared:
    """Memory that a child shares with its parent: the words of a fault, and a report."""

    def __init__(self, fault: Fault) -> None:
        self._memory = np.frombuffer(mmap.mmap(-1, TEXT + 8 * WORDS), np.uint8)
        self.words = self._memory[: 8 * WORDS].view(np.int64)
        self.words[FIRST], self.words[FOREVER] = fault

    @property
    def report(self) -> dict[str, Any]:
        """What the child says at its end."""
        text = self._memory[8 * WORDS :].tobytes().rstrip(b"\0")
        return json.loads(text) if text else {}

    @report.setter
    def report(self, value: dict[str, Any]) -> None:
        text = np.frombuffer(json.dumps(value).encode(), np.uint8)
        self._memory[8 * WORDS :][: text.size] = text


class _Handler(ctypes.Structure):
    """PyDataMem_Handler of numpy's C interface."""

    _fields_ = (
        ("name", ctypes.c_char * 127),
        ("version", ctypes.c_uint8),
        ("context", ctypes.c_void_p),
        ("malloc", ctypes.c_void_p),
        ("calloc", ctypes.c_void_p),
        ("realloc", ctypes.c_void_p),
        ("free", ctypes.c_void_p),
    )


@functools.cache
def _compiled_strikes() -> Any:
    from numba import njit

    return njit(strikes)


@functools.cache
def _numpy_allocators() -> tuple[Any, ...]:
    """malloc, calloc, realloc and free for numpy, of the words of a `Shared`."""
    from numba import carray, cfunc, types

    word, context = types.intp, types.CPointer(types.int64)
    c_malloc = types.ExternalFunction("malloc", word(word))
    c_calloc = types.ExternalFunction("calloc", word(word, word))
    c_realloc = types.ExternalFunction("realloc", word(word, word))
    c_free = types.ExternalFunction("free", types.void(word))
    bytes_of = types.ExternalFunction("malloc_usable_size", word(word))
    struck = _compiled_strikes()

    @cfunc(word(context, word))
    def malloc(context, size):
        words = carray(context, (WORDS,))
        if struck(words):
            return 0
        block = c_malloc(size)
        words[LIVE] += bytes_of(block)
        return block

    @cfunc(word(context, word, word))
    def calloc(context, count, size):
        words = carray(context, (WORDS,))
        if struck(words):
            return 0
        block = c_calloc(count, size)
        words[LIVE] += bytes_of(block)
        return block

    @cfunc(word(context, word, word))
    def realloc(context, block, size):
        words = carray(context, (WORDS,))
        if struck(words):
            return 0
        words[LIVE] -= bytes_of(block)
        block = c_realloc(block, size)
        words[LIVE] += bytes_of(block)
        return block

    @cfunc(types.void(context, word, word))
    def free(context, block, size):
        carray(context, (WORDS,))[LIVE] -= bytes_of(block)
        c_free(block)

    return malloc, calloc, realloc, free


def take_numpy_memory(shared: Shared) -> None:
    """Let numpy take memory in this context, and in its copies, until the end of the process: its
    allocations count as calls, and the bytes that are not freed are counted.
    """
    addresses = (function.address for function in _numpy_allocators())
    handler = _Handler(b"faults", 1, shared.words.ctypes.data, *addresses)
    new = ctypes.pythonapi.PyCapsule_New
    new.restype, new.argtypes = ctypes.py_object, (ctypes.c_void_p,) * 3
    capsule = new(ctypes.addressof(handler), ctypes.cast(NAME, ctypes.c_void_p), None)
    _kept.append((shared, handler))
    _of_numpy(SET_HANDLER, ctypes.py_object)(capsule)


class _PythonAllocator(ctypes.Structure):
    """PyMemAllocatorEx of Python's C interface."""

    _fields_ = _Handler._fields_[2:]


def compile_allocators(site: str) -> None:
    """Compile what faults in memory need, once for all children."""
    if site == "numpy":
        _numpy_allocators()
    if site == "cpython":
        for domain in DOMAINS:
            _python_allocators(domain)


DOMAINS = (1, 2)  # PYMEM_DOMAIN_MEM, PYMEM_DOMAIN_OBJ
SIZE = ctypes.c_size_t


@functools.cache
def _python_allocators(domain: int) -> tuple[_PythonAllocator, tuple[Any, ...]]:
    """The allocator of a domain, and compiled functions of the words of a `Shared` around its
    malloc, calloc and realloc.
    """
    from numba import carray, cfunc, types

    usual = _PythonAllocator()
    ctypes.pythonapi.PyMem_GetAllocator(domain, ctypes.byref(usual))
    one = ctypes.CFUNCTYPE(SIZE, SIZE, SIZE)(usual.malloc)
    many = ctypes.CFUNCTYPE(SIZE, SIZE, SIZE, SIZE)(usual.calloc)
    more = ctypes.CFUNCTYPE(SIZE, SIZE, SIZE, SIZE)(usual.realloc)
    struck = _compiled_strikes()
    word, context = types.uintp, types.CPointer(types.int64)

    @cfunc(word(context, word))
    def malloc(context, size):
        return 0 if struck(carray(context, (WORDS,))) else one(0, size)

    @cfunc(word(context, word, word))
    def calloc(context, count, size):
        return 0 if struck(carray(context, (WORDS,))) else many(0, count, size)

    @cfunc(word(context, word, word))
    def realloc(context, block, size):
        return 0 if struck(carray(context, (WORDS,))) else more(0, block, size)

    return usual, (malloc, calloc, realloc)


def take_python_memory(shared: Shared) -> None:
    """Count the allocations of Python's objects as calls, until the end of the process."""
    for domain in DOMAINS:
        usual, functions = _python_allocators(domain)
        words = shared.words.ctypes.data, *(function.address for function in functions)
        ctypes.pythonapi.PyMem_SetAllocator(
            domain, ctypes.byref(_PythonAllocator(*words, usual.free))
        )
    _kept.append(shared)


NAME = ctypes.c_char_p(b"mem_handler")  # of a capsule, which keeps its address


def _of_numpy(place: int, *arguments: Any) -> Any:
    """A function of numpy's C interface, which returns an object."""
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    interface = np._core._multiarray_umath._ARRAY_API  # type: ignore[attr-defined]
    functions = ctypes.cast(get(interface, None), ctypes.POINTER(ctypes.c_void_p))
    return ctypes.PYFUNCTYPE(ctypes.py_object, *arguments)(functions[place])


_kept: list[Any] = []  # what code outside Python points to


def replace_symbol(name: str, shared: Shared) -> None:
    """Replace a function of the C library, of three words, in code that LLVM loads from now on."""
    import llvmlite.binding as llvm

    kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_int)
    original = kind((name, ctypes.CDLL(None)))
    replacement = kind(lambda *words: -1 if strikes(shared.words) else original(*words))
    _kept.append(replacement)
    llvm.add_symbol(name, ctypes.cast(replacement, ctypes.c_void_p).value)
