"""Filters that order the elements of windows, as launches: the levels of each kind.

An extremum is one of extrema: a level takes up to 6 elements, or results of the level before that
overlap. Columns of windows with few elements are sorted, and what is selected from them is shared
by no one; of larger windows elements are found by counts, bit by bit.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from implicit_conv.cpu.engines.image_rows import Images
from implicit_conv.cpu.engines.rank_tiles import Tiling
from implicit_conv.cpu.machine.arch import cpu_arch
from implicit_conv.kernels.cpu.images.operator import ImageLaunch
from implicit_conv.kernels.cpu.rank import operator
from implicit_conv.kernels.cpu.rank.layout import MOST_LEVELS, Level

DIRECT_TAPS = 6  # of an extremum that is one level, at most
STEP_TAPS = 4  # of each level of one that has several
# Elements of windows that are sorted by exchanges, at most, by the bytes of an element: code with
# more of them takes longer to compile, 0.9 s for 121 and 1.7 s for 225 (EPYC 9004, 2026-11).
MOST_EXCHANGED = {1: 121, 2: 121, 4: 225, 8: 225}
# Elements of windows that are counted, at most. Counts have the bytes of elements, and their time
# grows with the bits of these: quickselect takes as much for those of 32 bits in a smooth image.
MOST_COUNTED = {1: 255, 2: 1 << 12, 4: 0, 8: 0}
WORK_PER_THREAD = 1 << 20  # elements of all windows that pay for another thread


def _threads(images: Images, elements: int, threads: int) -> int:
    """How many of these threads are worth it, for windows of so many elements that are read."""
    return max(1, min(threads, math.prod(images.shape) * elements // WORK_PER_THREAD))


def _steps(extent: int) -> list[tuple[int, list[int]]]:
    """Levels of an extremum of `extent` elements: how many each has reached, and its taps."""
    steps, reached = list[tuple[int, list[int]]](), 1
    while reached < extent:
        if extent <= DIRECT_TAPS * reached:
            taps = [*range(0, extent - reached, reached), extent - reached]
            reached = extent
        else:
            taps = [reached * i for i in range(STEP_TAPS)]
            reached *= STEP_TAPS
        steps.append((reached, taps))
    return steps


def _check(images: Images, zeros: bool) -> tuple[Any, ...] | None:
    """The part that checks elements, if they are floats: NaN has no order, and zeros of both signs
    none for ranks.
    """
    return operator.check(images.x, zeros) if images.x[0] == "f" else None


def extremes(images: Images, smallest: bool, checked: bool, threads: int) -> ImageLaunch | None:
    """The launch of a filter of one axis or two, first along rows below each other, then along
    rows; None if the window is too large. Images that are `checked` need no check.
    """
    tiling = Tiling(images, False, True, _threads(images, sum(images.kernel), threads))
    down, along = _steps(tiling.window), _steps(tiling.taps)
    if not tiling.fits or len(down) + len(along) > MOST_LEVELS:
        return None
    made = [
        (
            Level(rows=tiling.window - reached, width=tiling.halo),
            [tap * tiling.pitch for tap in taps],
        )
        for reached, taps in down
    ] + [
        (Level(width=(tiling.taps - reached) * tiling.pixel), [tap * tiling.pixel for tap in taps])
        for reached, taps in along
    ]
    levels = [
        (level._replace(to=(1 - i % 2) * tiling.area), taps) for i, (level, taps) in enumerate(made)
    ]
    parts = [operator.extreme(images.x, smallest)] * len(levels)
    return tiling.launch(parts, levels, None if checked else _check(images, zeros=False))


def ranks(images: Images, rank: int, threads: int) -> ImageLaunch | None:
    """The launch of a filter that selects the elements of a rank, of which 0 is the smallest; None
    if the window is too large.
    """
    elements, dtype = math.prod(images.kernel), images.x
    threads = _threads(images, elements, threads)
    size = np.dtype(dtype).itemsize
    if elements > MOST_EXCHANGED[size]:
        if elements > MOST_COUNTED[size]:
            return None
        return _by_counts(Tiling(images, False, False, threads), images, rank)
    tiling = Tiling(images, True, False, threads)
    height, columns = tiling.window, tiling.planes * tiling.taps
    vector = cpu_arch().vector_bits // 8
    if not tiling.fits:
        return None
    plane = tiling.plane * tiling.planes
    down = [i * tiling.pitch for i in range(height)]
    sorting = Level(
        plane=plane, rows=(tiling.planes - 1) * tiling.loaded, width=tiling.halo, to=tiling.area
    )
    taps = [i * plane + tap for i in range(height) for tap in tiling.along_planes(1)]
    parts = [
        operator.sort_columns(dtype, vector, height),
        operator.select(dtype, vector, columns, height, rank),
    ]
    return tiling.launch(parts, [(sorting, down), (Level(), taps)], _check(images, zeros=True))


def _by_counts(tiling: Tiling, images: Images, rank: int) -> ImageLaunch | None:
    """The launch of a filter whose elements are found by counts."""
    if not tiling.fits:
        return None
    rows = (tiling.planes - 1) * tiling.loaded + tiling.window - 1
    making = Level(rows=rows, width=tiling.halo, to=tiling.area)
    counting = Level(rank=rank)
    parts = [operator.keys(images.x), operator.count(images.x)]
    taps = tiling.along_planes(tiling.window)
    return tiling.launch(parts, [(making, []), (counting, taps)], _check(images, zeros=True))
