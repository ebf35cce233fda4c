"""im2col and col2im: from an image to the matrix of its windows, and back.

A pixel is repeated in every window that contains it, usually R x S times. Convolutions build no
such matrix, except with algorithm="gemm_im2col", which is a baseline.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from implicit_conv.arrays.arrays import Array, Operand, Y, as_array, ordered
from implicit_conv.arrays.libraries import as_library_of
from implicit_conv.errors import DTypeError, ShapeError
from implicit_conv.problem.options import LAYOUTS_OF, SPACE, Layout
from implicit_conv.problem.parse import (
    MOST_ELEMENTS,
    Ints,
    Padding,
    check_elements,
    frozen,
    integer,
    parse_layout,
    per_axis,
    shape_tuple,
)
from implicit_conv.problem.problem import Problem
from implicit_conv.problem.schedule import window_copies

SUMS = {"float16": "float32", "bfloat16": "float32"}  # dtypes whose sums have another dtype


def im2col(
    x: Operand[Y],
    kernel: Ints,
    *,
    stride: Ints = 1,
    padding: Padding = 0,
    dilation: Ints = 1,
    groups: int = 1,
    layout: Layout | None = None,
) -> Y:
    """The windows of `x` as the rows of a matrix.

    Parameters
    ----------
    x : array of shape (N, C, H, W), or in `layout`; the batch axis may be missing
        Any dtype of numbers. Signals (N, C, W) and volumes (N, C, D, H, W) are taken too: the
        number of spatial axes is that of `kernel`; if `kernel` is an int it is that of `layout`,
        or 3 for an array of 5 axes, else 2.
    kernel : int, or (R, S), (S,) or (T, R, S)
        The size of a window.
    stride, padding, dilation
        As in `conv2d`.
    groups : int
        It must divide C. The columns of a group of channels are contiguous: there are
        C / groups * R * S of them.
    layout : "NCHW" (default) or "NHWC"; "NCW", "NWC", "NCDHW" or "NDHWC"

    Returns
    -------
    columns : array of shape (N*P*Q, C*R*S), dtype and library of `x`, as in `conv2d`
        Row ``(n * P + p) * Q + q`` is the window of output (n, p, q). Column ``(c * R + r) * S +
        s`` is its pixel (r, s) of channel c; pixels outside the image are zero.

    Raises
    ------
    ShapeError
        Shapes, strides, padding or layouts do not match, or are too large (a ValueError).
    DTypeError
        The array is not one of numbers (a TypeError).

    Examples
    --------
    >>> import numpy as np
    >>> from implicit_conv import im2col
    >>> im2col(np.arange(6.0).reshape(1, 1, 2, 3), 2)
    array([[0., 1., 3., 4.],
           [1., 2., 4., 5.]])
    """
    array = as_array("x", x)
    problem = _windows(array.shape, kernel, stride, padding, dilation, groups, layout)
    pixels = _pixels(problem, array)
    columns = np.zeros(_extents(problem), array.dtype)
    for source, target in window_copies(problem, pixels, columns):
        target[...] = source
    return as_library_of(x, columns.reshape(_matrix(problem)))  # type: ignore[no-any-return]


def col2im(
    cols: Operand[Y],
    input_shape: Sequence[int],
    kernel: Ints,
    *,
    stride: Ints = 1,
    padding: Padding = 0,
    dilation: Ints = 1,
    groups: int = 1,
    layout: Layout | None = None,
) -> Y:
    """The image in which each pixel is the sum of the entries that `im2col` copies it to.

    This is the adjoint of `im2col`, not its inverse. Entries are added in the order of (r, s), so
    that the result is deterministic.

    Parameters
    ----------
    cols : array of shape (N*P*Q, C*R*S), any dtype of numbers
        Sums of 16-bit floats are computed in float32, and rounded once.
    input_shape : sequence of 4 ints, or 3 without the batch axis, in `layout`
        Signals and volumes are taken too, as in `im2col`.
    kernel, stride, padding, dilation, groups, layout
        As in `im2col`.

    Returns
    -------
    x : array of `input_shape`, dtype and library of `cols`, as in `conv2d`

    Raises
    ------
    ShapeError
        Shapes, strides, padding or layouts do not match, or are too large (a ValueError).
    DTypeError
        The array is not one of numbers, or a sum of integers exceeds its dtype (a TypeError).

    Examples
    --------
    The centre of a 3 x 3 image is in all four of its windows, a corner in one.

    >>> import numpy as np
    >>> from implicit_conv import col2im
    >>> col2im(np.ones((4, 4), np.float32), (1, 1, 3, 3), 2)[0, 0].tolist()
    [[1.0, 2.0, 1.0], [2.0, 4.0, 2.0], [1.0, 2.0, 1.0]]
    """
    array = as_array("cols", cols)
    input_shape = shape_tuple("input_shape", input_shape)
    problem = _windows(input_shape, kernel, stride, padding, dilation, groups, layout)
    if array.shape != _matrix(problem):
        raise ShapeError(
            f"cols has shape {array.shape}, but an input of shape {input_shape} needs "
            f"N*P*Q x C*R*S = {_matrix(problem)}"
        )
    image = np.zeros(problem.input_shape, _sum_dtype(array.dtype))
    pixels, columns = _pixels(problem, image), array.reshape(_extents(problem))
    for target, source in window_copies(problem, pixels, columns):
        np.add(target, source, out=target)
    return as_library_of(cols, _rounded(image, array.dtype))  # type: ignore[no-any-return]


def _sum_dtype(dtype: np.dtype[np.generic]) -> np.dtype[np.generic]:
    """The dtype in which elements of `dtype` are added."""
    if dtype.kind in "iu" and dtype != np.uint64:
        return np.dtype(np.int64)
    return np.dtype(SUMS.get(dtype.name, dtype))


def _rounded(image: Array, dtype: np.dtype[np.generic]) -> Array:
    """The sums in `dtype`; integers must fit."""
    if dtype.kind in "iu" and image.size:
        limits: np.iinfo[Any] = np.iinfo(dtype.name)
        least, most = image.min(), image.max()
        if least < limits.min or most > limits.max:
            raise DTypeError(
                f"the sums are {least} to {most}, but cols is {dtype}, which holds {limits.min} to "
                f"{limits.max}; pass cols.astype('int64')"
            )
    return image.astype(dtype, copy=False)


def _windows(
    shape: tuple[int, ...],
    kernel: object,
    stride: object,
    padding: object,
    dilation: object,
    groups: object,
    layout: str | None,
) -> Problem:
    """The convolution with these windows, which has one filter over all channels."""
    kernel = frozen("kernel", kernel)
    rank = _rank(shape, kernel, layout)
    layout = parse_layout(layout, rank)
    axis = layout.index("C") - len(layout)  # counted from the end, since N may be missing
    channels = shape[axis] if rank + 1 <= len(shape) <= rank + 2 else 1
    divisor = integer("groups", groups, 1, MOST_ELEMENTS)
    if channels % divisor:
        raise ShapeError(f"C={channels} is not a multiple of groups={divisor}")
    problem = Problem.parse(
        shape,
        (1, channels, *per_axis("kernel", kernel, 1, SPACE[rank])),
        stride=frozen("stride", stride),
        padding=frozen("padding", padding),
        dilation=frozen("dilation", dilation),
        layout=layout,
        rank=rank,
    )
    check_elements("the matrix of windows", _extents(problem))
    return problem


def _rank(shape: tuple[int, ...], kernel: object, layout: str | None) -> int:
    if isinstance(kernel, tuple):
        if not 1 <= len(kernel) <= len(SPACE):
            raise ShapeError(f"kernel has {len(kernel)} values; give 1, 2 or 3, or an integer")
        return len(kernel)
    for rank, layouts in LAYOUTS_OF.items():
        if isinstance(layout, str) and layout.upper() in layouts:
            return rank
    return 3 if len(shape) == 5 else 2


def _pixels(problem: Problem, array: Array) -> Array:
    """A view of x or y with the axes n, spatial axes, c."""
    n, *space, c = problem.axes
    return ordered(array, (n, *space[3 - problem.rank :], c))


def _extents(problem: Problem) -> tuple[int, ...]:
    return (problem.N, *problem.output, problem.C, *problem.kernel)


def _matrix(problem: Problem) -> tuple[int, int]:
    windows = problem.N * math.prod(problem.output)
    return windows, problem.C * math.prod(problem.kernel)
