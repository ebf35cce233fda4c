"""Random calls of `implicit_conv.dask`, against the function of the whole array, by the bits.

Convolutions are compared with those of this package under precision "strict", filters with
scipy.ndimage's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from implicit_conv.errors import DTypeError
from implicit_conv.problem.options import PADDING_MODES
from implicit_conv.testing import Array
from implicit_conv.testing.doors.data import (
    Data,
    DifferenceError,
    Outcome,
    check_bits,
    made,
    outcome,
)
from implicit_conv.testing.doors.turns import ONCE, Repeated, Turn, Turns, draw_turns, forget
from implicit_conv.testing.families import Dice
from implicit_conv.testing.ways import COMPILED, Watch, watched

REQUIRED = {"dask": "dask[array]>=2025.1", "scipy": "scipy>=1.11"}
# None is required: repeated calls are slow here, and a minute has too few programs of each kind.
KINDS = WAYS = tuple[str, ...]()
CONVOLUTIONS = tuple(f"{name}{rank}d" for name in ("conv", "conv_transpose") for rank in (1, 2, 3))
SUMS = ("convolve", "correlate")
SCALES = ("gaussian_filter", "gaussian_laplace", "gaussian_gradient_magnitude")
DERIVATIVES = ("laplace", "prewitt", "sobel")
# Means are left out: running sums of floats start anew in each chunk.
RANKS = ("maximum_filter", "median_filter", "minimum_filter", "percentile_filter", "rank_filter")
FILTERS = (*SUMS, "correlate1d", *SCALES, *DERIVATIVES, *RANKS)
FUNCTIONS = (*CONVOLUTIONS, *FILTERS)
MODES = ("reflect", "mirror", "nearest", "wrap", "constant", "grid-wrap", "grid-constant")
SOURCES = ("memory", "steps", "file")
MASKS = ("none", "of the array", "of chunks", "of a file", "filled")
PIXELS = {1: 150, 2: 30, 3: 12}  # of an axis at most, by the rank


class File:
    """What dask slices as it does a file; slices are masked where the array is."""

    def __init__(self, array: Array) -> None:
        self._array, self.shape, self.dtype, self.ndim = array, array.shape, array.dtype, array.ndim

    def __getitem__(self, index: Any) -> Array:
        part: Array = self._array[index]
        return part


@dataclass(frozen=True)
class Call(Repeated):
    """A call of a function by keywords.

    Attributes
    ----------
    function : one of FUNCTIONS
    x : Data
    chunks : tuple of tuples of ints
        The sizes of its chunks along each axis.
    source : one of SOURCES
        What the dask array is: one of numpy's, lazy steps on it, or a file.
    arguments : dict
        All others; arrays are `Data`.
    mask : one of MASKS
        Where elements of x are masked, of which dask may know nothing. They are refused where a
        chunk of the result reads them, and filled ones are zeros.
    turns : Turns
        Each call has another x.
    """

    function: str
    x: Data
    chunks: tuple[tuple[int, ...], ...]
    source: str
    arguments: dict[str, Any]
    mask: str = "none"
    turns: Turns = ONCE

    def check(self) -> tuple[str, ...]:
        """Compare the result with that of the whole array; see `doors.fuzz.Program`.

        Raises
        ------
        DifferenceError
            An element, a shape, a dtype or the type of an error differs, or masked elements are
            summed.
        """
        before: dict[str, Any] = {}
        with watched() as watch:
            for turn in self.turns.each():
                before = self._check(turn, before, watch)
        return (*self.kinds, *watch.taken)

    def _check(self, turn: Turn, before: Mapping[str, Any], watch: Watch) -> dict[str, Any]:
        """Make one call, and return its arrays, which nothing reads any more."""
        import scipy.ndimage

        import implicit_conv
        import implicit_conv.dask

        data, arguments = turn.data(self.x), made(self.arguments)
        is_convolution = self.function in CONVOLUTIONS
        whole = implicit_conv if is_convolution else scipy.ndimage
        name = "x" if is_convolution else "input"

        def filled(value: float) -> Outcome:
            """The outcome of the whole array with a value in the place of masked elements."""
            x = data.array()
            x[self._masked(x)] = value
            return outcome(getattr(whole, self.function), {name: x, **arguments})

        expected = filled(0.0)
        # Chunks are computed by this thread: those that others make would not be guarded.
        with turn.settings(), self.turns.guarded():
            given = turn.placed({"x": data.array()}, before)
            rest = {"function": getattr(implicit_conv.dask, self.function), "rest": arguments}
            compute = partial(self._computed, lazy=lambda: self._lazy(given["x"]), **rest)
            if is_convolution:
                compute = partial(watch.call, "dask", compute, COMPILED)
            found = outcome(compute, {})
        if self._refuses(expected, found, filled):
            expected = Outcome(error=DTypeError())
        for result, own in expected.pairs(found):
            check_bits(result, own)
        forget(given)
        return given

    def _refuses(self, zeros: Outcome, found: Outcome, filled: Callable[[float], Outcome]) -> bool:
        """Whether masked elements are to be refused: those of an array always, and of chunks and
        files where sums take them. Where none is taken, but some are masked, a task that is given
        whole chunks may refuse them as it was `found` to do.
        """
        if self.mask in ("none", "filled"):
            return False
        if self.mask == "of the array":
            return True
        if zeros.error is not None or not self._masked(self.x.array()).any():
            return False
        if self.function not in CONVOLUTIONS:  # a window holds every pixel, some of no float dtype
            return True
        are_taken = any(
            (np.isnan(spread) > np.isnan(own)).any() for own, spread in zeros.pairs(filled(np.nan))
        )
        return are_taken or type(found.error) is DTypeError

    def _masked(self, x: Any) -> Any:
        """Which elements are masked."""
        if self.mask == "none":
            return np.zeros(x.shape, bool)
        return np.random.default_rng(self.x.seed).random(x.shape) < 0.5

    def _lazy(self, x: Array) -> Any:
        """The array of dask."""
        import dask.array

        from_array = partial(dask.array.from_array, chunks=self.chunks, name=False)
        if self.mask == "of chunks":
            masks = from_array(self._masked(x))
            meta = np.empty((0,) * x.ndim, x.dtype)
            return dask.array.map_blocks(np.ma.masked_array, from_array(x), masks, meta=meta)
        given: Any = x
        if self.mask != "none":
            given = np.ma.masked_array(x, self._masked(x))
        if self.mask == "filled":
            return dask.array.ma.filled(from_array(given), 0)
        if self.mask == "of a file":
            return from_array(File(given), asarray=False, meta=np.empty((0,) * x.ndim, x.dtype))
        lazy = from_array(File(x) if self.source == "file" and self.mask == "none" else given)
        return lazy + 0 if self.source == "steps" else lazy

    def _computed(
        self, function: Callable[..., Any], lazy: Callable[[], Any], rest: dict[str, Any]
    ) -> Array:
        y = function(lazy(), **rest)
        whole: Array = y.compute(scheduler="synchronous")
        if y.shape != whole.shape or y.dtype != whole.dtype:
            raise DifferenceError(f"{whole.dtype} {whole.shape} was declared as {y}")
        return whole


def draw(dice: Dice) -> Call:
    """A call of any function."""
    call = _convolution(dice) if dice.happens(2) else _filter(dice)
    mask = dice.pick(*MASKS) if dice.happens(6) else "none"
    return replace(call, mask=mask, turns=draw_turns(dice))


def _parts(dice: Dice, size: int) -> tuple[int, ...]:
    """Sizes of chunks, equal ones or any."""
    most, parts = dice.pick(3, 10, 40, size), []
    equal = dice.number(1, most) if dice.happens(3) else 0
    while size:
        parts.append(min(size, equal or dice.number(1, most)))
        size -= parts[-1]
    return tuple(parts)


def _convolution(dice: Dice) -> Call:
    function = dice.pick(*CONVOLUTIONS)
    rank, transposed = int(function[-2]), "transpose" in function
    batch, groups = dice.number(1, 2), dice.pick(1, 1, 2)
    channels, filters = groups * dice.number(1, 2), groups * dice.number(1, 2)
    if dice.happens(3):  # depthwise methods, and sums of several chains
        groups, channels, filters = dice.pick((20, 20, 20), (1, 70, 2))
    space = tuple(dice.number(1, PIXELS[rank]) for _ in range(rank))
    kernel = tuple(dice.number(1, 5 if rank < 3 else 3) for _ in range(rank))
    first = (channels, filters // groups) if transposed else (filters, channels // groups)
    arguments: dict[str, Any] = {
        "w": Data((*first, *kernel), "float32", dice.number(0, 1 << 31)),
        "stride": tuple(dice.number(1, 3) for _ in range(rank)),
        "dilation": tuple(dice.pick(1, 1, 2, 3) for _ in range(rank)),
        "groups": groups,
        "precision": "strict",
    }
    if transposed:
        arguments["padding"] = tuple(dice.number(0, 1) for _ in range(rank))
    else:
        arguments["padding"] = tuple(dice.pair(0, 5) for _ in range(rank))
        arguments["padding_mode"] = dice.pick(*PADDING_MODES)
    x = Data((batch, channels, *space), "float32", dice.number(0, 1 << 31), dice.happens(8) * 1)
    parts = [_parts(dice, size) for size in space]
    chunks = (
        dice.pick((batch,), (1,) * batch),
        (1,) * channels if dice.happens(8) else (channels,),
        *parts,
    )
    return Call(function, x, chunks, dice.pick(*SOURCES), arguments)


def _filter(dice: Dice) -> Call:
    function, rank = dice.pick(*FILTERS), dice.number(1, 3)
    space = tuple(dice.number(1, PIXELS[rank]) for _ in range(rank))
    arguments: dict[str, Any] = {"mode": dice.pick(*MODES), "cval": dice.pick(0.0, 3.0)}
    seed = dice.number(0, 1 << 31)
    if function in SUMS:
        sizes = tuple(dice.number(1, 5) for _ in range(rank))
        arguments["weights"] = Data(sizes, "float64", seed)
        arguments["origin"] = [dice.number(-(size // 2), (size - 1) // 2) for size in sizes]
    elif function == "correlate1d":
        arguments |= {"weights": Data((dice.number(1, 7),), "float64", seed)}
    elif function in RANKS:
        sizes = tuple(dice.number(1, 5) for _ in range(rank))
        arguments["size"] = sizes
        arguments["origin"] = [dice.number(-(size // 2), (size - 1) // 2) for size in sizes]
        if function == "percentile_filter":
            arguments["percentile"] = dice.number(0, 100)
        if function == "rank_filter":
            arguments["rank"] = dice.number(0, math.prod(sizes) - 1)
    elif function in SCALES:
        arguments["sigma"] = dice.pick(0.5, 1.0, 2.0)
    if function in ("correlate1d", "sobel", "prewitt"):
        arguments["axis"] = dice.number(-rank, rank - 1)
    x = Data(space, dice.pick("float32", "float64", "uint8", "int16"), seed + 1, scale=50.0)
    chunks = tuple(_parts(dice, size) for size in space)
    return Call(function, x, chunks, dice.pick(*SOURCES), arguments)
