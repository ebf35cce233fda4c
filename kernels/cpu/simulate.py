"""The simulator's fast path: compiled walks, and copies of rows between a tensor and shared memory.

Tensors are unsigned integers (n, d, h, w, c) of any strides, positions are rows x (n, d, h, w), and
rows are rows x channels. `c` is the first channel. Elements outside the tensor are filled by loads
and dropped by stores.
"""

from implicit_conv.kernels import walk
from implicit_conv.kernels.cpu.runtime.cache import dispatcher, kernel
from implicit_conv.kernels.cpu.runtime.compiled import compile_module, schedule

steps = compile_module(walk)


@kernel()
def _inside(x, position):
    for axis in range(4):
        if not steps.inside(position[axis], x.shape[axis]):
            return False
    return True


@dispatcher
def gather(x, positions, c, fill, rows):
    """The rows that a load delivers."""
    first, end = schedule.valid_pixels(c, x.shape[4], 1, rows.shape[1])
    for r in range(len(positions)):
        if not _inside(x, positions[r]):
            rows[r, :] = fill
            continue
        n, d, h, w = positions[r]
        rows[r, :first] = fill
        for j in range(first, end):
            rows[r, j] = x[n, d, h, w, c + j]
        rows[r, end:] = fill


@dispatcher
def scatter(x, positions, c, rows):
    """Write rows where a store puts them; a later row overwrites an earlier one."""
    first, end = schedule.valid_pixels(c, x.shape[4], 1, rows.shape[1])
    for r in range(len(positions)):
        if _inside(x, positions[r]):
            n, d, h, w = positions[r]
            for j in range(first, end):
                x[n, d, h, w, c + j] = rows[r, j]


@dispatcher
def walk_im2col(positions, n, d, h, w, depth, height, width):
    """kernels.walk.walk_im2col for calls from Python."""
    steps.walk_im2col(positions, n, d, h, w, depth, height, width)


@dispatcher
def walk_wide(positions, n, d, h, w, width):
    """kernels.walk.walk_wide for calls from Python."""
    steps.walk_wide(positions, n, d, h, w, width)
