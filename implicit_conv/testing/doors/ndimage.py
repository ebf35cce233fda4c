"""Random calls of `implicit_conv.ndimage`, against scipy.ndimage: by the bits, as on x86-64."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

import numpy as np

import implicit_conv
from implicit_conv.testing import Array
from implicit_conv.testing.doors.data import Data, Outcome, check_bits, check_close, made, outcome
from implicit_conv.testing.doors.turns import (
    KINDS_OF_TURNS,
    ONCE,
    Repeated,
    Turn,
    Turns,
    draw_turns,
    forget,
)
from implicit_conv.testing.families import Dice
from implicit_conv.testing.storage import STORAGES
from implicit_conv.testing.ways import FIRST, KEPT, Watch, noted

CLOSE = 64 * 2.0**-24  # sums of so many float32 products, relative to those of the largest elements
STEPS, RANKED = "steps, kept", "ranks, kept"
REQUIRED = {"scipy": "scipy>=1.11"}
KINDS, WAYS = KINDS_OF_TURNS, tuple[str, ...]()
DTYPES = (*"?bBhHiIlLqQ", "float16", "longdouble", "complex64", *["f", "d"] * 4)
MODES = ("reflect", "mirror", "nearest", "wrap", "constant")
SYNONYMS = ("grid-mirror", "grid-wrap", "grid-constant")
SUMS = ("convolve", "correlate")
LINES = ("convolve1d", "correlate1d")
MEANS = ("uniform_filter", "uniform_filter1d")
GAUSSIANS = ("gaussian_filter", "gaussian_filter1d")
SCALES = ("gaussian_laplace", "gaussian_gradient_magnitude")
DERIVATIVES = ("sobel", "prewitt")
GENERIC = {"generic_laplace": "derivative2", "generic_gradient_magnitude": "derivative"}
EXTREMES = ("minimum_filter", "maximum_filter")
EXTREMES_ALONG = ("minimum_filter1d", "maximum_filter1d")
RANKS = ("median_filter", "rank_filter", "percentile_filter")
MORPHOLOGY = (
    *("grey_erosion", "grey_dilation", "grey_opening", "grey_closing"),
    *("morphological_gradient", "morphological_laplace", "white_tophat", "black_tophat"),
)
ORDERS = (*EXTREMES, *EXTREMES_ALONG, *RANKS, *MORPHOLOGY)
SMOOTHING = (*MEANS, *GAUSSIANS, *SCALES)
FUNCTIONS = (*SUMS, *LINES, *SMOOTHING, *DERIVATIVES, "laplace", *GENERIC, *ORDERS)
ONE_AXIS = (*LINES, "uniform_filter1d", "gaussian_filter1d", *DERIVATIVES, *EXTREMES_ALONG)
# Arrays that results are written to: new ones of some storage, and the image or its neighbourhood.
NEW = ("contiguous", "strided", "reversed", "permuted", "read-only", "misshapen")
IN_PLACE = ("same", "overlapping")  # the output has the dtype of an image that has axes
TARGETS = (*NEW, *IN_PLACE)
# scipy 1.17.1 itself reads other elements than those of a line with the stride 0.
IMAGES = tuple(storage for storage in STORAGES if storage != "repeated")
SIZES = {0: 0, 1: 200, 2: 40, 3: 16, 4: 8}  # of an axis at most, by the rank


@dataclass(frozen=True)
class Call(Repeated):
    """A call of a filter.

    Attributes
    ----------
    function : one of FUNCTIONS
    image : Data
    arguments : dict
        By scipy's names, without input and output; arrays are `Data`, functions of scipy.ndimage
        are names.
    output : str or None
        The dtype of the result.
    target : one of TARGETS, or ""
        The array that the result is written to.
    tile : int
        Bytes of a row of the tiles into which the image is cut, about; 0 for the usual ones.
    precision : "strict", "standard" or "fast"
        Results of the others are close to scipy's, and equal calls have equal bits.
    turns : Turns
        Each call has another image. The last one has that of the first again, unless it is strict.
    """

    function: str
    image: Data
    arguments: dict[str, Any]
    output: str | None = None
    target: str = ""
    tile: int = 0
    precision: str = "strict"
    turns: Turns = ONCE

    def check(self) -> tuple[str, ...]:
        """Compare the results with scipy's; see `doors.fuzz.Program`.

        Raises
        ------
        DifferenceError
            An element, a shape, a dtype or the type of an error differs, or the image was changed.
        """
        from implicit_conv.cpu.engines import (
            image_filters,
            image_passes,
            image_rows,
            rank_filters,
            rank_tiles,
        )
        from implicit_conv.ndimage import calls, rank_worth, worth
        from implicit_conv.process.cache import IMAGES

        always: Callable[..., bool] = lambda *_: True  # noqa: E731
        # Calls that come again are made as anywhere: the first one of a small image may be scipy's.
        again = self.turns.times > 1
        pays, large = (worth.pays, calls.LARGE) if again else (always, 0)
        results: list[tuple[Array, ...]] = []
        given: dict[str, Any] = {}
        with (
            mock.patch.object(worth, "pays", pays),
            mock.patch.object(calls, "LARGE", large),
            mock.patch.multiple(rank_worth, box=always, wide=always, along=always, ranked=always),
            mock.patch.object(image_filters, "PRODUCTS_PER_THREAD", 1),
            mock.patch.object(image_rows, "LONG_ROW", 4 if self.tile else 32),
            mock.patch.multiple(image_passes, **_cut(self.tile)),
            mock.patch.object(rank_filters, "WORK_PER_THREAD", 1),
            mock.patch.object(rank_tiles, "TILE_BYTES", self.tile or rank_tiles.TILE_BYTES),
            mock.patch.object(rank_tiles, "SCRATCH_BYTES", 1 if self.tile else 256 << 10),
            implicit_conv.config(num_threads=2),
            self.turns.guarded(scratch=True),
            _watched() as watch,
        ):
            IMAGES.clear()
            for turn in self.turns.each():
                given, found = self._check(turn, given, watch)
                results.append(found)
            if again and self.precision != "strict":
                _, found = self._check(Turn(0, "none"), {}, watch)
                for first, last in zip(results[0], found, strict=True):
                    check_bits(first, last)
            IMAGES.clear()
        return (*self.kinds, *watch.taken)

    def _check(
        self, turn: Turn, before: Mapping[str, Any], watch: Watch
    ) -> tuple[dict[str, Any], tuple[Array, ...]]:
        """Make one call, and return its arrays, which nothing reads any more, and its results."""
        import scipy.ndimage

        from implicit_conv import ndimage

        one = replace(self, image=turn.data(self.image))
        expected = one._outcome(scipy.ndimage, one._arrays())
        options = {} if self.precision == "strict" else {"precision": self.precision}
        given = one._arrays()
        if self.target not in IN_PLACE:
            given = turn.placed(given, before)
        with turn.settings():
            found = watch.call(
                "ndimage", lambda: one._outcome(ndimage, given, **options), "scipy's own code"
            )
        for result, own in expected.pairs(found):
            if self.precision == "strict":
                check_bits(result, own)
            else:
                one._check_close(result, own)
        if self.target not in IN_PLACE:
            check_bits(one.image.array(), given["input"])
        results = tuple(result.copy() for result in found.results)
        forget(given)
        return given, results

    def _check_close(self, expected: Array, found: Array) -> None:
        """Compare the sums of a precision that has not scipy's bits."""
        weights = self.arguments.get("weights")
        gain = abs(weights.array()).sum() if isinstance(weights, Data) else 1.0
        if expected.dtype.kind in "iu":  # each axis truncates
            apart = found.astype(np.int64) - expected.astype(np.int64)
            check_bits(np.zeros_like(apart), np.where(abs(apart) <= expected.ndim, 0, apart))
            return
        largest = max(abs(self.image.array()).max(initial=0), abs(self.arguments.get("cval", 0.0)))
        check_close(expected, found, CLOSE * gain * float(largest))

    def _outcome(self, module: Any, arrays: Mapping[str, Any], **options: Any) -> Outcome:
        """The outcome with a module's function."""
        arguments = made(self.arguments) | options
        if self.function in GENERIC:
            name = GENERIC[self.function]
            arguments[name] = getattr(module, arguments[name])
        found = outcome(getattr(module, self.function), {**arrays, **arguments})
        if found.error is None and isinstance(arrays["output"], np.ndarray):
            found = replace(found, results=(arrays["output"],))
        return found

    def _arrays(self) -> dict[str, Any]:
        """The image, and the output."""
        image = self.image.array()
        output: Any = None if self.output is None else np.dtype(self.output)
        if self.target == "same":
            image = output = image.copy()
        elif self.target == "overlapping" and image.ndim:
            rows = np.zeros((len(image) + 1, *image.shape[1:]), image.dtype)
            rows[:-1] = image
            image, output = rows[:-1], rows[1:]
        elif self.target:
            dtype = self.output or self.image.dtype
            storage = self.target if image.ndim and self.target in STORAGES else "contiguous"
            output = replace(Data(image.shape, dtype, 0), storage=storage).array()
            if self.target == "misshapen":
                output = np.zeros([size + 1 for size in image.shape], dtype)
        return {"input": image, "output": output}


