"""Packed filters of parameters, which are kept while every byte of the parameter is the same.

The version counter of a tensor does not tell of all writes: ``p.data.add_()``, numpy arrays over
its memory and other processes pass it by. So the bytes themselves are compared, which is many times
faster than packing, and needs no trust in anybody.
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from implicit_conv.arrays.arrays import Array
from implicit_conv.arrays.tensors import address, tensor_array

if TYPE_CHECKING:
    from implicit_conv.torch.steps import Step

Key = tuple[int, object]  # (address of the parameter's elements, order of the packed ones)


class Kept(NamedTuple):
    """A packed filter, and what the parameter was when it was packed.

    `owner` is a reference to the parameter's storage, whose end ends this entry. (One to the
    parameter would forbid ``torch.utils.swap_tensors``.)
    """

    owner: weakref.ref[Any]
    words: Array
    packed: Any

    @property
    def bytes(self) -> int:
        """The memory that it takes."""
        return int(self.words.nbytes + self.packed.bytes)


class PackedFilters:
    """Packed filters by `Key`, of `limit` bytes in all.

    A key is a hint where to look, and says how to read bytes. If memory is freed and used again,
    its address finds an entry only if the new bytes are equal and have the same meaning.
    """

    def __init__(self) -> None:
        self.limit = 0
        self._kept: dict[Key, Kept] = {}
        self.renew_lock()

    def renew_lock(self) -> None:
        """Forget a lock that another thread may hold, which a forked child does not have."""
        self._lock = threading.Lock()  # held while an entry is added or the limit changes

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def bytes(self) -> int:
        """The memory that all take."""
        return sum(kept.bytes for kept in list(self._kept.values()))

    def shrink(self, limit: int) -> None:
        """Set the limit, and drop all filters if they exceed it."""
        with self._lock:
            self.limit = limit
            if self.bytes > limit:
                self._kept.clear()

    def packed(self, step: Step, w: Any) -> Any:
        """The filter `w`, packed as the step's call takes it; None if the call takes `w` itself.

        The caller holds the result until its kernel has returned, because another thread may drop
        the entry meanwhile.
        """
        if not (self.limit and isinstance(w, torch.nn.Parameter)) or step.packed_call is None:
            return None
        if w.requires_grad and torch.is_grad_enabled():  # an optimiser is about to change it
            return None
        place = address(w)
        if not place:
            return None
        array = tensor_array(w)
        words = _words(array)
        if words is None:
            return None
        key = (place, step.order)
        kept = self._kept.get(key)
        if kept is None or not np.array_equal(kept.words, words):
            kept = self._pack(key, step, w, array, words)
        return None if kept is None else kept.packed

    def _pack(self, key: Key, step: Step, w: Any, array: Array, words: Array) -> Kept | None:
        """Pack `w` and keep it; None if there is no room."""
        self._kept.pop(key, None)
        if not self._has_room(words.nbytes + step.plan.engine.packed_bytes):
            return None
        owner = weakref.ref(w.untyped_storage(), lambda _: self._kept.pop(key, None))
        copy = words.copy()  # which is packed too: another thread may write to `w` meanwhile
        copied: Array = np.ndarray(array.shape, array.dtype, copy, 0, array.strides)
        kept = Kept(owner, copy, step.pack(copied))
        with self._lock:
            if self._has_room(kept.bytes):
                self._kept[key] = kept
        return kept

    def _has_room(self, size: int) -> bool:
        """Whether so many bytes may be added."""
        return self.bytes + size <= self.limit


def _words(array: Array) -> Array | None:
    """The memory of an array as integers, if its elements fill it without gaps; else None."""
    for order in (array, array.transpose(0, *range(2, array.ndim), 1)):
        if order.flags.c_contiguous:
            line = order.reshape(-1)
            size = next(size for size in (8, 4, 2) if line.nbytes % size == 0)
            return line.view(f"u{size}")
    return None


FILTERS = PackedFilters()  # of this process
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=FILTERS.renew_lock)
