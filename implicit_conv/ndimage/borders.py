"""Boxes of an array with what surrounds them, as scipy extends arrays beyond their borders.

An axis is read in runs of pixels: forwards, backwards, or one pixel again and again. A box inside
the array is one run along every axis, and is copied at once.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from implicit_conv.arrays.arrays import Array

# The codes of scipy's modes, as its C functions take them.
NEAREST, WRAP, REFLECT, MIRROR, CONSTANT = range(5)
MODES = (NEAREST, WRAP, REFLECT, MIRROR, CONSTANT)
GRID_WRAP, GRID_CONSTANT = 5, 6
SYNONYMS = {GRID_WRAP: WRAP, GRID_CONSTANT: CONSTANT}  # of filters; interpolation tells them apart
OUTSIDE = -2  # the pixel of a position that has the constant; no neighbour of pixel 0
BOX_ELEMENTS = 48 << 10  # of a box with its surroundings, in float64: 384 KiB of L2
LAST_ELEMENTS = 64  # the cost of another row of a box, in elements


class Run(NamedTuple):
    """Neighbouring positions of a box along an axis, and the pixels that they repeat."""

    target: slice
    source: slice | None  # None where the constant is


def pixels(positions: Array, size: int, mode: int) -> Any:
    """The pixels that positions along an axis of `size` pixels repeat; OUTSIDE is the constant."""
    inside = (positions >= 0) & (positions < size)
    if mode == CONSTANT:
        return np.where(inside, positions, OUTSIDE)
    if mode == NEAREST:
        return np.clip(positions, 0, size - 1)
    if mode == WRAP:
        return positions % size
    if mode == REFLECT:
        folded = positions % (2 * size)
        return np.minimum(folded, 2 * size - 1 - folded)
    folded = positions % max(1, 2 * size - 2)
    return np.minimum(folded, max(0, 2 * size - 2) - folded)


@functools.lru_cache(256)
def runs(first: int, end: int, size: int, mode: int) -> tuple[Run, ...]:
    """The positions first .. end - 1 along an axis of `size` pixels."""
    if 0 <= first and end <= size:
        return (Run(slice(0, end - first), slice(first, end)),)
    read = pixels(np.arange(first, end), size, mode)
    steps = np.diff(read)
    found, start = [], 0
    while start < len(read):
        step, last = 0, start
        if start + 1 < len(read) and abs(steps[start]) <= 1:
            step = int(steps[start])
            changes = np.flatnonzero(steps[start:] != step)
            last = start + int(changes[0]) if len(changes) else len(read) - 1
        found.append(Run(slice(start, last + 1), _source(int(read[start]), int(read[last]), step)))
        start = last + 1
    return tuple(found)


def _source(first: int, last: int, step: int) -> slice | None:
    if first < 0:
        return None
    if step >= 0:
        return slice(first, last + 1)  # of one pixel, if it is repeated
    return slice(first, last - 1 if last else None, -1)


def load(x: Array, along: Sequence[Sequence[Run]], cval: float, target: Array) -> None:
    """Copy the runs of all axes to `target`."""
    for box in itertools.product(*along):
        place = tuple(run.target for run in box)
        source = [run.source for run in box if run.source is not None]
        target[place] = x[tuple(source)] if len(source) == len(box) else cval


def boxes(
    shape: Sequence[int], around: Sequence[int], whole: int | None = None
) -> Iterator[tuple[slice, ...]]:
    """Boxes that divide an array, each small enough for the cache.

    `around` are the pixels by which a box is larger along each axis when it is read. The axis
    `whole` is not divided.
    """
    extents = list(shape)

    def weight(axis: int) -> float:
        last = LAST_ELEMENTS if axis == len(extents) - 1 else 0
        return 0 if axis == whole else extents[axis] / (around[axis] + 1 + last)

    def elements() -> int:
        return int(np.prod([e + a for e, a in zip(extents, around, strict=True)], dtype=object))

    while elements() > BOX_ELEMENTS:
        axis = max(range(len(extents)), key=weight)
        if axis == whole or extents[axis] == 1:
            break
        extents[axis] = -(-extents[axis] // 2)
    starts = (range(0, size, extent) for size, extent in zip(shape, extents, strict=True))
    for corner in itertools.product(*starts):
        yield tuple(
            slice(start, min(start + extent, size))
            for start, extent, size in zip(corner, extents, shape, strict=True)
        )
