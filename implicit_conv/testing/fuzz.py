"""Compute random trials in a child process, for some time, and compare them with the reference.

The child notes the number of each trial before it begins, so that a crash can be traced to it. A
new child goes on after a crash.
"""

from __future__ import annotations

import faulthandler
import math
import multiprocessing
import platform
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from implicit_conv.cpu.arch import BFLOAT16, cpu_arch
from implicit_conv.cpu.phrases import count as counted
from implicit_conv.testing.check import check
from implicit_conv.testing.draw import Deck
from implicit_conv.testing.trial import Trial

INTERRUPTED = 130  # exit status of a program that Ctrl-C ended
MOST_FAILURES = 20  # a run ends after so many
# A fork takes milliseconds where a new process takes seconds; this process computes nothing and
# has one thread. Libraries of other systems do not survive forks.
START = "fork" if sys.platform == "linux" else "spawn"


@dataclass
class Tally:
    """What a run computed."""

    computed: int = 0  # problems
    kinds: int = 0
    failed: int = 0  # problems
    seconds: float = 0.0
    interrupted: bool = False


def fuzz(deck: Deck, seconds: float = math.inf, problems: float = math.inf) -> int:
    """Compute the trials of a deck for `seconds`, or `problems` of them, and print what was
    computed; see `compute`.

    Returns
    -------
    status : int
        0, 1 after a wrong result, an error or a crash, or 130 after Ctrl-C.
    """
    tally = compute(deck, seconds, problems)
    outcome, status = ("interrupted", INTERRUPTED) if tally.interrupted else ("all right", 0)
    if tally.failed:
        outcome, status = f"{counted(tally.failed, 'problem')} failed", status or 1
    print(deck.coverage.table())
    print(_summary(tally, str(deck), outcome))
    return status


def compute(deck: Deck, seconds: float = math.inf, problems: float = math.inf) -> Tally:
    """Compute the trials of a deck for `seconds`, or `problems` of them.

    A program that repeats it is printed for each one that fails; the others of its kind are left
    out.
    """
    tally, start = Tally(), time.monotonic()
    worker = Worker(start + seconds)
    try:
        kind, trials = deck.deal()
        while tally.seconds < seconds and tally.computed < problems:
            _show_progress(tally, kind.name)
            worker.begin(trials)
            following = deck.deal()  # while the worker computes
            done, error = worker.result()
            deck.coverage.add(trials[:done])
            tally.computed, tally.kinds = tally.computed + done, tally.kinds + 1
            if error:
                tally.failed += 1
                print(f"Trial {done} of kind {tally.kinds} ({kind.name}) failed:\n\n{error}")
                print(f"\nThis program repeats it:\n\n{program(trials[done - 1])}", flush=True)
                if tally.failed == MOST_FAILURES:
                    break
            kind, trials = following
            tally.seconds = time.monotonic() - start
    except KeyboardInterrupt:
        tally.interrupted = True
    worker.end()
    return tally


class Worker:
    """A process that checks trials until the time `end`; it is replaced where it dies."""

    def __init__(self, end: float) -> None:
        self._processes: Any = multiprocessing.get_context(START)
        self._end = end
        self._number = self._processes.Value("q", 0, lock=False)
        self._child: Any = None
        self._pipe: Any = None

    def begin(self, trials: Sequence[Trial]) -> None:
        """Have the process check trials, until one fails."""
        if self._child is None:
            if trials[0].guard:
                from implicit_conv.testing import guard

                guard.prepare()  # which all children then have
            self._pipe, pipe = self._processes.Pipe()
            arguments = self._end, self._number, pipe
            self._child = self._processes.Process(target=_work, args=arguments, daemon=True)
            _start(self._child)
            pipe.close()  # so that the end of the child ends the pipe
        self._number.value = 0
        self._pipe.send(trials)

    def result(self) -> tuple[int, str]:
        """(how many trials were begun, the error of the last one or "")."""
        try:
            error = self._pipe.recv()
            return self._number.value, error
        except (EOFError, OSError):
            self._child.join()
            ending, self._child = _ending(self._child.exitcode), None
            return self._number.value, ending

    def end(self) -> None:
        """End the process."""
        if self._child is not None:
            self._child.kill()
            self._child.join()


def _start(child: Any) -> None:
    """Start a process that Ctrl-C does not end: its parent does."""
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)  # a new process inherits it
    try:
        child.start()
    finally:
        signal.signal(signal.SIGINT, handler)


def program(trial: Trial) -> str:
    """A program that repeats a trial, and fails if the trial does."""
    return (
        "from implicit_conv.testing import Case\n"
        "from implicit_conv.testing.check import check\n"
        "from implicit_conv.testing.trial import Trial\n\n"
        f"check({trial!r})\n"
    )


def _work(end: float, number: Any, pipe: Connection) -> None:
    """Check the trials that the pipe brings, in the child process, and send the first error."""
    faulthandler.enable()
    while True:
        error = ""
        for trial in pipe.recv():
            if time.monotonic() > end:
                break
            number.value += 1
            try:
                check(trial)
            except Exception:
                error = traceback.format_exc()
                break
        pipe.send(error)


def _ending(code: int) -> str:
    """How a process ended that returned `code`."""
    if code >= 0:
        return f"exit status {code}"
    return f"the process died of {signal.Signals(-code).name}"


def _show_progress(tally: Tally, kind: str) -> None:
    if sys.stdout.isatty():
        text = f"{tally.seconds:4.0f} s: {tally.computed} problems, now {kind}"
        print(f"\r{text:70}", end="\r", flush=True)


def _summary(tally: Tally, how: str, outcome: str) -> str:
    arch = cpu_arch()
    done = f"{counted(tally.computed, 'problem')} of {counted(tally.kinds, 'kind')}"
    machine = f"{platform.machine()} with {arch.vector_bits}-bit vectors"
    took = f"in {tally.seconds:.0f} s, {how}"
    return f"{done} {took}; {machine}, bfloat16 by {BFLOAT16[arch.bfloat16]}: {outcome}"
