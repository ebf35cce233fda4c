"""Filters as passes over rows: the orders of sums, what surrounds an image, and exact integers.

A step is what one of three functions of scipy's C is asked for: correlate, correlate1d or
uniform_filter1d. Passes have the bits of its loops.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from implicit_conv.arrays.arrays import Array
from implicit_conv.cpu.engines.image_filters import Order
from implicit_conv.cpu.engines.image_passes import Pass
from implicit_conv.ndimage.borders import CONSTANT, pixels

# Weights of at most this size count as zero, and as equal if they differ by as much, in scipy's C.
EPSILON = np.finfo(np.float64).eps
EXACT = 1 << 24  # sums of integers below it are exact in float32
SCALED = 1 << 20  # sums below it, times SCALE / size, are truncated to the exact mean
SCALE = 1 + 2.0**-21
LONG_MEAN = 10  # elements of a mean above which running sums take less time than products


class Step(NamedTuple):
    """One call of scipy's C.

    Attributes
    ----------
    taps : array of float64
        The weights, along the axis or along all axes.
    size : int
        The pixels of a mean, whose weights are all 1 / size; 0 for other sums.
    axis : int or None
        None for a window of all axes.
    mode : int
        A code of scipy's.
    origins : tuple of int
        One for each axis.
    """

    taps: Array
    size: int
    axis: int | None
    mode: int
    cval: float
    origins: tuple[int, ...]


def key_of(step: Step) -> tuple[object, ...]:
    """What tells a step from others."""
    taps, cval = step.taps, np.float64(step.cval)
    return taps.tobytes(), taps.shape, *step[1:4], cval.tobytes(), step.origins


class Sums(NamedTuple):
    """How the sums of some steps are added.

    Attributes
    ----------
    dtype : "i2", "f4" or "f8"
    fma : bool
        Whether products may be added without rounding.
    means : "divided", "running" or "products"
        How means are made: of a sum of integers, of a running sum, or as other sums.
    rounds : bool
        Whether results between steps must be rounded to those of the output.
    nearest : bool
        Whether the last results are the nearest integers, and those between steps stay sums.
    """

    dtype: str
    fma: bool
    means: str
    rounds: bool
    nearest: bool = False


def mean_step(size: int, axis: int, mode: int, cval: float, origins: tuple[int, ...]) -> Step:
    """The step of uniform_filter1d."""
    return Step(np.full(size, 1 / size), size, axis, mode, cval, origins)


def taps_of(step: Step, rank: int, means: str = "products") -> tuple[Order, Array, Array]:
    """The order of a sum, its weights, and the positions of the two elements of each tap; `means`
    are made as `Sums` says, and unless they are products their size is the only weight.
    """
    if step.axis is None:
        places = np.argwhere(abs(step.taps) > EPSILON)
        return Order.TAPS, step.taps[tuple(places.T)], np.stack([places, places], axis=1)
    if step.size and means != "products":
        order = Order.MEAN if means == "divided" else Order.RUNNING
        taps = np.stack([np.arange(step.size)] * 2, axis=1)
        weights = np.array([float(step.size)])
    else:
        order, taps = _line_order(step.taps)
        weights = step.taps[taps[:, 0]]
    places = np.zeros((*taps.shape, rank), np.int64)
    places[..., step.axis] = taps
    return order, weights, places


def _line_order(weights: Array) -> tuple[Order, Array]:
    """The order of a sum along a line, and the two elements of each tap.

    scipy's C joins the elements of symmetric and antisymmetric filters before it multiplies. It
    begins with the tap in the middle of these, and with the last one of others.
    """
    size = len(weights)
    low = np.arange(size // 2)
    pairs = np.stack([low, size - 1 - low], axis=1)
    if size % 2 and size > 1:
        first, second = weights[pairs.T]
        with np.errstate(all="ignore"):  # of infinite weights
            differences = {Order.MIRRORED: first - second, Order.OPPOSED: first + second}
        for order, difference in differences.items():
            if not (abs(difference) > EPSILON).any():  # which counts NaN as equal
                return order, np.concatenate([[[size // 2, size // 2]], pairs])
    taps = np.array([size - 1, *range(size - 1)])
    return Order.LINE, np.stack([taps, taps], axis=1)


def extents(step: Step, rank: int) -> tuple[int, ...]:
    """Those of the window of a step."""
    if step.axis is None:
        return step.taps.shape
    return tuple(len(step.taps) if axis == step.axis else 1 for axis in range(rank))


def pass_of(step: Step, shape: Sequence[int], sums: Sums, *, surrounded: bool = False) -> Pass:
    """The pass that computes a step, with a result of this shape; if an image is `surrounded`, all
    that windows read is in it.
    """
    rank = len(shape)
    order, weights, places = taps_of(step, rank, sums.means)
    if order is Order.MEAN and sums.dtype == "f4":
        weights = SCALE / weights
    elif order is Order.MEAN and sums.dtype == "i2":
        weights = np.array([_factor(step.size)])
    more = int(order is Order.RUNNING)  # the element that leaves
    kernel = tuple(
        taps + more * (axis == step.axis) for axis, taps in enumerate(extents(step, rank))
    )
    axes = tuple(
        axis
        for axis in range(rank)
        if axis == step.axis or (step.axis is None and kernel[axis] > 1)
    )
    sources = []
    for axis, (size, taps, origin) in enumerate(zip(shape, kernel, step.origins, strict=True)):
        before = more if axis == step.axis else 0
        first = 0 if surrounded else -((taps - before) // 2) - origin - before
        end = first + size + taps - 1
        read = np.arange(first, end)
        sources.append(read if surrounded else pixels(read, size, step.mode))
    return Pass(order, weights, places, axes or (rank - 1,), kernel, tuple(sources))


def with_axis(step: Step, axis: int) -> Step:
    """The step for images with one axis more, along which nothing is filtered."""
    origins = (*step.origins[:axis], 0, *step.origins[axis:])
    if step.axis is None:
        return step._replace(taps=np.expand_dims(step.taps, axis), origins=origins)
    return step._replace(axis=step.axis + (step.axis >= axis), origins=origins)


def added(steps: Sequence[Step], x: np.dtype[Any], y: np.dtype[Any], precision: str) -> Step | None:
    """The window of all axes whose sums are those of the steps, added; None where scipy, which
    rounds each step's, may have other bits, or where borders differ.
    """
    first, rank = steps[0], len(steps[0].origins)
    if any(step[3:] != first[3:] or step.axis is None for step in steps) or any(first.origins):
        return None
    taps = np.zeros([max(len(step.taps) for step in steps)] * rank)
    for step in steps:
        if len(step.taps) % 2 == 0 or len(step.taps) != len(taps):
            return None
        middle = [len(taps) // 2] * rank
        place = tuple(slice(None) if axis == step.axis else m for axis, m in enumerate(middle))
        taps[place] += step.taps
    window = Step(taps, 0, None, *first[3:])
    exact = _wraps([window], x, y) or _exact([window], x, y) is not None
    return window if exact or precision != "strict" else None


def total(step: Step) -> float:
    """The sum of all weights that do not count as zero."""
    order, weights, _ = taps_of(step, len(step.origins))
    first, others = float(weights[0]), math.fsum(weights[1:])
    return first + {Order.MIRRORED: 2, Order.OPPOSED: 0}.get(order, 1) * others


def sums_of(
    steps: Sequence[Step],
    x: np.dtype[Any],
    y: np.dtype[Any],
    precision: str,
    *,
    nearest: bool = False,
) -> Sums:
    """How to add the sums of these steps, of which each rounds its results to `y`.

    Sums of small integers are those in float64, in float32 or in 16 bits of which they need no
    more. Otherwise "strict" adds in float64, and the other precisions in float32 where neither the
    image nor the result holds more.
    """
    narrow = precision != "strict" and all(d == np.float32 or d.itemsize <= 2 for d in (x, y))
    strict, dtype = precision == "strict", "f4" if narrow else "f8"
    if nearest:
        means = "products" if narrow else "divided"
        return Sums(dtype, not strict, means, rounds=False, nearest=True)
    long = any(step.size > LONG_MEAN for step in steps)
    if _wraps(steps, x, y):
        return Sums("i2", fma=False, means="divided", rounds=y.itemsize == 1)
    exact = _exact(steps, x, y)
    if exact is not None:
        return exact
    if long:  # running sums take less time, and are those of float64
        return Sums("f8", fma=False, means="running", rounds=y.str[1:] != "f8")
    means = "running" if strict else "products"
    return Sums(dtype, not strict, means, rounds=y.str[1:] != dtype)


def sums_integers(step: Step, x: np.dtype[Any]) -> bool:
    """Whether all that a step reads of an image are integers of at most 32 bits."""
    if x.kind not in "biu" or x.itemsize > 4:
        return False
    return step.mode != CONSTANT or (float(step.cval).is_integer() and abs(step.cval) < 1 << 31)


def _wraps(steps: Sequence[Step], x: np.dtype[Any], y: np.dtype[Any]) -> bool:
    """Whether all results are the low bits of sums of integers, of which 16 are enough.

    What a mean divides has no other bits.
    """
    if any(d.kind not in "biu" or d.itemsize > 2 for d in (x, y)) or y.kind == "b":
        return False
    bound, low = _largest(x), x.itemsize == 1 and x.kind in "bu"  # whether elements are 0 .. 255
    for step in steps:
        if not sums_integers(step, x):
            return False
        if step.mode == CONSTANT:
            bound, low = max(bound, int(abs(step.cval))), low and 0 <= step.cval <= 255
        if step.size:
            lost = _factor(step.size) * step.size - (1 << 16)
            if not low or step.size == 1 or 255 * step.size * max(1, lost) >= 1 << 16:
                return False
            continue
        if not _is_whole(step.taps) or abs(step.taps).max() >= 1 << 15:
            return False
        bound *= int(abs(step.taps).sum())
        if bound >= 1 << 31:  # scipy's C converts to integers of 32 bits first
            return False
        bound, low = min(bound, 1 << 16), y == np.uint8
    return True


def _factor(size: int) -> int:
    """2^16 over the elements of a mean, rounded up."""
    return -(-(1 << 16) // size)


def _is_whole(weights: Array) -> bool:
    return bool(np.isfinite(weights).all() and (weights == np.rint(weights)).all())


def _exact(steps: Sequence[Step], x: np.dtype[Any], y: np.dtype[Any]) -> Sums | None:
    """How to add in float32, if all sums of `steps` are integers that it holds; else None."""
    if x.kind not in "biu" or x.itemsize > 2 or y == np.float64:
        return None
    bound = _largest(x)
    rounds = False
    for step in steps:
        if not sums_integers(step, x):
            return None
        if step.mode == CONSTANT:
            bound = max(bound, int(abs(step.cval)))
        if step.size:
            if y.kind not in "iu" or (step.size + 1) * bound >= SCALED:
                return None
            rounds = True
        else:
            if not _is_whole(step.taps):
                return None
            bound *= int(abs(step.taps).sum())
            if bound >= EXACT:
                return None
        if y.kind in "iu":
            rounds = rounds or bound > _largest(y) or y.kind == "u"
            bound = min(bound, _largest(y) + 1) if rounds else bound
    return Sums("f4", fma=True, means="divided", rounds=rounds)


def _largest(dtype: np.dtype[Any]) -> int:
    """The largest size of an integer of this dtype."""
    if dtype.kind == "b":
        return 1
    limits = np.iinfo(dtype)
    return max(int(limits.max), -int(limits.min))
