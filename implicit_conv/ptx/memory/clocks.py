"""Vector clocks: what each actor of a block has seen of the others (PTX ISA 8, memory model).

Actors are the warps of a block, the queue of cp.async of each warp, and the mbarriers, on whose
behalf bulk copies write. A stamp is 32 * time + lane, with the time on the actor's own clock. An
access comes after another if its warp has seen that one's stamp.

A warp keeps two rows: what it has seen through the generic proxy, and what a proxy fence has made
visible to the async proxy too. Both are passed on by barriers.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Clock: TypeAlias = "NDArray[np.int64]"  # (2, actors): generic and async
GENERIC, ASYNC = range(2)
BARRIERS = 256  # mbarriers of a block at most
LANE_BITS = 5
ANY_LANE = 31  # the highest lane: a stamp that covers all lanes of its time


def new_clock(warps: int) -> Clock:
    """A clock that has seen nothing, of a block with so many warps."""
    return np.full((2, 2 * warps + BARRIERS), -1, np.int64)


def stamp(time: int, lane: int = ANY_LANE) -> int:
    """The stamp of a time on an actor's clock."""
    return time << LANE_BITS | lane


def join(clock: Clock, other: Clock) -> None:
    """See what another has seen."""
    np.maximum(clock, other, out=clock)


def fence(clock: Clock) -> None:
    """``fence.proxy.async``: what was seen so far is visible to the async proxy (9.7.13)."""
    np.maximum(clock[ASYNC], clock[GENERIC], out=clock[ASYNC])
