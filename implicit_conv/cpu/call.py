"""Call: a candidate bound to the dtypes and strides of arrays; a run fills in addresses."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from implicit_conv.arrays import Array, check_vector
from implicit_conv.kernels.cpu.runtime.pool import POOL
from implicit_conv.problem import Problem

if TYPE_CHECKING:
    from implicit_conv.kernels.cpu.operator import Operands, Operator
    from implicit_conv.kernels.cpu.runtime.launch import Launch


class Arrays(NamedTuple):
    """The 4-d arrays of one call; 16-bit floats are viewed as integers.

    `w` is None if the filter is packed in panels. `filter_axes` are the positions of k, c, r, s in
    `w`. x, y and residual are in the problem's layout.
    """

    x: Array
    w: Array | None
    filter_axes: tuple[int, ...]
    y: Array
    residual: Array | None = None


def bits(array: Array) -> Array:
    """`array` as compiled code takes it: 16-bit floats are viewed as integers."""
    return array if array.itemsize != 2 or array.dtype == np.uint16 else array.view(np.uint16)


def is_contiguous(array: Array, axis: int) -> bool:
    """Whether elements along `axis` are adjacent; one element is, whatever its stride."""
    return array.shape[axis] == 1 or array.strides[axis] == array.itemsize


class CallForm(NamedTuple):
    """What all arrays of a call have in common."""

    problem: Problem
    y_shape: tuple[int, ...]
    y_dtype: Any
    filter_axes: tuple[int, ...]


class Call(ABC):
    """A candidate bound to the dtypes and strides of arrays."""

    __slots__ = ("_form",)

    def __init__(self, form: CallForm) -> None:
        self._form = form

    @abstractmethod
    def __call__(
        self,
        x: Array,
        w: Any,
        bias: object = None,
        y: Array | None = None,
        residual: Array | None = None,
    ) -> Array:
        """y = activation(conv(x, w) + bias + residual).

        Parameters
        ----------
        x, w, y, residual : arrays of the shapes, dtypes and strides that the call is bound to
            `w` may also be the address of packed panels.
        bias : array of shape (K,), optional

        Returns
        -------
        y : array
            The given one, or a new one.

        Raises
        ------
        ShapeError, DTypeError
            The shape or dtype of the bias does not match.
        """

    def checked_bias(self, bias: object) -> Array:
        """A bias as a contiguous array of shape (K,) in the dtype of the sums."""
        problem = self._form.problem
        return check_vector("bias", bias, problem.K, problem.sum_dtype)


class KernelCall(Call):
    """Prepared launches, which need only addresses.

    `packing` is the launch that packs a plain filter before the main launch; it is None if the main
    launch packs, or if nothing is packed. `split` makes the operands of each launch from the arrays
    of a call; if it is None, there is one launch, which takes the arrays themselves.
    """

    __slots__ = ("_main", "_narrow", "_operator", "_packing", "_panel_bytes", "_split")

    def __init__(
        self,
        form: CallForm,
        operator: Operator,
        main: Launch,
        packing: Launch | None,
        split: Callable[[Arrays], Iterable[Operands]] | None,
    ) -> None:
        super().__init__(form)
        self._operator, self._main, self._packing, self._split = operator, main, packing, split
        self._panel_bytes = operator.layout.packed_bytes
        self._narrow = form.problem.itemsize == 2

    def __call__(
        self,
        x: Array,
        w: Any,
        bias: object = None,
        y: Array | None = None,
        residual: Array | None = None,
    ) -> Array:
        """See `Call`; small calls spend their time here, so this is one function."""
        sums = None
        if bias is not None:
            sums = self._operator.initial_sums(self.checked_bias(bias))
        if y is None:
            y = np.empty(self._form.y_shape, self._form.y_dtype)
        out = y
        if self._narrow:
            x, w, out = bits(x), w if type(w) is int else bits(w), bits(y)
        if self._split is not None:
            for part in self._split(Arrays(x, w, self._form.filter_axes, out, residual)):
                self._pack_and_run(part.x, part.w, part.y, sums, part.residual)
        elif type(w) is int:
            self._main.run(x, x, out, w, sums, residual)
        elif self._packing is None:
            self._main.run(x, w, out, 0, sums, residual)
        else:
            self._pack_and_run(x, w, out, sums, residual)
        return y

    def _pack_and_run(
        self, x: Array, w: Array, y: Array, sums: Any, residual: Array | None
    ) -> None:
        """Pack the filter if that takes a launch of its own, then convolve."""
        if self._packing is None:
            self._main.run(x, w, y, 0, sums, residual)
            return
        panels = POOL.take(self._panel_bytes)
        try:
            self._packing.run(w, w, w, panels.address)
            self._main.run(x, x, y, panels.address, sums, residual)
        finally:
            POOL.give(panels)
