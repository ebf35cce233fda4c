"""Twins of kernels/gpu/tma.py: the walks of kernels/walk.py over global memory into shared memory.

A map is an object of implicit_conv.tma, with shape, byte strides, dtype,
`axes`, `swizzle` and `rows`. A copy is announced when it is issued, and arrives later.
"""

import functools

import numpy as np

from implicit_conv.kernels import walk
from implicit_conv.kernels.sim.errors import SimulationError
from implicit_conv.kernels.sim.machine import current

SPAN = {"none": 0, "32B": 32, "64B": 64, "128B": 128}
SMEM_ALIGNMENT = 128


def _issue(map, smem, barrier, positions, channel, entry):
    """Announce the rows at `positions` (n, d, h, w), record `entry`, and deliver them later."""
    warp = current()
    if warp.block.record is not None:
        warp.block.record.append((*entry, smem, len(positions)))
    if not warp.elected:
        raise SimulationError("a tensor copy is issued by one lane: guard it by warp.elect()")
    if smem % SMEM_ALIGNMENT:
        raise SimulationError(
            f"a tensor copy's shared address {smem:#x} is not aligned to 128 bytes"
        )
    block = warp.block
    span, row_bytes = SPAN[map.swizzle], map.row_bytes
    line = (
        smem
        + np.arange(len(positions))[:, None] * (span or row_bytes)
        + np.arange(0, row_bytes, 16)
    )
    addresses = walk.swizzle(line, walk.swizzle_mask(span)).reshape(-1)
    block.smem.announce(warp, addresses, 16)
    target = block.barrier(barrier)
    block.copies.append(
        functools.partial(_deliver, block, map, addresses, positions, channel, target)
    )


def _deliver(block, map, addresses, positions, channel, barrier):
    data = _gather(block.memory, map, positions, channel)
    block.smem.deliver(addresses, data.reshape(-1, 16), barrier.actor, barrier.filling)
    barrier.complete_tx(data.size)


def _gather(memory, map, positions, channel):
    """Rows x bytes of the copy; elements outside the tensor are zero."""
    sizes = (map.shape[0], *(1,) * (5 - len(map.shape)), *map.shape[1:-1])
    given = map.strides or map.description.byte_strides
    strides = (given[0], *(0,) * (5 - len(map.shape)), *given[1:])
    itemsize = np.dtype(map.dtype).itemsize
    channels = channel + np.arange(map.row_bytes // itemsize)
    inside = np.all((positions >= 0) & (positions < sizes), axis=1)[:, None]
    inside = inside & (channels >= 0) & (channels < map.shape[-1])
    at = map.address + (positions * strides).sum(axis=1)[:, None] + channels * itemsize
    data = np.zeros((*at.shape, itemsize), np.uint8)
    data[inside] = memory.load(at[inside], itemsize)
    return data.reshape(len(positions), -1)


def load_tile_3d(smem, map, c, b, a, barrier):
    """Copies the box {channels, 1, rows}."""
    rows = a + np.arange(map.box[0])
    positions = np.stack([rows, 0 * rows, 0 * rows, 0 * rows + b], axis=1)
    _issue(map, smem, barrier, positions, c, ("tile", (a, b, c), ()))


def load_im2col(smem, map, c, w, h, n, barrier, offset_w, offset_h):
    start = map.start((n, h, w, c), (offset_h, offset_w))
    positions = np.empty((map.rows(start.w_halo), 4), np.int64)
    walk.walk_im2col(positions, n, 0, h, w, *map.axes())
    positions[:, 2:] += (offset_h, offset_w)
    entry = ("im2col", (n, h, w, c), (offset_h, offset_w))
    _issue(map, smem, barrier, positions, c, entry)


def load_im2col_w(smem, map, c, w, h, n, barrier, halo, offset):
    map.start((n, h, w, c), None, halo, offset)
    positions = np.empty((map.rows(halo), 4), np.int64)
    walk.walk_wide(positions, n, 0, h, w + offset, map.axes(offset)[2])
    _issue(map, smem, barrier, positions, c, ("w", (n, h, w, c), (halo, offset)))


def load_im2col_w128(smem, map, c, w, h, n, barrier, halo, offset):
    map.start((n, h, w, c), None, halo, offset)
    positions = np.empty((walk.w128_rows(halo), 4), np.int64)
    walk.walk_w128(positions, n, 0, h, w + offset, map.axes(offset)[2], halo)
    _issue(map, smem, barrier, positions, c, ("w128", (n, h, w, c), (halo, offset)))


def load_cluster(mode, multicast=False, cta_group=0):
    """A simulated cluster has one block, to which a multicast goes."""
    hook = {"im2col": load_im2col, "im2col::w": load_im2col_w, "im2col::w::128": load_im2col_w128}[
        mode
    ]
    if not multicast:
        return hook

    def load(smem, map, c, w, h, n, barrier, first, second, blocks):
        if blocks != 1:
            raise SimulationError(
                f"multicast to blocks {blocks:#b}: a simulated cluster has one block"
            )
        hook(smem, map, c, w, h, n, barrier, first, second)

    return load


def prefetch_im2col(map, c, w, h, n, offset_w, offset_h):
    map.start((n, h, w, c), (offset_h, offset_w))


def prefetch_map(map):
    """Nothing to do: there is no cache."""


def acquire_map(map):
    """Nothing to do: maps are Python objects."""


def store_tile(map, smem, c, w, h, n):
    raise SimulationError("TMA stores are not simulated: no kernel uses them yet")


def store_commit():
    """Nothing to do: `store_tile` raises."""


def store_wait():
    """Nothing to do: `store_tile` raises."""
