"""A ring of stages in shared memory, each with a barrier for "full" and one for "empty".

Both sides walk it in step: `stage` and `parity` start at 0 and move on in `advance` alone. The
consumer waits for the parity it is in; the producer for the one before, so its first round passes
at once.
"""

from typing import NamedTuple

from implicit_conv.kernels.gpu import mbarrier, warp
from implicit_conv.kernels.gpu.ptx import device
from implicit_conv.kernels.gpu.sizes import STAGE_BARRIERS_BYTES


class Ring(NamedTuple):
    """Where a ring lies: its barriers, its first stage, bytes of a stage, number of stages."""

    barriers: int
    base: int
    stage_bytes: int
    stages: int


@device
def init(ring, producers, consumers, lane):
    """Expect `producers` arrivals (and bytes) until full, `consumers` until empty; one warp."""
    for stage in range(ring.stages):
        barrier = ring.barriers + STAGE_BARRIERS_BYTES * stage
        mbarrier.init(barrier, producers, lane == 0)
        mbarrier.init(barrier + 8, consumers, lane == 0)


@device
def full(ring, stage):
    """Address of the barrier on which a producer arrives."""
    return ring.barriers + STAGE_BARRIERS_BYTES * stage


@device
def address(ring, stage):
    """Where a stage begins."""
    return ring.base + stage * ring.stage_bytes


@device
def advance(ring, stage, parity):
    """(stage, parity) of the next step."""
    stage += 1
    if stage == ring.stages:
        return 0, parity ^ 1
    return stage, parity


@device
def wait_empty(ring, stage, parity):
    """Producer: the stage may be overwritten."""
    mbarrier.wait(ring.barriers + STAGE_BARRIERS_BYTES * stage + 8, parity ^ 1)


@device
def wait_full(ring, stage, parity):
    """Consumer: the stage's data are in."""
    mbarrier.wait(ring.barriers + STAGE_BARRIERS_BYTES * stage, parity)


@device
def release(ring, stage, lane):
    """Consumer: this warp has read the stage. The lanes meet first: one arrives for all."""
    warp.sync()
    mbarrier.arrive(ring.barriers + STAGE_BARRIERS_BYTES * stage + 8, lane == 0)
