"""New arrays for results, of which large ones begin on a cache line.

numpy's arrays begin 16 bytes after one, so that each store of a whole line goes to two. On a Zen 4
that cost 1x1 of 64 to 256 channels at 56 x 56 a tenth of its speed, and a depthwise layer that
reads such a result a fifth.
"""

import math
from typing import Any

import numpy as np

from implicit_conv.kernels.cpu.runtime.pool import aligned_bytes

# Bytes from which on a result begins on a cache line; below, the half microsecond counts for more.
LEAST_BYTES = 16 << 10


def new_array(shape: tuple[int, ...], dtype: Any) -> Any:
    """An uninitialised array in C order. A large one is a view of the memory that it owns alone."""
    dtype = np.dtype(dtype)
    size = math.prod(shape) * dtype.itemsize
    if size < LEAST_BYTES:
        return np.empty(shape, dtype)
    return np.ndarray(shape, dtype, aligned_bytes(size))
