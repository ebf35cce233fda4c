"""The clock: samples of functions taken in turn, and what is said of them. It imports numpy alone.

``implicit-conv bench`` and the timing core: what users run, and what ``perf/`` is built on.

Machines are noisy and drift, so contenders are timed in turn: in every round each of them runs one
sample, in random order, and ratios are taken within rounds. A sample lasts long enough (20 ms) that
the clock and a wake-up do not show; a lead-in before it lets caches and threads settle.
"""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

SAMPLE_SECONDS = 0.02
LEAD_IN = 0.25  # of a sample's calls, run before the clock starts

Seconds = NDArray[np.float64]


class Summary(NamedTuple):
    """Seconds a call over all samples; `spread` is the interquartile range over the median."""

    median: float
    minimum: float
    spread: float


def calls_per_sample(function: Callable[[], object], seconds: float = SAMPLE_SECONDS) -> int:
    """Calls that last at least `seconds` together, even when nothing interrupts them."""
    function()
    calls = 1
    while min(_clock(function, calls), _clock(function, calls)) < seconds:
        calls *= 2
    return calls


def sample(function: Callable[[], object], calls: int) -> float:
    """Mean seconds of one call over `calls` of them, after a lead-in."""
    for _ in range(max(1, int(calls * LEAD_IN))):
        function()
    return _clock(function, calls) / calls


def _clock(function: Callable[[], object], calls: int) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        function()
    return time.perf_counter() - start


@contextmanager
def no_collection() -> Iterator[None]:
    """No garbage collection while the clock runs."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def interleave(
    functions: Mapping[str, Callable[[], object]],
    rounds: int,
    seconds: float = SAMPLE_SECONDS,
    seed: int = 0,
) -> dict[str, Seconds]:
    """Time `functions` in turn.

    Parameters
    ----------
    functions : mapping of name to function without arguments
    rounds : int
        Samples of each.
    seconds : float
        Least length of a sample.
    seed : int
        Of the order within rounds.

    Returns
    -------
    samples : dict of name to float64 array (rounds,)
        Seconds a call; element i of each was taken in round i.
    """
    order = random.Random(seed)
    names = list(functions)
    with no_collection():
        calls = {name: calls_per_sample(function, seconds) for name, function in functions.items()}
        samples: dict[str, list[float]] = {name: [] for name in names}
        for _ in range(rounds):
            order.shuffle(names)
            for name in names:
                samples[name].append(sample(functions[name], calls[name]))
    return {name: np.array(samples[name]) for name in functions}


def summarise(samples: Seconds) -> Summary:
    """Median, minimum and relative spread of samples."""
    low, median, high = np.percentile(samples, [25, 50, 75])
    return Summary(float(median), float(samples.min()), float((high - low) / median))


def paired_ratio(numerator: Seconds, denominator: Seconds) -> float:
    """Median over the rounds of numerator / denominator: drift that both saw cancels."""
    return float(np.median(numerator / denominator))
