"""Check whether a tensor map walks as a given convolution needs.

Walks are compared, not corners, because different corners can give the same walk. A walk is
determined by the start of a row, its step, and the number of positions in the box, which must be Q
for im2col and L slots for im2col::w.
"""

from __future__ import annotations

from collections.abc import Iterator

from implicit_conv.kernels.schedule import ceil_div
from implicit_conv.problem import Problem
from implicit_conv.tma.limits import Description, Finding
from implicit_conv.tma.lower import maps_for
from implicit_conv.tma.lowering import Lowering
from implicit_conv.tma.lowering_wide import WideLowering

SOURCE = "addressing of this convolution"


def convolution_findings(m: Description, problem: Problem, operator: str) -> Iterator[Finding]:
    """The fields that make the map walk differently from what the convolution needs."""
    lowering = maps_for(problem, m.mode, operator=operator)
    letters = f"n{'dhw'[5 - m.rank :]}c"
    if m.rank != len(lowering.shape):
        yield Finding("shape", m.shape, f"must be {lowering.shape}", SOURCE)
        return
    for letter, size, wanted in zip(letters, m.shape, lowering.shape, strict=True):
        if size != wanted:
            yield Finding(f"shape[{letter}]", size, f"must be {wanted}", SOURCE)
    if not len(m.lower) == len(m.upper) == len(m.step) == len(m.sizes):
        return
    axes = (lowering.width,) if m.wide else (lowering.height, lowering.width)
    for letter, axis, lower, step in zip(m.axes, axes, m.lower, m.step, strict=True):
        if lower != axis.lower:
            hint = "lower = -pad_lo"
            allowed = f"must be {axis.lower}"
            yield Finding(f"lower_corner[{letter}]", lower, allowed, SOURCE, hint)
        if step != axis.stride:
            allowed = f"must be {axis.stride}, the stride"
            yield Finding(f"traversal_stride[{letter}]", step, allowed, SOURCE)
    yield from _upper_corners(m, lowering)


def _upper_corners(m: Description, lowering: Lowering) -> Iterator[Finding]:
    """Upper corners that give the box too few or too many positions."""
    width = lowering.slots if isinstance(lowering, WideLowering) else lowering.width.out
    wanted = (width,) if m.wide else (lowering.height.out, width)
    for letter, size, lower, upper, step, count in zip(
        m.axes, m.sizes, m.lower, m.upper, m.step, wanted, strict=True
    ):
        held = ceil_div(size + upper - lower, step) if step > 0 else 0
        if held == count:
            continue
        right = lower + (count - 1) * step - (size - 1)
        allowed = f"the box holds {held} positions but must hold {count}: take {right}"
        past = f"upper corner reaches past {'L' if m.wide else 'PQ'['hw'.index(letter)]}"
        hint = f"{past}: rows would overrun" if held > count else "rows would wrap too early"
        yield Finding(f"upper_corner[{letter}]", upper, allowed, SOURCE, hint)
