"""Memory of the simulated GPU: global arrays with guards, shared memory that detects races."""

import numpy as np

from implicit_conv.kernels.sim.errors import SimulationError

GUARD = 256  # bytes between allocations that nobody may touch
GRANULE = 16  # bytes of shared memory that are ordered together
IN_FLIGHT = 1 << 60  # the time of a write that has not arrived


class GlobalMemory:
    """Arrays at addresses of their own; an access outside of all of them is an error."""

    def __init__(self):
        self.bytes = np.zeros(GUARD, np.uint8)
        self.owner = np.zeros(GUARD // GRANULE, np.int32)  # of each granule; 0: nobody
        self.sizes = [(0, 0)]

    def put(self, array, offset=0):
        """Address of a copy of `array`, `offset` bytes past a 256-byte boundary."""
        data = np.frombuffer(np.ascontiguousarray(array).tobytes(), np.uint8)
        start = len(self.bytes) + offset
        size = -(-(offset + len(data)) // GUARD) * GUARD + GUARD
        block = np.zeros(size, np.uint8)
        block[offset : offset + len(data)] = data
        self.bytes = np.concatenate([self.bytes, block])
        self.sizes.append((start, len(data)))
        return start

    def get(self, address, shape, dtype):
        """The array that begins at `address`."""
        dtype = np.dtype(dtype)
        count = int(np.prod(shape)) * dtype.itemsize
        return self.bytes[address : address + count].copy().view(dtype).reshape(shape)

    def check(self, addresses, width, what):
        """Every access of `width` bytes lies in one allocation and is aligned."""
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

    def load(self, addresses, width):
        """Bytes (len(addresses), width)."""
        self.check(addresses, width, "a read")
        return self.bytes[np.asarray(addresses)[:, None] + np.arange(width)]

    def store(self, addresses, data):
        """Write `data` (len(addresses), width)."""
        self.check(addresses, data.shape[1], "a write")
        self.bytes[np.asarray(addresses)[:, None] + np.arange(data.shape[1])] = data


class SharedMemory:
    """A block's shared memory from address `base` on, with the time of each granule's last
    accesses.

    Actors are the block's warps, then its barriers. A granule remembers which actor wrote it at
    what time of the actor's own clock, and when each warp read it last; an access is in order if
    its warp's clock has seen those times. A barrier's time counts its completed phases.
    """

    def __init__(self, size, base, warps):
        self.base = base
        self.bytes = np.full(size, 0xFF, np.uint8)  # a NaN in every floating-point type
        granules = -(-size // GRANULE)
        self.writer = np.zeros(granules, np.int64)
        self.written = np.zeros(granules, np.int64)  # 0: never
        self.read = np.zeros((granules, warps), np.int64)

    def _offsets(self, addresses, width, align):
        offsets = np.atleast_1d(addresses) - self.base
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

    def load(self, warp, addresses, width, align=None):
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
        return self.bytes[offsets[:, None] + np.arange(width)]

    def store(self, warp, addresses, data, align=None):
        """Write `data` (len(addresses), width) as `warp`."""
        width = data.shape[1]
        offsets = self._offsets(addresses, width, align or width)
        granules = _granules(offsets, width)
        self._claim(warp, granules)
        self.bytes[offsets[:, None] + np.arange(width)] = data
        self.writer[granules], self.written[granules] = warp.index, warp.clock[warp.index]

    def announce(self, warp, addresses, width):
        """`warp` starts an asynchronous write: until it arrives nobody may look."""
        offsets = self._offsets(addresses, width, GRANULE)
        granules = _granules(offsets, width)
        self._claim(warp, granules)
        self.bytes[offsets[:, None] + np.arange(width)] = 0xFF
        self.written[granules] = IN_FLIGHT

    def deliver(self, addresses, data, actor, time):
        """An asynchronous write arrives; it is ordered by `actor` reaching `time`."""
        offsets = np.atleast_1d(addresses) - self.base
        width = data.shape[1]
        self.bytes[offsets[:, None] + np.arange(width)] = data
        granules = _granules(offsets, width)
        self.writer[granules], self.written[granules] = actor, time

    def _claim(self, warp, granules):
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

    def _early(self, warp, granule):
        place = warp.block.place(int(granule) * GRANULE)
        state = (
            "its copy is still under way"
            if self.written[granule] == IN_FLIGHT
            else "no barrier orders it"
        )
        raise SimulationError(f"{warp} reads {place} before it is full: {state}")


def _granules(offsets, width):
    if width <= GRANULE:
        return offsets // GRANULE
    return np.unique(offsets[:, None] // GRANULE + np.arange(width // GRANULE))
