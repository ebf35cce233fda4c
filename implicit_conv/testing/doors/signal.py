"""Random calls of `implicit_conv.signal`, against scipy.signal."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from unittest import mock

import numpy as np

from implicit_conv.testing import Array
from implicit_conv.testing.doors.data import Data, check_bits, check_close, made, outcome
from implicit_conv.testing.doors.turns import (
    KINDS_OF_TURNS,
    ONCE,
    Repeated,
    Turn,
    Turns,
    called,
    draw_turns,
    forget,
)
from implicit_conv.testing.families import Dice
from implicit_conv.testing.storage import STORAGES
from implicit_conv.testing.ways import COMPILED, Watch, noted, watched

REQUIRED = {"scipy": "scipy>=1.11"}
KINDS, WAYS = KINDS_OF_TURNS, tuple[str, ...]()
DTYPES = ("float32", "float64", "complex64", "complex128")
OTHERS = ("float16", "longdouble", "int8", "uint8", "int64", "bool")  # which scipy computes
MODES = ("full", "same", "valid")
BY_FFT = ("fftconvolve", "oaconvolve")
CONVOLUTIONS = ("convolve", "correlate", *BY_FFT)
TWO_AXES = ("convolve2d", "correlate2d")
FUNCTIONS = (*CONVOLUTIONS, *TWO_AXES, "lfilter", "upfirdn", "resample_poly")
# Largest difference in units of eps * |x| * |w| (Euclidean norms), which bounds every sum of
# products. It holds the errors of FFTs and of sums in either order.
UNITS = 64
OWN = "scipy's own code"
TAPS = (400, 2200)  # of filters that scipy sums directly, where an FFT takes less time


@dataclass(frozen=True)
class Call(Repeated):
    """A call of a function of scipy.signal by keywords; those of arrays are `Data`."""

    function: str
    arguments: dict[str, Any]
    turns: Turns = ONCE

    def check(self) -> tuple[str, ...]:
        """Compare the results with scipy's; see `doors.fuzz.Program`.

        Raises
        ------
        DifferenceError
            A result, a shape, a dtype or the type of an error differs.
        """
        from implicit_conv.signal import filters

        given: dict[str, Any] = {}
        # Signals are short: scipy's upfirdn would be compared with itself.
        with _watched() as watch, mock.patch.multiple(filters, UPFIRDN=1e3, MOST_STEP=99):
            for turn in self.turns.each():
                given = self._check(turn, given, watch)
        return (*self.kinds, *watch.taken)

    def _check(self, turn: Turn, before: Mapping[str, Any], watch: Watch) -> dict[str, Any]:
        """Make one call, and return its arguments, which nothing reads any more."""
        import scipy.signal

        from implicit_conv import signal

        data = {
            name: turn.data(value) if isinstance(value, Data) else value
            for name, value in self.arguments.items()
        }
        plain = made(data)
        expected = outcome(getattr(scipy.signal, self.function), plain)
        with turn.settings(), self.turns.guarded():
            given = turn.placed(made(data), before)
            call = partial(watch.call, "signal", unseen=OWN)
            found = outcome(called(getattr(signal, self.function), call), given)
        for result, own in expected.pairs(found):
            if self._transforms(plain) and not np.isfinite(result).all():
                continue  # an FFT spreads what is not finite, and a sum does not
            if result.dtype.kind in "fc":
                check_close(result, own, _bound(result, plain))
            else:
                check_bits(result, own)
        for name, value in plain.items():
            check_bits(np.asarray(value), np.asarray(given[name]))  # they are not changed
        forget(given)
        return given

    def _transforms(self, arguments: Mapping[str, Any]) -> bool:
        """Whether scipy computes it by FFT."""
        import scipy.signal

        method = arguments.get("method", "direct")
        if method == "auto":
            operands = arguments["in1"], arguments["in2"], arguments["mode"]
            method = scipy.signal.choose_conv_method(*operands)
        return self.function in BY_FFT or method != "direct"


@contextmanager
def _watched() -> Iterator[Watch]:
    """Note the ways of calls; those that come to no convolution of ours are scipy's own."""
    from implicit_conv.signal import convolutions, filters

    with watched() as watch, noted(watch, filters, "conv1d", COMPILED):
        ours = tuple(map(partial(_noted, watch), convolutions.CONVOLUTIONS))
        with mock.patch.object(convolutions, "CONVOLUTIONS", ours):
            yield watch


def _noted(watch: Watch, function: Any) -> Any:
    """A function that notes that compiled code makes its call, unless Python is seen to."""

    def convolution(*arguments: Any, **options: Any) -> Any:
        watch.note(COMPILED)
        return function(*arguments, **options)

    return convolution


def _bound(result: Array, arguments: Mapping[str, Any]) -> float:
    """The largest difference of a result of floats."""
    arrays = [value for value in arguments.values() if isinstance(value, np.ndarray) and value.ndim]
    # FFTs compute in the dtype of the operands where that is less precise than the result's.
    eps = max(np.finfo(a.dtype).eps for a in (result, *arrays) if a.dtype.kind in "fc")
    norms = (np.linalg.norm(np.where(np.isfinite(a), a, 0).astype(complex)) for a in arrays)
    return UNITS * float(eps) * math.prod(max(1.0, float(norm)) for norm in norms)


def draw(dice: Dice) -> Call:
    """A call of any function."""
    make = dice.pick(
        *(_convolution, _convolution, _long, _two_axes, _filter, _upsampling, _resampling)
    )
    return replace(make(dice), turns=draw_turns(dice))


