"""How many threads of this process run kernels, on how many CPUs, and whose team they are.

A team lets no more threads run than there are CPUs. Another library's team may run launches in
place of ours.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from typing import TYPE_CHECKING

import numpy as np

from implicit_conv.kernels.cpu.runtime.pool import aligned_bytes

if TYPE_CHECKING:
    from implicit_conv.kernels.cpu.runtime.openmp import OpenMpTeam

RUNNING, CPUS = 0, 8  # offsets of the words at ADDRESS

_words = aligned_bytes(64).view(np.int64)
ADDRESS = _words.ctypes.data  # of the words RUNNING and CPUS; the process has one pair


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


reset(cpu_count())


GUESTS: list[OpenMpTeam] = []  # of this process: at most one


def use(other: OpenMpTeam | None) -> None:
    """Use another team in place of ours, in this process but not in forked children; None ends it.

    Launches that run on it go on.
    """
    GUESTS[:] = [] if other is None else [other]


def guest_name() -> str | None:
    """The name of the team that is used in place of ours; None if ours is used."""
    return next((guest.name for guest in GUESTS), None)