@contextmanager
def _watched() -> Iterator[Watch]:
    """Note the ways of calls: as one chain, or step by step by scipy's Python code, with launches
    that are new or kept, as those of filters that order elements are.
    """
    from implicit_conv.ndimage import calls, filters, ranks

    watch, call = Watch(), calls.call

    def called(*arguments: Any, **options: Any) -> Any:
        y = call(*arguments, **options)
        if y is None:
            watch.note("")
        return y

    with (
        noted(watch, calls, "_kept", KEPT),
        noted(watch, filters, "run", STEPS),
        noted(watch, filters, "new_chain", FIRST),
        noted(watch, ranks, "compute", RANKED),
        noted(watch, ranks, "_launches", FIRST),
        mock.patch.object(calls, "call", called),
    ):
        yield watch


def _cut(tile: int) -> dict[str, Any]:
    """How images are cut into tiles, by the names of the engine of sums."""
    if tile == 0:
        return {"LEAST_BATCH": 8}
    return {"PITCH_BYTES": tile, "BATCH_BYTES": 1, "LEAST_BATCH": 1}


def draw(dice: Dice) -> Call:
    """A call of any filter."""
    function = dice.pick(*FUNCTIONS)
    rank = dice.number(0 if dice.happens(20) else 1, 4)
    if function in RANKS and rank == 1:  # scipy 1.17.1 has code for it that writes beside arrays
        rank = 2
    shape = tuple(dice.number(1, SIZES[rank]) for _ in range(rank))
    if dice.happens(40):
        shape = tuple(dice.pick(0, size) for size in shape)
    arguments = _arguments(dice, function, rank)
    if function in ORDERS:
        arguments |= _window(dice, function, rank)
    output = dice.pick(*DTYPES) if dice.happens(4) else None
    image = Data(
        shape,
        dice.pick(*DTYPES),
        dice.number(0, 1 << 31),
        special=dice.number(1, 3) if dice.happens(5) else 0,
        storage=dice.pick(*IMAGES) if dice.happens(2) else "contiguous",
        scale=dice.pick(1.0, 1.0, 1e-3, 300.0),
    )
    target = dice.pick(*TARGETS) if dice.happens(3) else ""
    results = [output or image.dtype, *[image.dtype] * (target in IN_PLACE)]
    if function in SUMS and np.dtype(np.uint64) in map(np.dtype, results):
        # scipy's own functions differ in what becomes of sums below -2**63.
        image = replace(image, special=0)
        arguments |= {"cval": 0.0, "weights": replace(arguments["weights"], special=0)}
    call = Call(
        function,
        image,
        arguments,
        output,
        target,
        dice.pick(0, 64, 256),
        turns=draw_turns(dice),
    )
    return _inexact(dice, call) if dice.happens(4) else call


