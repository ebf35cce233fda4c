"""The two ceilings that measured convolutions are compared with: FMAs from registers, and a copy.

Both are launched like a convolution, on the same threads, so that their timings can be interleaved
with those of convolutions. Each thread has its own part of the memory at ``call.scratch.address``.
"""

from __future__ import annotations

import numpy as np

from implicit_conv.kernels.cpu.runtime import active_threads
from implicit_conv.kernels.cpu.runtime.call import Call, Input, Output, Scratch, blob_of
from implicit_conv.kernels.cpu.runtime.code import code
from implicit_conv.kernels.cpu.runtime.launch import launch
from implicit_conv.kernels.cpu.runtime.pool import aligned_bytes
from implicit_conv.kernels.geometry import NO_GEOMETRY

CHAINS = 12  # independent sums: 4 cycles of latency x 2 FMAs a cycle need 8; 16 registers hold 12
STEPS = 8  # FMAs of each chain in one iteration of the loop
TURNS = 1 << 15  # iterations of the loop: 0.3 ms, so that the cost of a launch is negligible
ITEMS = 8  # work items of a thread
TILE_SUMS = 4  # AMX tiles of sums, each of 16 pixels x 16 filters
TILE_FLOPS = 2 * 16 * 16 * 32  # of a product of tiles of bfloat16
LINES = 64 * (CHAINS + 2)  # bytes of a thread's memory: the sums, a factor and an addend


class Fmas:
    """A callable that executes `flops` floating-point operations on registers, and nothing else.

    They are FMAs, or of bfloat16 by the `multiplier` "pairs" or "amx"; see `arch.BFLOAT16`.
    """

    def __init__(
        self, lanes: int, itemsize: int, fma: bool, threads: int, multiplier: str = ""
    ) -> None:
        turns = TURNS // 8 if multiplier == "amx" else TURNS  # a product of tiles takes 16 cycles
        self._entry = code(".ceilings.compiled:FMAS").address()
        part = code(".ceilings.compiled:make_run_fmas", lanes, itemsize, fma, multiplier).address()
        self._kernels = np.array([part], np.int64)
        self._threads = threads
        self._values = aligned_bytes(LINES * threads)
        self._values.view(np.float32 if itemsize == 4 else np.float64)[:] = 0.5
        call = Call(
            kernels=self._kernels.ctypes.data,
            scratch=Scratch(self._values.ctypes.data, LINES),
            items=ITEMS * threads,
            chunk=turns // ITEMS,
            thread_counts=active_threads.ADDRESS,
        )
        self._blob = blob_of(call, NO_GEOMETRY)
        vectors = 2 * lanes * CHAINS
        step = {"": vectors, "pairs": 2 * vectors, "amx": TILE_SUMS * TILE_FLOPS}[multiplier]
        self.flops = step * STEPS * turns * threads

    def __call__(self) -> None:
        self._blob[0] = 0  # the counter of items
        launch(self._entry, self._blob.ctypes.data, self._threads)


class Copy:
    """A callable that copies `size` bytes on several threads; `bytes` counts reads and writes."""

    def __init__(self, size: int, threads: int) -> None:
        self._entry = code(".ceilings.compiled:COPY_SHARE").address()
        self._threads = threads
        items = ITEMS * threads
        share = size // items
        self._arrays = [aligned_bytes(share * items) for _ in range(2)]
        for array in self._arrays:
            array[:] = 1  # map all pages before anything is timed
        x, y = self._arrays
        call = Call(
            x=Input(x.ctypes.data),
            y=Output(y.ctypes.data),
            scratch=Scratch(bytes=share),
            items=items,
            thread_counts=active_threads.ADDRESS,
        )
        self._blob = blob_of(call, NO_GEOMETRY)
        self.bytes = 2 * share * items

    def __call__(self) -> None:
        self._blob[0] = 0  # the counter of items
        launch(self._entry, self._blob.ctypes.data, self._threads)
