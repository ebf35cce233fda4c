"""The state of a warp: what its instructions read and change."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np

from implicit_conv.ptx.errors import PtxError
from implicit_conv.ptx.kinds import LANE, LANES, Lanes
from implicit_conv.ptx.memory.clocks import GENERIC, Clock, join, stamp
from implicit_conv.ptx.memory.global_memory import Memory
from implicit_conv.ptx.memory.shared import SharedMemory
from implicit_conv.ptx.syntax import Instruction


class State:
    """Registers, memory, time and asynchronous work of a warp; instructions are functions over it.

    `launch` and `cta` are the Launch and the Cta that the warp belongs to. They stand above it, so
    their types are not known here.
    """

    def __init__(self, launch: Any, cta: Any, index: int, live: Lanes) -> None:
        self.launch, self.cta, self.index = launch, cta, index
        self.actor: int = cta.actors.own_warps.start + index
        self.name = f"{index}{cta.suffix}"
        self.shared: SharedMemory = cta.shared
        self.memory: Memory = launch.memory
        self.r: list[Any] = list(launch.code.start)
        self.alive = live.copy()
        self.local = np.zeros((LANES, launch.code.local_bytes), np.uint8)
        self.instruction: Instruction | None = None  # the last one that control reached
        # Time: this warp's own, the stamp of its last synchronisation of lanes, what it has seen.
        self.now, self.synced = 0, 0
        self.clock: Clock = cta.actors.new_clock()
        self.clock[GENERIC, self.actor] = stamp(0)
        self.fence_acquired = cta.actors.new_clock()  # by relaxed reads, for the next fence
        self.fence_released: Clock | None = None  # by the last fence, for relaxed writes
        # Asynchronous work: cp.async, its groups, bulk stores by lane, wgmma.
        self.copies: list[Any] = []
        self.copies_issued = 0
        self.copy_groups: deque[tuple[int, list[Any]]] = deque()  # (number of the last, all)
        self.stores: list[list[Any]] = [[] for _ in range(LANES)]
        self.store_groups: list[deque[list[Any]]] = [deque() for _ in range(LANES)]
        self.read_groups: list[deque[list[Any]]] = [
            deque() for _ in range(LANES)
        ]  # but not written
        self.wgmma: list[Any] = []
        self.wgmma_groups: deque[list[Any]] = deque()
        self.wgmma_values: dict[tuple[int, ...], list[Lanes]] = {}
        self.wgmma_count = 0
        self.fenced_registers: list[Any] | None = None  # as wgmma.fence or a wait left them
        self.fragments: tuple[Any, Any] = (None, None)  # of mma.sync: the last A, decoded
        self.register_count = cta.launch_registers
        # The cluster's barrier: turns at which lanes arrived last and those that they have waited
        # for, and mbarriers whose inits fence.mbarrier_init has published and it has brought.
        self.cluster_turns, self.cluster_waited = np.full(LANES, -1), np.full(LANES, -1)
        self.inits: set[Any] = set()
        self.specials: dict[str, Lanes] = {}  # values of special registers

    def __str__(self) -> str:
        return f"warp {self.index}"

    def release(self) -> Clock:
        """End a time step; the clock for those who see this release."""
        clock = self.clock.copy()
        self._tick()
        return clock

    def acquire(self, clock: Clock) -> None:
        """See what another has released, other lanes of this warp included."""
        self.synced = max(self.synced, int(clock[GENERIC, self.actor]) + 1)
        join(self.clock, clock)

    def synchronise(self) -> None:
        """All lanes see each other's accesses so far."""
        self._tick()
        self.synced = stamp(self.now, 0)

    def _tick(self) -> None:
        self.now += 1
        self.clock[GENERIC, self.actor] = stamp(self.now)

    def need_all(self, mask: Lanes) -> None:
        """Raise PtxError unless all live lanes are here, as .aligned says."""
        if not (mask == self.alive).all():
            here = np.flatnonzero(mask).tolist()
            raise PtxError(f"it is .aligned, but of the warp only lanes {here} come here")

    def lanes(self, mask: Lanes | None) -> Lanes:
        """The numbers of the lanes that run."""
        return LANE if mask is None else LANE[mask]
