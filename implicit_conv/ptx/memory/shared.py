"""Shared memory of a block: bytes, the state of each, and the last accesses to each.

A generic access is in order if its warp has seen the stamps of the last write and, for a write, of
all reads. Copies and wgmma work through the async proxy: they see a generic write only past
``fence.proxy.async``, while they write or read nobody else may touch the bytes, and what they write
is seen by those that have waited for their mbarrier (PTX ISA 8 and 9.7.9, asynchronous copies).
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from implicit_conv.ptx.errors import PtxError, shortened
from implicit_conv.ptx.kinds import Lanes
from implicit_conv.ptx.memory.clocks import (
    ASYNC,
    BARRIERS,
    GENERIC,
    LANE_BITS,
    Actors,
    Clock,
    Flags,
    stamp,
)
from implicit_conv.ptx.memory.shared_layout import SHARED_BASE, SharedLayout
from implicit_conv.ptx.memory.spaces import BLOCK_BYTES

UNDEFINED, DEFINED, IN_FLIGHT, BARRIER, NOBODYS = range(5)  # states of a byte
STATES = (
    *("were never written", "", "a copy is about to write", "hold an mbarrier"),
    "belong to no variable",
)
UNSYNCED = ", with no barrier in between: bar.sync, or bar.warp.sync of its own lanes"
ROUNDING = np.float32(2.0**-16)  # of a sum of float32 in another order, relative
NORMAL = np.finfo(np.float32).smallest_normal
UNIT = 16  # bytes that copies and wgmma handle at least


class Accessor(Protocol):
    """What shared memory needs of a warp."""

    actor: int
    name: str  # its number in its block, which is named in a cluster
    clock: Clock  # what it has seen
    now: int  # its own time
    synced: int  # the stamp since which its lanes have not been synchronised
    cta: Any  # its block, which names actors


def need_aligned(at: Lanes, size: int, what: str) -> None:
    """Raise PtxError unless all addresses are multiples of `size`, a power of two."""
    wrong = at & (size - 1)
    if wrong.any():
        address = int(at[wrong != 0][0])
        raise PtxError(f"{what} of {size} bytes at {address:#x}: not aligned to {size}")


def are_same(first: Lanes, second: Lanes, exact: bool) -> Lanes:
    """Which rows of bytes have the same values, or float32 values that differ by rounding alone.

    Triton's sums over lanes let each lane add in an order of its own (triton issue 11614).
    Subnormal values differ: they are integers, which a store does not tell from float32.
    """
    equal: Lanes = (first == second).all(1)
    if exact or equal.all() or first.shape[1] % 4:
        return equal
    with np.errstate(invalid="ignore"):
        a, b = (np.ascontiguousarray(rows).view(np.float32) for rows in (first, second))
        near: Lanes = (np.abs(a - b) <= ROUNDING * np.abs(a)) & (np.abs(a) >= NORMAL)
    words = (first == second).reshape(len(first), -1, 4).all(2)
    return np.asarray((near | words).all(1))


class SharedMemory:
    """The bytes from SHARED_BASE on; `names` are those of addresses besides the variables'.

    `whose` ends the name of a place, such as " of block 1"; it is empty outside of a cluster.
    """

    def __init__(
        self, layout: SharedLayout, actors: Actors, names: dict[int, str], whose: str
    ) -> None:
        self.size, self.whose, self.all_warps = layout.size, whose, actors.all_warps
        self.strong_actor = actors.first_barrier + BARRIERS - 1
        # The reader of a text adds to a name, after a blank, which of several declarations it is.
        symbols = {at: name.partition(" ")[0] for name, at in layout.addresses.items()}
        self.names = symbols | names
        self.flags: Flags = {}  # what was released at addresses
        self.strong_writes = 0  # of the whole block
        room = max(-(-self.size // 1024) * 1024, 1024)
        self.data = np.full(room, 0xFF, np.uint8)  # a NaN in every floating-point type
        self.state = np.full(room, NOBODYS, np.uint8)
        for start, size in layout.regions.items():
            self.state[start - SHARED_BASE : start - SHARED_BASE + size] = UNDEFINED
        self.reading = np.zeros(room // UNIT, np.int32)  # asynchronous reads of a unit under way
        self.writer = np.zeros(room, np.int16)  # the actor that wrote a byte last
        self.written = np.full(room, -1, np.int32)  # and its stamp
        self.readers = actors.own_warps  # all of the cluster once another block comes
        # The stamp of the last read by each of these.
        self.read = np.full((room, actors.warps), -1, np.int32)
        # Whether an asynchronous operation was the last to read a unit for each warp.
        self.asynchronous = np.zeros((room // UNIT, actors.warps), bool)
        self.strong = np.full(room, -1, np.int32)  # of the last atomic or other strong write

    def place(self, offset: int) -> str:
        """A byte by its region, if it has a name, and its address."""
        address = offset + SHARED_BASE
        regions = [(start, name) for start, name in self.names.items() if start <= address]
        if not regions:
            return f"shared {address:#x}{self.whose}"
        start, name = max(regions)
        return f"shared {address:#x} ({shortened(name)} + {address - start}){self.whose}"

    def offsets(self, at: Lanes, size: int, what: str) -> Lanes:
        """Offsets of accesses of `size` bytes, which must be aligned and inside the block's."""
        need_aligned(at, size, what)
        self.inside(int(at.min()) - SHARED_BASE, int(at.max()) - SHARED_BASE + size, what)
        return at - SHARED_BASE

    def inside(self, start: int, end: int, what: str) -> None:
        """Raise PtxError unless the offsets lie in the block's shared memory."""
        if start < 0 or end > self.size:
            mapped = start + SHARED_BASE >= BLOCK_BYTES
            words = "; one that mapa has made needs .shared::cluster, if the instruction has that"
            hint = words if mapped else ""
            raise PtxError(
                f"{what} at shared {start + SHARED_BASE:#x} to {end + SHARED_BASE:#x}: outside the "
                f"block's shared memory, {SHARED_BASE:#x} to {SHARED_BASE + self.size:#x}"
                f"{self.whose}{hint}"
            )

    # -- the generic proxy --------------------------------------------------------------------

    def note_read(self, w: Accessor, units: Lanes, size: int, lanes: Lanes, what: str) -> None:
        """Lanes of a warp read units of `size` bytes, counted from the start."""
        self._need_state(units, size, what, writes=False)
        written, actors = self._last_writes(units, size)
        late = written > w.clock[GENERIC][actors]
        if late.any():
            self.refuse(late, units, size, f"{what} of", "no barrier orders it after its writer", w)
        mine = (actors == w.actor) & (written >= w.synced)
        if mine.any():
            other = mine & ((written & 31) != lanes[:, None])
            if other.any():
                reason = f"another lane of the warp wrote it{UNSYNCED}"
                self.refuse(other, units, size, f"{what} of", reason, w)
        self._need_strong(w, units, size, f"{what} of")
        self._stamp_read(w, units, size, lanes)

    def _stamp_read(self, w: Accessor, units: Lanes, size: int, lanes: Lanes) -> None:
        stamps, column = (w.now << LANE_BITS) + lanes, self._column(w)
        self.read.reshape(-1, size, self.read.shape[1])[units, :, column] = stamps[:, None]
        self.asynchronous[units * size // UNIT, column] = False

    def _column(self, w: Accessor) -> int:
        """Where a warp stands among the readers, who become all of the cluster if it is new."""
        if not self.readers.start <= w.actor < self.readers.stop:
            before, self.readers = self.readers, slice(0, self.all_warps)
            read = np.full((len(self.read), self.all_warps), -1, np.int32)
            asynchronous = np.zeros((len(self.asynchronous), self.all_warps), bool)
            read[:, before], asynchronous[:, before] = self.read, self.asynchronous
            self.read, self.asynchronous = read, asynchronous
        return int(w.actor - self.readers.start)

    def write(
        self, w: Accessor, units: Lanes, size: int, lanes: Lanes, rows: Lanes, what: str
    ) -> None:
        """Lanes of a warp write rows to units of `size` bytes.

        Unless the launch is strict, several warps and lanes may write the same values in any order.
        Such a write counts as a read, after which alone others may write other values.
        """
        data, strict = self.data.reshape(-1, size), w.cta.launch.strict
        exact = strict or what == "stmatrix"  # whose elements have 16 bits
        try:
            self.note_write(w, units, size, lanes, what)
        except PtxError:
            same = are_same(data[units], rows, exact) & self._is_plain(units, size)
            if strict or not same.any():
                raise
            self.note_write(w, units[~same], size, lanes[~same], what)
            self._stamp_read(w, units[same], size, lanes[same])
        data[units] = rows
        same = are_same(data[units], rows, exact)
        if not same.all():
            reason = "lanes write different values to it at once"
            self.refuse(~same[:, None], units, size, f"{what} to", reason, w)

    def note_write(self, w: Accessor, units: Lanes, size: int, lanes: Lanes, what: str) -> None:
        """Lanes of a warp write units of `size` bytes, after all earlier accesses to them."""
        self._need_state(units, size, what, writes=True)
        self._claim(w, units, size, what, GENERIC)
        column = self._column(w)
        mine = self.read.reshape(-1, size, self.read.shape[1])[units, :, column]
        other = (mine >= w.synced) & ((mine & 31) != lanes[:, None])
        written, actors = self._last_writes(units, size)
        other |= (actors == w.actor) & (written >= w.synced) & ((written & 31) != lanes[:, None])
        if other.any():
            reason = f"another lane of the warp read or wrote it{UNSYNCED}"
            self.refuse(other, units, size, f"{what} to", reason, w)
        self.state.reshape(-1, size)[units] = DEFINED
        self.writer.reshape(-1, size)[units] = w.actor
        self.written.reshape(-1, size)[units] = ((w.now << LANE_BITS) + lanes)[:, None]

    def _is_plain(self, units: Lanes, size: int) -> Lanes:
        """Which units were written last by plain stores, and no asynchronous operation reads."""
        written, actors = self._last_writes(units, size)
        by_warps = (written >= 0) & (actors < self.all_warps)
        plain: Lanes = by_warps.all(1) & (self.reading[units * size // UNIT] == 0)
        return plain

    def _last_writes(self, units: Lanes, size: int) -> tuple[Lanes, Lanes]:
        """(stamp, actor) of the last write to each byte of units of `size` bytes."""
        return self.written.reshape(-1, size)[units], self.writer.reshape(-1, size)[units]

    def _need_state(self, units: Lanes, size: int, what: str, writes: bool) -> None:
        """Raise PtxError unless the units may be written, or have been and can be read."""
        state = self.state.reshape(-1, size)[units]
        wrong = state >= IN_FLIGHT if writes else state != DEFINED
        if wrong.any():
            row, byte = np.argwhere(wrong)[0]
            place = self.place(int(units[row]) * size + int(byte))
            raise PtxError(f"{what} at {place}: bytes that {STATES[int(state[row, byte])]}")

    def _claim(self, w: Accessor, units: Lanes, size: int, what: str, proxy: int) -> None:
        """Raise PtxError unless all earlier accesses are seen by `w`, in the row of `proxy`."""
        if self.reading[units * size // UNIT].any():
            busy = self.reading[units * size // UNIT] > 0
            reason = "an asynchronous operation is reading it"
            self.refuse(busy[:, None], units, size, f"{what} to", reason, w)
        self.need_released(w, units, size, what)
        written, actors = self._last_writes(units, size)
        late = written > w.clock[proxy][actors]
        if late.any():
            reason = self._why_late(late, written, actors, w)
            self.refuse(late, units, size, f"{what} to", reason, w)
        self._need_strong(w, units, size, f"{what} to")

    def _need_strong(self, w: Accessor, units: Lanes, size: int, what: str) -> None:
        """Raise PtxError unless `w` has seen the last strong writes to these units."""
        if self.strong_writes:
            late = self.strong.reshape(-1, size)[units] > w.clock[GENERIC][self.strong_actor]
            if late.any():
                reason = "no barrier orders it after an atomic operation or other strong write"
                self.refuse(late, units, size, what, reason, w)

    def note_strong(self, w: Accessor, units: Lanes, size: int, what: str, writes: bool) -> None:
        """An atomic operation or another strong access; strong ones do not race with each other.

        The block's strong writes are one actor, whose time counts them.
        """
        self._need_state(units, size, what, writes)
        written, actors = self._last_writes(units, size)
        late = written > w.clock[GENERIC][actors]
        if late.any():
            reason = "no barrier orders it after its writer"
            self.refuse(late, units, size, f"{what} of", reason, w)
        if writes:
            self.need_released(w, units, size, what)
            self.strong_writes += 1
            w.clock[GENERIC, self.strong_actor] = stamp(self.strong_writes)
            self.strong.reshape(-1, size)[units] = stamp(self.strong_writes)
            self.state.reshape(-1, size)[units] = DEFINED

    def need_released(self, w: Accessor, units: Lanes, size: int, what: str) -> None:
        """Raise PtxError unless `w` has seen all plain reads of these units."""
        warps = self.read.shape[1]
        seen = np.tile(w.clock[GENERIC][self.readers], size)
        unread = self.read.reshape(-1, size * warps)[units] > seen
        if unread.any():
            row, column = np.argwhere(unread)[0]
            reader = w.cta.actor(self.readers.start + int(column) % warps)
            reason = f"{reader} has not released it"
            first = np.zeros((len(units), 1), bool)
            first[row] = True
            self.refuse(first, units, size, f"{what} to", reason, w)

    def _need_fenced_reads(self, w: Accessor, units: Lanes, size: int, what: str) -> None:
        """Raise PtxError unless a fence of the async proxy follows all generic reads."""
        at = units * size // UNIT
        reads = self.read.reshape(-1, UNIT, self.read.shape[1])[at].max(1)
        late = (reads > w.clock[ASYNC][self.readers]) & ~self.asynchronous[at]
        if late.any():
            row, column = np.argwhere(late)[0]
            reader = w.cta.actor(self.readers.start + int(column))
            reason = f"{reader} has read it, with no fence.proxy.async in between (strict)"
            self.refuse(late[row : row + 1, :1] | True, units[row:], size, f"{what} to", reason, w)

    # -- the async proxy, and cp.async --------------------------------------------------------

    def begin_write(self, w: Accessor, units: Lanes, size: int, what: str, proxy: int) -> None:
        """A copy that `w` issues will write these units, through `proxy`."""
        self._need_state(units, size, what, writes=True)
        self._claim(w, units, size, what, proxy)
        if w.cta.launch.strict and proxy == ASYNC:
            self._need_fenced_reads(w, units, size, what)
        self.state.reshape(-1, size)[units] = IN_FLIGHT

    def end_write(self, units: Lanes, rows: Lanes, actor: int, at: int) -> None:
        """The bytes have come; whoever has seen `actor` at stamp `at` may touch them."""
        size = rows.shape[-1]
        self.data.reshape(-1, size)[units] = rows
        self.state.reshape(-1, size)[units] = DEFINED
        self.writer.reshape(-1, size)[units] = actor
        self.written.reshape(-1, size)[units] = at

    def begin_read(self, w: Accessor, units: Lanes, what: str) -> None:
        """An asynchronous operation that `w` issues reads these units of 16 bytes."""
        self._need_state(units, UNIT, what, writes=False)
        written, actors = self._last_writes(units, UNIT)
        late = written > w.clock[ASYNC][actors]
        if late.any():
            reason = self._why_late(late, written, actors, w)
            self.refuse(late, units, UNIT, f"{what} of", reason, w)
        self._need_strong(w, units, UNIT, f"{what} of")
        np.add.at(self.reading, units, 1)

    def end_read(self, w: Accessor, units: Lanes) -> None:
        """The operation is complete, and `w` has waited for it."""
        np.subtract.at(self.reading, units, 1)
        warps, column = self.read.shape[1], self._column(w)
        self.read.reshape(-1, UNIT, warps)[units, :, column] = stamp(w.now)
        self.asynchronous[units, column] = True

    # -- messages -----------------------------------------------------------------------------

    def _why_late(self, late: Lanes, written: Lanes, actors: Lanes, w: Accessor) -> str:
        if (written[late] > w.clock[GENERIC][actors[late]]).any():
            return "no barrier orders it after its last write"
        return "its last write was generic, and no fence.proxy.async comes in between"

    def refuse(
        self, bad: Lanes, units: Lanes, size: int, what: str, reason: str, w: Accessor
    ) -> None:
        """Raise the error of the first bad byte, with its place and its last writer."""
        row, byte = np.argwhere(bad)[0]
        offset = int(units[row]) * size + int(byte)
        actor, last = int(self.writer[offset]), ""
        if self.written[offset] >= 0:
            last = f" (last written by {w.cta.actor(actor)})"
        raise PtxError(f"{what} {self.place(offset)}: {reason}{last}")
