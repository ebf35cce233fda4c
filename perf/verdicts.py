"""From samples to verdicts: ratios of paired minima, bootstrap intervals, the noise floor.

A round holds a few samples of each side, taken in turn. Their minimum is the time that the code
needs; the ratio of two minima of one round is free of drift, which affects both sides.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

LEAST_SLOWDOWN = 0.05  # smaller slowdowns are no regression, even on a quiet machine
FLOORS = 3.0  # a slowdown must exceed so many noise floors
MOST_FLOOR = 0.03  # a run with a larger noise floor cannot conclude that a case is fine
FLOOR_QUANTILE = 0.9  # quantile of |ratio - 1| of controls that is the noise floor
CONFIDENCE = 0.99  # of the bootstrap interval
RESAMPLES = 2000  # bootstrap resamples

FINE, SLOWER, FASTER, INCONCLUSIVE = "fine", "slower", "faster", "inconclusive"


class Estimate(NamedTuple):
    """A ratio of times with its confidence interval."""

    ratio: float
    low: float
    high: float


def estimate(numerator: Sequence[float], denominator: Sequence[float]) -> Estimate:
    """Median of the ratios of the rounds' minima, and its bootstrap interval (percentiles of
    resampled medians). With a single round the interval is unbounded, so nothing can be concluded.
    """
    ratios = np.asarray(numerator) / np.asarray(denominator)
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
        rng=np.random.default_rng(0),
    ).confidence_interval
    return Estimate(median, float(interval.low), float(interval.high))


def noise_floor(controls: Sequence[float]) -> float:
    """The 90 % quantile of |ratio - 1| over ratios of a side to itself."""
    if not controls:
        return 0.0
    return float(np.quantile(np.abs(np.asarray(controls) - 1), FLOOR_QUANTILE))


def threshold(floor: float) -> float:
    """The slowdown that counts: max(5 %, 3 x floor)."""
    return max(LEAST_SLOWDOWN, FLOORS * floor)


def verdict(found: Estimate, floor: float) -> str:
    """The verdict on a case, from its ratio head / base.

    "slower": the ratio exceeds 1 + threshold and the interval excludes 1. "fine": the interval is
    below 1 + threshold and the noise floor is at most MOST_FLOOR. "faster": also, the interval is
    below 1 - threshold. All other cases are "inconclusive" and need more rounds.
    """
    limit = threshold(floor)
    if found.ratio > 1 + limit and found.low > 1:
        return SLOWER
    if floor > MOST_FLOOR or found.high >= 1 + limit:
        return INCONCLUSIVE
    return FASTER if found.high < 1 - limit else FINE


def overall(verdicts: Sequence[str]) -> str:
    """The verdict of a comparison: "slower" if one case is, else "inconclusive" if one case is."""
    for name in (SLOWER, INCONCLUSIVE):
        if name in verdicts:
            return name
    return FINE
