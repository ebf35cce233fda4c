"""Calls met before: one look-up leads from arrays and options to launches that are ready for them.

It stands beside the cache of plans, which does without strides: what a call asks for is parsed and
checked once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from implicit_conv import cpu
from implicit_conv.arrays import check_vector

if TYPE_CHECKING:
    from implicit_conv.arrays import Array
    from implicit_conv.kernels.cpu.prepared import Prepared
    from implicit_conv.plan import Plan
    from implicit_conv.problem import Problem

CALLS = 512  # that are kept

_known: dict[object, KnownCall] = {}


class KnownCall(NamedTuple):
    """What to compute for arrays of known shapes, strides and dtypes."""

    problem: Problem
    shape: tuple[int, ...]  # of y
    dtype: np.dtype[Any]
    prepared: Prepared

    def run(self, x: Array, w: Array, bias: object) -> Array:
        """Convolve plain arrays like those that the call was first met with."""
        if bias is not None:
            bias = check_vector("bias", bias, self.problem.K, self.problem.sum_dtype)
        y = np.empty(self.shape, self.dtype)
        self.prepared.run(x, w, y, bias)
        return y


def find(key: object) -> KnownCall | None:
    """The call of this key."""
    try:
        return _known.get(key)
    except TypeError:  # an option that is no name, number or tuple
        return None


def remember(key: object, plan: Plan, x: Array, w: Array, y: Array, biased: bool) -> None:
    """Keep the launches of ``y = plan(x, w)``, if they are all that it takes."""
    if plan.unbatched or y.dtype != plan.y_dtype:
        return
    prepared = cpu.ready(plan, x, w, y, biased)
    if prepared is None:
        return
    if len(_known) >= CALLS:
        _known.clear()
    _known[key] = KnownCall(plan.problem, y.shape, y.dtype, prepared)


def clear() -> None:
    """Forget all calls."""
    _known.clear()
