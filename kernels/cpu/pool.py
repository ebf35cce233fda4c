"""Memory that outlives a call: fresh memory would cost a page fault every 4 KiB, each time."""

import os
import threading
from bisect import bisect_left, insort
from typing import Any, NamedTuple

import numpy as np

from implicit_conv.kernels.cpu.sizes import LINE

KEPT_BYTES = 64 << 20  # what the pool may hold while nobody uses it


class Block(NamedTuple):
    """Memory and where it lies."""

    size: int
    address: int
    memory: object  # what keeps it alive


def aligned_bytes(size: int) -> Any:
    """An uninitialised array of `size` bytes that begins on a cache line."""
    memory = np.empty(size + LINE, np.uint8)
    start = -memory.ctypes.data % LINE
    return memory[start : start + size]


class Pool:
    """Blocks that are lent out one at a time, from any thread."""

    def __init__(self, kept_bytes: int = KEPT_BYTES) -> None:
        self._kept_bytes = kept_bytes
        # By size. One list, changed in one step: an interrupt between two would leave a wrong pool.
        self._free: list[Block] = []
        self._lock = threading.Lock()

    def take(self, size: int) -> Block:
        """The smallest free block of at least `size` bytes; it begins on a cache line."""
        with self._lock:
            index = bisect_left(self._free, (size,))
            if index < len(self._free):
                return self._free.pop(index)
        memory = aligned_bytes(size)
        return Block(size, memory.ctypes.data, memory)

    def give(self, block: Block) -> None:
        """Return what `take` lent."""
        with self._lock:
            insort(self._free, block)
            while sum(free.size for free in self._free) > self._kept_bytes:
                del self._free[0]


POOL = Pool()
if hasattr(os, "register_at_fork"):  # another thread may hold the lock, or be between two steps
    os.register_at_fork(after_in_child=POOL.__init__)
