"""A block of threads: its warps, shared memory, barriers and registers."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from implicit_conv.ptx.errors import PtxError
from implicit_conv.ptx.kinds import LANES, Lanes
from implicit_conv.ptx.machine.barriers import Barrier, Meeting
from implicit_conv.ptx.machine.state import State
from implicit_conv.ptx.machine.warp import Warp
from implicit_conv.ptx.memory.clocks import BARRIERS, GENERIC, Actors, stamp
from implicit_conv.ptx.memory.shared import SharedMemory
from implicit_conv.ptx.memory.shared_layout import SHARED_BASE
from implicit_conv.ptx.memory.spaces import BLOCK_BYTES, WINDOW_BYTES

REGISTERS = 1 << 16  # of a multiprocessor
MOST_REGISTERS = 255  # of a thread


class Pending(Protocol):
    """An asynchronous copy under way, which a warp has issued."""

    w: State

    def step(self) -> bool:
        """Come a step further; whether it is complete."""


class Cta:
    """One block of a Cluster.

    The actors of its clocks are warps, their queues of cp.async, and mbarriers.
    """

    def __init__(
        self, launch: Any, cluster: Any, actors: Actors, index: tuple[int, int, int]
    ) -> None:
        self.launch, self.cluster, self.actors, self.index = launch, cluster, actors, index
        self.warps_count: int = actors.warps
        self.suffix = f" of {self}" if actors.blocks > 1 else ""  # of names, in messages
        self.shared = SharedMemory(launch.shared, actors, launch.names, self.suffix)
        self.barriers: dict[int, Barrier] = {}  # by shared address
        self.barrier_actors = 0
        self.meetings: dict[int, Meeting] = {}
        self.global_order = cluster.global_order
        self.acquired_maps: set[int] = set()  # addresses of tensor maps that kernels wrote
        self.map_uses: dict[int, list[Any]] = {}  # copies that take a map in global memory
        self.has_ended = False
        # Warps of other blocks that have reached in: the stamp of the last time, and the turn of
        # the cluster's barrier at which they arrive next.
        self.visits: dict[int, tuple[int, int]] = {}
        self.wgmma_said: dict[tuple[int, int], Any] = {}
        # A launch gives each thread all registers that fit, by eights. Later only those are free
        # that warps have given back.
        fit = REGISTERS // (LANES * self.warps_count)
        self.launch_registers = min(MOST_REGISTERS, fit) // 8 * 8
        self.free_registers = 0
        self.warps = [
            Warp(launch, self, warp, np.arange(LANES) + LANES * warp < launch.threads)
            for warp in range(self.warps_count)
        ]

    @property
    def place(self) -> str:
        """Where it stands in the grid, in words."""
        return str(self.index if any(self.index[1:]) else self.index[0])

    def __str__(self) -> str:
        return f"block {self.place}"

    def copy_queue(self, w: State) -> int:
        """The actor that stands for a warp's cp.async."""
        return self.actors.all_warps + w.actor

    def barrier_actor(self) -> int:
        """An actor for a new mbarrier."""
        self.barrier_actors += 1
        if self.barrier_actors >= BARRIERS:
            raise PtxError(f"more than {BARRIERS - 1} mbarriers are initialised in a block")
        return self.actors.first_barrier + self.barrier_actors - 1

    def barrier_name(self, offset: int) -> str:
        """The name of an mbarrier at an offset in shared memory, for messages."""
        name: str | None = self.launch.names.get(offset + SHARED_BASE)
        return name + self.suffix if name else f"mbarrier at {self.shared.place(offset)}"

    def actor(self, number: int) -> str:
        """An actor of the cluster in words."""
        queue, warp = divmod(number, self.actors.all_warps)
        if queue < 2:
            words = f"warp {self.cluster.warps[warp].name}"
            return f"cp.async of {words}" if queue else words
        blocks = self.cluster.blocks
        names = [b.name for cta in blocks for b in cta.barriers.values() if b.actor == number]
        return f"a copy that completes on {names[0]}" if names else "a copy"

    def unseen(self) -> str:
        """What copies wrote last and no warp has waited for, in words; empty if there is none."""
        seen = np.max([warp.clock[GENERIC] for warp in self.warps], axis=0)
        for barrier in self.barriers.values():
            if barrier.refused == barrier.phase:  # a warp gave up waiting: a watchdog tells it
                seen[barrier.actor] = barrier.filling
        writer, written = self.shared.writer, self.shared.written
        late = np.flatnonzero((written > seen[writer]) & (writer >= self.actors.all_warps))
        if not late.size:
            return ""
        first = int(late[0])
        actor = self.actor(int(writer[first]))
        return f"nobody has waited for {actor}, which writes {self.shared.place(first)}"

    def meeting(self, number: int) -> Meeting:
        """The named barrier of a number."""
        if number not in self.meetings:
            self.meetings[number] = Meeting(self.actors.new_clock())
        return self.meetings[number]

    # -- other blocks of the cluster ------------------------------------------------------------

    def reach(self, w: State, address: int, ordered: bool = True) -> tuple[Cta, int]:
        """(block, address there) of a shared address that a warp of this block accesses.

        The block must have begun before, and end later; `ordered`: what orders its end after the
        access is what the access is seen by.
        """
        part, own = divmod(address & (WINDOW_BYTES - 1), BLOCK_BYTES)
        blocks = self.cluster.blocks
        if part in (0, self.actors.rank + 1):
            return self, own
        if part > len(blocks):
            raise PtxError(f"the shared address {address:#x} is of no block of the cluster")
        other: Cta = blocks[part - 1]
        other.need_running()
        begun = self.cluster.meeting.turn or (w.clock[GENERIC, other.actors.own_warps] >= 0).any()
        if not begun:
            raise PtxError(
                f"the shared memory of {other} may not exist yet: a barrier.cluster in between is "
                "missing"
            )
        if ordered:
            other.visits[w.actor] = stamp(w.now), int(w.cluster_turns.max()) + 1
        return other, own

    def blocks_of(self, w: State, at: Lanes, mask: Lanes | None) -> list[tuple[Cta, Lanes]]:
        """(block, mask of its lanes) of shared addresses that lanes of a warp access."""
        left = np.ones(LANES, bool) if mask is None else mask
        parts = (at & (WINDOW_BYTES - 1)) // BLOCK_BYTES
        return [
            (self.reach(w, part * BLOCK_BYTES)[0], left & (parts == part))
            for part in np.unique(parts[left]).tolist()
        ]

    def need_running(self) -> None:
        """Raise PtxError if the block has ended: its shared memory is gone."""
        if self.has_ended:
            raise PtxError(
                f"{self} has ended, and its shared memory with it: a barrier.cluster before its "
                "end is missing"
            )

    def end(self) -> None:
        """All threads have ended; accesses by other blocks must have come before."""
        self.has_ended = True
        if not self.visits:
            return
        seen = np.max([warp.clock[GENERIC] for warp in self.warps], axis=0)
        turn = max(int(warp.cluster_waited.max()) for warp in self.warps)
        for actor, (time, arrival) in self.visits.items():
            if seen[actor] < time and turn < arrival:
                raise PtxError(
                    f"{self} ends, and nothing orders that after an access to its shared memory by "
                    f"{self.actor(actor)}: a barrier.cluster before the end is missing"
                )

    # -- messages -------------------------------------------------------------------------------

    def stuck(self) -> str:
        """What each warp waits for, and which mbarriers lack what."""
        lines = []
        for warp in self.warps:
            for part in warp.parts:
                words = part.wait.words() if part.wait else "nothing"
                block = self.launch.kernel.blocks[part.block]
                place = "the end"
                if block.instructions:
                    line, source = block.instructions[0].line, block.instructions[0].source
                    place = f"line {line} ({source})" if source else f"line {line}"
                lines.append(f"  {warp}{self.suffix}: next is {place}; it waits for {words}")
        for barrier in self.barriers.values():
            if barrier.pending != barrier.count or barrier.bytes:
                lines.append(f"  {barrier}")
        return "\n".join(lines)
