"""A launch as a parallel region of OpenMP, by the functions that compilers call for such regions.

Entries take work items from a counter until none is left, so a region that gets fewer threads than
it asked for does all the work too, and one with more leaves some idle.
"""

from __future__ import annotations

from typing import Any

from implicit_conv.kernels.cpu.emit import memory
from implicit_conv.kernels.cpu.emit.internals import intrinsic, ir, types
from implicit_conv.kernels.cpu.emit.vector import I32, I64, VOID, Intrinsic, Values
from implicit_conv.kernels.cpu.runtime.compiled.entry import run_counted
from implicit_conv.kernels.cpu.runtime.compiled.source import ARRAY, Source, for_python, of_function
from implicit_conv.kernels.cpu.runtime.compiled.subnormals import control_word, set_control_word
from implicit_conv.kernels.cpu.runtime.openmp import BLOB, CONTROL, ENTRY, LIMIT, THREAD_NUM

WORD = types.int64
BYTES = 8


@intrinsic
def _number_of_thread(typingctx: Any, function: Any) -> Intrinsic:
    """The result of ``int function(void)`` at an address."""

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Values) -> Any:
        kind = ir.FunctionType(I32, [])
        return builder.sext(builder.call(builder.inttoptr(args[0], kind.as_pointer()), []), I64)

    return WORD(WORD), codegen


@intrinsic
def _run_parallel(
    typingctx: Any, parallel: Any, function: Any, data: Any, threads: Any
) -> Intrinsic:
    """``void parallel(void (*function)(void *), void *data, unsigned threads, unsigned flags)``."""

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Values) -> Any:
        kind = ir.FunctionType(VOID, [I64, I64, I32, I32])
        function = builder.inttoptr(args[0], kind.as_pointer())
        flags = ir.Constant(I32, 0)
        builder.call(function, [args[1], args[2], builder.trunc(args[3], I32), flags])
        return context.get_dummy_value()

    return types.void(WORD, WORD, WORD, WORD), codegen


def region(words: int) -> None:
    """What each thread of a region does, with the floating-point modes of the caller."""
    thread = _number_of_thread(memory.read(words + BYTES * THREAD_NUM))
    if thread < memory.read(words + BYTES * LIMIT):
        before = control_word()
        set_control_word(memory.read(words + BYTES * CONTROL))
        run_counted(memory.read(words + BYTES * ENTRY), memory.read(words + BYTES * BLOB), thread)
        set_control_word(before)


def launch(parallel: int, function: int, words: int, threads: int) -> None:
    """Run a region on `threads` threads."""
    memory.write(words + BYTES * CONTROL, control_word())
    if threads > 1:
        _run_parallel(parallel, function, words, threads)
    else:
        run_counted(memory.read(words + BYTES * ENTRY), memory.read(words + BYTES * BLOB), 0)


def make_region() -> Source:
    """region(words)"""
    return of_function(types.void(WORD), region)


def make_launch() -> Source:
    """launch(parallel, region, words, threads)"""
    return for_python(types.void(WORD, WORD, ARRAY, WORD), launch)
