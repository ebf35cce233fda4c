"""A launch as a parallel region of OpenMP, by the functions that compilers call for such regions.

Entries take work items from a counter until none is left, so a region that gets fewer threads than
it asked for does all the work too, and one with more leaves some idle.
"""

from __future__ import annotations

from implicit_conv.kernels.cpu.emit import memory
from implicit_conv.kernels.cpu.emit.internals import types
from implicit_conv.kernels.cpu.emit.intrinsics import function_at
from implicit_conv.kernels.cpu.emit.vector import I32, I64, VOID
from implicit_conv.kernels.cpu.runtime.active_threads import PARALLEL, REGION, THREAD_NUM
from implicit_conv.kernels.cpu.runtime.compiled.entry import run_counted
from implicit_conv.kernels.cpu.runtime.compiled.source import for_python, of_function
from implicit_conv.kernels.cpu.runtime.compiled.subnormals import control_word, set_control_word

WORD = types.int64
BYTES = 8
STARTER, ENTRY, BLOB, LIMIT, CONTROL = range(5)  # words of what a region reads

_number_of_thread = function_at("number_of_thread", I32)
# void parallel(void (*function)(void *), void *data, unsigned threads, unsigned flags)
_run_parallel = function_at("run_parallel", VOID, I64, I64, I32, I32)


def region(job: int) -> None:
    """What each thread of a region does, with the floating-point modes of the caller."""
    starter = memory.read(job + BYTES * STARTER)
    thread = _number_of_thread(memory.read(starter + BYTES * THREAD_NUM))
    if thread < memory.read(job + BYTES * LIMIT):
        before = control_word()
        set_control_word(memory.read(job + BYTES * CONTROL))
        run_counted(memory.read(job + BYTES * ENTRY), memory.read(job + BYTES * BLOB), thread)
        set_control_word(before)


def launch(starter: int, entry: int, blob: int, threads: int) -> None:
    """Run an entry on up to `threads` threads of a region."""
    job = memory.stack(64)
    memory.write(job + BYTES * STARTER, starter)
    memory.write(job + BYTES * ENTRY, entry)
    memory.write(job + BYTES * BLOB, blob)
    memory.write(job + BYTES * LIMIT, threads)
    memory.write(job + BYTES * CONTROL, control_word())
    parallel = memory.read(starter + BYTES * PARALLEL)
    # With 0 threads: as many as regions of this thread have.
    _run_parallel(parallel, memory.read(starter + BYTES * REGION), job, 0, 0)


PARALLEL_REGION = of_function(types.void(WORD), region)  # region(job)
# launch(starter, entry, blob, threads)
LAUNCH = for_python(types.void(WORD, WORD, WORD, WORD), launch)
