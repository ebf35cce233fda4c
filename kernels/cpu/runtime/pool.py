"""Memory that outlives a call: fresh memory would cost a page fault every 4 KiB, each time."""

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import numpy as np

from implicit_conv.kernels.cpu.runtime.layout import LINE

KEPT_BYTES = 64 << 20  # what the pool may hold while nobody uses it
SMALL_BYTES = 512 << 10  # blocks of which there is at most one for each thread that ever called


@dataclass(frozen=True, slots=True)
class Block:
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
    """Blocks that are lent out one at a time, from any thread: a list for each power of two.

    It needs no lock: threads, forks and interrupts come between its steps, `pop` and `append`,
    never within one.
    """

    def __init__(self, kept_bytes: int = KEPT_BYTES) -> None:
        self._kept_bytes = kept_bytes
        self._free: defaultdict[int, list[Block]] = defaultdict(list)

    def take(self, size: int) -> Block:
        """A block of `size` bytes, rounded up to a power of two; it begins on a cache line."""
        size = 1 << (size - 1).bit_length()
        try:
            return self._free[size].pop()
        except IndexError:
            memory = aligned_bytes(size)
            return Block(size, memory.ctypes.data, memory)

    def give(self, block: Block) -> None:
        """Return what `take` lent."""
        size = block.size
        if size > SMALL_BYTES and self._held() + size > self._kept_bytes:
            self._free.clear()  # sizes of long ago among them
        if size <= self._kept_bytes:
            self._free[size].append(block)

    def _held(self) -> int:
        """Bytes that nobody uses."""
        return sum(size * len(free) for size, free in self._free.copy().items())


POOL = Pool()
