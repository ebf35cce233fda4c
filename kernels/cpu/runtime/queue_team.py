"""A team of Python's threads, for systems whose native threads `team` does not know.

It keeps the same rules: nobody waits for a helper that holds no item, and no more threads run than
there are CPUs. A launch takes tens of microseconds longer.

A signal handler may raise an exception between any two steps of Python's in the main thread. So
no step takes a lock of Python's; helpers enter and leave a job, and callers close it, in compiled
code. (An exception in the middle of `threading.Condition.__exit__` would leave its lock taken.)
"""

from __future__ import annotations

import queue
import threading

import numpy as np

from implicit_conv.kernels.cpu.runtime import active_threads
from implicit_conv.kernels.cpu.runtime.code import python_code

ENTERED = 1 << 32  # of the state of a job; see `queue_jobs`

take_part, close, run_counted = (
    python_code(f".runtime.compiled.{maker}")
    for maker in ("queue_jobs:TAKE_PART", "queue_jobs:CLOSE", "start:RUN_COUNTED")
)


class Job:
    """A launch that helpers may enter until it is closed.

    Parameters
    ----------
    entry, blob : int
        Addresses.
    limit : int
        Threads at most.
    """

    def __init__(self, entry: int, blob: int, limit: int) -> None:
        self.entry, self.blob, self.limit = entry, blob, limit
        self._word = np.array([ENTERED], np.int64)
        self.state = self._word.ctypes.data


class QueueTeam:
    """A caller's helpers, which wait in a queue.

    Parameters
    ----------
    cpus : int
        The most threads that run at once.
    """

    def __init__(self, cpus: int) -> None:
        self._cpus = cpus
        self._calls: queue.SimpleQueue[None] = queue.SimpleQueue()  # each wakes one helper
        self._jobs: dict[Job, None] = {}
        self._unstarted = [None] * (cpus - 1)  # one for each helper: `pop` and `append` are atomic

    @property
    def helpers(self) -> int:
        """The number of helpers that were started."""
        return self._cpus - 1 - len(self._unstarted)

    def run(self, entry: int, blob: int, threads: int) -> None:
        """Run the entry at address `entry` on up to `threads` threads; return when all items of the
        blob at address `blob` are done.

        An exception that a signal handler raises waits for helpers too.
        """
        limit = min(threads, self._cpus - active_threads.running())
        if limit <= 1:
            run_counted(entry, blob, 0)
        else:
            job = Job(entry, blob, limit)
            try:
                self._jobs[job] = None
                self._wake(limit - 1)
                run_counted(entry, blob, 0)
            finally:
                close(job.state)  # compiled, and the first step: no signal comes before
                self._jobs.pop(job, None)

    def _wake(self, count: int) -> None:
        """Wake `count` helpers, or those that can be started."""
        try:
            while self.helpers < count:
                self._unstarted.pop()
                threading.Thread(target=self._help, daemon=True).start()
        except IndexError:  # other callers have just started the last ones
            pass
        except RuntimeError:  # the system has no further thread, or Python ends
            self._unstarted.append(None)
        for _ in range(min(count, self.helpers) - self._calls.qsize()):
            self._calls.put(None)

    def _help(self) -> None:
        """What a helper does all its life."""
        while True:
            self._calls.get()
            for job in list(self._jobs):
                take_part(job.state, job.entry, job.blob, job.limit)
                self._jobs.pop(job, None)  # no item is left, or nobody else may enter
