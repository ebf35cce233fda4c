"""The simulator's fast path: the walks compiled, and rows moved between a tensor and shared memory.

Tensors are unsigned integers (n, d, h, w, c) of any strides, positions rows x (n, d, h, w), rows
are rows x channels. `c` is the first channel; what lies outside the tensor is filled, or dropped.
"""

from implicit_conv.kernels import walk
from implicit_conv.kernels.cpu.cache import kernel
from implicit_conv.kernels.cpu.compiled import compile_module, schedule

steps = compile_module(walk)
_inside_axis = steps.inside
_valid_pixels = schedule.valid_pixels
_walk_im2col, _walk_wide, _walk_w128 = steps.walk_im2col, steps.walk_wide, steps.walk_w128


@kernel()
def _inside(x, position):
    for axis in range(4):
        if not _inside_axis(position[axis], x.shape[axis]):
            return False
    return True


@kernel()
def gather(x, positions, c, fill, rows):
    """The rows that a load delivers."""
    channels = rows.shape[1]
    first, end = _valid_pixels(c, x.shape[4], 1, channels)
    for r in range(len(positions)):
        if not _inside(x, positions[r]):
            rows[r, :] = fill
            continue
        n, d, h, w = positions[r]
        pixel = x[n, d, h, w]
        rows[r, :first] = fill
        for j in range(first, end):
            rows[r, j] = pixel[c + j]
        rows[r, end:] = fill


@kernel()
def scatter(x, positions, c, rows):
    """Write rows where a store puts them; a later row overwrites an earlier one."""
    first, end = _valid_pixels(c, x.shape[4], 1, rows.shape[1])
    for r in range(len(positions)):
        if _inside(x, positions[r]):
            n, d, h, w = positions[r]
            for j in range(first, end):
                x[n, d, h, w, c + j] = rows[r, j]


@kernel()
def walk_im2col(positions, n, d, h, w, depth, height, width):
    """kernels.walk.walk_im2col, compiled."""
    _walk_im2col(positions, n, d, h, w, depth, height, width)


@kernel()
def walk_wide(positions, n, d, h, w, width):
    """kernels.walk.walk_wide, compiled."""
    _walk_wide(positions, n, d, h, w, width)


@kernel()
def walk_w128(positions, n, d, h, w, width, w_halo):
    """kernels.walk.walk_w128, compiled."""
    _walk_w128(positions, n, d, h, w, width, w_halo)
