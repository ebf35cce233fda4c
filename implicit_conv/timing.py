"""The timing core: samples of functions that take turns, their statistics, and progress.

``implicit-conv bench`` and ``perf/`` use it. It imports only numpy, so that `perf.side` can load it
by path.

Machines are noisy and drift, so functions take turns: in every round each of them runs one sample,
in random order, and ratios are taken within rounds. A sample lasts 20 ms, so that the resolution of
the clock and the time of a wake-up do not matter. Calls before each sample warm up caches and
threads.
"""

from __future__ import annotations

import gc
import os
import random
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

NOISY = 0.10  # a relative difference of equal calls above which nothing can be told
UNTOLD = 3  # exit status of a command whose ratios are missing, because other work disturbs it
WATCHED = 0.3  # seconds in which the work of others is watched
SPARED = 0.3  # of a CPU, which the system and a terminal may take
SAMPLE_SECONDS = 0.02  # least length of a sample
LEAD_IN = 0.25  # calls before the clock starts, relative to those of a sample

Seconds = NDArray[np.float64]


def disturbance(threads: int) -> str:
    """What disturbs measurements on so many threads, in words; an empty text if nothing does.

    The system says how much of its CPUs others use while this thread sleeps, which load averages
    tell late. Threads of this process, which may spin after a call, are not others. Systems without
    ``/proc/stat`` tell nothing.
    """
    try:
        before, before_idle, own = *_cpu_times(), time.process_time()
        time.sleep(WATCHED)
        after, idle, own = *_cpu_times(), time.process_time() - own
    except OSError:
        return ""
    cpus = os.cpu_count() or 1
    unused = idle - before_idle + own * os.sysconf("SC_CLK_TCK")
    free = cpus * min(1.0, unused / max(1, after - before))
    if free > threads - SPARED:
        return ""
    return (
        f"other programs use {cpus - free:.1f} of {cpus} CPUs, and this is measured on {threads}: "
        "no ratio can be told; end them and measure again"
    )


def _cpu_times() -> tuple[int, int]:
    """(all time of all CPUs, that in which they were idle), in ticks since the system started."""
    with open("/proc/stat") as file:
        times = [int(word) for word in file.readline().split()[1:9]]
    return sum(times), times[3] + times[4]  # idle, and idle while a disk works


def show(text: str) -> None:
    """Show progress in one line of standard error, in place of the text before; an empty text
    removes it.

    Nothing is written where standard error is a file or a pipe, or is closed.
    """
    if sys.stderr is not None and sys.stderr.isatty():
        width = shutil.get_terminal_size().columns - 1  # a full line would wrap
        sys.stderr.write(f"\r\033[K{text[:width]}\r")  # what others write begins the line anew
        sys.stderr.flush()


class Summary(NamedTuple):
    """Seconds per call over all samples; `spread` is the interquartile range over the median."""

    median: float
    minimum: float
    spread: float


def calls_per_sample(function: Callable[[], object], seconds: float = SAMPLE_SECONDS) -> int:
    """A number of calls that takes at least `seconds`, even if nothing interrupts them."""
    function()
    calls = 1
    while min(_clock(function, calls), _clock(function, calls)) < seconds:
        calls *= 2
    return calls


def sample(function: Callable[[], object], calls: int) -> float:
    """Mean seconds per call over `calls` calls, after warm-up calls."""
    for _ in range(max(1, int(calls * LEAD_IN))):
        function()
    return _clock(function, calls) / calls


def _clock(function: Callable[[], object], calls: int) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        function()
    return time.perf_counter() - start


class Timed(Protocol):
    """What `interleave` times: a function of this process or of another one."""

    def result(self) -> Any:
        """The result of one call."""

    def calls_per_sample(self, seconds: float) -> int:
        """A number of calls that takes at least `seconds`."""

    def sample(self, calls: int) -> float:
        """One sample: mean seconds per call over `calls` calls."""


class Local(NamedTuple):
    """A function of this process, without arguments."""

    result: Callable[[], Any]

    def calls_per_sample(self, seconds: float) -> int:
        """A number of calls that takes at least `seconds`."""
        return calls_per_sample(self.result, seconds)

    def sample(self, calls: int) -> float:
        """One sample: mean seconds per call over `calls` calls."""
        return sample(self.result, calls)


@contextmanager
def no_collection() -> Iterator[None]:
    """Disable garbage collection in the block."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def interleave(
    functions: Mapping[str, Timed],
    rounds: int,
    seconds: float = SAMPLE_SECONDS,
    seed: int = 0,
    calls: Mapping[str, int] | None = None,
) -> dict[str, Seconds]:
    """Time `functions` in turn.

    Parameters
    ----------
    functions : mapping of name to `Timed`
    rounds : int
        Samples of each function.
    seconds : float
        Least length of a sample.
    seed : int
        Seed of the random order within rounds.
    calls : mapping of name to int, optional
        Calls in a sample of each; by default as many as take `seconds`.

    Returns
    -------
    samples : dict of name to float64 array (rounds,)
        Seconds per call; element i of each array was taken in round i.
    """
    order = random.Random(seed)
    names = list(functions)
    with no_collection():
        calls = calls or calls_of(functions, seconds)
        samples: dict[str, list[float]] = {name: [] for name in names}
        for _ in range(rounds):
            order.shuffle(names)
            for name in names:
                samples[name].append(functions[name].sample(calls[name]))
    return {name: np.array(samples[name]) for name in functions}


def calls_of(functions: Mapping[str, Timed], seconds: float = SAMPLE_SECONDS) -> dict[str, int]:
    """Calls of each function in a sample of at least `seconds`."""
    with no_collection():
        return {name: timed.calls_per_sample(seconds) for name, timed in functions.items()}


def summarise(samples: Seconds) -> Summary:
    """Median, minimum and relative spread of samples."""
    low, median, high = np.percentile(samples, [25, 50, 75])
    return Summary(float(median), float(samples.min()), float((high - low) / median))


def paired_ratio(numerator: Seconds, denominator: Seconds) -> float:
    """Median over the rounds of numerator / denominator; drift that affects both cancels."""
    return float(np.median(numerator / denominator))
