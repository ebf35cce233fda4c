"""Packed filters of parameters, which are kept while every byte of the parameter is the same.

The version counter of a tensor does not tell of all writes: ``p.data.add_()``, numpy arrays over
its memory and other processes pass it by. So the bytes themselves are compared, which is many times
faster than packing, and needs no trust in anybody.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from implicit_conv.arrays import Array
from implicit_conv.tensors import tensor_array

if TYPE_CHECKING:
    from implicit_conv.torch.steps import Step


class Kept(NamedTuple):
    """A packed filter, and what the parameter was when it was packed."""

    owner: weakref.ref[Any]
    words: Array
    packed: Any

    @property
    def bytes(self) -> int:
        """The memory that it takes."""
        parts = getattr(self.packed, "filters", (self.packed,))
        return int(self.words.nbytes + sum(part.panels.nbytes for part in parts))


class PackedFilters:
    """Packed filters by (parameter, order of the packed elements), of `limit` bytes in all."""

    def __init__(self) -> None:
        self.limit = 0
        self._kept: dict[tuple[int, object], Kept] = {}

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def bytes(self) -> int:
        """The memory that all take."""
        return sum(kept.bytes for kept in list(self._kept.values()))

    def shrink(self, limit: int) -> None:
        """Set the limit, and drop all filters if they exceed it."""
        self.limit = limit
        if self.bytes > limit:
            self._kept.clear()

    def operand(self, step: Step, w: Any) -> Any:
        """What the step's call takes in place of the filter `w`; None if that is `w` itself."""
        if not (self.limit and isinstance(w, torch.nn.Parameter)) or step.packed_call is None:
            return None
        if w.requires_grad and torch.is_grad_enabled():  # an optimiser is about to change it
            return None
        words = _words(w)
        if words is None:
            return None
        key = (id(w), step.order)
        kept = self._kept.get(key)
        if kept is None or not np.array_equal(kept.words, words):
            kept = self._keep(key, step, w, words)
        return None if kept is None else kept.packed.operand

    def _keep(self, key: tuple[int, object], step: Step, w: Any, words: Array) -> Kept | None:
        """Pack `w`, and keep it; None if there is no room."""
        self._kept.pop(key, None)
        if self.bytes + words.nbytes + step.plan.engine.packed_bytes > self.limit:
            return None
        owner = weakref.ref(w, lambda _: self._kept.pop(key, None))
        copy = words.copy()
        kept = self._kept[key] = Kept(owner, copy, step.pack(w))
        return kept


def _words(w: Any) -> Array | None:
    """The memory of `w` as integers, if its elements fill it without gaps; else None."""
    array = tensor_array(w)
    for order in (array, array.transpose(0, *range(2, array.ndim), 1)):
        if order.flags.c_contiguous:
            line = order.reshape(-1)
            size = next(size for size in (8, 4, 2) if line.nbytes % size == 0)
            return line.view(f"u{size}")
    return None


FILTERS = PackedFilters()  # of this process
