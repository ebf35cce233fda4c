"""Three functions of scipy's C code, with its arguments and the bits of its results: correlate,
correlate1d and uniform_filter1d.

What `served` refuses, and calls for which one of them returns False, are left to scipy's C.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from implicit_conv.arrays.arrays import Array
from implicit_conv.ndimage import worth
from implicit_conv.ndimage.boxes import MODES, boxes, load, runs
from implicit_conv.ndimage.conventions import INTERPOLATE, PROPAGATE
from implicit_conv.operators import image_sums
from implicit_conv.operators.image_sums import BLOCK_BYTES, Order, Sum, aligned_bytes

# Weights of at most this size count as zero, and as equal if they differ by as much, in scipy's C.
EPSILON = np.finfo(np.float64).eps
MOST_BYTES = 32 << 20  # of a box that cannot be divided
INPUTS = frozenset("?bBhHiIlLqQfd")  # the dtypes of scipy's C, by numpy's characters
OUTPUTS = INPUTS - {"?"}


def served(x: Array, out: Array, mode: int) -> bool:
    """Whether arrays are of the sort that is filtered here."""
    return (
        x.dtype.char in INPUTS
        and out.dtype.char in OUTPUTS
        and x.size > 0
        and x.shape == out.shape
        and out.flags.writeable
        and mode in MODES
    )


def narrow(x: Array, out: Array) -> bool:
    """Whether neither the image nor the result holds more than float32 does."""
    return all(a.dtype == np.float32 or a.itemsize <= 2 for a in (x, out))


def correlate(
    x: Array,
    weights: Array,
    out: Array,
    mode: int,
    cval: float,
    origins: Sequence[int],
    dtype: type = np.float64,
    nan: str = PROPAGATE,
) -> bool:
    """``y[p] = sum of w[t] * x[p + t - size // 2 - origin]``, in the order of the taps; returns
    False where all weights count as zero, or scipy's C is faster and propagates NaN as asked.
    Sums are of this dtype, float64 or float32.
    """
    if x.ndim == 0:  # an image of one pixel
        x, weights, out, origins = x.reshape(1), weights.reshape(1), out.reshape(1), [0]
    places = np.argwhere(abs(weights) > EPSILON)
    if len(places) == 0 or (nan == PROPAGATE and not worth.window(x, len(places))):
        return False
    sums = Sum(Order.TAPS, np.stack([places, places], axis=1), weights[tuple(places.T)])
    if np.may_share_memory(x, out):
        x = x.copy()
    _filter(sums, weights.shape, x, out, mode, cval, origins, dtype, nan)
    return True


def correlate1d(
    x: Array,
    weights: Array,
    axis: int,
    out: Array,
    mode: int,
    cval: float,
    origin: int,
    dtype: type = np.float64,
    nan: str = PROPAGATE,
) -> None:
    """Compute the sum along an axis, in the order of the loops of scipy's C."""
    order, taps = _line_order(weights)
    places = np.zeros((*taps.shape, x.ndim), np.int64)
    places[..., axis] = taps
    kernel, origins = [1] * x.ndim, [0] * x.ndim
    kernel[axis], origins[axis] = len(weights), origin
    x, whole = _separate(x, out, axis)
    sums = Sum(order, places, weights[taps[:, 0]])
    _filter(sums, kernel, x, out, mode, cval, origins, dtype, nan, whole)


def uniform_filter1d(
    x: Array, size: int, axis: int, out: Array, mode: int, cval: float, origin: int
) -> bool:
    """Compute means along an axis by scipy's running sum; returns False for long lines, which
    cannot be divided.
    """
    around = size - 1
    if (x.shape[axis] + around) * BLOCK_BYTES > MOST_BYTES:
        return False
    x, _ = _separate(x, out, axis)
    x, out = np.moveaxis(x, axis, 0), np.moveaxis(out, axis, 0)
    length, first = len(x), -(size // 2) - origin
    column = runs(first, first + length + around, length, mode)
    scratch = Scratch(np.float64, np.float64, np.int32, np.int64)
    for box in boxes(x.shape, [around] + [0] * (x.ndim - 1), whole=0):
        extents = [part.stop - part.start for part in box]
        columns = math.prod(extents[1:])
        width = image_sums.room(columns, 8)
        rows, means = scratch(0, length + around, width), scratch(1, length, width)
        along = [column, *(runs(part.start, part.stop, part.stop, mode) for part in box[1:])]
        load(x, along, cval, rows[:, :columns].reshape(-1, *extents[1:]))
        image_sums.mean(rows, means, size)
        store(means[:, :columns].reshape(extents), out[box], scratch)
    return True


def _separate(x: Array, out: Array, axis: int) -> tuple[Array, int | None]:
    """`x`, and the axis that boxes must not divide: a box is read before it is written, which
    suffices for a filter in place. An array that shares memory in another way is copied.
    """
    if not np.may_share_memory(x, out):
        return x, None
    same = x.ctypes.data == out.ctypes.data and x.strides == out.strides and x.dtype == out.dtype
    return (x, axis) if same else (x.copy(), None)


def _line_order(weights: Array) -> tuple[Order, Array]:
    """The order of a sum along a line, and the two elements of each tap.

    scipy's C joins the elements of symmetric and antisymmetric filters before it multiplies. It
    begins with the tap in the middle of these, and with the last one of others.
    """
    size = len(weights)
    low = np.arange(size // 2)
    pairs = np.stack([low, size - 1 - low], axis=1)
    if size % 2 and size > 1:
        first, second = weights[pairs.T]
        with np.errstate(all="ignore"):  # of infinite weights
            differences = {Order.MIRRORED: first - second, Order.OPPOSED: first + second}
        for order, difference in differences.items():
            if not (abs(difference) > EPSILON).any():  # which counts NaN as equal
                return order, np.concatenate([[[size // 2, size // 2]], pairs])
    taps = np.array([size - 1, *range(size - 1)])
    return Order.LINE, np.stack([taps, taps], axis=1)


def _filter(
    sums: Sum,
    kernel: Sequence[int],
    x: Array,
    out: Array,
    mode: int,
    cval: float,
    origins: Sequence[int],
    dtype: type,
    nan: str,
    whole: int | None = None,
) -> None:
    """Compute the sums box by box; boxes do not divide the axis `whole`.

    The last axis that is filtered and all axes behind it are a row. The axes before the first one
    that is filtered count rows.
    """
    before = [size // 2 + origin for size, origin in zip(kernel, origins, strict=True)]
    around = [size - 1 for size in kernel]
    filtered = [axis for axis, size in enumerate(kernel) if size > 1] or [x.ndim - 1]
    first, last = filtered[0], filtered[-1]
    sums = replace(sums, places=sums.places[..., first : last + 1])
    scratch = Scratch(dtype, dtype, np.int32, np.int64)
    for box in boxes(x.shape, around, whole):
        along = [
            runs(part.start - low, part.stop - low + more, size, mode)
            for part, low, more, size in zip(box, before, around, x.shape, strict=True)
        ]
        extents = [part.stop - part.start for part in box]
        shape = [extent + more for extent, more in zip(extents, around, strict=True)]
        inner = math.prod(extents[last + 1 :])
        columns = extents[last] * inner
        values = scratch(0, *shape)
        load(x, along, cval, values)
        rows = values.reshape(math.prod(shape[:first]), *shape[first:last], -1)
        counted = math.prod(extents[:first]), *extents[first:last]
        results = scratch(1, *counted, image_sums.room(columns, values.itemsize))
        _sum(sums, rows, results, columns, inner, nan)
        store(results[..., :columns].reshape(extents), out[box], scratch)


def _sum(sums: Sum, rows: Array, out: Array, columns: int, inner: int, nan: str) -> None:
    """Compute the sums of a box, whose NaNs are left out, and sum the weights of what is left."""
    absent = None if nan == PROPAGATE else np.isnan(rows)
    if absent is None or not absent.any():
        return image_sums.correlate(sums, rows, out, columns, inner)
    rows[absent] = 0
    image_sums.correlate(sums, rows, out, columns, inner)
    if nan == INTERPOLATE:
        np.logical_not(absent, out=rows, casting="unsafe")
        left = np.empty_like(out)
        image_sums.correlate(sums, rows, left, columns, inner)
        with np.errstate(invalid="ignore", divide="ignore"):  # windows of NaNs alone: 0 / 0
            np.divide(out, left, out=out)
        out *= _total(sums)
    return None


def _total(sums: Sum) -> float:
    """The sum of all weights; that of a pair of elements is listed once."""
    first, others = float(sums.weights[0]), math.fsum(sums.weights[1:])
    return first + {Order.MIRRORED: 2, Order.OPPOSED: 0}.get(sums.order, 1) * others


class Scratch:
    """Arrays that the boxes of a call use in turn: fresh memory costs a page fault per 4 KiB."""

    def __init__(self, *dtypes: type) -> None:
        self._dtypes = [np.dtype(dtype) for dtype in dtypes]
        self._bytes = [aligned_bytes(0)] * len(dtypes)

    def __call__(self, index: int, *shape: int) -> Array:
        """Uninitialised memory that begins on a cache line, with readable BLOCK_BYTES behind it."""
        dtype = self._dtypes[index]
        size = dtype.itemsize * math.prod(shape)
        if len(self._bytes[index]) < size + BLOCK_BYTES:
            self._bytes[index] = aligned_bytes(size + BLOCK_BYTES)
        values: Array = self._bytes[index][:size].view(dtype).reshape(shape)
        return values


def store(values: Array, out: Array, scratch: Scratch) -> None:
    """Round or truncate sums to the dtype of the output, as scipy's C does: small integers wrap.

    C leaves it undefined what a number beyond the range of an integer becomes. Compilers for x86-64
    convert to 32 bits, or to 64 bits for uint32, and keep the low ones.
    """
    with np.errstate(all="ignore"):
        kind, size = out.dtype.kind, out.dtype.itemsize  # in any byte order
        narrow = kind in "iu" and size <= 2
        if narrow or (kind == "u" and size == 4):
            integers = scratch(2 if narrow else 3, *values.shape)
            np.copyto(integers, values, casting="unsafe")
            values = integers
        np.copyto(out, values, casting="unsafe")
