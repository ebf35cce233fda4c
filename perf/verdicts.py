"""From samples to verdicts: ratios of paired minima, bootstrap intervals, the noise floor.

A round holds a few samples of each side, taken in turn. The least of a round is what the code
needs; the ratio of two least times of one round is free of drift that both sides saw.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Rounds = NDArray[np.float64]  # (rounds, samples of a round)

LEAST_SLOWDOWN = 0.05  # what is never called a regression, however quiet the machine
FLOORS = 3.0  # a slowdown must stand this many noise floors above 1
MOST_FLOOR = 0.03  # a noisier run cannot tell that anything is fine
FLOOR_QUANTILE = 0.9
CONFIDENCE = 0.99
RESAMPLES = 2000

FINE, SLOWER, FASTER, INCONCLUSIVE = "fine", "slower", "faster", "inconclusive"


@dataclass(frozen=True)
class Estimate:
    """A ratio of times with its confidence interval."""

    ratio: float
    low: float
    high: float


def paired_minima(numerator: Rounds, denominator: Rounds) -> NDArray[np.float64]:
    """Ratio of the least times of each round."""
    ratios: NDArray[np.float64] = numerator.min(axis=1) / denominator.min(axis=1)
    return ratios


def estimate(ratios: NDArray[np.float64], seed: int = 0) -> Estimate:
    """Median of the rounds' ratios, and its bootstrap interval (percentiles of resampled medians).

    With a single round the interval is unbounded: nothing can be concluded from it.
    """
    median = float(np.median(ratios))
    if len(ratios) < 2:
        return Estimate(median, 0.0, np.inf)
    from scipy.stats import bootstrap

    interval = bootstrap(
        (ratios,),
        np.median,
        confidence_level=CONFIDENCE,
        n_resamples=RESAMPLES,
        method="percentile",
        vectorized=True,
        rng=np.random.default_rng(seed),
    ).confidence_interval
    return Estimate(median, float(interval.low), float(interval.high))


def noise_floor(controls: Sequence[float]) -> float:
    """How far ratios of a side against itself lie from 1: their 90 % quantile."""
    if not controls:
        return 0.0
    return float(np.quantile(np.abs(np.asarray(controls) - 1), FLOOR_QUANTILE))


def threshold(floor: float) -> float:
    """The slowdown that counts: max(5 %, 3 x floor)."""
    return max(LEAST_SLOWDOWN, FLOORS * floor)


def verdict(found: Estimate, floor: float) -> str:
    """What a case's ratio head / base says.

    "slower": above 1 + threshold, by an interval that excludes 1. "fine": the interval lies below
    1 + threshold, in a run whose floor lets that be told ("faster" where it lies below 1 -
    threshold). Anything else is "inconclusive" and asks for more rounds.
    """
    limit = threshold(floor)
    if found.ratio > 1 + limit and found.low > 1:
        return SLOWER
    if floor > MOST_FLOOR or found.high >= 1 + limit:
        return INCONCLUSIVE
    return FASTER if found.high < 1 - limit else FINE


def overall(verdicts: Sequence[str]) -> str:
    """The verdict of a comparison: one slower case decides, then one inconclusive."""
    for name in (SLOWER, INCONCLUSIVE):
        if name in verdicts:
            return name
    return FINE


def geometric_mean(ratios: Sequence[float]) -> float:
    """Geometric mean; 1 of nothing."""
    return float(np.exp(np.mean(np.log(ratios)))) if len(ratios) else 1.0
