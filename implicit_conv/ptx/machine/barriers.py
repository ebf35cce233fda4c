"""mbarrier objects and named barriers (PTX ISA 9.7.13, bar and mbarrier)."""

from __future__ import annotations

import numpy as np

from implicit_conv.ptx.errors import PtxError, shortened
from implicit_conv.ptx.memory.clocks import ASYNC, GENERIC, Clock, join, stamp
from implicit_conv.ptx.memory.shared import Accessor

COUNT_LIMIT = 1 << 20  # of arrivals, and of the bytes of a tx-count


class Barrier:
    """An mbarrier: a phase ends when all arrivals and all expected bytes have come.

    `actor` writes on behalf of the bulk copies that complete on it: whoever waits for a phase sees
    what they wrote in it. `born` is the stamp of its initialisation by warp `maker`.
    """

    def __init__(
        self, name: str, address: int, count: int, actor: int, maker: int, born: int, clock: Clock
    ) -> None:
        self.name, self.address, self.count, self.actor = name, address, count, actor
        self.maker, self.born = maker, born
        self.fenced: tuple[int, int] | None = None  # (actor, stamp) of a fence past the init
        self.pending, self.bytes, self.phase = count, 0, 0
        self.coming = 0  # bytes of copies under way that were issued in this phase
        self.arrived: dict[int, str] = {}  # who has arrived in this phase, by actors
        self.refused = -1  # the last phase that a warp waited for before its end
        self.waited: dict[int, int] = {}  # the last phase that each warp has waited for
        self.again = ""  # a wait of a warp for a phase that it had waited for before, in words
        self.joined = clock.copy()  # of the arrivals of this phase
        self.clock = clock.copy()  # of the last phase that has ended

    def arrive(self, count: int, clock: Clock | None, w: Accessor) -> None:
        """Count arrivals by a warp that releases `clock`, or None if they release nothing."""
        if count > self.pending:
            raise PtxError(
                f"{self.name} phase {self.phase}: {count} arrivals, but only {self.pending} of "
                f"{self.count} are missing{self.again}"
            )
        self.pending -= count
        self.arrived[w.actor] = w.name
        if clock is not None:
            join(self.joined, clock)
        self._settle()

    def expect(self, size: int) -> None:
        """Expect so many bytes more in this phase; an arrival or a copy settles it."""
        self.bytes += size
        if abs(self.bytes) >= COUNT_LIMIT:
            raise PtxError(f"{self.name} phase {self.phase}: tx-count {self.bytes} out of range")

    def complete(self, size: int) -> None:
        """So many bytes have come."""
        self.expect(-size)
        self._settle()

    def receive(self, size: int, phase: int) -> None:
        """So many bytes of a copy that was issued in a phase have come."""
        self.coming -= size if phase == self.phase else 0
        self.complete(size)

    def _settle(self) -> None:
        if self.pending or self.bytes:
            return
        if self.coming:
            raise PtxError(
                f"{self.name} phase {self.phase} ends, but copies that complete on it still bring "
                f"{self.coming} bytes: expect_tx is too small{self.again}"
            )
        self.phase += 1
        self.joined[GENERIC, self.actor] = self.joined[ASYNC, self.actor] = stamp(self.phase)
        self.clock = self.joined.copy()
        self.pending = self.count
        self.arrived.clear()

    @property
    def filling(self) -> int:
        """The stamp of what copies write now: the end of this phase."""
        return stamp(self.phase + 1)

    def passed(self, parity: int) -> bool:
        """Whether the phase of this parity has ended: the one before the current, or not."""
        return (self.phase & 1) != parity

    def note_wait(self, warp: int, place: str) -> None:
        """A wait by a warp has passed. One that passes at once, since its phase had ended before,
        may have the wrong parity: errors that follow say so.
        """
        if self.waited.get(warp) == self.phase and not self.again:
            self.again = (
                f"; before, warp {warp} passed a wait for phase {self.phase - 1} again, {place}: "
                "is its parity right?"
            )
        self.waited[warp] = self.phase

    def __str__(self) -> str:
        surplus = ", more than were expected" if self.bytes < 0 else ""
        return (
            f"{self.name} phase {self.phase} lacks {self.pending} of {self.count} arrivals and "
            f"{self.bytes} bytes{surplus}{came(self.arrived)}{self.again}"
        )


def came(warps: dict[int, str]) -> str:
    """Which warps have arrived, as the end of a message."""
    if not warps:
        return ""
    numbers = shortened(", ".join(warps[actor] for actor in sorted(warps)))
    return f" ({'warps' if len(warps) > 1 else 'warp'} {numbers} arrived)"


class Meeting:
    """A named barrier of a block, 0 to 15, or that of a cluster.

    Threads are counted by whole warps if aligned.
    """

    def __init__(self, clock: Clock) -> None:
        self.arrived, self.turn = 0, 0
        self.warps: dict[int, str] = {}  # those that have arrived in this turn
        self.joined = clock.copy()
        self.clock = clock.copy()  # of the last completed turn
        self.joined_inits: set[Barrier] = set()  # that arrivals of this turn have published
        self.inits: set[Barrier] = set()  # of the completed turns

    def arrive(self, threads: int, clock: Clock, needed: int, w: Accessor) -> None:
        """Count threads of a warp; the last of `needed` ends the turn."""
        join(self.joined, clock)
        self.warps[w.actor] = w.name
        self.arrived += threads
        if self.arrived > needed:
            raise PtxError(f"{self.arrived} threads arrive at a barrier for {needed}")
        self.settle(needed)

    def settle(self, needed: int) -> None:
        """End the turn if `needed` threads have come, which grow fewer where threads end."""
        if self.arrived >= needed:
            self.arrived, self.turn, self.clock = 0, self.turn + 1, self.joined
            self.warps.clear()
            self.joined = np.full_like(self.joined, -1)
            self.inits |= self.joined_inits

    def arrivals(self, needed: int) -> str:
        """How many threads have arrived of those needed, and of which warps."""
        return f"{self.arrived} of {needed} threads{came(self.warps)}"
