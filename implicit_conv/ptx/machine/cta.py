"""A block of threads: its warps, shared memory, barriers, registers and copies under way."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from implicit_conv.ptx.errors import PtxError
from implicit_conv.ptx.kinds import LANES
from implicit_conv.ptx.machine.barriers import Barrier, Meeting
from implicit_conv.ptx.machine.order import Flags
from implicit_conv.ptx.machine.warp import Warp
from implicit_conv.ptx.memory.clocks import BARRIERS, GENERIC, new_clock
from implicit_conv.ptx.memory.global_order import GlobalOrder
from implicit_conv.ptx.memory.shared import SharedMemory
from implicit_conv.ptx.memory.shared_layout import SHARED_BASE

REGISTERS = 1 << 16  # of a multiprocessor
MOST_REGISTERS = 255  # of a thread


class Pending(Protocol):
    """An asynchronous copy under way."""

    def step(self) -> bool:
        """Come a step further; whether it is complete."""


class Cta:
    """One block of a Launch.

    The actors of its clocks are warps, their queues of cp.async, and mbarriers.
    """

    def __init__(self, launch: Any, index: tuple[int, int, int]) -> None:
        self.launch, self.index = launch, index
        threads = launch.threads
        self.warps_count: int = -(-threads // LANES)
        strong = 2 * self.warps_count + BARRIERS - 1
        self.shared = SharedMemory(launch.shared, self.warps_count, launch.names, strong)
        self.barriers: dict[int, Barrier] = {}  # by shared address
        self.barrier_actors = 0
        self.meetings: dict[int, Meeting] = {}
        self.flags: Flags = {}  # what its warps have released at shared and global addresses
        self.global_order = GlobalOrder(launch.memory)
        self.acquired_maps: set[int] = set()  # addresses of tensor maps that kernels wrote
        self.map_uses: dict[int, list[Any]] = {}  # copies that take a map in global memory
        self.pending: list[Pending] = []
        self.wgmma_said: dict[tuple[int, int], Any] = {}
        # A launch gives each thread all registers that fit, by eights. Later only those are free
        # that warps have given back.
        fit = REGISTERS // (LANES * self.warps_count)
        self.launch_registers = min(MOST_REGISTERS, fit) // 8 * 8
        self.free_registers = 0
        self.warps = [
            Warp(launch, self, warp, np.arange(LANES) + LANES * warp < threads)
            for warp in range(self.warps_count)
        ]

    def copy_queue(self, warp: int) -> int:
        """The actor that stands for a warp's cp.async."""
        return self.warps_count + warp

    def barrier_actor(self) -> int:
        """An actor for a new mbarrier."""
        self.barrier_actors += 1
        if self.barrier_actors >= BARRIERS:
            raise PtxError(f"more than {BARRIERS - 1} mbarriers are initialised in a block")
        return 2 * self.warps_count + self.barrier_actors - 1

    def barrier_name(self, offset: int) -> str:
        """The name of an mbarrier at an offset in shared memory, for messages."""
        name: str | None = self.launch.names.get(offset + SHARED_BASE)
        return name or f"mbarrier at {self.shared.place(offset)}"

    def actor(self, number: int) -> str:
        """An actor in words."""
        if number < self.warps_count:
            return f"warp {number}"
        if number < 2 * self.warps_count:
            return f"cp.async of warp {number - self.warps_count}"
        names = [b.name for b in self.barriers.values() if b.actor == number]
        return f"a copy that completes on {names[0]}" if names else "a copy"

    def unseen(self) -> str:
        """What copies wrote last and no warp has waited for, in words; empty if there is none."""
        seen = np.max([warp.clock[GENERIC] for warp in self.warps], axis=0)
        for barrier in self.barriers.values():
            if barrier.refused == barrier.phase:  # a warp gave up waiting: a watchdog tells it
                seen[barrier.actor] = barrier.filling
        late = np.flatnonzero(self.shared.written > seen[self.shared.writer])
        if not late.size:
            return ""
        first = int(late[0])
        actor = self.actor(int(self.shared.writer[first]))
        return f"nobody has waited for {actor}, which writes {self.shared.place(first)}"

    def meeting(self, number: int) -> Meeting:
        """The named barrier of a number."""
        if number not in self.meetings:
            self.meetings[number] = Meeting(new_clock(self.warps_count))
        return self.meetings[number]

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
                lines.append(f"  {warp}: next is {place}; it waits for {words}")
        for barrier in self.barriers.values():
            if barrier.pending != barrier.count or barrier.bytes:
                lines.append(f"  {barrier}")
        return "\n".join(lines)