def _inexact(dice: Dice, call: Call) -> Call:
    """A call with precision "standard" of finite numbers of moderate sizes, whose sums are those of
    one filter; means and Gaussians of integers, whose results are truncated once or twice.
    """
    dtype = dice.pick("f", "f", "d", "H") if call.function in (*MEANS, *GAUSSIANS[:1]) else "f"
    if call.function not in (*SUMS, *LINES, *MEANS, *GAUSSIANS):
        return call
    arguments = {**call.arguments, "cval": 1.5}
    arguments.pop("order", None)
    weights = arguments.get("weights")
    if isinstance(weights, Data):
        kind = weights.dtype if weights.dtype in ("d", "f") else "d"
        arguments["weights"] = replace(weights, dtype=kind, special=0)
    if dtype == "H" and arguments.get("mode") in ("constant", "grid-constant"):
        arguments["mode"] = "nearest"  # beside the constant truncation may differ by more
    image = replace(call.image, dtype=dtype, special=0, scale=1.0)
    return replace(
        call,
        image=image,
        arguments=arguments,
        output=None,
        target="",
        precision=dice.pick("standard", "fast"),
    )


def _mode(dice: Dice) -> str:
    if dice.happens(60):
        return "bad"
    return dice.pick(*MODES, *SYNONYMS)


