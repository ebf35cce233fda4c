"""A child process that checks what a fuzz has drawn, so that the fuzz outlives a crash or a hang.

The child notes the number of each item before it begins, so that a crash can be traced to it. A new
child goes on after a crash.
"""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any, Generic, TypeVar

Item = TypeVar("Item")
# A fork takes milliseconds where a new process takes seconds; this process computes nothing and
# has one thread. Libraries of other systems do not survive forks.
START = "fork" if sys.platform == "linux" else "spawn"
TRACEBACK_SECONDS = 5  # for a process that hangs to print where its threads are


class Worker(Generic[Item]):
    """A process that checks items until the time `end`; it is replaced where it dies.

    Parameters
    ----------
    check : function of an item
        It raises an exception if anything is wrong; else its result is a finding.
    end : float
        A time of `time.monotonic`.
    limit : float, optional
        Seconds of an item, after which the process hangs and is ended; it may take twice as long.
    """

    def __init__(
        self, check: Callable[[Item], Any], end: float, limit: float | None = None
    ) -> None:
        self._processes: Any = multiprocessing.get_context(START)
        self._check, self._end, self._limit = check, end, limit
        self._number = self._processes.Value("q", 0, lock=False)
        self._child: Any = None
        self._pipe: Any = None

    def begin(self, items: Sequence[Item]) -> None:
        """Have the process check items, until one fails."""
        if self._child is None:
            self._pipe, pipe = self._processes.Pipe()
            arguments = self._check, self._end, self._number, pipe
            self._child = self._processes.Process(target=_work, args=arguments, daemon=True)
            _start(self._child)
            pipe.close()  # so that the end of the child ends the pipe
        self._number.value = 0
        self._pipe.send(items)

    def result(self) -> tuple[int, str, list[Any]]:
        """(how many items were begun, the error of the last one or "", the findings of all before),
        of which there are none where the process died.
        """
        try:
            begun = -1
            while not self._pipe.poll(self._limit):
                if self._number.value == begun:
                    return begun, self._hang(), []
                begun = self._number.value
            error, findings = self._pipe.recv()
            return self._number.value, error, findings
        except (EOFError, OSError):
            self._child.join()
            ending, self._child = _ending(self._child.exitcode), None
            return self._number.value, ending, []

    def end(self) -> None:
        """End the process."""
        if self._child is not None:
            self._child.kill()
            self._child.join()
            self._child = None

    def _hang(self) -> str:
        """End a process that hangs; it prints where its threads are."""
        os.kill(self._child.pid, signal.SIGABRT)  # which faulthandler has print them
        self._child.join(TRACEBACK_SECONDS)
        self.end()
        return f"the process had not ended after {self._limit:.0f} s"


def _start(child: Any) -> None:
    """Start a process that Ctrl-C does not end: its parent does."""
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)  # a new process inherits it
    try:
        child.start()
    finally:
        signal.signal(signal.SIGINT, handler)


def _work(check: Callable[[Item], Any], end: float, number: Any, pipe: Connection) -> None:
    """Check the items that the pipe brings, in the child process; send the first error, and the
    findings.
    """
    faulthandler.enable()
    while True:
        error, findings = "", []
        for item in pipe.recv():
            if time.monotonic() > end:
                break
            number.value += 1
            try:
                findings.append(check(item))
            except Exception:
                error = traceback.format_exc()
                break
        pipe.send((error, findings))


def _ending(code: int) -> str:
    """How a process ended that returned `code`."""
    if code >= 0:
        return f"exit status {code}"
    return f"the process died of {signal.Signals(-code).name}"
