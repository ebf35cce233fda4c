"""A team of Python's threads, for systems whose native threads `team` does not know.

It keeps the same rules: nobody waits for a helper that holds no item, and no more threads run than
there are CPUs. A launch takes tens of microseconds longer.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

from implicit_conv.kernels.cpu.runtime import crowd
from implicit_conv.kernels.cpu.runtime.entry import run_counted


@dataclass(eq=False)
class Job:
    """A launch that helpers may enter until it is closed."""

    entry: int
    blob: int
    limit: int  # threads at most
    entered: int = 1
    inside: int = 0


class ConditionTeam:
    """A caller's helpers, which wait in a Condition.

    Parameters
    ----------
    cpus : int
        The most threads that run at once.
    """

    def __init__(self, cpus: int) -> None:
        self._cpus = cpus
        self._condition = threading.Condition()
        self._jobs: list[Job] = []
        self.helpers = 0

    def run(self, entry: int, blob: int, threads: int) -> None:
        """Run the entry at address `entry` on up to `threads` threads; return when all items of the
        blob at address `blob` are done.

        Nothing else returns before: an exception that a signal handler raises waits for helpers.
        """
        job = Job(entry, blob, min(threads, self._cpus - crowd.running()))
        closing, interruption = job.limit > 1, None
        try:
            if closing:
                self._open(job)
            run_counted(entry, blob, 0)
        finally:
            while closing:
                try:
                    with self._condition:
                        if job in self._jobs:
                            self._jobs.remove(job)
                        while job.inside:
                            self._condition.wait()
                    closing = False
                except BaseException as error:
                    interruption = error
        if interruption is not None:
            raise interruption

    def _open(self, job: Job) -> None:
        with self._condition:
            while self.helpers < job.limit - 1:
                threading.Thread(target=self._help, daemon=True).start()
                self.helpers += 1
            self._jobs.append(job)
            self._condition.notify(job.limit - 1)

    def _help(self) -> None:
        """What a helper does all its life."""
        while True:
            with self._condition:
                while not self._jobs:
                    self._condition.wait()
                job = self._jobs[0]
                thread = job.entered
                job.entered += 1
                job.inside += 1
                if job.entered >= job.limit:
                    self._jobs.remove(job)
            run_counted(job.entry, job.blob, thread)
            with self._condition:
                job.inside -= 1
                if job in self._jobs:  # no item is left
                    self._jobs.remove(job)
                self._condition.notify_all()
