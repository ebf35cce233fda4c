"""Tuning: measure the best few candidates of a plan on this machine, and keep the fastest."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np
from numpy.random import default_rng

from implicit_conv.arrays.arrays import Array, numpy_dtype
from implicit_conv.cpu.candidates.candidate import Candidate, Query
from implicit_conv.cpu.plan import planner, tuning_cache
from implicit_conv.cpu.plan.planner import Choice
from implicit_conv.errors import PlanError
from implicit_conv.problem.options import INTEGER_RANGES
from implicit_conv.problem.parse import choice
from implicit_conv.timing import Local, Seconds, interleave, paired_ratio, show, summarise

FILTERS = ("packed", "plain")  # what calls are measured with
FEW = 8  # candidates that are measured, at most
WITHIN = 2.5  # times the lowest estimate: slower candidates are not measured
ROUNDS = 7  # samples of each candidate
SAMPLE_SECONDS = 0.01  # least length of a sample
GAIN = 0.98  # share of the first candidate's time below which another one replaces it

Run = Callable[[Candidate], Callable[[], object]]  # a call of one candidate, ready to be timed


def tuned(query: Query, run: Run, packs: bool) -> Choice:
    """The choice for `query` with the fastest candidate first, which is also kept for later plans.

    The planner's own choice, for packed filters if `packs`, stays unless another candidate takes at
    most GAIN of its time.
    """
    candidates = few(query, packs)
    samples = measure(candidates, run)
    best = fastest(samples)
    chosen = tuning_cache.Kept(tuning_cache.name_of(candidates[best]), _words(samples, best))
    tuning_cache.save(planner.entry(query), chosen)
    return planner.plan(*query)


def few(query: Query, packs: bool) -> list[Candidate]:
    """The candidates worth measuring: the planner's own choice, then those with low estimates, for
    packed filters if `packs`.
    """

    def cycles(c: Candidate) -> float:
        return c.packed_cycles if packs else c.cycles

    choice = planner.estimated(query)
    first = choice.best_packed if packs else choice.best
    others = sorted(planner.estimated(planner.wide(query)).candidates, key=cycles)
    near = [c for c in others if c != first and cycles(c) <= WITHIN * cycles(first)]
    return [first, *near][:FEW]


def measure(candidates: Sequence[Candidate], run: Run) -> list[Seconds]:
    """Samples of seconds per call of each candidate, which take turns."""
    functions = {}
    try:
        for number, c in enumerate(candidates):
            show(f"{number} of {len(candidates)} candidates; compiling {c.name}")
            functions[str(number)] = Local(run(c))
            functions[str(number)].result()
        show(f"measuring {len(candidates)} candidates")
        return list(interleave(functions, ROUNDS, SAMPLE_SECONDS).values())
    finally:
        show("")


def fastest(samples: Sequence[Seconds]) -> int:
    """The number of the fastest candidate; the first one unless another is clearly faster, in the
    median over the rounds and at best.
    """
    first = samples[0]
    ratios = [max(paired_ratio(own, first), own.min() / first.min()) for own in samples]
    best = int(np.argmin(ratios))
    return best if ratios[best] < GAIN else 0


def _words(samples: Sequence[Seconds], best: int) -> str:
    own, first = (
        f"{1e3 * summarise(times).median:.3f} ms" for times in (samples[best], samples[0])
    )
    others = f", where the one with the lowest estimate took {first}" if best else ""
    day = time.strftime("%Y-%m-%d")
    return f"the fastest of {len(samples)} candidates, measured on {day}: {own}{others}"


def parse_filters(filters: str) -> bool:
    """Whether calls are measured with a packed filter.

    Raises
    ------
    PlanError
        `filters` is not in FILTERS.
    """
    return choice("filters", filters, FILTERS, error=PlanError) == "packed"


def example(shape: tuple[int, ...], dtype: str, seed: int) -> Array:
    """Random numbers to measure with: normal ones, or integers of the whole range of `dtype`."""
    random = default_rng(seed)
    if dtype in INTEGER_RANGES:
        low, high = INTEGER_RANGES[dtype]
        return random.integers(low, high, shape, numpy_dtype(dtype), endpoint=True)
    return random.standard_normal(shape, np.float32).astype(numpy_dtype(dtype))
