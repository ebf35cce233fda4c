"""Memory of the simulated GPU: global arrays with guards, shared memory that detects races."""

from __future__ import annotations

from typing import Any, NoReturn, Protocol

import numpy as np
import numpy.typing as npt

from implicit_conv.kernels.sim.errors import SimulationError

GUARD = 256  # bytes between allocations that no access may touch
GRANULE = 16  # bytes of shared memory whose accesses are ordered together
IN_FLIGHT = 1 << 60  # the time of a write that has not arrived

Bytes = npt.NDArray[np.uint8]
Integers = npt.NDArray[np.int64]


class Places(Protocol):
    """Names of the regions of a block's shared memory, for messages."""

    def place(self, offset: int) -> str:
        """The region of a byte."""


class Accessor(Protocol):
    """What shared memory needs of a warp."""

    @property
    def index(self) -> int:
        """Its number in the block."""

    @property
    def clock(self) -> Integers:
        """The time of each actor that it has seen."""

    @property
    def block(self) -> Places:
        """Its block."""


class GlobalMemory:
    """Arrays at separate addresses; an access outside of all of them is an error."""

    def __init__(self) -> None:
        self.bytes: Bytes = np.zeros(GUARD, np.uint8)
        self.sizes = [(0, 0)]

    def put(self, array: npt.NDArray[Any], offset: int = 0) -> int:
        """Copy `array` to `offset` bytes past a 256-byte boundary and return its address."""
        data = np.frombuffer(np.ascontiguousarray(array).tobytes(), np.uint8)
        start = len(self.bytes) + offset
        size = -(-(offset + len(data)) // GUARD) * GUARD + GUARD
        block = np.zeros(size, np.uint8)
        block[offset : offset + len(data)] = data
        self.bytes = np.concatenate([self.bytes, block])
        self.sizes.append((start, len(data)))
        return start

    def get(self, address: int, shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """A copy of the array that begins at `address`."""
        dtype = np.dtype(dtype)
        count = int(np.prod(shape)) * dtype.itemsize
        return self.bytes[address : address + count].copy().view(dtype).reshape(shape)

    def check(self, addresses: npt.ArrayLike, width: int, what: str) -> None:
        """Raise SimulationError unless each access of `width` bytes is aligned and in one array."""
        addresses = np.atleast_1d(addresses)
        if not len(addresses):
            return
        starts = np.array([start for start, _ in self.sizes])
        ends = np.array([start + size for start, size in self.sizes])
        owner = np.searchsorted(starts, addresses, "right") - 1
        bad = (addresses + width > ends[owner]) | (addresses % width != 0) | (owner < 1)
        if bad.any():
            where = int(addresses[bad][0])
            raise SimulationError(
                f"{what} of {width} bytes at global address {where:#x} "
                "is outside every array or misaligned"
            )

    def load(self, addresses: npt.ArrayLike, width: int) -> Bytes:
        """Bytes (len(addresses), width)."""
        self.check(addresses, width, "a read")
        return self.bytes[np.asarray(addresses)[:, None] + np.arange(width)]

    def store(self, addresses: npt.ArrayLike, data: Bytes) -> None:
        """Write `data` (len(addresses), width)."""
        self.check(addresses, data.shape[1], "a write")
        self.bytes[np.asarray(addresses)[:, None] + np.arange(data.shape[1])] = data


class SharedMemory:
    """The shared memory of a block from address `base` on, with the last accesses to each granule.

    Actors are the warps of the block, then its barriers. For each granule the last writer is kept
    with the time on its own clock, and the time of the last read by each warp. An access is in
    order if the clock of its warp has seen those times. The time of a barrier is the number of its
    completed phases.
    """

    def __init__(self, size: int, base: int, warps: int) -> None:
        self.base = base
        self.bytes: Bytes = np.full(size, 0xFF, np.uint8)  # a NaN in every floating-point type
        granules = -(-size // GRANULE)
        self.writer: Integers = np.zeros(granules, np.int64)
        self.written: Integers = np.zeros(granules, np.int64)  # 0: never
        self.read: Integers = np.zeros((granules, warps), np.int64)

    def _offsets(self, addresses: npt.ArrayLike, width: int, align: int) -> Integers:
        """Offsets of accesses that are aligned and inside the block's shared memory."""
        offsets: Integers = np.atleast_1d(addresses) - self.base
        if (offsets % align).any():
            raise SimulationError(
                f"shared address {int(np.max(addresses)):#x} is not aligned to {align} bytes"
            )
        if len(offsets) and (offsets.min() < 0 or offsets.max() + width > len(self.bytes)):
            low, high = int(offsets.min()) + self.base, int(offsets.max()) + self.base + width
            raise SimulationError(
                f"shared addresses {low:#x} to {high:#x} exceed the block's {len(self.bytes)} bytes"
            )
        return offsets

    def load(
        self, warp: Accessor, addresses: npt.ArrayLike, width: int, align: int | None = None
    ) -> Bytes:
        """Bytes (len(addresses), width) as `warp` reads them."""
        offsets = self._offsets(addresses, width, align or width)
        granules = _granules(offsets, width)
        late = warp.clock[self.writer[granules]] < self.written[granules]
        if late.any():
            self._early(warp, granules[late][0])
        if (self.written[granules] == 0).any():
            where = int(granules[self.written[granules] == 0][0]) * GRANULE
            raise SimulationError(
                f"{warp} reads {warp.block.place(where)}, which was never written"
            )
        self.read[granules, warp.index] = warp.clock[warp.index]
        data: Bytes = self.bytes[offsets[:, None] + np.arange(width)]
        return data

    def store(
        self, warp: Accessor, addresses: npt.ArrayLike, data: Bytes, align: int | None = None
    ) -> None:
        """Write `data` (len(addresses), width) as `warp`."""
        width = data.shape[1]
        offsets = self._offsets(addresses, width, align or width)
        granules = _granules(offsets, width)
        self._claim(warp, granules)
        self.bytes[offsets[:, None] + np.arange(width)] = data
        self.writer[granules], self.written[granules] = warp.index, warp.clock[warp.index]

    def announce(self, warp: Accessor, addresses: npt.ArrayLike, width: int) -> None:
        """`warp` starts an asynchronous write; until it arrives, every access is an error."""
        offsets = self._offsets(addresses, width, GRANULE)
        granules = _granules(offsets, width)
        self._claim(warp, granules)
        self.bytes[offsets[:, None] + np.arange(width)] = 0xFF
        self.written[granules] = IN_FLIGHT

    def deliver(self, addresses: npt.ArrayLike, data: Bytes, actor: int, time: int) -> None:
        """An asynchronous write arrives; it is ordered before whoever sees `actor` at `time`."""
        offsets = np.atleast_1d(addresses) - self.base
        width = data.shape[1]
        self.bytes[offsets[:, None] + np.arange(width)] = data
        granules = _granules(offsets, width)
        self.writer[granules], self.written[granules] = actor, time

    def _claim(self, warp: Accessor, granules: Integers) -> None:
        """Raise SimulationError unless `warp` may overwrite these granules."""
        warps = self.read.shape[1]
        unread = self.read[granules] > warp.clock[:warps]
        if unread.any():
            row, reader = np.argwhere(unread)[0]
            place = warp.block.place(int(granules[row]) * GRANULE)
            raise SimulationError(f"{warp} overwrites {place} before warp {reader} has released it")
        if (warp.clock[self.writer[granules]] < self.written[granules]).any():
            late = granules[warp.clock[self.writer[granules]] < self.written[granules]][0]
            place = warp.block.place(int(late) * GRANULE)
            raise SimulationError(
                f"{warp} overwrites {place} before its last contents were complete"
            )

    def _early(self, warp: Accessor, granule: int) -> NoReturn:
        place = warp.block.place(int(granule) * GRANULE)
        state = (
            "its copy is still under way"
            if self.written[granule] == IN_FLIGHT
            else "no barrier orders it"
        )
        raise SimulationError(f"{warp} reads {place} before it is full: {state}")


def _granules(offsets: Integers, width: int) -> Integers:
    if width <= GRANULE:
        return offsets // GRANULE
    return np.unique(offsets[:, None] // GRANULE + np.arange(width // GRANULE))
