"""A ring of stages in shared memory, each with a "full" and an "empty" barrier.

Producer and consumer walk it in the same order: `stage` and `parity` start at 0 and change only in
`advance`. The consumer waits for the current parity of "full", the producer for the previous parity
of "empty", so that in its first round the producer never waits.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from implicit_conv.kernels.gpu import mbarrier, warp
from implicit_conv.kernels.gpu.ptx import device
from implicit_conv.kernels.gpu.sizes import STAGE_BARRIERS_BYTES


class Ring(NamedTuple):
    """Addresses of a ring's barriers and first stage, bytes of a stage, number of stages."""

    barriers: int
    base: int
    stage_bytes: int
    stages: int


Rings: TypeAlias = tuple[Ring, Ring]  # of A and of B


@device
def init(ring: Ring, producers: int, consumers: int, lane: int) -> None:
    """Initialise the barriers, by one warp.

    A stage is full after `producers` arrivals and the announced bytes, empty after `consumers`.
    """
    for stage in range(ring.stages):
        barrier = ring.barriers + STAGE_BARRIERS_BYTES * stage
        mbarrier.init(barrier, producers, lane == 0)
        mbarrier.init(barrier + 8, consumers, lane == 0)


@device
def full(ring: Ring, stage: int) -> int:
    """Address of the barrier on which a producer arrives."""
    return ring.barriers + STAGE_BARRIERS_BYTES * stage


@device
def address(ring: Ring, stage: int) -> int:
    """Address of a stage."""
    return ring.base + stage * ring.stage_bytes


@device
def advance(ring: Ring, stage: int, parity: int) -> tuple[int, int]:
    """(stage, parity) of the next step."""
    stage += 1
    if stage == ring.stages:
        return 0, parity ^ 1
    return stage, parity


@device
def wait_empty(ring: Ring, stage: int, parity: int) -> None:
    """Producer: wait until the stage may be overwritten."""
    mbarrier.wait(ring.barriers + STAGE_BARRIERS_BYTES * stage + 8, parity ^ 1)


@device
def wait_full(ring: Ring, stage: int, parity: int) -> None:
    """Consumer: wait until the data of the stage have arrived."""
    mbarrier.wait(ring.barriers + STAGE_BARRIERS_BYTES * stage, parity)


@device
def release(ring: Ring, stage: int, lane: int) -> None:
    """Consumer: report that this warp has read the stage.

    The lanes synchronise first, because one lane arrives for all of them.
    """
    warp.sync()
    mbarrier.arrive(ring.barriers + STAGE_BARRIERS_BYTES * stage + 8, lane == 0)
