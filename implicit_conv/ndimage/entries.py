"""scipy's module of C functions with some of them replaced.

All of scipy's correlations end in three functions, and filters that order elements in those of
`rank_entries`. What is not served goes to scipy's C, as all other functions do. What scipy's C
computes in less time goes there before anything else is looked at, since its calls may take as
little as 4 us.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

from implicit_conv.arrays.arrays import Array
from implicit_conv.errors import PlanError
from implicit_conv.ndimage import filters, worth
from implicit_conv.ndimage.borders import SYNONYMS
from implicit_conv.ndimage.missing import PROPAGATE, without_nans
from implicit_conv.ndimage.originals import COMPILED
from implicit_conv.ndimage.passes import Step, mean_step
from implicit_conv.ndimage.rank_entries import RankEntries
from implicit_conv.problem.options import PRECISIONS, Precision

STRICT: Precision = "strict"


class Entries(RankEntries):
    """What scipy's filters call.

    Parameters
    ----------
    precision : "strict", "standard" or "fast"
        "strict" has scipy's results; the others sum in float32 where neither the image nor the
        result holds more.
    nan : "propagate", "interpolate" or "ignore"
        What a NaN in a sum means.

    Raises
    ------
    PlanError
        The precision is unknown (a ValueError).
    """

    def __init__(self, precision: Precision, nan: str = PROPAGATE) -> None:
        if precision not in PRECISIONS:
            raise PlanError(f"precision is {precision!r}; it must be one of {PRECISIONS}")
        self._precision, self._nan = precision, nan
        self._propagates = nan == PROPAGATE

    def __getattr__(self, name: str) -> Any:
        return getattr(COMPILED, name)

    def correlate(
        self,
        x: Array,
        weights: Array,
        out: Array,
        mode: int,
        cval: float,
        origins: Sequence[int],
    ) -> None:
        """Correlate along all axes."""
        if self._propagates and not worth.pays(x, weights.size):
            return COMPILED.correlate(x, weights, out, mode, cval, origins)  # type: ignore[no-any-return]
        places = tuple(operator.index(origin) for origin in origins)
        step = Step(weights, 0, None, SYNONYMS.get(mode, mode), float(cval), places)
        right = weights.ndim == x.ndim and weights.size > 0
        if not (right and self._computes(step, x, out)):
            COMPILED.correlate(x, weights, out, mode, cval, origins)
        return None

    def correlate1d(
        self,
        x: Array,
        weights: Array,
        axis: int,
        out: Array,
        mode: int,
        cval: float,
        origin: int,
    ) -> None:
        """Correlate along an axis."""
        if not self._propagates or worth.pays(x, weights.size):
            origins = along(x.ndim, axis, operator.index(origin))
            step = Step(weights, 0, axis, SYNONYMS.get(mode, mode), float(cval), origins)
            if self._computes(step, x, out):
                return
        COMPILED.correlate1d(x, weights, axis, out, mode, cval, origin)

    def uniform_filter1d(
        self, x: Array, size: int, axis: int, out: Array, mode: int, cval: float, origin: int
    ) -> None:
        """Means along an axis."""
        if worth.pays(x, size):
            origins = along(x.ndim, axis, operator.index(origin))
            code = SYNONYMS.get(mode, mode)
            step = mean_step(operator.index(size), axis, code, float(cval), origins)
            if self._propagates and self._computes(step, x, out):
                return
        COMPILED.uniform_filter1d(x, size, axis, out, mode, cval, origin)

    def _computes(self, step: Step, x: Array, out: Array) -> bool:
        """Compute a step here, unless it is left to scipy's C."""
        if not filters.served(x, out, step.mode):
            return False
        if filters.sums_nothing(step):
            return False
        if self._propagates:
            return filters.run([step], x, out, self._precision)
        without_nans(step, x, out, self._precision, self._nan)
        return True


def along(rank: int, axis: int, origin: int) -> tuple[int, ...]:
    """The origins of a filter along an axis."""
    return tuple(origin if other == axis else 0 for other in range(rank))
