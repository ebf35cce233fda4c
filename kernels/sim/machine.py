"""The simulated GPU: blocks of warps that run one at a time, barriers, and copies that arrive late.

Warps switch only where a hook waits, in an order drawn from a seed. When none can go on, no copy is
under way and some have not ended, that is a deadlock: it is reported, never waited for.
"""

import random
import threading

import numpy as np

from implicit_conv.kernels.sim.errors import Aborted, SimulationError
from implicit_conv.kernels.sim.memory import SharedMemory

LANES = np.arange(32)
BASE = 1 << 10  # where dynamic shared memory begins on sm_90 and later
MAX_BARRIERS = 64
REGISTERS = 1 << 16  # of a multiprocessor

_current = threading.local()


def current():
    """The warp that is running."""
    return _current.warp


class Warp:
    """A thread of Python that plays 32 lanes."""

    def __init__(self, block, index):
        self.block, self.index = block, index
        self.clock = np.zeros(block.warps_count + MAX_BARRIERS, np.int64)
        self.clock[index] = 1
        self.elected = False  # one lane is active
        self.registers = block.launch_registers  # of a thread
        self.copies = []  # cp.async not yet tied to a barrier
        self.ready, self.waits_for = None, ""
        self.go = threading.Semaphore(0)
        self.ended, self.error = False, None

    def __str__(self):
        return f"block {self.block.index} warp {self.index}"

    def wait(self, ready, waits_for):
        """Let others run until ready() holds."""
        self.ready, self.waits_for = ready, waits_for
        self.block.back.release()
        self.go.acquire()
        if self.block.aborted:
            raise Aborted
        self.ready = None

    def release(self):
        """What was done so far is one time step; the clock to hand to whoever is released."""
        clock = self.clock.copy()
        self.clock[self.index] += 1
        return clock

    def run(self, kernel, arguments):
        """Body of the thread."""
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
    """An mbarrier: `count` arrivals and as many bytes as expected end a phase."""

    def __init__(self, block, address, count, actor):
        self.block, self.address, self.count, self.actor = block, address, count, actor
        self.pending, self.bytes, self.completed = count, 0, 0
        self.joined = np.zeros_like(block.warps[0].clock)  # of this phase's arrivals
        self.clock = self.joined.copy()  # of the last completed phase

    def __str__(self):
        return self.block.names.get(self.address - BASE, f"barrier {self.address:#x}")

    def state(self):
        """What the current phase lacks."""
        surplus = ", more came than were expected" if self.bytes < 0 else ""
        return (
            f"{self} phase {self.completed} lacks {self.pending} of {self.count} arrivals "
            f"and {self.bytes} bytes{surplus}"
        )

    def arrive(self, count, clock=None):
        """`count` arrivals."""
        if count > self.pending:
            raise SimulationError(
                f"{self} phase {self.completed}: {count} arrivals, "
                f"but only {self.pending} of {self.count} are missing"
            )
        self.pending -= count
        if clock is not None:
            np.maximum(self.joined, clock, out=self.joined)
        self._complete()

    def expect(self, size):
        """`size` bytes more are to come."""
        self.bytes += size

    def complete_tx(self, size):
        """`size` bytes came."""
        self.bytes -= size
        self._complete()

    def _complete(self):
        if self.pending == 0 and self.bytes == 0:
            self.completed += 1
            self.joined[self.actor] = self.completed
            self.clock = self.joined.copy()
            self.pending = self.count

    @property
    def filling(self):
        """The time at which what arrives now is ordered: the end of the current phase."""
        return self.completed + 1


class Block:
    """One block: its warps, shared memory, barriers and copies under way."""

    def __init__(self, index, blocks, warps, smem_bytes, memory, names, seed, record):
        self.index, self.blocks, self.warps_count = index, blocks, warps
        self.memory, self.names, self.record = memory, names, record
        self.smem = SharedMemory(smem_bytes, BASE, warps)
        # A block is launched with what fits a thread, by eights; only what warps give back is free.
        self.launch_registers = min(255, REGISTERS // (32 * warps) // 8 * 8)
        self.free_registers = 0
        self.warps = [Warp(self, i) for i in range(warps)]
        self.barriers, self.copies, self.meetings = {}, [], {}
        self.back = threading.Semaphore(0)
        self.aborted = False
        self.random = random.Random(seed)

    def barrier(self, address):
        """The initialised barrier at `address`."""
        if address not in self.barriers:
            raise SimulationError(f"no mbarrier was initialised at shared address {address:#x}")
        return self.barriers[address]

    def place(self, offset):
        """A name for a byte of shared memory: the region it lies in."""
        known = [(start, name) for start, name in self.names.items() if start <= offset]
        start, name = max(known, default=(0, "shared memory"))
        return f"{name} + {offset - start}"

    def meet(self, key, count):
        """Wait until `count` warps have come to the meeting `key`; all then know what all did."""
        warp = current()
        meeting = self.meetings.setdefault(key, [0, 0, np.zeros_like(warp.clock), None])
        turn = meeting[1]
        np.maximum(meeting[2], warp.release(), out=meeting[2])
        meeting[0] += 1
        if meeting[0] == count:
            meeting[0], meeting[1], meeting[3] = 0, turn + 1, meeting[2].copy()
        else:
            warp.wait(lambda: meeting[1] > turn, f"{key}: {meeting[0]} of {count} warps came")
        np.maximum(warp.clock, meeting[3], out=warp.clock)

    def run(self, kernel, arguments):
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

    def _schedule(self):
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

    def _stuck(self, alive):
        for warp in alive:
            yield f"  {warp} waits for {warp.waits_for}"
        for barrier in self.barriers.values():
            if barrier.pending != barrier.count or barrier.bytes:
                yield f"  {barrier.state()}"


def launch(kernel, params, *, blocks, threads, smem_bytes, memory, names=None, seed=0, record=None):
    """Run `kernel(params)` on a grid of `blocks`, one block after the other.

    Parameters
    ----------
    memory : GlobalMemory
        What the addresses in `params` mean.
    names : dict of offset in shared memory -> name, optional
        Stages and barriers, for messages.
    seed : int
        Draws the order of warps and copies.
    record : list, optional
        Takes (mode, coordinates, operands, shared address, rows) of each tensor copy.
    """
    for index in range(blocks):
        warps = threads // 32
        block = Block(index, blocks, warps, smem_bytes, memory, names or {}, seed + index, record)
        block.run(kernel, (params,))