def _arguments(dice: Dice, function: str, rank: int) -> dict[str, Any]:
    """All arguments but the image and the output; some are wrong, and raise scipy's errors."""
    arguments: dict[str, Any] = {}
    if not dice.happens(5):
        arguments["mode"] = _mode(dice)
        if function in ("gaussian_filter", "uniform_filter", *SCALES) and dice.happens(3):
            arguments["mode"] = [_mode(dice) for _ in range(rank)]
    if dice.happens(2):
        arguments["cval"] = dice.pick(0.0, 1.5, -3.0, 300.0, 7e4, 1e300, float("nan"))
    if function in ONE_AXIS and dice.happens(2):
        arguments["axis"] = dice.number(-rank - dice.happens(20), max(0, rank - 1))
    taps = 0 if dice.happens(40) else dice.number(1, 13)
    if function in SUMS:
        sizes = tuple(dice.number(1, 5 if rank < 3 else 3) for _ in range(rank))
        arguments["weights"] = _weights(dice, sizes)
        if dice.happens(2):
            arguments["origin"] = [_origin(dice, size) for size in sizes]
    elif function in LINES:
        arguments["weights"] = _weights(dice, (taps,))
        arguments["origin"] = _origin(dice, taps)
    elif function in MEANS:
        arguments["size"] = taps
        if function == "uniform_filter1d":
            arguments["origin"] = _origin(dice, taps)
    elif function in (*GAUSSIANS, *SCALES):
        arguments["sigma"] = dice.pick(0.3, 0.7, 1.0, 1.5, 2.5)
    elif function in GENERIC:
        arguments[GENERIC[function]] = dice.pick(*DERIVATIVES)
    if function in GAUSSIANS and dice.happens(2):
        arguments |= dice.pick({"order": dice.number(0, 3)}, {"truncate": dice.pick(1.0, 5.5)})
    return arguments


def _window(dice: Dice, function: str, rank: int) -> dict[str, Any]:
    """The window of a filter that orders elements, and the rank."""
    if function in EXTREMES_ALONG:
        size = dice.number(1 - dice.happens(40), 13)
        return {"size": size, "origin": _origin(dice, size)}
    sizes = [dice.number(1, 9 if rank < 3 else 4) for _ in range(rank)]
    found: dict[str, Any] = {"size": sizes}
    if dice.happens(4):
        found = {"footprint": Data(tuple(sizes), "?", dice.number(0, 1 << 31))}
    elif function in MORPHOLOGY and dice.happens(6):
        # With a footprint without an element scipy 1.17.1 reads what is no memory of its own.
        found = {"structure": Data(tuple(sizes), "d", dice.number(0, 1 << 31))}
    if dice.happens(3):
        found["origin"] = [_origin(dice, size) for size in sizes]
    if function == "rank_filter":
        found["rank"] = dice.number(-2, math.prod(sizes))
    if function == "percentile_filter":
        found["percentile"] = dice.pick(0, 20, 50.5, -30, 100)
    if function in (*EXTREMES, *MORPHOLOGY) and dice.happens(3):
        found["mode"] = [_mode(dice) for _ in range(rank)]
    return found


def _origin(dice: Dice, size: int) -> int:
    """A place in the window, seldom outside."""
    return dice.number(-(size // 2) - dice.happens(30), max(0, size - 1) // 2)


def _weights(dice: Dice, shape: tuple[int, ...]) -> Data:
    return Data(
        shape,
        dice.pick("d", "d", "d", "f", "b", "complex128" if dice.happens(6) else "d"),
        dice.number(0, 1 << 31),
        special=int(dice.happens(12)),
    )
