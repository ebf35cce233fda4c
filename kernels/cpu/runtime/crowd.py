"""How many threads of this process run kernels, and how many CPUs there are: a team lets no more
run.
"""

import os
from collections.abc import Collection

import numpy as np

from implicit_conv.kernels.cpu.runtime.pool import aligned_bytes

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
