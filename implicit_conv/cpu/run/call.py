"""Call: an operator bound to the dtypes and strides of arrays; a run fills in addresses.

A repeated one compares arrays with those of the first, and compiled code makes it where it can.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from implicit_conv.arrays.arrays import Array, RepeatedCall, numpy_dtype, ordered
from implicit_conv.arrays.integers import checked_bias
from implicit_conv.kernels.cpu.runtime.active_threads import ADDRESS
from implicit_conv.kernels.cpu.runtime.pool import new_array
from implicit_conv.kernels.cpu.runtime.program import Program
from implicit_conv.problem.options import contiguous_strides
from implicit_conv.problem.problem import Problem
from implicit_conv.process.preparation import imported, imports, prepare_later

if TYPE_CHECKING:
    from implicit_conv.kernels.cpu.runtime.same_arrays import Record


class Arrays(NamedTuple):
    """The arrays of one call, or views of them whose elements are `bits`; see `Method.views`. `w`
    is None if the filter is packed, in panels at that address.
    """

    x: Array
    w: Array | None
    y: Array
    residual: Array | None = None
    panels: int = 0


ELEMENT = np.zeros(1, np.int64)
NOWHERE = ELEMENT.ctypes.data  # where arrays without memory begin
UNSIGNED = {size: f"<u{size}" for size in (1, 2, 4, 8)}
BITS = {size: np.dtype(name) for size, name in ((1, "u1"), (2, "u2"), (4, "f4"), (8, "f8"))}


def bits(array: Array) -> Array:
    """`array` as compiled code takes it, one dtype for each size of elements: unsigned integers of
    8 and 16 bits, floats of 32 and 64.
    """
    kind = BITS[array.itemsize]
    return array if array.dtype == kind else array.view(kind)


def is_contiguous(array: Array, axis: int) -> bool:
    """Whether elements along `axis` are adjacent; one element is, whatever its stride."""
    return array.shape[axis] == 1 or array.strides[axis] == array.itemsize


def is_row(problem: Problem, array: Array) -> bool:
    """Whether the pixels of an image, or of all images if channels are last, have a single
    stride.
    """
    axes = slice(0 if problem.channels_last else 1, 4)
    expected = None  # the stride of the next outer axis
    for size, step in zip(array.shape[axes][::-1], array.strides[axes][::-1], strict=True):
        if size > 1:
            if expected not in (None, step):
                return False
            expected = size * step
    return True


def as_row(problem: Problem, array: Array) -> Array:
    """A view with the pixels of an image, or of all images if channels are last, as one row."""
    n, d, h, w, channels = array.shape
    images, pixels = (1, n * d * h * w) if problem.channels_last else (n, d * h * w)
    return array.reshape(images, 1, 1, pixels, channels)


def stand_in(shape: tuple[int, ...], dtype: str, strides: tuple[int, ...] | None = None) -> Array:
    """An array with these strides, or contiguous ones, and no memory of its own: its elements must
    not be read.
    """
    kind = numpy_dtype(dtype)
    strides = contiguous_strides(shape, kind.itemsize) if strides is None else strides
    return np.asarray(_Nowhere(UNSIGNED[kind.itemsize], shape, strides)).view(kind)


class _Nowhere:
    """An array whose elements are nowhere, as numpy imports it."""

    def __init__(self, kind: str, shape: tuple[int, ...], strides: tuple[int, ...]) -> None:
        self.__array_interface__ = {
            "version": 3,
            "typestr": kind,
            "shape": shape,
            "strides": strides,
            "data": (NOWHERE, True),
        }


def ordered_arrays(
    view: Problem, arrays: Arrays, filter_axes: tuple[int, ...] | None = None
) -> Arrays:
    """The arrays of a call with the axes of a `view`, which has three spatial ones: its `axes` are
    positions in x, y and residual, and `filter_axes`, by default its own, those of k, c, t, r, s
    in w.
    """
    x, w, y, residual, panels = arrays
    axes = view.axes
    taken = view.filter_axes if filter_axes is None else filter_axes
    return Arrays(
        ordered(bits(x), axes),
        None if w is None else ordered(bits(w), taken),
        ordered(bits(y), axes),
        None if residual is None else ordered(residual, axes),
        panels,
    )


class Call:
    """A program, and what its runs are given."""

    __slots__ = ("_counts", "_summed", "_sums", "_vectors", "_y_dtype", "_y_shape", "program")

    def __init__(
        self,
        summed: Problem,
        y_shape: tuple[int, ...],
        y_dtype: Any,
        program: Program,
        vectors: Callable[[Any, Any], tuple[Any, Any]] | None = None,
    ) -> None:
        """`summed` has the largest sums, and `vectors` makes a bias and a scale of the program of
        those of a call, if they differ.
        """
        self._summed, self._sums = summed, numpy_dtype(summed.sum_dtype)
        self._counts, self._vectors = summed.is_integer, vectors
        self._y_shape, self._y_dtype, self.program = y_shape, y_dtype, program

    def __call__(
        self,
        x: Array,
        w: Any,
        bias: Array | None = None,
        y: Array | None = None,
        residual: Array | None = None,
        scale: Array | None = None,
    ) -> Array:
        """y = activation(scale * conv(x, w) + bias + residual).

        Parameters
        ----------
        x, w, y, residual : arrays of the shapes, dtypes and strides that the call is bound to
            `w` may also be the address of packed panels.
        bias : array of shape (K,), optional
        scale : contiguous array of shape (K,) in the dtype of `scaled_dtype`
            If the call is bound with a scale; the bias then has that dtype too.

        Returns
        -------
        y : array
            The given one, or a new one.

        Raises
        ------
        DTypeError
            Sums of integers with the bias could overflow.
        """
        at = x.ctypes.data
        if y is None:
            y = new_array(self._y_shape, self._y_dtype, at)
        of_w = w if type(w) is int else w.ctypes.data
        added = 0 if residual is None else residual.ctypes.data
        self.run(at, of_w, y.ctypes.data, bias, added, scale)
        return y

    def run(
        self, x: int, w: int, y: int, bias: Any = None, residual: int = 0, scale: Any = None
    ) -> None:
        """Write the result to `y`; x, w, y and the residual are addresses."""
        self.program.run(x, w, y, residual, *self._of_steps(bias, scale))

    def repeat(self, x: int, w: int, y: int, bias: Any = None, residual: int = 0) -> None:
        """`run`, which compiled code does from the second time on, where it can."""
        sums, _ = self._of_steps(bias, None)
        repeat(self.program, x, w, y, sums, residual)

    def fixed(self, bias: Any, scale: Any) -> Program:
        """The program of calls with this bias and this scale."""
        return self.program.fixed(*self._of_steps(bias, scale))

    def _of_steps(self, bias: Any, scale: Any) -> tuple[Any, Any]:
        """A bias of the right shape and a scale as steps take them: the bias in the dtype of the
        sums, unless there is a scale.
        """
        if bias is not None and scale is None:
            if self._counts:  # values that could overflow sums are refused at each call
                bias = checked_bias(bias, self._summed)
            else:
                bias = bias.astype(self._sums, "C", copy=False)
        return (bias, scale) if self._vectors is None else self._vectors(bias, scale)


def repeat(program: Program, x: int, w: int, y: int, bias: Any = None, residual: int = 0) -> None:
    """Run a program on what is at these addresses, which compiled code does from the second time
    on, where it can; see `Program.run`.
    """
    words = program.words if program.has_run else None
    if words is not None:
        at = 0 if bias is None else bias.ctypes.data
        if compiled().run(ADDRESS, words.address, x, w, at, residual, y):
            return
    program.run(x, w, y, residual, bias)


# Calls after which compiled code makes them. What it needs takes about as long to make as 100 calls
# take less time by it (EPYC 9004, 2026-11).
OFTEN = 32
MODULE = "implicit_conv.kernels.cpu.runtime.repeated"  # which loads that code


@imports
def compiled() -> Any:
    """The module of repeated calls, which loads compiled code."""
    from implicit_conv.kernels.cpu.runtime import repeated

    return repeated


class RepeatedArrays(RepeatedCall):
    """A call of arrays that has been made before; `differing` compares others with their record."""

    def __init__(self, key: Any, call: Call, record: Record, y: Array) -> None:
        """`call` computed the result `y`."""
        super().__init__(key)
        self.call, self._record, self._left = call, record, OFTEN
        self._differing = record.comparison()

    def again(self, x: Any, read: Any, bias: Any, residual: Any, out: Any, w: Any) -> Any:
        """The result; see `RepeatedCall`. A compiled function takes the place of this one."""
        if self._differing(x, read, bias, residual, out):
            return None
        operand = w if w is read else w.operand
        y = self.call(x, operand, bias, out, residual)
        self._left -= 1
        if self._left == 0:
            self._compile(bias, y)
        return y

    def _compile(self, bias: Any, y: Array) -> None:
        """Have compiled code make the call. Another thread first loads that code, so that this call
        takes no longer than others.
        """
        if not imported(MODULE):
            prepare_later(lambda: [compiled()])
            self._left = OFTEN
            return
        words = self.call.program.words
        made = None if words is None else compiled().again(self._record, words, y, bias)
        if made is not None:  # else Python makes the call
            self.again = made  # type: ignore[method-assign]
