"""Vector clocks: what each actor of a cluster has seen of the others (PTX ISA 8, memory model).

Actors are the warps of a cluster, the queue of cp.async of each warp, and the mbarriers, on whose
behalf bulk copies write. A stamp is 32 * time + lane, with the time on the actor's own clock. An
access comes after another if its warp has seen that one's stamp.

A warp keeps two rows: what it has seen through the generic proxy, and what a proxy fence has made
visible to the async proxy too. Both are passed on by barriers.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

Clock: TypeAlias = "NDArray[np.int64]"  # (2, actors): generic and async
Flags: TypeAlias = "dict[int, Clock]"  # what was released at addresses
GENERIC, ASYNC = range(2)
BARRIERS = 256  # mbarriers of a block at most
LANE_BITS = 5
ANY_LANE = 31  # the highest lane: a stamp that covers all lanes of its time


class Actors(NamedTuple):
    """The numbers of a block's actors in a cluster of `blocks` blocks, where it has a rank.

    All warps of the cluster come first, in the order of ranks, then their queues of cp.async, then
    BARRIERS for each block, of which the last stands for strong writes.
    """

    blocks: int
    warps: int  # of a block
    rank: int

    @property
    def all_warps(self) -> int:
        """Warps of the cluster; the number of the first queue, too."""
        return self.blocks * self.warps

    @property
    def own_warps(self) -> slice:
        """The warps of the block."""
        return slice(self.rank * self.warps, (self.rank + 1) * self.warps)

    @property
    def first_barrier(self) -> int:
        """The first mbarrier of the block."""
        return 2 * self.all_warps + self.rank * BARRIERS

    def new_clock(self) -> Clock:
        """A clock that has seen nothing."""
        return np.full((2, 2 * self.all_warps + self.blocks * BARRIERS), -1, np.int64)


def stamp(time: int, lane: int = ANY_LANE) -> int:
    """The stamp of a time on an actor's clock."""
    return time << LANE_BITS | lane


def join(clock: Clock, other: Clock) -> None:
    """See what another has seen."""
    np.maximum(clock, other, out=clock)


def fence(clock: Clock) -> None:
    """``fence.proxy.async``: what was seen so far is visible to the async proxy (9.7.13)."""
    np.maximum(clock[ASYNC], clock[GENERIC], out=clock[ASYNC])
