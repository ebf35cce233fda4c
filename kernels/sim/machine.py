"""The simulated GPU: blocks of warps that run one at a time, barriers, and copies that arrive late.

Warps switch only where a hook waits, in an order drawn from a seed. It is a deadlock if some warps
have not ended, none can continue and no copy is under way. A deadlock is reported and never waited
for.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from implicit_conv.kernels.sim.errors import Aborted, SimulationError
from implicit_conv.kernels.sim.memory import GlobalMemory, SharedMemory

LANES = np.arange(32)
BASE = 1 << 10  # address at which dynamic shared memory begins on sm_90 and later
MAX_BARRIERS = 64  # of a block
REGISTERS = 1 << 16  # of a multiprocessor

Kernel = Callable[..., Any]
Clock = npt.NDArray[np.int64]

_current = threading.local()


def current() -> Warp:
    """The running warp."""
    warp: Warp = _current.warp
    return warp


class Warp:
    """One Python thread that simulates 32 lanes."""

    def __init__(self, block: Block, index: int) -> None:
        self.block, self.index = block, index
        self.clock: Clock = np.zeros(block.warps_count + MAX_BARRIERS, np.int64)
        self.clock[index] = 1
        self.elected = False  # only one lane is active
        self.registers = block.launch_registers  # per thread
        self.copies: list[Any] = []  # cp.async copies that are not yet tied to a barrier
        self.wgmma_calls = 0
        self.ready: Callable[[], bool] | None = None  # None: it can continue
        self.waits_for = ""
        self.go = threading.Semaphore(0)
        self.ended = False
        self.error: BaseException | None = None

    def __str__(self) -> str:
        return f"block {self.block.index} warp {self.index}"

    def wait(self, ready: Callable[[], bool], waits_for: str) -> None:
        """Let other warps run until ready() holds; `waits_for` describes that for messages."""
        self.ready, self.waits_for = ready, waits_for
        self.block.back.release()
        self.go.acquire()
        if self.block.aborted:
            raise Aborted
        self.ready = None

    def release(self) -> Clock:
        """End a time step of this warp; return the clock for those that are released by it."""
        clock = self.clock.copy()
        self.clock[self.index] += 1
        return clock

    def run(self, kernel: Kernel, arguments: tuple[Any, ...]) -> None:
        """The body of the thread."""
        _current.warp = self
        self.go.acquire()
        try:
            if not self.block.aborted:
                kernel(*arguments)
        except Aborted:
            pass
        except BaseException as error:
            self.error = error
        self.ended = True
        self.block.back.release()


class Barrier:
    """An mbarrier: a phase ends after `count` arrivals and all expected bytes."""

    def __init__(self, block: Block, address: int, count: int, actor: int) -> None:
        self.block, self.address, self.count, self.actor = block, address, count, actor
        self.pending, self.bytes, self.completed = count, 0, 0
        self.joined: Clock = np.zeros_like(block.warps[0].clock)  # of this phase's arrivals
        self.clock: Clock = self.joined.copy()  # of the last completed phase

    def __str__(self) -> str:
        return self.block.names.get(self.address - BASE, f"barrier {self.address:#x}")

    def state(self) -> str:
        """The arrivals and bytes that the current phase lacks."""
        surplus = ", more came than were expected" if self.bytes < 0 else ""
        return (
            f"{self} phase {self.completed} lacks {self.pending} of {self.count} arrivals "
            f"and {self.bytes} bytes{surplus}"
        )

    def arrive(self, count: int, clock: Clock | None = None) -> None:
        """Count `count` arrivals, of a warp with `clock`."""
        if count > self.pending:
            raise SimulationError(
                f"{self} phase {self.completed}: {count} arrivals, "
                f"but only {self.pending} of {self.count} are missing"
            )
        self.pending -= count
        if clock is not None:
            np.maximum(self.joined, clock, out=self.joined)
        self._complete()

    def expect(self, size: int) -> None:
        """Expect `size` more bytes in this phase."""
        self.bytes += size

    def complete_tx(self, size: int) -> None:
        """Count `size` bytes that have arrived."""
        self.bytes -= size
        self._complete()

    def _complete(self) -> None:
        if self.pending == 0 and self.bytes == 0:
            self.completed += 1
            self.joined[self.actor] = self.completed
            self.clock = self.joined.copy()
            self.pending = self.count

    @property
    def filling(self) -> int:
        """The time of the data that arrive now: the end of the current phase."""
        return self.completed + 1


class Meeting:
    """A barrier of bar.sync: warps wait here until all that are expected have come."""

    def __init__(self, clock: Clock) -> None:
        self.arrived, self.turn = 0, 0
        self.joined = clock  # of all warps that have come so far
        self.clock = clock.copy()  # of the last completed turn


class Block:
    """One block: its warps, shared memory, barriers and copies under way."""

    def __init__(
        self,
        index: int,
        blocks: int,
        warps: int,
        smem_bytes: int,
        memory: GlobalMemory,
        names: dict[int, str],
        seed: int,
        record: list[Any] | None,
    ) -> None:
        self.index, self.blocks, self.warps_count = index, blocks, warps
        self.memory, self.names, self.record = memory, names, record
        self.smem = SharedMemory(smem_bytes, BASE, warps)
        # A launch gives each thread all registers that fit, in multiples of 8. Later only those are
        # free that warps have given back.
        self.launch_registers = min(255, REGISTERS // (32 * warps) // 8 * 8)
        self.free_registers = 0
        self.warps = [Warp(self, i) for i in range(warps)]
        self.barriers: dict[int, Barrier] = {}
        self.copies: list[Callable[[], None]] = []  # each delivers a copy that is under way
        self.meetings: dict[str, Meeting] = {}
        self.wgmma_log: dict[tuple[int, int], int] = {}  # descriptors by warpgroup and call
        self.back = threading.Semaphore(0)
        self.aborted = False
        self.random = random.Random(seed)

    def barrier(self, address: int) -> Barrier:
        """The initialised barrier at `address`."""
        if address not in self.barriers:
            raise SimulationError(f"no mbarrier was initialised at shared address {address:#x}")
        return self.barriers[address]

    def place(self, offset: int) -> str:
        """The name of the region of a byte of shared memory, and the byte's offset in it."""
        regions = [(start, name) for start, name in self.names.items() if start <= offset]
        start, name = max(regions, default=(0, "shared memory"))
        return f"{name} + {offset - start}"

    def meet(self, key: str, count: int) -> None:
        """Wait until `count` warps have called this with `key`; each then sees what all did."""
        warp = current()
        meeting = self.meetings.setdefault(key, Meeting(np.zeros_like(warp.clock)))
        turn = meeting.turn
        np.maximum(meeting.joined, warp.release(), out=meeting.joined)
        meeting.arrived += 1
        if meeting.arrived == count:
            meeting.arrived, meeting.turn, meeting.clock = 0, turn + 1, meeting.joined.copy()
        else:
            reason = f"{key}: {meeting.arrived} of {count} warps came"
            warp.wait(lambda: meeting.turn > turn, reason)
        np.maximum(warp.clock, meeting.clock, out=warp.clock)

    def run(self, kernel: Kernel, arguments: tuple[Any, ...]) -> None:
        """Run all warps to their end."""
        threads = [
            threading.Thread(target=warp.run, args=(kernel, arguments), daemon=True)
            for warp in self.warps
        ]
        for thread in threads:
            thread.start()
        try:
            self._schedule()
        finally:
            self.aborted = True
            for warp in self.warps:
                warp.go.release()
            for thread in threads:
                thread.join()

    def _schedule(self) -> None:
        while True:
            alive = [warp for warp in self.warps if not warp.ended]
            if not alive:
                break
            ready = [warp for warp in alive if warp.ready is None or warp.ready()]
            if self.copies and (not ready or self.random.random() < 0.5):
                self.copies.pop(self.random.randrange(len(self.copies)))()
                continue
            if not ready:
                raise SimulationError("deadlock:\n" + "\n".join(self._stuck(alive)))
            warp = self.random.choice(ready)
            warp.go.release()
            self.back.acquire()
            if warp.error is not None:
                raise warp.error
        if self.copies:
            raise SimulationError(
                f"block {self.index} ended with {len(self.copies)} copies under way"
            )

    def _stuck(self, alive: list[Warp]) -> Iterator[str]:
        for warp in alive:
            yield f"  {warp} waits for {warp.waits_for}"
        for barrier in self.barriers.values():
            if barrier.pending != barrier.count or barrier.bytes:
                yield f"  {barrier.state()}"


def launch(
    kernel: Kernel,
    params: Any,
    *,
    blocks: int,
    threads: int,
    smem_bytes: int,
    memory: GlobalMemory,
    names: dict[int, str] | None = None,
    seed: int = 0,
    record: list[Any] | None = None,
) -> None:
    """Run `kernel(params)` on a grid of `blocks`, one block after the other.

    Parameters
    ----------
    memory : GlobalMemory
        The memory to which the addresses in `params` belong.
    names : dict of offset in shared memory -> name, optional
        Stages and barriers, for messages.
    seed : int
        Draws the order of warps and copies.
    record : list, optional
        Receives (mode, coordinates, operands, shared address, rows) of each tensor copy.
    """
    for index in range(blocks):
        warps = threads // 32
        block = Block(index, blocks, warps, smem_bytes, memory, names or {}, seed + index, record)
        block.run(kernel, (params,))
