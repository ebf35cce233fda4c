"""The two ceilings that a measured convolution is held against: FMAs from registers, and a copy.

Both are launched as a convolution is, on the same threads, so that they can be timed in turn with
it. Each thread has its own part of the memory at ``call.scratch``.
"""

import functools

import numpy as np
from numba import carray

from implicit_conv.kernels.cpu.emit import memory
from implicit_conv.kernels.cpu.emit.vector import BYTES, Emitter, vectors_name
from implicit_conv.kernels.cpu.runtime.call import Call, blob_of
from implicit_conv.kernels.cpu.runtime.launch import ENTRY, launch
from implicit_conv.kernels.cpu.runtime.pool import aligned_bytes
from implicit_conv.kernels.cpu.runtime.table import compile_emitted, compile_part, run_part
from implicit_conv.kernels.geometry import Geometry

CHAINS = 12  # independent sums: latency 4 x 2 FMAs a cycle needs 8; 16 registers hold 12
STEPS = 8  # FMAs of each chain in one turn of the loop
TURNS = 1 << 15  # 0.3 ms: what a launch costs does not show
LINES = 64 * (CHAINS + 2)  # bytes of a thread: the sums, a factor and an addend
NO_GEOMETRY = Geometry(*[0] * (len(Geometry._fields)))


def emit_fmas(lanes, itemsize, fma, pairs, builder, at):
    """`turns` x STEPS x CHAINS FMAs on the vectors at `values`, which are written back.

    With `pairs` they are dot products of pairs of bfloat16.
    """
    e = Emitter(builder, lanes, itemsize, fma)
    multiply_add = e.dot_pairs if pairs else e.multiply_add
    base = builder.inttoptr(at["values"], BYTES)
    places = [e.at(base, 64 * i) for i in range(CHAINS + 2)]
    *sums, factor, addend = (e.load(place) for place in places)

    def turn(_, sums):
        for _ in range(STEPS):
            sums = [multiply_add(factor, addend, value) for value in sums]
        return sums

    sums = e.loop(at["turns"], 1, sums, turn)
    for value, place in zip(sums, places, strict=False):
        e.store(value, place)


def fmas(blob, thread):
    """Template: one thread's FMAs, which the only part of the kernel table executes."""
    call = carray(blob, 1)[0].call
    run_part(call.kernels, 0, call.scratch + thread * call.scratch_bytes, call.items)


def copy_share(blob, thread):
    """Template: one thread's share of a copy from ``call.x`` to ``call.y``."""
    call = carray(blob, 1)[0].call
    start = thread * call.scratch_bytes
    memory.copy(call.y + start, call.x + start, call.scratch_bytes)


@functools.cache
def _compile_part(lanes, itemsize, fma, pairs):
    name = f"fmas_{vectors_name(lanes, itemsize, fma)}{'_pairs' if pairs else ''}"
    emit = functools.partial(emit_fmas, lanes, itemsize, fma, pairs)
    return compile_emitted(name, ("values", "turns"), (), emit)


@functools.cache
def _compile_fmas():
    return compile_part(ENTRY, fmas, "fmas")


@functools.cache
def _compile_copy():
    return compile_part(ENTRY, copy_share, "copy_share")


def _call(**fields):
    return Call(**{**dict.fromkeys(Call._fields, 0), **fields})


class Fmas:
    """A callable that does `flops` floating-point operations from registers, nothing else."""

    def __init__(self, lanes, itemsize, fma, threads, pairs=False):
        self._entry = _compile_fmas().address
        self._kernels = np.array([_compile_part(lanes, itemsize, fma, pairs).address], np.int64)
        self._threads = threads
        self._values = aligned_bytes(LINES * threads)
        self._values.view(np.float32 if itemsize == 4 else np.float64)[:] = 0.5
        call = _call(
            kernels=self._kernels.ctypes.data,
            scratch=self._values.ctypes.data,
            scratch_bytes=LINES,
            items=TURNS,
        )
        self._blob = blob_of(call, NO_GEOMETRY)
        self.flops = 2 * lanes * CHAINS * STEPS * TURNS * threads * (2 if pairs else 1)

    def __call__(self):
        launch(self._entry, self._blob.ctypes.data, self._threads)


class Copy:
    """A callable that copies `size` bytes, each thread its share; 2 x `size` bytes move."""

    def __init__(self, size, threads):
        self._entry = _compile_copy().address
        self._threads = threads
        share = size // threads
        self._arrays = [aligned_bytes(share * threads) for _ in range(2)]
        for array in self._arrays:
            array[:] = 1  # touched: no page is mapped while the clock runs
        x, y = self._arrays
        call = _call(x=x.ctypes.data, y=y.ctypes.data, scratch_bytes=share)
        self._blob = blob_of(call, NO_GEOMETRY)
        self.bytes = 2 * share * threads

    def __call__(self):
        launch(self._entry, self._blob.ctypes.data, self._threads)
