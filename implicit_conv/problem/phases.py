"""Stride phases: a transposed convolution as fprops, one for each remainder of output positions.

The output of a transposed convolution, dx, is divided into phases: along an axis with stride s,
phase a has the pixels a, a + s, a + 2s, ... The taps r that reach them are those for which

    h + pad - r * dilation,   h = a + s * i,

is divisible by s; the quotient is the pixel of dy. Every (s / gcd(s, dilation))-th tap is one, so a
phase is the fprop of dy with these taps, flipped, and with padding and dilation of its own:

    p = i + (a + pad - r * dilation) / s

A phase that no tap reaches is empty: its sums are zero.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from implicit_conv.problem.options import WEIGHT_LAYOUTS_OF
from implicit_conv.problem.problem import Problem
from implicit_conv.process.cache import PHASES

MOST_PHASES = 1 << 14  # phases at most: each takes a launch of about 10 us


class AxisPhase(NamedTuple):
    """One phase along one axis."""

    pixels: slice  # of dx
    taps: slice  # of w, flipped
    out: int  # pixels of the phase
    kernel: int  # taps of the phase
    dilation: int
    pad_lo: int
    pad_hi: int


@dataclass(frozen=True)
class Phase:
    """The fprop of one phase.

    Attributes
    ----------
    problem : Problem
        The fprop of dy; its filters are slices of w with the axes K and C swapped.
    pixels, taps : a slice for each spatial axis
        The pixels of dx, and the taps of w.
    """

    problem: Problem
    pixels: tuple[slice, ...]
    taps: tuple[slice, ...]


def axis_phases(
    size: int, out: int, kernel: int, stride: int, dilation: int, pad: int
) -> Iterator[AxisPhase]:
    """The phases of an axis that taps reach; dx has `size` pixels, and dy has `out`.

    Each tap reaches one phase, so there are at most `kernel`.
    """
    step = stride // math.gcd(stride, dilation)
    for first in range(min(step, kernel)):
        a = (first * dilation - pad) % stride
        if a >= size:
            continue
        count = -(-(size - a) // stride)
        taps = -(-(kernel - first) // step)
        last = first + (taps - 1) * step
        reach = (taps - 1) * (step * dilation // stride)
        low = reach - (a + pad - first * dilation) // stride
        yield AxisPhase(
            # A step within the axis: a stride beyond it would hide that a view is contiguous.
            pixels=slice(a, None, min(stride, size - a)),
            taps=slice(last, first - 1 if first > 0 else None, -step),
            out=count,
            kernel=taps,
            dilation=step * dilation // stride if taps > 1 else 1,
            pad_lo=low,
            pad_hi=count + reach - out - low,
        )


@PHASES
def phases_of(problem: Problem) -> tuple[Phase, ...]:
    """The phases of the input gradient of `problem` that taps reach."""
    axes = zip(
        problem.size,
        problem.output,
        problem.kernel,
        problem.stride,
        problem.dilation,
        problem.pad_lo,
        strict=True,
    )
    found = itertools.product(*itertools.starmap(axis_phases, axes))
    # With groups, filters and channels are swapped by a copy in the default layout.
    weight_layout = WEIGHT_LAYOUTS_OF[problem.rank][0]
    if problem.groups == 1:
        weight_layout = problem.weight_layout.translate(str.maketrans("KC", "CK"))
    swapped = problem.changed(
        C=problem.K,
        K=problem.C,
        size=problem.output,
        stride=(1,) * len(problem.stride),
        weight_layout=weight_layout,
        padding_mode="zeros",
    )
    phases = []
    for phase in found:
        pixels, taps, _, kernel, dilation, pad_lo, pad_hi = zip(*phase, strict=True)
        window = {"kernel": kernel, "dilation": dilation, "pad_lo": pad_lo, "pad_hi": pad_hi}
        phases.append(Phase(swapped.changed(**window), pixels, taps))
    return tuple(phases)


def is_covered(problem: Problem, phases: Sequence[Phase]) -> bool:
    """Whether the phases have all pixels of dx."""
    return sum(math.prod(phase.problem.output) for phase in phases) == math.prod(problem.size)


def without_channels(problem: Problem) -> Problem:
    """The fprop that has the output of the gradient, and no channels; images without pixels, which
    no fprop has as its output, are no images of one pixel.
    """
    ones, zeros = (1,) * problem.rank, (0,) * problem.rank
    has_pixels = min(problem.size) > 0
    return replace(
        problem,
        N=problem.N * has_pixels,
        C=0,
        K=problem.C,
        groups=1,
        size=problem.size if has_pixels else ones,
        kernel=ones,
        stride=ones,
        dilation=ones,
        pad_lo=zeros,
        pad_hi=zeros,
        weight_layout=WEIGHT_LAYOUTS_OF[problem.rank][0],
        padding_mode="zeros",
    )


def phase_count(problem: Problem) -> int:
    """The number of phases that taps may reach, at most."""
    axes = zip(problem.kernel, problem.stride, problem.dilation, strict=True)
    return math.prod(
        min(taps, stride // math.gcd(stride, dilation)) for taps, stride, dilation in axes
    )
