"""Compute random trials in a child process, for some time, and compare them with the reference.

The child notes the number of each trial before it begins, so that a crash can be traced to it.
"""

from __future__ import annotations

import faulthandler
import itertools
import multiprocessing
import platform
import signal
import sys
import time
import traceback
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

from implicit_conv.cpu.arch import BFLOAT16, cpu_arch
from implicit_conv.cpu.words import count as counted
from implicit_conv.testing.check import check
from implicit_conv.testing.draw import TRIALS, draw_kind, draw_trial

PROGRESS_SECONDS = 2  # between two updates of the line of progress
INTERRUPTED = 130  # exit status of a program that Ctrl-C ended


def fuzz(seconds: float, seed: int, threads: int) -> int:
    """Compute trials for `seconds` and print what was computed.

    Trial `number` of a seed is always the same. The first one that fails ends the run, and a
    program that repeats it is printed.

    Returns
    -------
    status : int
        0, 1 after a wrong result, an error or a crash, or 130 after Ctrl-C.
    """
    processes = multiprocessing.get_context("spawn")
    number = processes.Value("q", 0, lock=False)
    receiver, sender = processes.Pipe(duplex=False)
    child = processes.Process(target=_work, args=(seconds, seed, threads, number, sender))
    start = time.monotonic()
    status = 0
    try:
        _start(child)
        while child.is_alive():
            child.join(PROGRESS_SECONDS)
            _show_progress(start, seed, number.value)
    except KeyboardInterrupt:
        child.kill()
        child.join()
        status = INTERRUPTED
    count = number.value
    if status == 0 and child.exitcode:
        error = receiver.recv() if receiver.poll() else f"{_ending(child.exitcode)}\n"
        print(f"Trial {count} of seed {seed} failed:\n\n{error}\nThis program repeats it:\n")
        print(program(seed, count, threads))
        status = 1
    outcome = {0: "all right", 1: "the last one failed", INTERRUPTED: "interrupted"}[status]
    print(_summary(count + (status == 1), seed, time.monotonic() - start, threads, outcome))
    return status


def _start(child: BaseProcess) -> None:
    """Start a process that Ctrl-C does not end: its parent does."""
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)  # a new process inherits it
    try:
        child.start()
    finally:
        signal.signal(signal.SIGINT, handler)


def program(seed: int, number: int, threads: int) -> str:
    """A program that repeats a trial, and fails if the trial does."""
    trial = draw_trial(seed, number, threads)
    return (
        f"# Trial {number} of seed {seed}\n"
        "from implicit_conv.testing import Case\n"
        "from implicit_conv.testing.check import check\n"
        "from implicit_conv.testing.trial import Trial\n\n"
        f"check({trial!r})\n"
    )


def _work(seconds: float, seed: int, threads: int, number: Any, sender: Connection) -> None:
    """Compute trials in the child process; a failure is sent and ends it."""
    faulthandler.enable()
    end = time.monotonic() + seconds
    for count in itertools.count():
        number.value = count
        if time.monotonic() > end:
            return
        try:
            check(draw_trial(seed, count, threads))
        except Exception:
            sender.send(traceback.format_exc())
            sys.exit(1)


def _ending(code: int) -> str:
    """How a process ended that returned `code`."""
    if code > 0:
        return f"exit status {code}"
    return f"the process died of {signal.Signals(-code).name}"


def _show_progress(start: float, seed: int, count: int) -> None:
    if sys.stdout.isatty():
        kind = draw_kind(seed, count // TRIALS).name
        text = f"{time.monotonic() - start:4.0f} s: {count} problems, now of kind {kind!r}"
        print(f"\r{text:70}", end="\r", flush=True)


def _summary(count: int, seed: int, seconds: float, threads: int, outcome: str) -> str:
    arch, kinds = cpu_arch(), -(-count // TRIALS)
    done = f"{counted(count, 'problem')} of {counted(kinds, 'kind')} in {seconds:.0f} s"
    machine = f"{platform.machine()} with {arch.vector_bits}-bit vectors"
    how = f"seed {seed}, at most {counted(threads, 'thread')}"
    return f"{done}, {how}; {machine}, bfloat16 by {BFLOAT16[arch.bfloat16]}: {outcome}"
