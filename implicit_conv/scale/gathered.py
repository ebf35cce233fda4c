"""Chunks of a lazy array that a task is given: which ones it reads, and all as one array."""

from __future__ import annotations

import itertools
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Any

import numpy as np

from implicit_conv.arrays.arrays import Array
from implicit_conv.blocks import Block
from implicit_conv.scale.operation import unmasked


def chunks_read(block: Block, starts: Sequence[int]) -> list[int]:
    """The chunks along an axis, whose first pixels are `starts`, that a block reads."""
    found: set[int] = set()
    for run in block.runs:
        first, end = Block((run,), (0, 0)).extent
        found.update(range(bisect_right(starts, first) - 1, bisect_left(starts, end)))
    return sorted(found)


class Gathered:
    """Chunks of an array, as an array with numpy's indexing by slices: no others can be read.

    Parameters
    ----------
    starts : sequence of sequences of ints
        The first pixels of the chunks along each axis.
    chunks : sequence of arrays
        The chunks, of which those along the last axis follow one another.
    """

    def __init__(self, starts: Sequence[Sequence[int]], chunks: Sequence[Array]) -> None:
        self._starts = starts
        self._chunks: list[Array] = [np.asarray(unmasked(chunk)) for chunk in chunks]

    def __getitem__(self, index: tuple[slice, ...]) -> Array:
        parts: list[tuple[Any, list[tuple[slice, slice]]]] = []
        for start, chunk in zip(itertools.product(*self._starts), self._chunks, strict=True):
            cuts = [
                (max(first, cut.start), min(first + size, cut.stop), first, cut.start)
                for first, size, cut in zip(start, chunk.shape, index, strict=True)
            ]
            if all(low < high for low, high, _, _ in cuts):
                places = [
                    (slice(low - origin, high - origin), slice(low - first, high - first))
                    for low, high, first, origin in cuts
                ]
                parts.append((chunk, places))
        if len(parts) == 1:
            chunk, places = parts[0]
            return np.asarray(chunk[tuple(source for _, source in places)])
        found = np.empty([cut.stop - cut.start for cut in index], self._chunks[0].dtype)
        for chunk, places in parts:
            found[tuple(target for target, _ in places)] = chunk[
                tuple(source for _, source in places)
            ]
        return found
