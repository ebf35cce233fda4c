"""Calls of filters: their steps are asked of scipy's own code once.

scipy's function is run on an image of the same shape and dtype, with functions in place of those of
its C code that write down what they are asked for. If all that it does is a chain of steps, from
the image to the result and then in the result, calls with such arguments run its launches. Errors,
and all that is no such chain, are scipy's.
"""

from __future__ import annotations

import functools
import inspect
import operator
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from implicit_conv.arrays.arrays import Array
from implicit_conv.ndimage import filters
from implicit_conv.ndimage.borders import SYNONYMS
from implicit_conv.ndimage.entries import STRICT, along
from implicit_conv.ndimage.filters import Chain
from implicit_conv.ndimage.originals import scipy_filters_with
from implicit_conv.ndimage.passes import Step, added, mean_step, with_axis
from implicit_conv.process.cache import IMAGES
from implicit_conv.settings import current

CHAINS = (  # the filters that are chains of steps
    "convolve",
    "convolve1d",
    "correlate",
    "correlate1d",
    "gaussian_filter",
    "gaussian_filter1d",
    "laplace",
    "prewitt",
    "sobel",
    "uniform_filter",
    "uniform_filter1d",
)
SUMMED = ("laplace",)  # those whose steps all read the image, and are added
# Elements of an image whose first call is worth the time to look at it, where a chain has the bits
# that scipy's code has: with "strict", and without rounding to the nearest integers.
LARGE = 1 << 16
MOST_BYTES = 1 << 16  # of an array of weights that is compared
PLAIN = (int, float, bool, str, type(None))


class _OtherError(Exception):
    """A filter does more than a chain of steps."""


class Call(NamedTuple):
    """A filter of images of one shape, strides and dtype."""

    chain: Chain
    dtype: Any  # of the result

    def run(self, x: Array, y: Array) -> Array:
        """The result, in y."""
        self.chain.run(x, y)
        return y


class _Recorder:
    """Functions in the place of scipy's C that write down steps."""

    def __init__(self, x: Array, *, adds: bool) -> None:
        self._x, self._adds, self.out, self.steps = x, adds, x, list[Step]()

    def __getattr__(self, name: str) -> Any:
        raise _OtherError(name)

    def _add(self, x: Array, out: Array, step: Step) -> None:
        first = not self.steps
        if x is not (self._x if self._adds else self.out):
            raise _OtherError
        if not (first or self._adds or out is x):
            raise _OtherError
        self.out = out if first else self.out
        self.steps.append(step._replace(mode=SYNONYMS.get(step.mode, step.mode)))

    def correlate(
        self, x: Array, weights: Array, out: Array, mode: int, cval: float, origins: Sequence[int]
    ) -> None:
        """The window of all axes."""
        places = tuple(operator.index(origin) for origin in origins)
        self._add(x, out, Step(weights, 0, None, mode, float(cval), places))

    def correlate1d(
        self,
        x: Array,
        weights: Array,
        axis: int,
        out: Array,
        mode: int,
        cval: float,
        origin: int,
    ) -> None:
        """The sum along an axis."""
        origins = along(x.ndim, axis, operator.index(origin))
        self._add(x, out, Step(weights, 0, axis, mode, float(cval), origins))

    def uniform_filter1d(
        self, x: Array, size: int, axis: int, out: Array, mode: int, cval: float, origin: int
    ) -> None:
        """The mean along an axis."""
        origins = along(x.ndim, axis, operator.index(origin))
        self._add(x, out, mean_step(operator.index(size), axis, mode, float(cval), origins))


class _Forwarded(threading.local):
    """The functions of the recorder of this thread."""

    recorder: Any = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.recorder, name)


_RECORDING = _Forwarded()


@functools.cache
def _recorded_filters() -> Any:
    return scipy_filters_with(_RECORDING)


def chained(own: Callable[..., Any], name: str, precision: str) -> Callable[..., Any]:
    """scipy's own filter `name`, with calls that come again computed by a chain."""
    names = tuple(inspect.signature(own).parameters)

    @functools.wraps(own)
    def filtered(*args: Any, **options: Any) -> Any:
        arguments = dict(zip(names, args, strict=False), **options)
        if len(arguments) == len(args) + len(options):  # else scipy raises an error
            y = call(name, precision, arguments)
            if y is not None:
                return y
        return own(*args, **options)

    return filtered


