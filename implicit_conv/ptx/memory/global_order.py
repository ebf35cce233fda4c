"""The order of a cluster's accesses to global memory (PTX ISA 8, memory model, and 9.7.9).

A weak access to bytes that another warp of the cluster has written is in order if its warp has seen
that write. Bulk copies access memory through the async proxy, which sees a generic write only past
``fence.proxy.async``; what a bulk store writes is seen by the thread that has waited for its group,
without ``.read``. Writes of other clusters, and reads that a write overtakes, are not looked for.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from implicit_conv.ptx.errors import PtxError
from implicit_conv.ptx.kinds import Lanes
from implicit_conv.ptx.memory.clocks import ASYNC, GENERIC, stamp
from implicit_conv.ptx.memory.global_memory import Buffer, Bytes, Memory
from implicit_conv.ptx.memory.shared import Accessor, are_same

WRITTEN, STORED, STORING, REDUCING = range(4)  # by a warp; by a bulk store; by one under way


class Last(NamedTuple):
    """The last write to each byte of a buffer: its warp, its stamp and one (0: never), its kind."""

    writer: NDArray[np.uint8]
    written: NDArray[np.int32]
    kind: NDArray[np.uint8]


class GlobalOrder:
    """The last writes of a cluster's warps, by the addresses of the buffers that they touch."""

    def __init__(self, memory: Memory) -> None:
        self.memory = memory
        self.last: dict[int, Last] = {}

    def read(self, w: Accessor, at: Lanes, size: int, what: str, proxy: int = GENERIC) -> None:
        """A warp reads `size` bytes at addresses, itself or by a bulk copy."""
        if self.last:
            for _, buffer, cells in self.memory.places(at, size):
                if buffer.address in self.last:
                    self._need_order(w, buffer, cells, what, proxy)

    def copy(self, w: Accessor, rows: list[tuple[int, int]], what: str) -> None:
        """A bulk copy that a warp issues reads rows, each (address, bytes)."""
        if not rows or not self.last:
            return
        low, high = min(rows)[0], max(rows)[0]
        if any(low < at + last.kind.size and at <= high for at, last in self.last.items()):
            for address, size in rows:
                self.read(w, np.array([address]), size, what, ASYNC)

    def write(self, w: Accessor, buffer: Buffer, cells: Lanes, rows: Bytes) -> None:
        """A warp writes rows to cells of a buffer; the same values as of `SharedMemory.write`."""
        strict, last = w.cta.launch.strict, self._of(buffer)
        same = are_same(buffer.data[cells], rows, strict) & (not strict)
        same &= (last.kind[cells] == WRITTEN).all(1)
        self._need_order(w, buffer, cells[~same], "st.global", GENERIC)
        ordered = ~self._unseen(w, last, cells).any(1)  # others have the same values
        buffer.data[cells] = rows
        wrong = ~are_same(buffer.data[cells], rows, strict)
        if wrong.any():
            at = buffer.address + int(cells[wrong][0, 0])
            raise PtxError(f"st.global at global {at:#x}: lanes write different values at once")
        new = cells[ordered]
        last.writer[new], last.written[new], last.kind[new] = w.actor, stamp(w.now) + 1, WRITTEN

    def begin_store(
        self, w: Accessor, rows: list[tuple[int, int]], what: str, reduces: bool
    ) -> None:
        """A bulk store that a warp issues will write rows, each (address, bytes); reductions take
        any order.
        """
        found = [
            (buffer, cells)
            for address, size in rows
            for _, buffer, cells in self.memory.places(np.array([address]), size)
        ]
        for buffer, cells in found:
            kinds = self._of(buffer).kind[cells]
            others = cells[kinds != REDUCING] if reduces else cells
            self._need_order(w, buffer, others, what, ASYNC)
        for buffer, cells in found:
            last = self._of(buffer)
            last.writer[cells], last.kind[cells] = w.actor, REDUCING if reduces else STORING

    def end_store(self, w: Accessor, address: int, size: int) -> None:
        """The warp has waited for the store."""
        for _, buffer, cells in self.memory.places(np.array([address]), size):
            last = self._of(buffer)
            last.writer[cells], last.written[cells] = w.actor, stamp(w.now) + 1
            last.kind[cells] = STORED

    def _of(self, buffer: Buffer) -> Last:
        if buffer.address not in self.last:
            size = buffer.data.size
            never = np.zeros(size, np.uint8), np.zeros(size, np.int32), np.zeros(size, np.uint8)
            self.last[buffer.address] = Last(*never)
        return self.last[buffer.address]

    def _unseen(self, w: Accessor, last: Last, cells: Lanes, proxy: int = GENERIC) -> Lanes:
        """Which cells have a last write that `w` has not seen, through `proxy`."""
        seen = w.clock[proxy][last.writer[cells]]
        return np.asarray(last.written[cells] - 1 > seen)

    def _need_order(self, w: Accessor, buffer: Buffer, cells: Lanes, what: str, proxy: int) -> None:
        """Raise PtxError unless `w` has seen the last write to these cells, through `proxy`."""
        last = self.last[buffer.address]
        kind, under_way = last.kind[cells], last.kind[cells] >= STORING
        unseen = self._unseen(w, last, cells) & ~under_way
        hidden = self._unseen(w, last, cells, proxy) & (kind == WRITTEN)
        for late, reason in (
            (
                under_way,
                "a bulk store of {} that nobody has waited for writes it: "
                "cp.async.bulk.wait_group without .read is missing",
            ),
            (unseen, "no barrier orders it after the write of {}"),
            (hidden, "the write of {} was generic, and no fence.proxy.async comes in between"),
        ):
            if late.any():
                cell = int(cells[late][0])
                place = f"{what} at global {buffer.address + cell:#x}"
                raise PtxError(f"{place}: {reason.format(w.cta.actor(int(last.writer[cell])))}")
