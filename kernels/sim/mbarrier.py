"""Twins of kernels/gpu/mbarrier.py. A scalar predicate applies to all active lanes."""

import numpy as np

from implicit_conv.kernels.sim.machine import MAX_BARRIERS, Barrier, current


def active(predicate):
    """Number of active lanes whose predicate holds."""
    if np.ndim(predicate):
        return int(np.count_nonzero(predicate))
    return bool(predicate) * (1 if current().elected else 32)


def init(barrier, count, predicate):
    block = current().block
    assert active(predicate) == 1, "one lane initialises a barrier"
    assert barrier % 8 == 0 and len(block.barriers) < MAX_BARRIERS
    actor = block.warps_count + len(block.barriers)
    block.barriers[barrier] = Barrier(block, barrier, count, actor)


def fence_init():
    """Nothing to do: initialised barriers are visible at once."""


def arrive(barrier, predicate):
    warp = current()
    warp.block.barrier(barrier).arrive(active(predicate), warp.release())


def arrive_expect_tx(barrier, size):
    expect_tx(barrier, size)
    arrive(barrier, 1)


def expect_tx(barrier, size):
    current().block.barrier(barrier).expect(size * active(1))


def wait(barrier, parity):
    warp = current()
    awaited = warp.block.barrier(barrier)
    if awaited.completed % 2 == parity:
        warp.wait(lambda: awaited.completed % 2 != parity, f"{awaited}, parity {parity}")
    np.maximum(warp.clock, awaited.clock, out=warp.clock)
