"""Sums of floats in the order of a plain loop: what Python calls, and the order of taps.

The lanes of a vector are pixels, so that a result has the bits of C code which adds the same
products one by one, without fused multiply-adds. Rows are padded before: nothing here knows the
border of an image.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np

from implicit_conv.arrays.arrays import Array
from implicit_conv.kernels.cpu.images.layout import BLOCK_BYTES, Order
from implicit_conv.kernels.cpu.runtime.code import python_code
from implicit_conv.kernels.cpu.runtime.pool import aligned_bytes
from implicit_conv.kernels.preparation import prepare

__all__ = ["BLOCK_BYTES", "Order", "Sum", "aligned_bytes", "correlate", "mean", "room"]


@dataclass(frozen=True, eq=False)
class Sum:
    """A sum over taps.

    Attributes
    ----------
    order : Order
    places : array of shape (taps, 2, axes)
        The positions in a window of a tap's element, and of the one that is joined with it.
    weights : array of shape (taps,)
    """

    order: Order
    places: Array
    weights: Array


@functools.cache
def _compiled(maker: str, *arguments: Any) -> Any:
    return prepare(python_code, f".images.compiled:make_{maker}", *arguments)


def room(elements: int, itemsize: int) -> int:
    """The elements that a row takes: whole blocks."""
    block = BLOCK_BYTES // itemsize
    return -(-elements // block) * block


def correlate(sums: Sum, x: Array, out: Array, columns: int, inner: int) -> None:
    """Compute rows of sums from `x`, into `out`: both float64, or both float32.

    Parameters
    ----------
    sums : Sum
    x : array of shape (..., rows, row)
        Its last axes are those of `sums.places`. A row is contiguous, and has pixels of `inner`
        elements. BLOCK_BYTES beyond the last row must be readable.
    out : array of shape (..., rows, room(columns, itemsize))
        It has as many rows as there are whole windows.
    columns : int
        The elements of a row that are wanted.
    """
    size = x.itemsize
    steps = np.array([*x.strides[:-1], inner * size], np.int64)
    offsets = np.ascontiguousarray(sums.places @ steps[-sums.places.shape[-1] :])
    weights = np.ascontiguousarray(sums.weights, x.dtype)
    function = _compiled("correlate", sums.order, size)
    start, target = x.ctypes.data, out.ctypes.data
    for place in np.ndindex(*out.shape[:-2]):
        function(
            target + sum(i * step for i, step in zip(place, out.strides, strict=False)),
            out.strides[-2],
            start + sum(i * step for i, step in zip(place, x.strides, strict=False)),
            x.strides[-2],
            offsets.ctypes.data,
            weights.ctypes.data,
            len(weights),
            out.shape[-2],
            columns * size,
        )


def mean(x: Array, out: Array, size: int) -> None:
    """Write the mean of every `size` rows of `x` to the rows of `out`, by a running sum.

    Both are C-contiguous float64 arrays of shape (rows, room(columns, 8)).
    """
    function = _compiled("mean")
    function(out.ctypes.data, x.ctypes.data, x.strides[0], size, len(out))
