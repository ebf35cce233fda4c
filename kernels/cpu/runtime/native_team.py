"""A team of native threads as Python sees it: its memory, and how it is made; see `team`."""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path

import numpy as np

from implicit_conv.kernels.cpu.runtime.active_threads import TEAM
from implicit_conv.kernels.cpu.runtime.code import code, python_code

LINE = 128  # bytes between words of different writers: CPUs fetch pairs of cache lines
JOBS = 5 * LINE  # offset of the jobs in the memory of a team; the words of the team come first
PACKS = 4 * LINE + 8  # offset of a word of the team: 1 where Linux `packs_threads`
JOB_COUNT = 62
SEMAPHORE_BYTES = 64  # of a sem_t, at least
SIGNAL_SET_BYTES = 128  # of a sigset_t


class Team:
    """A caller's CPUs - 1 helpers, and the memory that they share with callers.

    Parameters
    ----------
    cpus : int
        The most threads that run at once.

    Attributes
    ----------
    address : int
        That of the memory, by which compiled code asks the team to run something.
    starter : int
        That of the words by which compiled code starts a launch on this team or another.
    """

    def __init__(self, cpus: int) -> None:
        make = python_code(".runtime.compiled.team:MAKE")
        self._launch = python_code(".runtime.compiled.team:LAUNCH")
        semaphores = JOBS + JOB_COUNT * LINE
        signals = semaphores + (JOB_COUNT + 1) * SEMAPHORE_BYTES
        shared = np.zeros(LINE + signals + 2 * SIGNAL_SET_BYTES + 8, np.uint8)
        starter = np.zeros(4, np.int64)
        for array in (shared, starter):  # helpers never end
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(array))
        self.address = address = shared.ctypes.data + -shared.ctypes.data % LINE
        starter[TEAM] = address
        self.starter = int(starter.ctypes.data)
        self.words = shared[address - shared.ctypes.data :][:semaphores].view(np.int64)
        self.words[PACKS // 8] = packs_threads()
        self.helpers: int = make(
            address,
            address + semaphores,
            code(".runtime.compiled.team:HELPER").address(),
            cpus - 1,
            address + signals,
        )

    def run(self, entry: int, blob: int, threads: int) -> None:
        """Run the entry at address `entry` on up to `threads` threads; return when all items of the
        blob at address `blob` are done.
        """
        self._launch(self.address, entry, blob, threads)


@functools.cache
def packs_threads() -> bool:
    """Whether this Linux was started with an option that packs threads which wake onto the CPU of
    the thread that wakes them.
    """
    try:
        return "sched_vcpu_pack=" in Path("/proc/cmdline").read_text()
    except OSError:  # a sandbox may not show it
        return False
