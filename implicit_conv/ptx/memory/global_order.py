"""Who of a block has written bytes of global memory last, and when (PTX ISA 8, memory model).

A weak read or write of bytes that another warp of the block has written is in order if the warp has
seen that write. Writes of other blocks, and reads that a write overtakes, are not looked for.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from implicit_conv.ptx.errors import PtxError
from implicit_conv.ptx.memory.clocks import GENERIC, stamp
from implicit_conv.ptx.memory.global_memory import Buffer, Memory
from implicit_conv.ptx.memory.shared import Accessor

Lanes = NDArray[Any]


class GlobalOrder:
    """The last weak writes of a block's warps, byte by byte of the buffers that they touch."""

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

    def note_write(self, w: Accessor, buffer: Buffer, cells: Lanes) -> None:
        """A warp writes cells of a buffer."""
        if buffer.address not in self.last:
            shape = buffer.data.size
            self.last[buffer.address] = np.zeros(shape, np.uint8), np.zeros(shape, np.int32)
        self._need_order(w, buffer, cells, "st.global")
        writer, written = self.last[buffer.address]
        writer[cells], written[cells] = w.index, stamp(w.now) + 1

    def _need_order(self, w: Accessor, buffer: Buffer, cells: Lanes, what: str) -> None:
        writer, written = self.last[buffer.address]
        late = written[cells] > w.clock[GENERIC][writer[cells]] + 1
        if late.any():
            cell = int(cells[late][0])
            raise PtxError(
                f"{what} at global {buffer.address + cell:#x}: no barrier orders it after the "
                f"write of warp {writer[cell]}"
            )
