"""Call: a candidate bound to the dtypes and strides of arrays; a run fills in addresses."""

from __future__ import annotations

import functools
import math
import mmap
import os
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from implicit_conv.arrays.arrays import Array, numpy_dtype, ordered
from implicit_conv.arrays.integers import checked_bias
from implicit_conv.errors import PlanError
from implicit_conv.kernels.cpu.runtime.pool import POOL, new_array
from implicit_conv.kernels.cpu.runtime.program import Step
from implicit_conv.problem.options import ITEMSIZES
from implicit_conv.problem.problem import Problem

if TYPE_CHECKING:
    from implicit_conv.kernels.cpu.operator import Operands, Operator
    from implicit_conv.kernels.cpu.runtime.launch import Launch
    from implicit_conv.kernels.cpu.runtime.program import Room


class Arrays(NamedTuple):
    """The arrays of one call as views with the axes (n, d, h, w, c) and, of w, (k, c, t, r, s).

    `bits` views their elements. `w` is None if the filter is packed in panels.
    """

    x: Array
    w: Array | None
    y: Array
    residual: Array | None = None


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
    pixels = zip(array.shape[:4], array.strides[:4], strict=True)
    steps = [axis for axis in list(pixels)[0 if problem.channels_last else 1 :] if axis[0] > 1]
    return all(outer == inner * size for (_, outer), (size, inner) in pairwise(steps))


def as_row(problem: Problem, array: Array) -> Array:
    """A view with the pixels of an image, or of all images if channels are last, as one row."""
    n, d, h, w, channels = array.shape
    images, pixels = (1, n * d * h * w) if problem.channels_last else (n, d * h * w)
    return array.reshape(images, 1, 1, pixels, channels)


