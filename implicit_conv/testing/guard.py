"""Guard pages: inaccessible pages around arrays, packed filters and scratch memory.

Within `guarded`, every array that this thread makes begins right after an inaccessible page or ends
right before one, and so does every part of the scratch memory of every thread of a launch. A read
or a write outside of them ends the process by SIGSEGV, and so does one after they are freed.
"""

from __future__ import annotations

import contextlib
import copy
import ctypes
import functools
import itertools
import mmap
import os
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import numpy as np
from numba import cfunc, njit, types

from implicit_conv.kernels.cpu import operator
from implicit_conv.kernels.cpu.images import operator as image_operator
from implicit_conv.kernels.cpu.runtime import (
    active_threads,
    launch,
    pool,
    program,
    repeated,
)
from implicit_conv.kernels.cpu.runtime.call import BLOB, WORDS
from implicit_conv.testing import Array

PAGE = mmap.PAGESIZE
POISON = 0xFF  # all bytes of new memory: elements of floats are NaN
SET_HANDLER = 304  # the index of PyDataMem_SetHandler in numpy's table of C functions (NEP 49)
_NONE, _READ, _BOTH = 0, mmap.PROT_READ, mmap.PROT_READ | mmap.PROT_WRITE
_PRIVATE = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
_SIZE = ctypes.c_ssize_t
_FAILED = -1  # what mmap returns where it fails
_KEPT: list[object] = []  # structures that capsules point to


def _libc(name: str, arguments: int) -> Any:
    """A function of the C library whose arguments and result are as large as an address."""
    function = getattr(ctypes.CDLL(None, use_errno=True), name)
    function.argtypes, function.restype = (_SIZE,) * arguments, _SIZE
    return function


_mmap, _munmap = _libc("mmap", 6), _libc("munmap", 2)
_mprotect, _memset = _libc("mprotect", 3), _libc("memset", 3)


