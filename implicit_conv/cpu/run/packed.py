"""Packed filters, and the orders of their elements."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from implicit_conv.arrays.arrays import Array
from implicit_conv.kernels.cpu.runtime.layout import round_up
from implicit_conv.kernels.cpu.runtime.pool import aligned_bytes
from implicit_conv.problem.options import ITEMSIZES
from implicit_conv.problem.problem import Problem
from implicit_conv.process.cache import cached_property


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
    """The order of `gemm.compiled.panels`, with words of one channel."""


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

    @property
    def operand(self) -> int:
        """What a `Call` takes as w: the address of the panels."""
        return self.address

    def __reduce__(self) -> tuple[object, ...]:
        """Align the panels of pickled and deep copies again, because kernels rely on it."""
        return packed_copy, (self.panels.tobytes(), self.order)

    def __repr__(self) -> str:
        return f"<PackedFilter of {self.bytes} bytes: {self.order.key[0]}>"


def part_starts(sizes: Sequence[int]) -> list[int]:
    """Where filters of so many bytes begin that are one after another; then their end."""
    starts = [0]
    for size in sizes:
        starts.append(starts[-1] + round_up(size))
    return starts


def packed_parts(order: PackedOrder, filters: Sequence[PackedFilter]) -> PackedFilter:
    """The filters of several plans as one, one after another; each begins on a cache line."""
    panels = aligned_bytes(order.bytes)
    panels[:] = 0  # gaps are pickled too
    starts = part_starts([each.bytes for each in filters])
    for start, each in zip(starts, filters, strict=False):
        panels[start : start + each.bytes] = each.panels
    return PackedFilter(panels, order)


def packed_copy(content: bytes, order: PackedOrder) -> PackedFilter:
    """A packed filter with these bytes, aligned."""
    panels = aligned_bytes(len(content))
    panels[:] = np.frombuffer(content, np.uint8)
    return PackedFilter(panels, order)


def reads_filters_in_place(problem: Problem) -> bool:
    """Whether a contiguous filter is not copied: its channels and taps are in KCRS order."""
    channels_last = problem.weight_layout.startswith("K") and set(problem.kernel) == {1}
    return channels_last or problem.weight_layout.startswith("KC")
