"""Packed filters, and the orders of their elements."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from implicit_conv.arrays.arrays import Array, numpy_dtype
from implicit_conv.cache import cached_property
from implicit_conv.kernels.cpu.runtime.pool import aligned_bytes
from implicit_conv.problem.options import ITEMSIZES
from implicit_conv.problem.problem import Problem


@dataclass(frozen=True)
class PackedOrder:
    """The order of a packed filter's elements.

    Attributes
    ----------
    key : tuple
        It is equal for the plan that packs a filter and every plan that can read it.
    bytes : int
        Bytes of the packed filter.
    """

    key: tuple[object, ...]
    bytes: int


@dataclass(frozen=True)
class PlainOrder(PackedOrder):
    """The order of a contiguous filter in `layout`, which any method can read."""

    layout: str = "KCTRS"
    shape: tuple[int, ...] = ()
    dtype: str = "float32"

    @classmethod
    def of(cls, problem: Problem, layout: str = "KCTRS") -> PlainOrder:
        """The order of the filter of `problem`, which has three spatial axes, in `layout`."""
        extents = (problem.K, problem.C // problem.groups, *problem.kernel)
        shape = tuple(extents["KCTRS".index(letter)] for letter in layout)
        dtype = problem.filter_dtype
        size = math.prod(shape) * ITEMSIZES[dtype]
        key = ("plain", layout, shape, dtype)
        return cls(key, size, layout, shape, dtype)

    @property
    def axes(self) -> tuple[int, ...]:
        """The positions of k, c, t, r, s."""
        return tuple(map(self.layout.index, "KCTRS"))

    def copied(self, w: Array) -> bytes:
        """The bytes of `w`, whose axes are (k, c, t, r, s), in this order."""
        return w.transpose(["KCTRS".index(letter) for letter in self.layout]).tobytes()


@dataclass(frozen=True)
class PanelOrder(PackedOrder):
    """The order of `kernels.cpu.gemm.panels`, with words of one channel."""


@dataclass(frozen=True, eq=False)
class PackedFilter:
    """A filter in the layout that the chosen kernel expects.

    A plan for images of another size may choose another method, which expects another layout, so
    each plan packs its own filter.

    Attributes
    ----------
    panels : uint8 array, aligned to 64 bytes
    order : PackedOrder
    """

    kind: ClassVar[str] = "panels"
    panels: Array
    order: PackedOrder

    @cached_property
    def key(self) -> tuple[object, ...]:
        """The key of its order."""
        return self.order.key

    @property
    def bytes(self) -> int:
        """Bytes of the panels."""
        return self.panels.nbytes

    @cached_property
    def address(self) -> int:
        """The address of the panels."""
        return int(self.panels.ctypes.data)

    @cached_property
    def plain(self) -> Array | None:
        """The filter as an array, if its order is a PlainOrder; else None."""
        if not isinstance(self.order, PlainOrder):
            return None
        filters: Array = self.panels.view(numpy_dtype(self.order.dtype)).reshape(self.order.shape)
        return filters if filters.itemsize != 2 else filters.view(np.uint16)

    @cached_property
    def operand(self) -> Any:
        """What a `Call` takes as w: the plain filter, or the address of the panels."""
        return self.address if self.plain is None else self.plain

    def __reduce__(self) -> tuple[object, ...]:
        """Align the panels of pickled and deep copies again, because kernels rely on it."""
        return packed_copy, (self.panels.tobytes(), self.order)

    def __repr__(self) -> str:
        return f"<PackedFilter of {self.bytes} bytes: {self.order.key[0]}>"


@dataclass(frozen=True, eq=False)
class PackedParts:
    """The packed filters of an operator that several plans compute.

    `kind` says what the parts are: filters of another operator do not fit, whatever their orders.
    """

    kind: str
    filters: tuple[Any, ...]

    @cached_property
    def key(self) -> tuple[object, ...]:
        """The kind, and the keys of their orders."""
        return self.kind, *(packed.key for packed in self.filters)

    @property
    def bytes(self) -> int:
        """Bytes of all packed filters."""
        return sum(packed.bytes for packed in self.filters)

    @property
    def panels(self) -> None:
        """No array of the caller's overlaps with packed filters."""

    @cached_property
    def operand(self) -> tuple[Any, ...]:
        """What a `Call` takes as w."""
        return tuple(packed.operand for packed in self.filters)

    def __repr__(self) -> str:
        return f"<PackedParts of {self.bytes} bytes: {len(self.filters)} {self.kind}>"


def packed_copy(content: bytes, order: PackedOrder) -> PackedFilter:
    """A packed filter with these bytes, aligned."""
    panels = aligned_bytes(len(content))
    panels[:] = np.frombuffer(content, np.uint8)
    return PackedFilter(panels, order)


def reads_filters_in_place(problem: Problem) -> bool:
    """Whether a contiguous filter is not copied: its channels and taps are in KCRS order."""
    channels_last = problem.weight_layout.startswith("K") and set(problem.kernel) == {1}
    return channels_last or problem.weight_layout.startswith("KC")
