"""Memory that outlives a call: fresh memory would cost a page fault every 4 KiB, each time."""

import threading
from bisect import bisect_left, insort
from contextlib import contextmanager

import numpy as np

from implicit_conv.kernels.cpu.sizes import LINE

KEPT_BYTES = 64 << 20  # what the pool may hold while nobody uses it


def aligned_bytes(size):
    """An uninitialised array of `size` bytes that begins on a cache line."""
    memory = np.empty(size + LINE, np.uint8)
    start = -memory.ctypes.data % LINE
    return memory[start : start + size]


class Pool:
    """Arrays that are lent out one at a time, from any thread."""

    def __init__(self, kept_bytes=KEPT_BYTES):
        self._kept_bytes = kept_bytes
        self._free = []  # by size
        self._lock = threading.Lock()

    @contextmanager
    def borrow(self, size):
        """An aligned array of at least `size` bytes, the smallest that is free."""
        with self._lock:
            index = bisect_left(self._free, size, key=len)
            memory = self._free.pop(index) if index < len(self._free) else None
        if memory is None:
            memory = aligned_bytes(size)
        try:
            yield memory
        finally:
            self._give(memory)

    def _give(self, memory):
        with self._lock:
            insort(self._free, memory, key=len)
            while sum(map(len, self._free)) > self._kept_bytes:
                self._free.pop(0)


POOL = Pool()
