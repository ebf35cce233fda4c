"""Words of this process for compiled code: how many threads run kernels, on how many CPUs, whose
team they are, and blocks of memory.

A team lets no more threads run than there are CPUs. Another library's team may run launches in
place of ours.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterator
from typing import Protocol

import numpy as np

from implicit_conv.kernels.cpu.runtime.pool import aligned_bytes

# Offsets of the words at ADDRESS. Starters are 0 where there is no such team. Where PAUSED is not
# 0, Python runs programs. From BLOCKS on there is, for each power of two, the address of a block of
# memory of this size that no run uses, or 0.
RUNNING, CPUS, BORROWED_STARTER, OWN_STARTER, PAUSED = range(0, 40, 8)
BLOCKS, BLOCK_SIZES = 64, 64
# The words of a starter, by which compiled code starts a launch on threads: the memory of a team of
# ours; of OpenMP 0, then its function that runs regions, our region, and its thread's number.
TEAM, PARALLEL, REGION, THREAD_NUM = range(4)

_words = aligned_bytes(BLOCKS + 8 * BLOCK_SIZES).view(np.int64)
_words[:] = 0
ADDRESS = _words.ctypes.data  # of the words, which the process has once


def usable_cpus() -> Collection[int]:
    """The numbers of the CPUs that this process may run on; those of all CPUs where the system does
    not tell, as macOS, or refuses.
    """
    try:
        return os.sched_getaffinity(0)
    except (AttributeError, OSError):
        return range(os.cpu_count() or 1)


def cpu_count() -> int:
    """The number of CPUs that this process may run on."""
    return len(usable_cpus())


def running() -> int:
    """The number of threads that run kernels now."""
    return int(_words[RUNNING // 8])


def reset(cpus: int) -> None:
    """Nobody runs, on `cpus` CPUs: at the start, and in a forked child."""
    _words[RUNNING // 8], _words[CPUS // 8] = 0, cpus


def own(starter: int) -> None:
    """Tell compiled code the starter of our team; 0 if there is none."""
    _words[OWN_STARTER // 8] = starter


def starter() -> int:
    """The address of the starter of the team in use; 0 if there is no team yet, or if compiled code
    cannot start its threads.
    """
    return int(_words[BORROWED_STARTER // 8] or _words[OWN_STARTER // 8])


@contextlib.contextmanager
def paused() -> Iterator[None]:
    """In a block, functions of Python run all programs of this process but those of XLA."""
    before = int(_words[PAUSED // 8])
    _words[PAUSED // 8] = 1
    try:
        yield
    finally:
        _words[PAUSED // 8] = before


reset(cpu_count())


class Threads(Protocol):
    """A team of threads."""

    @property
    def helpers(self) -> int:
        """How many threads may help a caller."""

    def run(self, entry: int, blob: int, threads: int) -> None:
        """Run an entry on up to `threads` threads; return when all items of its blob are done."""


class NamedThreads(Threads, Protocol):
    """The threads of a library, by the name that users know, and the address of their starter,
    which stays.
    """

    name: str

    @property
    def starter(self) -> int:
        """The address of the words by which compiled code starts their launches."""


BORROWED: list[NamedThreads] = []  # in place of ours, in this process: at most one


def use(threads: NamedThreads | None) -> None:
    """Use another library's threads, in this process but not in forked children; None ends it.

    Launches that run on them go on.
    """
    BORROWED[:] = [] if threads is None else [threads]
    _words[BORROWED_STARTER // 8] = 0 if threads is None else threads.starter


def borrowed_name() -> str | None:
    """The name of the threads that are used in place of ours; None if ours are used."""
    return next((threads.name for threads in BORROWED), None)