def _array(dice: Dice, shape: tuple[int, ...], special: bool = False) -> Data:
    """An array; most have a dtype that is summed here, and few elements that are not finite."""
    dtype = dice.pick(*DTYPES) if not dice.happens(5) else dice.pick(*OTHERS)
    storage = dice.pick(*STORAGES) if dice.happens(3) else "contiguous"
    if dtype == "float16" and storage == "byte-swapped":  # scipy's FFT refuses these alone
        storage = "contiguous"
    return Data(
        shape,
        dtype,
        dice.number(0, 1 << 31),
        special=dice.number(1, 2) if special and dice.happens(4) else 0,
        storage=storage,
    )


def _shape(dice: Dice, rank: int, most: int) -> tuple[int, ...]:
    return tuple(0 if dice.happens(300) else dice.number(1, most) for _ in range(rank))


def _convolution(dice: Dice) -> Call:
    """Of operands of which either may be the longer one."""
    function = dice.pick(*CONVOLUTIONS)
    rank = dice.number(1, 3)
    long, short = {1: (300, 40), 2: (24, 6), 3: (9, 4)}[rank]
    sizes = [_shape(dice, rank, long), _shape(dice, rank, dice.pick(short, short, long))]
    if dice.happens(3):
        sizes.reverse()
    if dice.happens(40):
        sizes[1] = (*sizes[1], 2)
    arguments: dict[str, Any] = {
        "in1": _array(dice, sizes[0], special=True),
        "in2": _array(dice, sizes[1], special=dice.happens(3)),
        "mode": dice.pick(*MODES) if not dice.happens(40) else "bad",
    }
    if function not in BY_FFT:
        arguments["method"] = dice.pick("auto", "direct", "direct", "fft")
    elif dice.happens(4):
        arguments["axes"] = dice.pick(dice.number(-rank, rank - 1), tuple(range(rank)))
    return Call(function, arguments)


def _long(dice: Dice) -> Call:
    """Samples, some of which are not finite, by so many taps that an FFT may take less time."""
    samples, taps = dice.number(1000, 10_000), dice.number(*TAPS)
    dtype, seed = dice.pick(*DTYPES), dice.number(0, 1 << 31)
    sizes = dice.pick((samples, taps), (samples, taps), (taps, samples))
    data = [Data((size,), dtype, seed + 99 * n) for n, size in enumerate(sizes)]
    if not dice.happens(4):
        longer = sizes.index(samples)
        data[longer] = replace(data[longer], special=dice.number(1, 2))
    arguments = {
        "in1": data[0],
        "in2": data[1],
        "mode": dice.pick(*MODES),
        "method": dice.pick("auto", "auto", "direct"),
    }
    return Call(dice.pick("convolve", "correlate"), arguments)


def _two_axes(dice: Dice) -> Call:
    """Arrays without elements are left out: scipy itself dies of them."""
    sizes = [tuple(dice.number(1, most) for _ in range(2)) for most in (30, dice.pick(8, 8, 40))]
    arguments = {
        "in1": _array(dice, sizes[0], special=True),
        "in2": _array(dice, sizes[1], special=dice.happens(3)),
        "mode": dice.pick(*MODES) if not dice.happens(40) else "bad",
        "boundary": dice.pick("fill", "fill", "wrap", "symm", *["bad"] * dice.happens(20)),
        "fillvalue": dice.pick(0, 0, 0, 1.5),
    }
    return Call(dice.pick(*TWO_AXES), arguments)


def _filter(dice: Dice) -> Call:
    """With a state or without one, and seldom with feedback."""
    rank = dice.number(1, 3)
    shape = _shape(dice, rank, {1: 200, 2: 20, 3: 9}[rank])
    axis, taps = dice.number(-rank, rank - 1), dice.number(1, 30)
    arguments: dict[str, Any] = {
        "b": _array(dice, (taps,), special=dice.happens(3)),
        "a": [1.0, 0.3] if dice.happens(6) else [dice.pick(1.0, 2.0, -0.5)],
        "x": _array(dice, shape, special=True),
        "axis": axis,
    }
    undefined = len(arguments["a"]) > 1 and 0 in shape  # scipy leaves the final state unwritten
    if dice.happens(3) and not undefined:
        state = list(shape)
        state[axis] = max(taps, len(arguments["a"])) - 1 + dice.happens(20)
        arguments["zi"] = _array(dice, tuple(state))
    return Call("lfilter", arguments)


def _upsampling(dice: Dice) -> Call:
    rank = dice.number(1, 3)
    shape = tuple(dice.number(1, {1: 300, 2: 30, 3: 9}[rank]) for _ in range(rank))
    arguments: dict[str, Any] = {
        "h": _array(dice, (dice.number(1, 60),), special=dice.happens(3)),
        "x": _array(dice, shape, special=True),
        "up": dice.number(0 if dice.happens(20) else 1, 8),
        "down": dice.number(1, 8),
        "axis": dice.number(-rank, rank - 1),
    }
    if dice.happens(5):
        arguments |= {"mode": dice.pick("constant", "edge"), "cval": dice.pick(0.0, 2.0)}
    return Call("upfirdn", arguments)


def _resampling(dice: Dice) -> Call:
    rank = dice.number(1, 3)
    shape = tuple(dice.number(2, {1: 400, 2: 40, 3: 9}[rank]) for _ in range(rank))
    arguments: dict[str, Any] = {
        "x": _array(dice, shape),
        "up": dice.number(1, 8),
        "down": dice.number(1, 8),
        "axis": dice.number(0, rank - 1),
    }
    if dice.happens(3):
        arguments["padtype"] = dice.pick("constant", "line", "mean", "median", "minimum", "edge")
    if dice.happens(3):
        arguments["window"] = _array(dice, (dice.number(1, 40),))
    return Call("resample_poly", arguments)
