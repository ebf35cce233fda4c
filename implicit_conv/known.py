"""Calls met before: one look-up leads from arrays and options to launches that are ready for them.

It stands beside the cache of plans, which does without strides: what a call asks for is parsed and
checked once. A plan keeps the calls of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from implicit_conv import cpu
from implicit_conv.arrays import check_vector
from implicit_conv.strides import bits

if TYPE_CHECKING:
    from implicit_conv.arrays import Array
    from implicit_conv.kernels.cpu.runtime.prepared import Prepared
    from implicit_conv.packed import PackedFilter
    from implicit_conv.plan import Plan
    from implicit_conv.problem import Problem

CALLS = 512  # that are kept, at most

Calls: TypeAlias = "dict[object, KnownCall]"

_known: Calls = {}


@dataclass(frozen=True, slots=True)
class KnownCall:
    """What to compute for arrays of known shapes, strides and dtypes."""

    problem: Problem
    shape: tuple[int, ...]  # of y
    dtype: np.dtype[Any]
    narrow: bool  # 16-bit floats, which compiled code takes as integers
    prepared: Prepared

    def run(self, x: Array, w: Array, bias: object) -> Array:
        """Convolve plain arrays like those that the call was first met with."""
        if bias is not None:
            bias = self._checked(bias)
        y = np.empty(self.shape, self.dtype)
        if self.narrow:
            self.prepared.run(bits(x), bits(w), bits(y), bias)
        else:
            self.prepared.run(x, w, y, bias)
        return y

    def run_packed(self, x: Array, w: PackedFilter, bias: object) -> Array:
        """Convolve with a filter packed like that of the first call."""
        if bias is not None:
            bias = self._checked(bias)
        y = np.empty(self.shape, self.dtype)
        if self.narrow:
            self.prepared.run_packed(bits(x), w.address, bits(y), bias)
        else:
            self.prepared.run_packed(x, w.address, y, bias)
        return y

    def _checked(self, bias: object) -> Array:
        return check_vector("bias", bias, self.problem.K, self.problem.sum_dtype)


def find(key: object, calls: Calls = _known) -> KnownCall | None:
    """The call of this key."""
    try:
        return calls.get(key)
    except TypeError:  # an option that is no name, number or tuple
        return None


def remember(
    key: object,
    plan: Plan,
    x: Array,
    w: PackedFilter | Array,
    y: Array,
    biased: bool,
    calls: Calls = _known,
) -> None:
    """Keep the launches of ``y = plan(x, w)``, if they are all that it takes."""
    if plan.unbatched or y.dtype != plan.y_dtype:
        return
    prepared = cpu.ready(plan, x, w, y, biased)
    if prepared is None:
        return
    if len(calls) >= CALLS:
        calls.clear()
    calls[key] = KnownCall(plan.problem, y.shape, y.dtype, x.itemsize == 2, prepared)


def clear() -> None:
    """Forget all calls."""
    _known.clear()