def contiguous_strides(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """The strides of a new array, in bytes."""
    return tuple(itemsize * math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


def stand_in(shape: tuple[int, ...], dtype: str, strides: tuple[int, ...] | None = None) -> Array:
    """An array with these strides, or contiguous ones, and no memory of its own: its elements must
    not be read.
    """
    kind = numpy_dtype(dtype)
    strides = contiguous_strides(shape, kind.itemsize) if strides is None else strides
    return np.asarray(_Nowhere(UNSIGNED[kind.itemsize], shape, strides)).view(kind)


def address(array: Array) -> int:
    """The address of the first element; 0 if there is none."""
    first: int = array.__array_interface__["data"][0] if array.size else 0
    return first


def ordered_bits(
    shape: tuple[int, ...], dtype: str, strides: tuple[int, ...], axes: tuple[int, ...]
) -> Array:
    """The `bits` of such a stand-in, `ordered` by `axes`."""
    kind = BITS[ITEMSIZES[dtype]]
    return np.asarray(
        _Nowhere(
            kind.str,
            tuple([1 if axis < 0 else shape[axis] for axis in axes]),
            tuple([0 if axis < 0 else strides[axis] for axis in axes]),
        )
    )


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


@functools.lru_cache(16)
def _unwritten(size: int) -> mmap.mmap:
    """Zeros of a private mapping, which nobody can write."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    return mmap.mmap(-1, size, flags=flags, prot=mmap.PROT_READ)


@functools.lru_cache(256)
def blank(shape: tuple[int, ...], dtype: str, strides: tuple[int, ...]) -> Array:
    """An array with these strides, whose elements are zeros. Strides may be large, so its memory is
    pages that are never written, which take none.
    """
    axes = list(zip(shape, strides, strict=True))
    low = sum(min(0, stride) * (size - 1) for size, stride in axes if size)
    high = sum(max(0, stride) * (size - 1) for size, stride in axes if size)
    kind = numpy_dtype(dtype)
    size = 1 << (high - low + kind.itemsize - 1).bit_length()  # few sizes, so that mappings serve
    memory: Any = np.zeros(size, np.uint8) if os.name != "posix" else _unwritten(size)
    return np.ndarray(shape, kind, memory, -low, strides)


class CallForm(NamedTuple):
    """What a call knows of its arrays.

    `problem` has three spatial axes; its `axes` are positions in x, y and residual. `filter_axes`
    are the positions of k, c, t, r, s in `w`.
    """

    problem: Problem
    y_shape: tuple[int, ...]
    y_dtype: Any
    filter_axes: tuple[int, ...]

    def arrays(self, x: Array, w: Array | None, y: Array, residual: Array | None) -> Arrays:
        """The arrays of a call as methods take them."""
        axes = self.problem.axes
        return Arrays(
            ordered(bits(x), axes),
            None if w is None else ordered(bits(w), self.filter_axes),
            ordered(bits(y), axes),
            None if residual is None else ordered(residual, axes),
        )


class Call:
    """A candidate bound to the dtypes and strides of arrays."""

    __slots__ = ("_counts", "_form", "_sums")

    def __init__(self, form: CallForm) -> None:
        self._form, self._sums = form, numpy_dtype(form.problem.sum_dtype)
        self._counts = form.problem.is_integer

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
        if y is None:
            y = new_array(self._form.y_shape, self._form.y_dtype, x.ctypes.data)
        self._compute(x, w, bias, y, residual, scale)
        return y

    def prepared(self, *arrays: Any) -> Callable[[], object]:
        """A function that makes this call of x, w, bias, y, residual and scale; bias and scale may
        not change. The caller holds the arrays, and the panels at `w`.
        """
        return functools.partial(self, *arrays)

    def _addend(self, bias: Array) -> Array:
        """A bias of the right shape as a contiguous array in the dtype of the sums."""
        if self._counts:  # values that could overflow sums are refused at each call
            return checked_bias(bias, self._form.problem)
        return bias.astype(self._sums, "C", copy=False)

    def _compute(
        self, x: Array, w: Any, bias: Any, y: Array, residual: Array | None, scale: Any
    ) -> None:
        """Write the result to `y`; see `__call__`."""
        raise NotImplementedError

    def steps(self, x: Array, w: Any, y: Array, room: Room) -> list[Step]:
        """The launches of a call, which may have a bias, for a `Program`. The arrays are reserved,
        and w may be the address of packed panels.

        Raises
        ------
        PlanError
            The call consists of more than launches.
        """
        raise PlanError(f"{type(self).__name__} consists of more than launches")

    @property
    def takes_addresses(self) -> bool:
        """Whether there is a function `at`."""
        return False

    def at(self, x: Any, w: Any, bias: Array | None, y: Any, residual: Any = None) -> None:
        """Write the result to `y`: `x`, `w`, `y` and `residual` are objects of `tensors.memory`
        that stand for arrays, and `w` may be the address of packed panels.
        """
        raise NotImplementedError


class KernelCall(Call):
    """Prepared launches, which need only addresses.

    `packing` is the launch that packs a plain filter before the main launch; it is None if the main
    launch packs, or if nothing is packed. `split` makes the operands of each launch from the arrays
    of a call; if it is None, there is one launch, which takes the arrays themselves.
    """

    __slots__ = ("_main", "_operator", "_packing", "_panel_bytes", "_split", "_viewed")

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
        self._viewed = form.problem.dtype not in ("float32", "float64")

    def __call__(
        self,
        x: Array,
        w: Any,
        bias: Array | None = None,
        y: Array | None = None,
        residual: Array | None = None,
        scale: Array | None = None,
    ) -> Array:
        """See `Call`; small calls spend their time here, so this is one function, which `_compute`
        would double.
        """
        sums = scaling = None
        if scale is not None:
            scaling = scale, np.zeros_like(scale) if bias is None else bias
        elif bias is not None:
            sums = self._operator.initial_sums(self._addend(bias))
        if y is None:
            y = new_array(self._form.y_shape, self._form.y_dtype, x.ctypes.data)
        out = y
        if self._viewed:
            x, w, out = bits(x), w if type(w) is int else bits(w), bits(y)
            sums = None if sums is None else bits(sums)
        if self._split is not None:
            for part in self._split(self._form.arrays(x, w, out, residual)):
                self._pack_and_run(part.x, part.w, part.y, sums, part.residual, scaling)
        elif type(w) is int:
            self._main.run(x, x, out, w, sums, residual, scaling)
        elif self._packing is None:
            self._main.run(x, w, out, 0, sums, residual, scaling)
        else:
            self._pack_and_run(x, w, out, sums, residual, scaling)
        return y

    def prepared(self, *arrays: Any) -> Callable[[], object]:
        """See `Call`; a single launch is called at once."""
        x, w, bias, y, residual, scale = arrays
        is_packed = type(w) is int
        is_single = self._split is None and (is_packed or self._packing is None)
        if scale is not None or not is_single:
            return super().prepared(*arrays)
        x, y = bits(x), bits(y)
        filters, panels = (x, w) if is_packed else (bits(w), 0)
        sums = None if bias is None else bits(self._operator.initial_sums(bias))
        launch = self._main.with_addends(sums, residual)
        return functools.partial(launch.run, x, filters, y, panels)

    @property
    def takes_addresses(self) -> bool:
        """Whether operands are the arrays themselves."""
        return self._split is None

    def at(self, x: Any, w: Any, bias: Array | None, y: Any, residual: Any = None) -> None:
        """See `Call`."""
        sums = None
        if bias is not None:
            sums = bits(self._operator.initial_sums(self._addend(bias)))
        if type(w) is int:
            self._main.run(x, x, y, w, sums, residual)
        elif self._packing is None:
            self._main.run(x, w, y, 0, sums, residual)
        else:
            self._pack_and_run(x, w, y, sums, residual, None)

    def steps(self, x: Array, w: Any, y: Array, room: Room) -> list[Step]:
        """See `Call`."""
        x, w, y = bits(x), w if type(w) is int else bits(w), bits(y)
        if type(w) is int:
            return [Step(self._main, address(x), address(x), address(y), w, self._sums_of_bias())]
        parts: Iterable[Any] = [Arrays(x, w, y)]
        if self._split is not None:
            parts = self._split(self._form.arrays(x, w, y, None))
        return [step for part in parts for step in self._part_steps(part, room)]

    def _part_steps(self, part: Any, room: Room) -> list[Step]:
        """The launches of operands, of which each filter that is packed has panels of its own."""
        x, w, y = map(address, (part.x, part.w, part.y))
        sums = self._sums_of_bias()
        if self._packing is None:
            return [Step(self._main, x, w, y, 0, sums)]
        panels = room.take(self._panel_bytes)
        return [Step(self._packing, w, w, w, panels), Step(self._main, x, x, y, panels, sums)]

    def _sums_of_bias(self) -> Any:
        """Which element of a bias each initial sum is, from 1 on, or 0; None if it is not known."""
        count = self._form.problem.K
        if self._sums.kind != "f" or count >= 1 << 24:  # float32 has no larger odd numbers
            return None
        return self._operator.initial_sums(np.arange(1, count + 1).astype(self._sums))

    def _pack_and_run(
        self, x: Array, w: Array, y: Array, sums: Any, residual: Array | None, scaling: Any
    ) -> None:
        """Pack the filter if that takes a launch of its own, then convolve."""
        if self._packing is None:
            self._main.run(x, w, y, 0, sums, residual, scaling)
            return
        panels = POOL.take(self._panel_bytes)
        try:
            self._packing.run(w, w, w, panels.address)
            self._main.run(x, x, y, panels.address, sums, residual, scaling)
        finally:
            POOL.give(panels)


class GradientCall(Call):
    """Prepared launches of a weight gradient, which need only addresses.

    `roles` makes the operands of the launches from views of x and dy with five axes; if it is None,
    they are x and dy themselves.
    """

    __slots__ = ("_add", "_main", "_partial_bytes", "_roles")

    def __init__(
        self,
        form: CallForm,
        partial_bytes: int,
        main: Launch,
        add: Launch | None,
        roles: Callable[[Array, Array], tuple[Array, Array]] | None,
    ) -> None:
        super().__init__(form)
        self._partial_bytes, self._main, self._add, self._roles = partial_bytes, main, add, roles

    @property
    def takes_addresses(self) -> bool:
        """Whether operands are the arrays themselves."""
        return self._roles is None

    def at(self, x: Any, w: Any, bias: Array | None, y: Any, residual: Any = None) -> None:
        """See `Call`; there are no bias and residual."""
        self._run(x, w, y)

    def _compute(
        self, x: Array, w: Any, bias: Any, y: Array, residual: Array | None, scale: Any
    ) -> None:
        """dw, which is `y`, of x and dy, which is `w`; there are no bias, residual and scale."""
        x, dy, dw = bits(x), bits(w), bits(y)
        if self._roles is not None:
            axes = self._form.problem.axes
            x, dy = self._roles(ordered(x, axes), ordered(dy, axes))
        self._run(x, dy, dw)

    def steps(self, x: Array, w: Any, y: Array, room: Room) -> list[Step]:
        """See `Call`; `w` is dy, and `y` is dw."""
        x, dy, dw = bits(x), bits(w), address(bits(y))
        if self._roles is not None:
            axes = self._form.problem.axes
            x, dy = self._roles(ordered(x, axes), ordered(dy, axes))
        given = address(x), address(dy), dw
        if self._add is None:
            return [Step(self._main, *given)]
        sums = room.take(self._partial_bytes)
        return [Step(self._main, *given, sums), Step(self._add, *given, sums)]

    def _run(self, x: Any, dy: Any, dw: Any) -> None:
        if self._add is None:
            self._main.run(x, dy, dw)
            return
        sums = POOL.take(self._partial_bytes)
        try:
            self._main.run(x, dy, dw, sums.address)
            self._add.run(x, dy, dw, sums.address)
        finally:
            POOL.give(sums)
