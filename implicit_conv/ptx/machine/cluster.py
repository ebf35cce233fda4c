"""A cluster: blocks that run together and reach each other's shared memory (PTX ISA 2.2.2).

A launch without clusters has clusters of one block.
"""

from __future__ import annotations

import functools
import itertools
import math
from typing import Any

import numpy as np

from implicit_conv.ptx.errors import PtxError
from implicit_conv.ptx.kinds import LANES, Lanes
from implicit_conv.ptx.machine.barriers import Meeting
from implicit_conv.ptx.machine.cta import Cta, Pending
from implicit_conv.ptx.machine.state import State
from implicit_conv.ptx.memory.clocks import Actors, Flags
from implicit_conv.ptx.memory.global_order import GlobalOrder
from implicit_conv.ptx.memory.spaces import BLOCK_BYTES, WINDOW_BYTES, WINDOWS

MASK_BITS = 16  # of the mask of a multicast


class Cluster:
    """The cluster of a Launch at an index among its clusters.

    Attributes
    ----------
    blocks : list of Cta
        By rank: x is the fastest axis.
    warps : list of Warp
        Of all blocks.
    pending : list of Pending
        Copies under way.
    flags : Flags
        What its warps have released at addresses of global memory.
    """

    def __init__(self, launch: Any, index: tuple[int, int, int]) -> None:
        self.index, shape = index, launch.cluster
        size, warps = math.prod(shape), -(-launch.threads // LANES)
        self.pending: list[Pending] = []
        self.flags: Flags = {}
        self.global_order = GlobalOrder(launch.memory)
        places = itertools.product(*(range(n) for n in reversed(shape)))
        self.blocks = [
            Cta(launch, self, Actors(size, warps, rank), self._block(shape, place[::-1]))
            for rank, place in enumerate(places)
        ]
        self.warps = [warp for block in self.blocks for warp in block.warps]

    def _block(self, shape: tuple[int, int, int], place: tuple[int, ...]) -> tuple[int, int, int]:
        """The index in the grid of a block at a place in the cluster."""
        x, y, z = (i * n + at for i, n, at in zip(self.index, shape, place, strict=True))
        return x, y, z

    def __str__(self) -> str:
        blocks = [block.place for block in self.blocks]
        return f"cluster of blocks {', '.join(blocks)}" if blocks[1:] else str(self.blocks[0])

    @functools.cached_property
    def meeting(self) -> Meeting:
        """The barrier of the cluster."""
        return Meeting(self.blocks[0].actors.new_clock())

    @property
    def needed(self) -> int:
        """Threads of this turn of its barrier: those that have arrived, and live ones that have
        not.
        """
        missing = [warp.alive & (warp.cluster_turns != self.meeting.turn) for warp in self.warps]
        return self.meeting.arrived + int(np.sum(missing))

    def settle(self) -> None:
        """Threads have ended, which may have been the last that its barrier waited for."""
        if self.meeting.arrived:
            self.meeting.settle(self.needed)

    def named(self, mask: int, offsets: tuple[int, ...]) -> list[Cta]:
        """The blocks that the mask of a multicast names; `offsets` of its instruction help a guess.

        Raises
        ------
        PtxError
            It names none, or one that the cluster does not have.
        """
        mask &= (1 << MASK_BITS) - 1
        size = len(self.blocks)
        if 0 < mask < 1 << size:
            return [block for rank, block in enumerate(self.blocks) if mask >> rank & 1]
        ranks = [rank for rank in range(MASK_BITS) if mask >> rank & 1]
        beyond = [rank for rank in ranks if rank >= size]
        words = f"ranks {', '.join(map(str, beyond))}" if beyond else "no block"
        hint = ""
        if any(0 < offset < 1 << size for offset in offsets):
            hint = (
                f"; the im2col offsets {offsets} look like a mask: after the mbarrier come the "
                "offsets, then the mask, then the cache policy"
            )
        raise PtxError(
            f"the multicast mask {mask:#x} names {words}, in a cluster of {size} "
            f"block{'s' * (size > 1)}: it has a bit for each %cluster_ctarank{hint}"
        )


def mapped(w: State, generic: bool, at: Lanes, rank: Lanes, mask: Lanes) -> Lanes:
    """``mapa``: the addresses of the same variables in the block of a rank (9.7.9, mapa)."""
    size = len(w.cta.cluster.blocks)
    if (rank[mask] >= size).any():
        raise PtxError(f"mapa to rank {int(rank[mask].max())}, in a cluster of {size} blocks")
    _need_shared(generic, at[mask], "mapa")
    window = WINDOWS["shared"] if generic else 0
    own = at.astype(np.uint64) & (BLOCK_BYTES - 1)
    return own + (rank.astype(np.uint64) + 1) * BLOCK_BYTES + window


def ranks(w: State, generic: bool, at: Lanes, mask: Lanes) -> Lanes:
    """``getctarank``: the ranks of the blocks that addresses belong to (9.7.9, getctarank)."""
    _need_shared(generic, at[mask], "getctarank")
    parts = (at.astype(np.uint64) & (WINDOW_BYTES - 1)) // BLOCK_BYTES
    return np.where(parts == 0, w.cta.actors.rank, parts - 1).astype(np.uint32)


def _need_shared(generic: bool, at: Lanes, what: str) -> None:
    start = WINDOWS["shared"] if generic else 0
    wrong = (at < start) | (at >= start + WINDOW_BYTES)
    if wrong.any():
        kind = "generic " if generic else ""
        raise PtxError(f"{what} of the {kind}address {int(at[wrong][0]):#x}: not of shared memory")
