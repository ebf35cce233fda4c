"""Memory that begins on cache lines: a pool of blocks, since fresh memory would cost a page fault
per 4 KiB in every call, and new arrays for results.
"""

import math
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import numpy as np

from implicit_conv.kernels.cpu.runtime.layout import LINE

KEPT_BYTES = 64 << 20  # bytes of unused blocks that the pool may hold
SMALL_BYTES = 512 << 10  # bytes of blocks that are always kept: one per thread that ever called
# Bytes from which on a result begins on a cache line; below, the half microsecond counts for more.
# numpy's arrays begin 16 bytes after a line, so that each store of a whole line goes to two. On a
# Zen 4 that cost 1x1 of 64 to 256 channels at 56 x 56 a tenth of its speed, and a depthwise layer
# that reads such a result a fifth.
LEAST_BYTES = 16 << 10
# Where such a result begins within PAGE, seen from the line in which x begins. A load waits for an
# earlier store at an address that differs from its own by a multiple of PAGE, and lines with such
# addresses share a set of L1. On a Zen 4, depthwise layers whose channels fill 1 or 2 KiB took up
# to twice as long with the result 64 bytes on.
PAGE, APART = 4096, 768


@dataclass(frozen=True, slots=True)
class Block:
    """A block of memory."""

    size: int  # bytes
    address: int
    memory: object  # the array that owns the memory


def aligned_bytes(size: int) -> Any:
    """An uninitialised array of `size` bytes that begins on a cache line."""
    memory = np.empty(size + LINE, np.uint8)
    start = -memory.ctypes.data % LINE
    return memory[start : start + size]


def new_array(shape: tuple[int, ...], dtype: Any, x: int) -> Any:
    """An uninitialised array in C order, for what is computed from the array at address `x`. If it
    is large, it is a view of memory of its own, and begins where stores do not hold up loads.
    """
    dtype = np.dtype(dtype)
    size = math.prod(shape) * dtype.itemsize
    if size < LEAST_BYTES:
        return np.empty(shape, dtype)
    memory = np.empty(size + PAGE, np.uint8)
    first = x // LINE * LINE + APART
    return np.ndarray(shape, dtype, memory, (first - memory.ctypes.data) % PAGE)


class Pool:
    """Blocks whose sizes are powers of two, with one list of free blocks per size.

    Any thread may call it, and it needs no lock: `pop` and `append` are atomic, so threads, forks
    and interrupts can only come between them.
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
        """Return a block from `take` to the pool."""
        size = block.size
        if size > SMALL_BYTES and self._held() + size > self._kept_bytes:
            self._free.clear()  # also frees sizes that are no longer used
        if size <= self._kept_bytes:
            self._free[size].append(block)

    def _held(self) -> int:
        """Bytes of all free blocks."""
        return sum([size * len(free) for size, free in self._free.copy().items()])


POOL = Pool()
