"""Global memory: numpy arrays at addresses, with nothing between them (PTX ISA 5.1, .global)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from implicit_conv.ptx.errors import PtxError
from implicit_conv.ptx.kinds import Lanes
from implicit_conv.ptx.memory.clocks import GENERIC, stamp
from implicit_conv.ptx.memory.shared import Accessor, are_same
from implicit_conv.ptx.memory.tensor_map import TensorMap

Bytes = NDArray[np.uint8]
FIRST = 0x10_0000_0000  # address of the first array: above 32 bits, so that narrow sums show
GAP = 4096  # bytes between arrays, at least
MAP_BYTES = 128  # of an encoded tensor map
MAP_MARK = 0x7E50_0000_0000_0000  # the first word of an encoded map is this and its number


class Buffer(NamedTuple):
    """The bytes of an array at an address."""

    address: int
    data: Bytes


class Memory:
    """Arrays that a kernel may reach, and the tensor maps that it may name.

    Examples
    --------
    >>> import numpy as np
    >>> from implicit_conv import ptx
    >>> memory, x = ptx.Memory(), np.zeros(64, np.float32)
    >>> at = memory.put(x)
    >>> tile = ptx.TensorMap("tile", 4, at, (8, 8), (32,), (1, 1), box=(8, 8))
    >>> len(memory.encode(tile))
    128
    """

    def __init__(self) -> None:
        self.buffers: list[Buffer] = []
        self.maps: list[TensorMap] = []
        # Structs that have a map somewhere: bytes, by their offset in the parameters.
        self.structs: dict[int, int] = {}
        self.next = FIRST

    def put(self, array: NDArray[Any], offset: int = 0) -> int:
        """The address of a contiguous array, `offset` bytes past a page; kernels write into it."""
        if not array.flags.c_contiguous:
            raise PtxError("an array for a kernel must be contiguous; pass a copy")
        data = array.reshape(-1).view(np.uint8)
        address = self.next + offset
        self.buffers.append(Buffer(address, data))
        self.next += -(-(data.size + offset) // GAP) * GAP + GAP
        return address

    def encode(self, map: TensorMap) -> bytes:
        """128 bytes that stand for a tensor map wherever a kernel passes their address."""
        number = len(self.maps)
        self.maps.append(map)
        words = [MAP_MARK + number + (word << 32) for word in range(MAP_BYTES // 8)]
        return bytes(np.array(words, np.uint64).tobytes())

    def decode(self, data: bytes) -> TensorMap:
        """The tensor map of 128 bytes."""
        words: list[int] = np.frombuffer(data, np.uint64).tolist()
        number = words[0] - MAP_MARK
        expected = [MAP_MARK + number + (word << 32) for word in range(MAP_BYTES // 8)]
        if not 0 <= number < len(self.maps) or words != expected:
            raise PtxError("the address holds no tensor map")
        return self.maps[number]

    def places(self, at: Lanes, unit: int) -> Iterator[tuple[Any, Buffer, Lanes]]:
        """(which addresses, buffer, cells of `unit` bytes each) for each buffer that is met."""
        low, high = int(at.min()), int(at.max()) + unit
        for buffer in self.buffers:
            if buffer.address <= low and high <= buffer.address + buffer.data.size:
                yield slice(None), buffer, (at - buffer.address)[:, None] + np.arange(unit)
                return
        left = np.ones(at.size, bool)
        for buffer in self.buffers:
            end = buffer.address + buffer.data.size
            here = left & (at >= buffer.address) & (at + unit <= end)
            if here.any():
                left &= ~here
                yield here, buffer, (at[here] - buffer.address)[:, None] + np.arange(unit)
        if left.any():
            raise PtxError(f"global address {int(at[left][0]):#x} ({unit} bytes) lies in no array")

    def gather(self, at: Lanes, unit: int) -> Bytes:
        """Rows of `unit` bytes at addresses."""
        out = np.empty((at.size, unit), np.uint8)
        for which, buffer, cells in self.places(at, unit):
            out[which] = buffer.data[cells]
        return out

    def bytes(self, address: int, size: int) -> Bytes:
        """The bytes at an address, which a caller may write into."""
        for buffer in self.buffers:
            start = address - buffer.address
            if 0 <= start and start + size <= buffer.data.size:
                return buffer.data[start : start + size]
        raise PtxError(f"global addresses {address:#x} to {address + size:#x} lie in no array")


class GlobalOrder:
    """The last weak writes of a block's warps, byte by byte of the buffers that they touch (PTX ISA
    8, memory model).

    A weak read or write of bytes that another warp of the block has written is in order if the warp
    has seen that write. Writes of other blocks, and reads that a write overtakes, are not looked
    for.
    """

    def __init__(self, memory: Memory) -> None:
        self.memory = memory
        # By the buffer's address: the warp that wrote a byte, and its stamp and one (0: never).
        self.last: dict[int, tuple[NDArray[np.uint8], NDArray[np.int32]]] = {}

    def note_read(self, w: Accessor, at: Lanes, size: int) -> None:
        """A warp reads `size` bytes at addresses."""
        if self.last:
            for _, buffer, cells in self.memory.places(at, size):
                if buffer.address in self.last:
                    self._need_order(w, buffer, cells, "ld.global")

    def write(self, w: Accessor, buffer: Buffer, cells: Lanes, rows: Bytes) -> None:
        """A warp writes rows to cells of a buffer; the same values as of `SharedMemory.write`."""
        strict = w.cta.launch.strict
        if buffer.address not in self.last:
            shape = buffer.data.size
            self.last[buffer.address] = np.zeros(shape, np.uint8), np.zeros(shape, np.int32)
        same = are_same(buffer.data[cells], rows, strict) & (not strict)
        self._need_order(w, buffer, cells[~same], "st.global")
        buffer.data[cells] = rows
        wrong = ~are_same(buffer.data[cells], rows, strict)
        if wrong.any():
            at = buffer.address + int(cells[wrong][0, 0])
            raise PtxError(f"st.global at global {at:#x}: lanes write different values at once")
        writer, written = self.last[buffer.address]
        new = ~same | (written[cells] == 0).any(1)
        writer[cells[new]], written[cells[new]] = w.index, stamp(w.now) + 1

    def _need_order(self, w: Accessor, buffer: Buffer, cells: Lanes, what: str) -> None:
        writer, written = self.last[buffer.address]
        late = written[cells] > w.clock[GENERIC][writer[cells]] + 1
        if late.any():
            cell = int(cells[late][0])
            raise PtxError(
                f"{what} at global {buffer.address + cell:#x}: no barrier orders it after the "
                f"write of warp {writer[cell]}"
            )
