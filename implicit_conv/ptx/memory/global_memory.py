"""Global memory: numpy arrays at addresses, with nothing between them (PTX ISA 5.1, .global)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from implicit_conv.ptx.errors import PtxError
from implicit_conv.ptx.kinds import Lanes
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
