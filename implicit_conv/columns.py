"""im2col and col2im: from an image to the matrix of its windows, and back.

A pixel is repeated in every window that contains it, usually R x S times. conv2d builds no such
matrix, except with algorithm="gemm_im2col", which is a baseline.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from implicit_conv.arrays import Array, as_array
from implicit_conv.errors import ShapeError
from implicit_conv.options import LAYOUTS
from implicit_conv.problem import Padding, Problem, frozen, per_axis
from implicit_conv.schedule import window_copies


def im2col(
    x: object,
    kernel: int | Sequence[int],
    *,
    stride: int | Sequence[int] = 1,
    padding: Padding = 0,
    dilation: int | Sequence[int] = 1,
    layout: str | None = None,
) -> Array:
    """The windows of `x` as the rows of a matrix.

    Parameters
    ----------
    x : array of shape (N, C, H, W), or in `layout`; the batch axis may be missing
        Any dtype of numbers.
    kernel : int, or (R, S)
        Height and width of a window.
    stride, padding, dilation, layout
        As in `conv2d`.

    Returns
    -------
    columns : array of shape (N*P*Q, C*R*S), dtype of `x`
        Row ``(n * P + p) * Q + q`` is the window of output (n, p, q). Column ``(c * R + r) * S +
        s`` is its pixel (r, s) of channel c; pixels outside the image are zero.

    Raises
    ------
    ShapeError
        Shapes, strides, padding or layouts do not match (a ValueError).
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
    problem = _windows(array.shape, kernel, stride, padding, dilation, layout)
    pixels = array.reshape(problem.input_shape).transpose(LAYOUTS[problem.layout])
    columns = np.zeros(_extents(problem), array.dtype)
    for source, target in window_copies(problem, pixels, columns):
        target[...] = source
    return columns.reshape(_matrix(problem))


def col2im(
    cols: object,
    input_shape: Sequence[int],
    kernel: int | Sequence[int],
    *,
    stride: int | Sequence[int] = 1,
    padding: Padding = 0,
    dilation: int | Sequence[int] = 1,
    layout: str | None = None,
) -> Array:
    """The image in which each pixel is the sum of the entries that `im2col` copies it to.

    This is the adjoint of `im2col`, not its inverse. Entries are added in the order of (r, s), so
    that the result is deterministic.

    Parameters
    ----------
    cols : array of shape (N*P*Q, C*R*S), any dtype of numbers
    input_shape : sequence of 4 ints, or 3 without the batch axis, in `layout`
    kernel, stride, padding, dilation, layout
        As in `im2col`.

    Returns
    -------
    x : array of `input_shape`, dtype of `cols`

    Raises
    ------
    ShapeError
        Shapes, strides, padding or layouts do not match (a ValueError).
    DTypeError
        The array is not one of numbers (a TypeError).
    """
    array = as_array("cols", cols)
    problem = _windows(input_shape, kernel, stride, padding, dilation, layout)
    if array.shape != _matrix(problem):
        raise ShapeError(
            f"cols has shape {array.shape}, but an input of shape {tuple(input_shape)} needs "
            f"N*P*Q x C*R*S = {_matrix(problem)}"
        )
    x = np.zeros(problem.input_shape, array.dtype)
    pixels, columns = x.transpose(LAYOUTS[problem.layout]), array.reshape(_extents(problem))
    for target, source in window_copies(problem, pixels, columns):
        np.add(target, source, out=target)
    return x.reshape(tuple(input_shape))


def _windows(
    shape: Sequence[int],
    kernel: object,
    stride: object,
    padding: object,
    dilation: object,
    layout: str | None,
) -> Problem:
    """The convolution with these windows, which has one filter over all channels."""
    taps = per_axis("kernel", frozen("kernel", kernel), 1)
    axis = LAYOUTS.get(layout or "NCHW", (0,))[-1] - 4
    channels = shape[axis] if len(shape) in (3, 4) else 1
    return Problem.parse(
        shape,
        (1, channels, *taps),
        stride=frozen("stride", stride),
        padding=frozen("padding", padding),
        dilation=frozen("dilation", dilation),
        layout=layout,
    )


def _extents(problem: Problem) -> tuple[int, ...]:
    return (problem.N, *problem.output, problem.C, *problem.kernel)


def _matrix(problem: Problem) -> tuple[int, int]:
    n, p, q, c, r, s = _extents(problem)
    return n * p * q, c * r * s
