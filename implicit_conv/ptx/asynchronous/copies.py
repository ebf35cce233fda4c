"""Asynchronous copies: cp.async, bulk copies and tensor copies (PTX ISA 9.7.9).

Each arrives later, when the scheduler draws it, and a tensor copy in pieces. The instruction itself
claims the bytes that will be written, so a race shows whichever copy comes first.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from implicit_conv.ptx.errors import PtxError
from implicit_conv.ptx.kinds import Lanes
from implicit_conv.ptx.machine.barriers import Barrier
from implicit_conv.ptx.machine.state import State
from implicit_conv.ptx.machine.watch import TensorCopy
from implicit_conv.ptx.memory.clocks import ASYNC, GENERIC, stamp
from implicit_conv.ptx.memory.shared import UNIT, SharedMemory
from implicit_conv.ptx.memory.shared_layout import SHARED_BASE
from implicit_conv.ptx.memory.tensor_map import Inside, Row, TensorMap, swizzled

Combine = Callable[[NDArray[np.uint8], NDArray[np.uint8]], NDArray[np.uint8]]
TENSOR_ALIGNMENT = 128  # of a tensor copy's shared address
PIECES = 3  # in which a tensor copy arrives, at most


def places_of(rows: list[Inside]) -> list[tuple[int, int]]:
    """(address, bytes) of the rows that have some inside the tensor."""
    return [(row[0], row[2]) for row in rows if row is not None]


class AsyncCopy:
    """``cp.async`` of one warp instruction: `width` bytes of each lane (9.7.9, cp.async)."""

    def __init__(self, w: State, targets: Lanes, sources: Lanes, sizes: Lanes, width: int) -> None:
        self.w, self.width, self.done = w, width, False
        self.then: list[Callable[[], None]] = []
        offsets = w.shared.offsets(targets, width, "cp.async")
        if (sizes > width).any():
            raise PtxError(f"cp.async copies {width} bytes, but reads {int(sizes.max())}")
        if (sources[sizes > 0] & (width - 1)).any():
            raise PtxError(f"cp.async of {width} bytes: its source is not aligned to that")
        self.units, self.sizes, self.sources = offsets // width, sizes, sources
        w.shared.begin_write(w, self.units, width, "cp.async", GENERIC)
        real = sources[sizes > 0]
        if real.size:  # addresses are right or wrong when the copy is issued
            w.memory.gather(real, width)
            w.cta.global_order.read(w, real, width, "cp.async")
        w.copies_issued += 1
        self.number = w.copies_issued

    def step(self) -> bool:
        """Arrive; always the last step."""
        self.finish()
        return True

    def finish(self) -> None:
        """Arrive, unless that has happened."""
        if self.done:
            return
        self.done = True
        rows = np.zeros((len(self.units), self.width), np.uint8)
        real = self.sizes > 0
        if real.any():
            read = self.w.memory.gather(self.sources[real], self.width)
            inside = np.arange(self.width) < self.sizes[real][:, None]
            rows[real] = np.where(inside, read, 0)
        queue = self.w.cta.copy_queue(self.w)
        self.w.shared.end_write(self.units, rows, queue, stamp(self.number))
        for action in self.then:
            action()


class BulkLoad:
    """A bulk copy from global to shared memory that completes on an mbarrier.

    `rows` yields (address, first byte, bytes) of each row, or None where it is filled with zeros.
    `shared` is the memory of the block that has the mbarrier.
    """

    def __init__(
        self,
        w: State,
        units: Lanes,
        rows: list[Inside],
        shared: SharedMemory,
        barrier: Barrier,
        what: str,
        end: Callable[[], None] = lambda: None,
    ) -> None:
        self.w, self.units, self.rows, self.barrier = w, units, rows, barrier
        self.shared, self.phase = shared, barrier.phase
        self.end = end  # called when all pieces have arrived
        shared.begin_write(w, units.reshape(-1), UNIT, what, ASYNC)
        barrier.coming += units.size * UNIT
        w.cta.global_order.copy(w, places_of(rows), what)
        draw = w.launch.random
        cuts = sorted(draw.sample(range(1, len(rows)), min(PIECES - 1, len(rows) - 1)))
        ends = [*cuts, len(rows)]
        self.pieces = [range(a, b) for a, b in zip([0, *cuts], ends, strict=True)]
        draw.shuffle(self.pieces)

    def step(self) -> bool:
        """One piece arrives; whether it was the last."""
        piece = self.pieces.pop()
        data = np.zeros((len(piece), self.units.shape[1] * UNIT), np.uint8)
        for place, row in zip(data, (self.rows[number] for number in piece), strict=True):
            if row is not None:
                address, first, size = row
                place[first : first + size] = self.w.memory.bytes(address, size)
        units = self.units[piece.start : piece.stop].reshape(-1)
        rows = data.reshape(-1, UNIT)
        self.shared.end_write(units, rows, self.barrier.actor, self.barrier.filling)
        if not self.pieces:
            self.end()
        self.barrier.receive(data.size, self.phase)
        return not self.pieces


class BulkStore:
    """A bulk copy from shared to global memory, which a bulk group waits for.

    It reads at some time between its issue and the wait; shared memory must not change meanwhile.
    """

    def __init__(
        self,
        w: State,
        lane: int,
        units: Lanes,
        rows: list[Inside],
        what: str,
        end: Callable[[], None] = lambda: None,
        combine: Combine | None = None,
    ) -> None:
        self.w, self.lane, self.units, self.rows = w, lane, units, rows
        self.combine = combine  # of a reduction: (bytes before, given bytes) -> bytes afterwards
        self.end = end  # called when it has written
        self.done = self.is_over = False  # over: the thread has waited, without .read
        w.shared.begin_read(w, units.reshape(-1), what)
        w.cta.global_order.begin_store(w, places_of(rows), what, combine is not None)

    def step(self) -> bool:
        """Read and write; always the last step."""
        if not self.done:
            self.done = True
            data = self.w.shared.data.reshape(-1, UNIT)[self.units].reshape(len(self.rows), -1)
            for place, row in zip(data, self.rows, strict=True):
                if row is not None:
                    address, first, size = row
                    self.w.launch.note_store(address, size)
                    held, given = self.w.memory.bytes(address, size), place[first : first + size]
                    held[:] = self.combine(held, given) if self.combine else given
            self.end()
        return True

    def finish(self) -> None:
        """The issuing thread has waited: the bytes that were read are free."""
        self.step()
        self.w.shared.end_read(self.w, self.units.reshape(-1))

    def is_over_to(self, w: State) -> bool:
        """Whether the issuing thread has waited for what was written."""
        return self.is_over

    def wrote(self) -> None:
        """The issuing thread has waited for what was written, too."""
        self.is_over = True
        for address, size in places_of(self.rows):
            self.w.cta.global_order.end_store(self.w, address, size)


def complete_tensor(w: State, copy: TensorCopy, shared: SharedMemory, units: Lanes) -> None:
    """Tell those who watch that a tensor copy has come to an end."""
    copy.places = units * UNIT + SHARED_BASE - copy.address
    copy.contents = shared.data.reshape(-1, UNIT)[units]
    w.launch.watch(copy)


def tensor_units(
    shared: SharedMemory, target: int, map: TensorMap, rows: list[Row], what: str
) -> Lanes:
    """Numbers of the 16-byte units of shared memory that a tensor copy touches, row by row."""
    if target % TENSOR_ALIGNMENT:
        raise PtxError(f"{what} at shared {target:#x}: not aligned to {TENSOR_ALIGNMENT} bytes")
    size = map.row_bytes
    if map.span and size > map.span:
        raise PtxError(f"rows of {size} bytes are longer than the swizzle's span of {map.span}")
    if size % UNIT:
        raise PtxError(f"rows of {size} bytes are no multiple of {UNIT}")
    pitch = max(size, map.span)  # what a row has less than the span is left as it was
    at = target + np.arange(len(rows))[:, None] * pitch + np.arange(0, size, UNIT)
    offsets = swizzled(at, map.span) - SHARED_BASE
    shared.inside(int(offsets.min()), int(offsets.max()) + UNIT, what)
    return offsets // UNIT


def bulk_units(shared: SharedMemory, target: int, size: int, what: str) -> Lanes:
    """The units of a bulk copy of `size` contiguous bytes, as rows of one unit."""
    if target % UNIT or size % UNIT or size <= 0:
        raise PtxError(f"{what} of {size} bytes at {target:#x}: both must be multiples of {UNIT}")
    start = target - SHARED_BASE
    shared.inside(start, start + size, what)
    return np.arange(start // UNIT, (start + size) // UNIT)[:, None]
