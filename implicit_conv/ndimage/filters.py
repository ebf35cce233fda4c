"""Steps of filters on arrays, by launches that are kept for calls that come again.

Rows that are not contiguous are copied, and so is an image that shares memory with the result.
Results of dtypes that no launch stores are float64 first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from implicit_conv.arrays.arrays import Array
from implicit_conv.cpu.engines.image_filters import ImageLaunch, launch_of
from implicit_conv.cpu.engines.image_passes import Format
from implicit_conv.cpu.machine.arch import available_threads
from implicit_conv.ndimage.borders import MODES, WRAP
from implicit_conv.ndimage.chains import chain_for
from implicit_conv.ndimage.passes import (
    EPSILON,
    Step,
    Sums,
    key_of,
    pass_of,
    sums_of,
)
from implicit_conv.settings import current

INPUTS = frozenset("?bBhHiIlLqQfd")  # the dtypes of scipy's C, by numpy's characters
OUTPUTS = INPUTS - {"?"}
MOST_CHANNELS = 8  # elements of a pixel of rows that two steps are joined along
STORED = frozenset("bBhHifd")  # those that launches store


def served(x: Array, out: Array, mode: int) -> bool:
    """Whether arrays are of the sort that is filtered here."""
    return (
        x.dtype.char in INPUTS
        and out.dtype.char in OUTPUTS
        and x.size > 0
        and x.shape == out.shape
        and out.flags.writeable
        and mode in MODES
    )


def stores(dtype: np.dtype[Any]) -> bool:
    """Whether launches store this dtype."""
    return dtype.char in STORED and dtype.isnative


def sums_nothing(step: Step) -> bool:
    """Whether all weights of a window count as zero, which scipy's C sees to."""
    return step.axis is None and not (abs(step.taps) > EPSILON).any()


class Chain:
    """Launches that compute steps one after the other, for arrays of one shape with these strides.

    The first one reads x, the others read y, in place or as a copy.

    Attributes
    ----------
    steps : int
    """

    def __init__(self, steps: Sequence[Step], x: Array, y: Array, sums: Sums, threads: int) -> None:
        """Raises ValueError where rows of x or y are not contiguous."""
        self._first: ImageLaunch | None = None
        self.steps = len(steps)
        self._others = list[ImageLaunch]()
        for joined in _joined(steps, y.shape):
            if self._first is None:
                self._first = _launch(joined, x, y, sums, threads)
                continue
            launch = _launch(joined, y, y, sums, threads)
            if not launch.in_place:
                launch = _launch(joined, np.empty(y.shape, y.dtype), y, sums, threads)
            self._others.append(launch)

    def run(self, x: Array, y: Array) -> None:
        """Compute all steps; x and y share no memory."""
        assert self._first is not None
        self._first.run(x, y)
        for launch in self._others:
            launch.run(y if launch.in_place else y.copy(), y)


def _launch(steps: Sequence[Step], x: Array, y: Array, sums: Sums, threads: int) -> ImageLaunch:
    """The launch of the steps that it joins; if y is x, in place where it can be."""
    passes = [pass_of(step, y.shape, sums) for step in steps]
    dtypes = x.dtype.str[1:], y.dtype.str[1:], sums.dtype
    form = Format(x.strides, y.strides, *dtypes, sums.fma, sums.nearest)
    in_place = x is y and all(step.mode != WRAP for step in steps)
    cval = steps[0].cval
    return launch_of(passes, form, cval, sums.rounds, threads, in_place=in_place)


def _joined(steps: Sequence[Step], shape: Sequence[int]) -> list[Sequence[Step]]:
    """The steps that one launch computes: one, or two of which one is along the last axis, or along
    the last but one of an image with few channels behind it.
    """
    found, place = list[Sequence[Step]](), 0
    while place < len(steps):
        pair = steps[place : place + 2]
        axes = {step.axis for step in pair if step.axis is not None}
        both = len(axes) == 2 and math.prod(shape[max(axes) + 1 :]) <= MOST_CHANNELS
        found.append(pair if both else pair[:1])
        place += len(found[-1])
    return found


def run(steps: Sequence[Step], x: Array, out: Array, precision: str) -> bool:
    """Compute the steps of x into `out`; False where they must be computed by scipy's C."""
    if x.ndim == 0:  # an image of one pixel
        steps = [step._replace(taps=step.taps.reshape(1), origins=(0,)) for step in steps]
        x, out = x.reshape(1), out.reshape(1)
    y = out if stores(out.dtype) and out.flags.aligned else np.empty(out.shape, _stored(out))
    if not (x.dtype.isnative and x.flags.aligned):
        x = x.astype(x.dtype.newbyteorder("="))
    if np.may_share_memory(x, y):
        x = x.copy()
    key = precision, *map(key_of, steps)
    chain, x, y = chain_for(lambda x, y: new_chain(steps, x, y, precision), x, y, key)
    if chain is None:
        return False
    chain.run(x, y)
    if y is not out:
        store(y, out)
    return True


def _stored(out: Array) -> Any:
    return out.dtype if stores(out.dtype) else np.float64


def new_chain(
    steps: Sequence[Step], x: Array, y: Array, precision: str, *, nearest: bool = False
) -> Chain:
    """A chain for arrays like these; raises ValueError where their rows are not contiguous, or
    where results between launches would have to be rounded to the `nearest` integers.
    """
    if nearest and len(_joined(steps, y.shape)) > 1:
        raise ValueError("the nearest integers are those of one launch")
    sums = sums_of(steps, x.dtype, y.dtype, precision, nearest=nearest)
    return Chain(steps, x, y, sums, current().num_threads or available_threads())


def store(values: Array, out: Array) -> None:
    """Round or truncate sums to the dtype of the output, as scipy's C does: small integers wrap.

    C leaves it undefined what a number beyond the range of an integer becomes. Compilers for x86-64
    convert to 32 bits, or to 64 bits for uint32, and keep the low ones.
    """
    with np.errstate(all="ignore"):
        kind, size = out.dtype.kind, out.dtype.itemsize  # in any byte order
        if kind in "iu" and size <= 2:
            values = values.astype(np.int32)
        elif kind == "u" and size == 4:
            values = values.astype(np.int64)
        np.copyto(out, values, casting="unsafe")
