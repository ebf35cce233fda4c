"""Blocks: which pixels of x a block of the output needs, and the padding that is left to it.

All are plain integers, for one spatial axis at a time. A block of a convolution, or of a transposed
one, is the same operator on the pixels that it reads, with the padding that it has here: only
blocks at a border of x have any. Tiles of a file, chunks of dask and of cubed are such blocks.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple


class Block(NamedTuple):
    """What a block of the output needs along an axis.

    Attributes
    ----------
    runs : tuple of slices
        The pixels of x that the block reads, one run after the other. A run may go backwards, which
        is a step of -1. Without any the block has no pixel in reach: it is computed of one zero.
    pads : (low, high)
        The padding of the operator for these pixels, in the padding mode of the whole; transposed
        convolutions take negative ones.
    """

    runs: tuple[slice, ...]
    pads: tuple[int, int]

    @property
    def extent(self) -> tuple[int, int]:
        """The first pixel of x that the block reads, and the end; pixel 0 if it needs none."""
        ends = [(run.start, _stop(run) - (run.step or 1)) for run in self.runs] or [(0, 0)]
        return min(map(min, ends)), max(map(max, ends)) + 1

    @property
    def pixels(self) -> int:
        """The number of pixels that the operator is given."""
        return sum(abs(_stop(run) - run.start) for run in self.runs) or 1

    def moved(self, pixels: int) -> Block:
        """The block where the pixels of x have other indices, greater by `pixels`."""
        ends = [(run.start + pixels, _stop(run) + pixels, run.step) for run in self.runs]
        runs = (slice(start, stop if stop >= 0 else None, step) for start, stop, step in ends)
        return Block(tuple(runs), self.pads)


@dataclass(frozen=True)
class Axis:
    """An operator along one axis of an array.

    Output pixel q of a convolution reads the positions q * stride - pad_lo + s * dilation, for s in
    0 .. taps - 1; position p is pixel p of x if it has one, else padding. In a transposed
    convolution pixel p of x is added to the output pixels p * stride - pad_lo + s * dilation.

    Parameters
    ----------
    size : int
        The pixels of x.
    taps, stride, dilation, pad_lo, pad_hi : int
        Negative padding crops x. A transposed convolution does not need pad_hi.
    output : int
        The pixels of the output.
    mode : str
        The padding mode of `implicit_conv.conv2d`; a transposed convolution has "zeros".
    transposed : bool
        Whether it is a transposed convolution.

    Examples
    --------
    Five taps over 100 pixels: output pixels 50 to 99 read x from pixel 48 on, and then padding.

    >>> from implicit_conv.blocks import Axis
    >>> axis = Axis(
    ...     size=100, taps=5, stride=1, dilation=1, pad_lo=2, pad_hi=2, output=100
    ... )
    >>> block = axis.block(50, 100)
    >>> block.extent, block.pads
    ((48, 100), (0, 2))
    """

    size: int
    taps: int
    stride: int
    dilation: int
    pad_lo: int
    pad_hi: int
    output: int
    mode: str = "zeros"
    transposed: bool = False

    @classmethod
    def filter(cls, size: int, taps: int, origin: int = 0, mode: str = "zeros") -> Axis:
        """A filter whose output has as many pixels as x, with scipy.ndimage's origin.

        A block of it may also be computed by a function of scipy.ndimage: see `kept`.
        """
        low = taps // 2 + origin
        return cls(size, taps, 1, 1, low, taps - 1 - low, size, mode)

    @property
    def reach(self) -> int:
        """The distance between the first tap and the last one, in pixels."""
        return (self.taps - 1) * self.dilation

    def span(self, start: int, stop: int) -> tuple[int, int]:
        """The positions, first and end, in reach of the output pixels start .. stop - 1."""
        if self.transposed:
            first = -((self.reach - self.pad_lo - start) // self.stride)
            return first, (stop - 1 + self.pad_lo) // self.stride + 1
        first = start * self.stride - self.pad_lo
        return first, first + (stop - start - 1) * self.stride + self.reach + 1

    def block(self, start: int, stop: int) -> Block:
        """What the output pixels start .. stop - 1 need."""
        first, end = self.span(start, stop)
        if self.transposed:
            return self._transposed(start, stop, max(0, first), min(end, self.size))
        if self.mode == "zeros":
            low, high = max(0, first), min(end, self.size)
            if low >= high:
                return Block((), (0, end - first - 1))
            return Block((slice(low, high),), (low - first, end - high))
        cropped = max(0, -self.pad_lo)  # negative padding crops x before the rest is padded
        size = self.size - cropped - max(0, -self.pad_hi)
        runs, pads = repeated(first - cropped, end - cropped, size, self.mode)
        return Block(runs, pads).moved(cropped)

    def _transposed(self, start: int, stop: int, low: int, high: int) -> Block:
        """A block of a transposed convolution that reads the pixels low .. high - 1."""
        runs = (slice(low, high),) if low < high else ()
        pixels = high - low if runs else 1
        pad_lo = self.pad_lo + start - low * self.stride if runs else 0
        total = (pixels - 1) * self.stride + self.reach + 1
        if not runs and total < stop - start:
            return Block((), (0, total - (stop - start)))
        return Block(runs, (pad_lo, total - pad_lo - (stop - start)))

    def kept(self, block: Block) -> slice:
        """The pixels of a block in the result of a `filter` that gives as many as it is given.

        Such a function pads what it reads by itself, where the block has padding and where it has
        none; what it makes of the latter is not kept.
        """
        return slice(self.pad_lo - block.pads[0], block.pixels - (self.pad_hi - block.pads[1]))

    def chunks(self, sizes: Sequence[int]) -> tuple[int, ...]:
        """The output pixels that belong to each of the chunks, of these sizes, that x has.

        With as much padding as "same" or "causal" and stride 1, they are as many as those of x.
        """
        lead = min(max(self.pad_lo, 0), self.reach)  # from the first tap to the pixel of the output
        ends = []
        for edge in itertools.accumulate(sizes):
            if self.transposed:
                end = edge * self.stride - self.pad_lo + lead
            else:
                end = -(-(edge + self.pad_lo - lead) // self.stride)
            ends.append(min(max(0, end), self.output))
        ends[-1] = self.output
        return tuple(end - start for start, end in zip((0, *ends), ends, strict=False))


def repeated(
    first: int, end: int, size: int, mode: str
) -> tuple[tuple[slice, ...], tuple[int, int]]:
    """The runs of pixels, and the padding left to do, of the positions first .. end - 1.

    Parameters
    ----------
    first, end : int
        Positions, which may lie outside the axis: position p is pixel p if there is one.
    size : int
        The pixels of the axis.
    mode : "reflect", "symmetric", "replicate" or "circular"

    Returns
    -------
    runs : tuple of slices
        The pixels to read, one run after the other; the step of a run that goes backwards is -1.
    pads : (low, high)
        Positions before and after the runs that are left to the operator's padding in this mode.

    Examples
    --------
    >>> from implicit_conv.blocks import repeated
    >>> runs, pads = repeated(-1, 3, 8, "circular")
    >>> [(run.start, run.stop) for run in runs], pads
    ([(7, 8), (0, 3)], (0, 0))
    """
    low, high = max(0, first), min(end, size)
    pads = max(0, -first), max(0, end - size)
    if pads == (0, 0):
        return (slice(first, end),), (0, 0)
    if mode == "replicate" or (mode == "reflect" and size == 1):
        if low >= high:  # copies of the first pixel, or of the last one
            low = 0 if end <= 0 else size - 1
            return (slice(low, low + 1),), (0, end - first - 1)
        return (slice(low, high),), pads
    if mode != "circular" and high - low >= max(pads) + (mode == "reflect"):
        return (slice(low, high),), pads  # all pixels that padding repeats are read anyway
    return tuple(_folded(first, end, size, mode)), (0, 0)


def _folded(first: int, end: int, size: int, mode: str) -> Iterator[slice]:
    """The runs of pixels that the positions first .. end - 1 repeat, to and fro or round."""
    period = {"circular": size, "symmetric": 2 * size, "reflect": 2 * size - 2}[mode]
    while first < end:
        place = first % period
        if place < size:
            count = min(size - place, end - first)
            yield slice(place, place + count)
        else:
            count = min(period - place, end - first)
            pixel = period - place - (mode == "symmetric")
            yield slice(pixel, pixel - count if pixel >= count else None, -1)
        first += count


def _stop(run: slice) -> int:
    return -1 if run.stop is None else int(run.stop)


def ranges(sizes: Sequence[int]) -> list[tuple[int, int]]:
    """(start, stop) of each of the chunks of these sizes.

    Parameters
    ----------
    sizes : sequence of int
        The sizes of the chunks of an axis, in order, as dask and cubed have them.

    Examples
    --------
    >>> from implicit_conv.blocks import ranges
    >>> ranges([50, 50, 20])
    [(0, 50), (50, 100), (100, 120)]
    """
    ends = list(itertools.accumulate(sizes))
    return list(zip((0, *ends[:-1]), ends, strict=True))