def pages(size: int) -> int:
    """Bytes of the whole pages that hold `size` bytes."""
    return -(-size // PAGE) * PAGE


@contextlib.contextmanager
def guarded(side: str, *, scratch: bool = True) -> Iterator[Callable[[Array], None]]:
    """Put the memory of all that this thread computes against inaccessible pages.

    Launches that were prepared before are guarded too, but for the vectors of constants that they
    hold.

    Parameters
    ----------
    side : one of `trial.SIDES`
    scratch : bool
        Whether scratch memory is guarded too, for which Python makes all calls. Else that of arrays
        is, and compiled code makes calls that come again.

    Yields
    ------
    seal : function of an array that was made since
        It makes the array, and all that shares its memory, read-only for compiled code too.
    """
    blocks = _Blocks(side == "end")
    with contextlib.ExitStack() as stack:
        guards = (
            (operator, "POOL", blocks),
            (program.Program, "run", blocks.run_program),
            (image_operator, "POOL", blocks),
            (operator, "aligned_bytes", _bytes),
            (pool, "aligned_bytes", _bytes),
            (launch.Launch, "run", blocks.run),
        )
        for place, name, other in guards if scratch else ():
            stack.enter_context(mock.patch.object(place, name, other))
        if scratch:
            stack.enter_context(active_threads.paused())  # compiled code takes its own memory
        before = _set_handler(_handler(side == "end"))
        stack.callback(_set_handler, before)
        yield _seal


def prepare() -> None:
    """Compile what `guarded` needs."""
    _functions()


def _bytes(size: int) -> Array:
    """Like `pool.aligned_bytes`, without bytes that are not used."""
    return np.empty(size, np.uint8)


def _seal(array: Array) -> None:
    while array.base is not None:
        array = array.base
    start = array.ctypes.data // PAGE * PAGE
    _checked(_mprotect(start, array.ctypes.data + array.nbytes - start, _READ))


def _checked(result: int) -> int:
    if result == _FAILED:
        code = ctypes.get_errno()
        raise OSError(code, f"guard pages cannot be made: {os.strerror(code)}")
    return result


class _Blocks:
    """Lends blocks between inaccessible pages, as a `Pool` lends its own, and runs launches with
    such pages between the parts of the scratch memory.
    """

    def __init__(self, at_end: bool) -> None:
        self._at_end = at_end
        self._sizes: tuple[int, ...] = ()  # of the blocks that `take` lends next, if not one
        run = launch.Launch.run

        def run_launch(one: launch.Launch, scratch: int, *arrays: Any) -> None:
            """Run a launch on scratch memory of its own."""
            apart = self._apart(one)
            block = self.take(apart.bytes)
            try:
                run(apart, block.address, *arrays)
            finally:
                self.give(block)

        def run_program(one: program.Program, *given: Any, **more: Any) -> None:
            self._run_apart(one, *given, **more)

        # Functions, so that they become methods of launches and of programs.
        self.run = run_launch
        self.run_program = run_program

    def _gap(self, size: int) -> int:
        """Bytes between the inaccessible page before a block and the block."""
        return (pages(size) - size) * self._at_end

    def _run_apart(
        self,
        one: program.Program,
        x: int,
        w: int,
        y: int,
        residual: int = 0,
        bias: Any = None,
        scale: Any = None,
    ) -> None:
        """Run a program whose parts of the room are blocks of their own."""
        one = _one_by_one(one)
        parts = [self.take(size) for _, size in one.room.parts]
        try:
            begins = (0, x, w, y, residual, *(part.address for part in parts))
            one.run_in(begins, bias, scale)
        finally:
            for part in parts:
                self.give(part)

    def _apart(self, prepared: launch.Launch) -> launch.Launch:
        """A launch like `prepared` whose parts of scratch memory are blocks of their own."""
        one, layout = copy.copy(prepared), prepared._layout
        spans = [pages(size) + PAGE for size in layout]
        _, *starts = itertools.accumulate(spans, initial=-self._gap(layout.buffer))
        offsets = [at + self._gap(size) for at, size in zip(starts, layout[1:], strict=False)]
        one._scratch = sum(spans) * one.threads
        one.bytes = one._scratch + BLOB.itemsize
        fields = {"address": one._scratch, "bytes": sum(spans)}
        fields |= zip(layout._fields[1:], offsets, strict=True)
        one._blob = prepared._blob.copy()
        for name, value in fields.items():
            one._blob[WORDS.index(f"scratch.{name}")] = value
        one._address = one._blob.ctypes.data
        # The blob is at the start of a page or behind it.
        self._sizes = (*layout * one.threads, PAGE + BLOB.itemsize)
        return one

    def take(self, size: int) -> pool.Block:
        """The blocks that `_apart` asks for, or else one of `size` bytes."""
        sizes, self._sizes = self._sizes or (size,), ()
        whole = sum(pages(size) + PAGE for size in sizes)
        memory = _checked(_mmap(0, PAGE + whole, _NONE, _PRIVATE, -1, 0))
        at = memory + PAGE
        for block in sizes:
            if block:
                _checked(_mprotect(at, pages(block), _BOTH))
                _memset(at, POISON, pages(block))
            at += pages(block) + PAGE
        return pool.Block(PAGE + whole, memory + PAGE + self._gap(sizes[0]), memory)

    def give(self, block: pool.Block) -> None:
        """Return a block from `take` to the system."""
        assert isinstance(block.memory, int)
        _checked(_munmap(block.memory, block.size))


def _one_by_one(one: program.Program) -> program.Program:
    """A program with the steps of lanes in place of the launch that runs them."""
    launches = [getattr(step, "launch", None) for step in one.steps]
    if not any(each is not None and each.steps for each in launches):
        return one
    pairs = zip(one.steps, launches, strict=True)
    found = [(each.steps if each is not None else ()) or (step,) for step, each in pairs]
    return program.Program([step for each in found for step in each], one.room)


class _Handler(ctypes.Structure):
    """numpy's PyDataMem_Handler."""

    _fields_ = (
        ("name", ctypes.c_char * 127),
        ("version", ctypes.c_uint8),
        *((name, _SIZE) for name in ("at_end", "malloc", "calloc", "realloc", "free")),
    )


@functools.cache
def _handler(at_end: bool) -> Any:
    """A handler of numpy's memory, as the capsule that numpy takes."""
    made = _Handler(b"guard pages", 1, at_end, *(found.address for found in _functions()))
    _KEPT.append(made)
    new = _python("PyCapsule_New", ctypes.py_object, _SIZE, ctypes.c_char_p, _SIZE)
    return new(ctypes.addressof(made), b"mem_handler", 0)


def _python(name: str, result: Any, *arguments: Any) -> Any:
    """A function of Python's own C interface."""
    function = getattr(ctypes.pythonapi, name)
    function.restype, function.argtypes = result, arguments
    return function


@functools.cache
def _functions() -> tuple[Any, ...]:
    """The functions malloc, calloc, realloc and free of a handler.

    They are native, because numpy may free an array while an exception is on its way.
    """
    word = types.intp

    @njit(word(word, word))
    def reserve(at_end, size):  # type: ignore[no-untyped-def]
        whole = (size + PAGE - 1) // PAGE * PAGE
        start = _mmap(0, whole + 2 * PAGE, _NONE, _PRIVATE, -1, 0)
        if start == _FAILED or _mprotect(start + PAGE, whole, _BOTH) != 0:
            return 0
        return start + PAGE + (whole - size) * at_end

    @cfunc(word(word, word))
    def malloc(at_end, size):  # type: ignore[no-untyped-def]
        address = reserve(at_end, size)
        if address:
            _memset(address, POISON, size)
        return address

    @cfunc(word(word, word, word))
    def calloc(at_end, count, size):  # type: ignore[no-untyped-def]
        return reserve(at_end, count * size)

    @cfunc(word(word, word, word))
    def realloc(at_end, address, size):  # type: ignore[no-untyped-def]
        return 0  # the package resizes no array; numpy raises MemoryError

    @cfunc(types.void(word, word, word))
    def free(at_end, address, size):  # type: ignore[no-untyped-def]
        whole = (size + PAGE - 1) // PAGE * PAGE
        _munmap(address // PAGE * PAGE - PAGE, whole + 2 * PAGE)

    return malloc, calloc, realloc, free


def _set_handler(handler: Any) -> Any:
    """Have numpy take the memory of new arrays of this thread from a handler; return the last."""
    set_handler = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object)(
        repeated.numpy_function(SET_HANDLER)
    )
    return set_handler(handler)
