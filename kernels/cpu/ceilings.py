"""The two ceilings that measured convolutions are compared with: FMAs from registers, and a copy.

Both are launched like a convolution, on the same threads, so that their timings can be interleaved
with those of convolutions. Each thread has its own part of the memory at ``call.scratch.address``.
"""

import functools
from typing import Any

import numpy as np
from llvmlite import ir

from implicit_conv.kernels.cpu.emit import memory
from implicit_conv.kernels.cpu.emit.vector import BYTES, Emitter, vectors_name
from implicit_conv.kernels.cpu.runtime import crowd
from implicit_conv.kernels.cpu.runtime.call import Call, Input, Output, Scratch, blob_of
from implicit_conv.kernels.cpu.runtime.entry import ENTRY, fields, next_item
from implicit_conv.kernels.cpu.runtime.launch import launch
from implicit_conv.kernels.cpu.runtime.part import declare
from implicit_conv.kernels.cpu.runtime.parts import compile_emitted, compile_function
from implicit_conv.kernels.cpu.runtime.pool import aligned_bytes
from implicit_conv.kernels.geometry import Geometry

CHAINS = 12  # independent sums: 4 cycles of latency x 2 FMAs a cycle need 8; 16 registers hold 12
STEPS = 8  # FMAs of each chain in one iteration of the loop
TURNS = 1 << 15  # iterations of the loop: 0.3 ms, so that the cost of a launch is negligible
ITEMS = 8  # work items of a thread
LINES = 64 * (CHAINS + 2)  # bytes of a thread's memory: the sums, a factor and an addend
NO_GEOMETRY = Geometry(*[0] * (len(Geometry._fields)))


def emit_fmas(
    lanes: int,
    itemsize: int,
    fma: bool,
    pairs: bool,
    builder: ir.IRBuilder,
    at: dict[str, ir.Value],
) -> None:
    """Emit `turns` x STEPS x CHAINS FMAs on the vectors at `values`, which are written back.

    With `pairs` they are dot products of pairs of bfloat16.
    """
    e = Emitter(builder, lanes, itemsize, fma)
    multiply_add = e.dot_pairs if pairs else e.multiply_add
    base = builder.inttoptr(at["values"], BYTES)
    places = [e.at(base, 64 * i) for i in range(CHAINS + 2)]
    *sums, factor, addend = (e.load(place) for place in places)

    def turn(_: ir.Value, sums: list[ir.Value]) -> list[ir.Value]:
        for _ in range(STEPS):
            sums = [multiply_add(factor, addend, value) for value in sums]
        return sums

    sums = e.loop(at["turns"], 1, sums, turn)
    for value, place in zip(sums, places, strict=False):
        e.store(value, place)


run_fmas = declare(0, "run_fmas", "values turns")


def fmas(blob: Any, thread: int) -> None:
    """Template of the entry that executes FMAs, by the only part of its table; an item is
    ``call.chunk`` iterations of its loop.
    """
    call = fields(blob).call
    while next_item(blob, thread) < call.items:
        values = call.scratch.address + thread * call.scratch.bytes
        run_fmas(call.kernels, values=values, turns=call.chunk)


def copy_share(blob: Any, thread: int) -> None:
    """Template of the entry that copies x to y, a share for each item."""
    call = fields(blob).call
    item = next_item(blob, thread)
    while item < call.items:
        start = item * call.scratch.bytes
        memory.copy(call.y.address + start, call.x.address + start, call.scratch.bytes)
        item = next_item(blob, thread)


@functools.cache
def _compile_part(lanes: int, itemsize: int, fma: bool, pairs: bool) -> Any:
    name = f"{vectors_name(lanes, itemsize, fma)}{'_pairs' if pairs else ''}"
    emit = functools.partial(emit_fmas, lanes, itemsize, fma, pairs)
    return compile_emitted(run_fmas, name, emit)


@functools.cache
def _compile_fmas() -> Any:
    return compile_function(ENTRY, fmas, "fmas")


@functools.cache
def _compile_copy() -> Any:
    return compile_function(ENTRY, copy_share, "copy_share")


class Fmas:
    """A callable that executes `flops` floating-point operations on registers, and nothing else."""

    def __init__(
        self, lanes: int, itemsize: int, fma: bool, threads: int, pairs: bool = False
    ) -> None:
        self._entry = _compile_fmas().address
        self._kernels = np.array([_compile_part(lanes, itemsize, fma, pairs).address], np.int64)
        self._threads = threads
        self._values = aligned_bytes(LINES * threads)
        self._values.view(np.float32 if itemsize == 4 else np.float64)[:] = 0.5
        call = Call(
            kernels=self._kernels.ctypes.data,
            scratch=Scratch(self._values.ctypes.data, LINES),
            items=ITEMS * threads,
            chunk=TURNS // ITEMS,
            crowd=crowd.ADDRESS,
        )
        self._blob = blob_of(call, NO_GEOMETRY)
        self.flops = 2 * lanes * CHAINS * STEPS * TURNS * threads * (2 if pairs else 1)

    def __call__(self) -> None:
        self._blob[0] = 0  # the counter of items
        launch(self._entry, self._blob.ctypes.data, self._threads)


class Copy:
    """A callable that copies `size` bytes on several threads; `bytes` counts reads and writes."""

    def __init__(self, size: int, threads: int) -> None:
        self._entry = _compile_copy().address
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
            crowd=crowd.ADDRESS,
        )
        self._blob = blob_of(call, NO_GEOMETRY)
        self.bytes = 2 * share * items

    def __call__(self) -> None:
        self._blob[0] = 0  # the counter of items
        launch(self._entry, self._blob.ctypes.data, self._threads)