def call(
    name: str,
    precision: str,
    arguments: dict[str, Any],
    *,
    nearest: bool = False,
    channel_axis: int | None = None,
) -> Array | None:
    """The result of scipy's filter `name` of these arguments, or the `nearest` integers; None where
    its own code is to compute it. A `channel_axis`, from 0 on, is none that arguments count.
    """
    x, output = arguments.get("input"), arguments.get("output")
    if type(x) is np.memmap or type(output) is np.memmap:
        arguments = {key: _without_file(value) for key, value in arguments.items()}
        y = call(name, precision, arguments, nearest=nearest, channel_axis=channel_axis)
        return output if y is arguments.get("output") else y
    if type(x) is not np.ndarray or not (x.dtype.char in filters.INPUTS and x.flags.aligned):
        return None
    found = _kept(name, precision, arguments, nearest, channel_axis)
    if type(found) is not Call:
        return None
    if type(output) is not np.ndarray:
        return found.run(x, np.empty(x.shape, found.dtype))
    if output.flags.behaved and not np.may_share_memory(x, output):
        return found.run(x, output)
    return None


def _without_file(value: Any) -> Any:
    """A memory-mapped array as the array that it is, as scipy takes it; all else as it is."""
    return np.asarray(value) if type(value) is np.memmap else value


def _kept(
    name: str,
    precision: str,
    arguments: dict[str, Any],
    nearest: bool,
    channel_axis: int | None,
) -> Call | bool:
    """The call of a filter; False if it is no chain, and True if it may be one that comes once."""
    try:
        words = tuple([(key, _word(key, value)) for key, value in arguments.items()])
    except TypeError:
        return False
    key = name, precision, nearest, channel_axis, words, current().num_threads
    found: Call | bool | None = IMAGES.get(key)
    if found is None or found is True:
        alike = precision == STRICT and not nearest  # whichever code computes it
        again = found is True or not alike or arguments["input"].size >= LARGE
        found = _look(name, precision, arguments, nearest, channel_axis) if again else True
        IMAGES.keep(key, found)
    return found


def _word(key: str, value: Any) -> Any:
    """What tells an argument from others.

    Raises
    ------
    TypeError
        Nothing short does.
    """
    kind = type(value)
    if kind in PLAIN:
        return (kind, str(value)) if kind is float and value == 0 else (kind, value)
    if kind is np.ndarray:
        if key in ("input", "output"):
            return value.shape, value.strides, value.dtype
        if value.nbytes <= MOST_BYTES and value.dtype.kind in "biuf":
            return value.dtype, value.shape, value.tobytes()
    if kind in (tuple, list):
        return kind, tuple([_word(key, each) for each in value])
    if kind is type or isinstance(value, np.dtype):
        return value
    raise TypeError(kind)


def _plane(x: Array, channel_axis: int | None) -> Array:
    """An image of zeros of the same dtype, with the shape of one channel."""
    shape = [size for axis, size in enumerate(x.shape) if axis != channel_axis]
    return np.broadcast_to(np.zeros((), x.dtype), shape)


def _look(
    name: str,
    precision: str,
    arguments: dict[str, Any],
    nearest: bool,
    channel_axis: int | None,
) -> Call | bool:
    """The call of a filter; False if it is no chain, or if its arguments are wrong."""
    x, output = arguments["input"], arguments.get("output")
    image, own = _plane(x, channel_axis), output
    if type(output) is np.ndarray:
        own = np.empty(_plane(output, channel_axis).shape, output.dtype)
    _RECORDING.recorder = recorder = _Recorder(image, adds=name in SUMMED)
    try:
        y = getattr(_recorded_filters(), name)(**{**arguments, "input": image, "output": own})
    except Exception:  # scipy's code raises it again
        return False
    finally:
        _RECORDING.recorder = None
    steps = recorder.steps
    served = steps and y is recorder.out
    if not served or not all(filters.served(image, y, step.mode) for step in steps):
        return False
    if not (filters.stores(y.dtype) and x.dtype.isnative and x.ndim):
        return False
    if name in SUMMED:
        window = added(steps, x.dtype, y.dtype, precision)
        steps = [] if window is None else [window]
    if not steps or any(map(filters.sums_nothing, steps)):
        return False
    if channel_axis is not None:
        steps = [with_axis(step, channel_axis) for step in steps]
    y = output if type(output) is np.ndarray else np.empty(x.shape, y.dtype)
    try:
        return Call(filters.new_chain(steps, x, y, precision, nearest=nearest), y.dtype)
    except ValueError:
        return False
