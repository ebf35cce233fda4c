"""``implicit-conv bench`` and the timing core: what users run, and what ``perf/`` is built on.

Machines are noisy and drift, so contenders are timed in turn: in every round each of them runs one
sample, in random order, and ratios are taken within rounds. A sample lasts long enough (20 ms) that
the clock and a wake-up do not show; a lead-in before it lets caches and threads settle.
"""

from __future__ import annotations

import argparse
import gc
import random
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

SAMPLE_SECONDS = 0.02
LEAD_IN = 0.25  # of a sample's calls, run before the clock starts
COPY_BYTES = 128 << 20  # well past the last-level cache of common CPUs

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


def ceilings(threads: int, dtype: str = "float32") -> dict[str, tuple[Callable[[], None], int]]:
    """What the machine can do at most: name -> (function to time, its work).

    "fma" works in floating-point operations, as float32 or as the CPU multiplies `dtype`, "copy" in
    bytes read and written.
    """
    from implicit_conv.arch import cpu_arch
    from implicit_conv.kernels.cpu.ceilings import Copy, Fmas

    arch = cpu_arch(threads)
    pairs = dtype == "bfloat16" and arch.bfloat16 != "widen"
    fmas = Fmas(arch.lanes(4), 4, arch.fma, threads, pairs)
    copy = Copy(COPY_BYTES, threads)
    return {"fma": (fmas, fmas.flops), "copy": (copy, copy.bytes)}


def measure_ceilings(threads: int, rounds: int, dtype: str = "float32") -> dict[str, float]:
    """Floating-point operations and copied bytes a second, medians; see `ceilings`."""
    contenders = ceilings(threads, dtype)
    samples = interleave({name: function for name, (function, _) in contenders.items()}, rounds)
    return {name: work / summarise(samples[name]).median for name, (_, work) in contenders.items()}


# (C, K, size, taps, stride): one layer of each kind that networks are made of.
TYPICAL = {
    "first 7x7/2": (3, 64, 224, 7, 2),
    "1x1 widening": (64, 256, 56, 1, 1),
    "1x1 narrowing": (512, 128, 28, 1, 1),
    "3x3": (64, 64, 56, 3, 1),
    "3x3/2": (128, 128, 56, 3, 2),
    "3x3 deep": (512, 512, 7, 3, 1),
}


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the command line."""
    parser = commands.add_parser(
        "bench",
        help="time typical layers on this machine, against torch where it is installed",
        description="Check and time typical layers: conv2d as it is called (call), with a packed "
        "filter (plan), and torch, all in turn. Ratios are torch's time over ours.",
    )
    parser.add_argument("--threads", type=int, help="all that are available by default")
    parser.add_argument("--layout", default="NCHW", choices=("NCHW", "NHWC"))
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=15, help="samples of each contender")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Print one row a layer, then the ceilings and the noise of this run."""
    from implicit_conv.arch import cpu_arch
    from implicit_conv.contenders import CONTROL, measure
    from implicit_conv.testing import Case

    threads = options.threads or cpu_arch().threads
    against = ["torch"] if find_spec("torch") else []
    print(f"{'layer':16}{'call':>10}{'plan':>10}{'':>13}" + f"{'torch/call':>12}" * len(against))
    noise = []
    for name, (c, k, size, taps, stride) in TYPICAL.items():
        case = Case(
            N=options.batch, C=c, K=k, size=(size, size), kernel=(taps, taps),
            stride=(stride, stride), padding=((taps // 2,) * 2,) * 2, layout=options.layout,
        )  # fmt: skip
        plan, _, samples = measure(case, against, threads, options.rounds)
        times = {which: summarise(values).median for which, values in samples.items()}
        ratios = [paired_ratio(samples[which], samples["call"]) for which in against]
        noise.append(abs(paired_ratio(samples[CONTROL], samples["call"]) - 1))
        print(
            f"{name:16}{times['call'] * 1e3:7.3f} ms{times['plan'] * 1e3:7.3f} ms"
            f"{plan.flops / times['plan'] / 1e9:6.0f} GFLOP/s"
            + "".join(f"{ratio:11.2f}x" for ratio in ratios)
        )
    peak = measure_ceilings(threads, options.rounds)
    print(
        f"{threads} threads; FMA peak {peak['fma'] / 1e9:.0f} GFLOP/s, copy "
        f"{peak['copy'] / 1e9:.0f} GB/s; the same call against itself differs by up to "
        f"{max(noise):.1%}"
    )
