"""Twins of kernels/gpu/cp_async.py: copies are pending until the warp ties them to a barrier."""

import functools

import numpy as np

from implicit_conv.kernels.sim.machine import LANES, current


def copy16(smem, gmem, size):
    warp = current()
    smem, gmem, size = (np.broadcast_to(value, LANES.shape) for value in (smem, gmem, size))
    memory = warp.block.memory
    data = np.zeros((len(LANES), 16), np.uint8)
    present = size > 0
    memory.check(gmem, 16, "a cp.async")
    data[present] = memory.load(gmem[present], 16)
    data[np.arange(16) >= size[:, None]] = 0
    warp.block.smem.announce(warp, smem, 16)
    warp.copies.append((smem.copy(), data))


def arrive(barrier):
    warp = current()
    copies, warp.copies = warp.copies, []
    target = warp.block.barrier(barrier)
    warp.block.copies.append(functools.partial(_deliver, warp.block, copies, target))


def _deliver(block, copies, barrier):
    for addresses, data in copies:
        block.smem.deliver(addresses, data, barrier.actor, barrier.filling)
    barrier.arrive(len(LANES))
