"""Count what the engine does while it executes one convolution; nothing is taken from the plan.

Loads come from the recorder of the debug build. Every microkernel in the table is replaced by a
function that adds up its FMAs and calls the microkernel. Scratch is what the engine takes from the
pool.
"""

from __future__ import annotations

import ctypes
import tracemalloc
from collections.abc import Callable
from typing import NamedTuple
from unittest import mock

import numpy as np

from implicit_conv.arrays.arrays import Binding, numpy_dtype
from implicit_conv.cpu.candidates.kernel_method import operator
from implicit_conv.cpu.engines.engine import CpuEngine
from implicit_conv.cpu.engines.executed_loads import executed_loads
from implicit_conv.kernels.cpu.depthwise.compiled import microkernel as depthwise_microkernel
from implicit_conv.kernels.cpu.depthwise.layout import row_shapes
from implicit_conv.kernels.cpu.few_outputs import compiled as few_outputs
from implicit_conv.kernels.cpu.gemm.compiled import microkernel
from implicit_conv.kernels.cpu.gemm.layout import RUN_BYTES
from implicit_conv.kernels.cpu.operator import Operator
from implicit_conv.kernels.cpu.planar_depthwise.compiled import sum_plane
from implicit_conv.kernels.cpu.planar_gemm.compiled import microkernel as pixel_microkernel
from implicit_conv.kernels.cpu.planar_gemm.layout import tail_filters
from implicit_conv.kernels.cpu.runtime import table
from implicit_conv.kernels.cpu.runtime.call import PlanarGemm
from implicit_conv.kernels.cpu.runtime.compiled.part import Part
from implicit_conv.kernels.cpu.runtime.pool import POOL, Block, aligned_bytes
from implicit_conv.kernels.cpu.shifted_rows.compiled import shift_rows
from implicit_conv.kernels.cpu.shifted_rows.layout import variant
from implicit_conv.kernels.geometry import Geometry
from implicit_conv.kernels.schedule import ceil_div
from implicit_conv.operators.plan import Engine
from implicit_conv.testing import Array


class CountingPool:
    """Replaces the pool: blocks have exactly the size requested, and the peak is recorded."""

    def __init__(self) -> None:
        self.most = 0
        self._lent = 0

    def take(self, size: int) -> Block:
        """A new block."""
        self._lent += size
        self.most = max(self.most, self._lent)
        memory = aligned_bytes(size)
        return Block(size, memory.ctypes.data, memory)

    def give(self, block: Block) -> None:
        """Release a block."""
        self._lent -= block.size


class Memory(NamedTuple):
    """Bytes of one call: scratch taken from the pool, and peak of all allocations."""

    scratch: int
    peak: int


def memory_of_call(engine: Engine, x: Array, w: Array) -> Memory:
    """Memory of ``plan(x, w)``, the peak includes the output and the packed filter."""
    return memory_of(lambda: engine.run(x, w, None, None, None))


def memory_of(function: Callable[[], object]) -> Memory:
    """Memory of a function that convolves; its result is part of the peak."""
    function()  # compiled kernels and caches are not counted
    pool = CountingPool()
    with mock.patch.multiple(POOL, take=pool.take, give=pool.give):
        tracemalloc.start()
        try:
            function()
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    return Memory(pool.most, peak)


def count(engine: CpuEngine, x: Array, w: Array) -> dict[str, int]:
    """Run ``plan(x, w)`` on one thread, counting, for contiguous x and w.

    It counts for copies that begin on a cache line: for an x that begins late, kernels do more.
    """
    x, w = _on_a_line(x), _on_a_line(w)
    loads = executed_loads(engine, x, w)
    calls, flops = _count_flops(engine, x, w)
    return {
        "loads_issued": len(loads),
        "bytes_loaded": sum(load.bytes for load in loads),
        "microkernel_calls": calls,
        "useful_flops": engine.problem.flops,
        "issued_flops": flops,
        "scratch_bytes": memory_of_call(engine, x, w).scratch,
    }


def _on_a_line(array: Array) -> Array:
    """A copy of a contiguous array that begins on a cache line."""
    copied: Array = aligned_bytes(array.nbytes).view(array.dtype).reshape(array.shape)
    copied[...] = array
    return copied


def _count_flops(engine: CpuEngine, x: Array, w: Array) -> tuple[int, int]:
    """(calls of microkernels, floating-point operations of these calls)."""
    y = _on_a_line(np.empty(engine.problem.output_shape, numpy_dtype(engine.y_dtype)))
    call = engine.bind(Binding(x.strides, w.strides, y.strides))
    compiled = operator(engine.best, engine.formats)  # cached: the one that runs
    tally: list[int] = []
    replaced = {}  # callbacks must outlive the run
    before = compiled.table.copy()
    for slot in np.flatnonzero(before).tolist():
        kernel = microkernel_at(slot, compiled)
        if kernel:
            replaced[slot] = callback = _noting(kernel, int(before[slot]), tally)
            compiled.table[slot] = ctypes.cast(callback, ctypes.c_void_p).value or 0
    try:
        call(x, w, None, y)
    finally:
        for slot in replaced:
            compiled.table[slot] = before[slot]
    return len(tally), sum(tally) * compiled.form.channels


class Microkernel(NamedTuple):
    """A microkernel's declaration, and the floating-point operations of a call."""

    part: Part
    flops: Callable[[dict[str, int]], int]


def microkernel_at(slot: int, compiled: Operator) -> Microkernel | None:
    """The microkernel at a slot of an operator's kernel table; None for other parts."""
    g, lanes = compiled.g, compiled.lanes
    fields = compiled.constant.get("planar_gemm", PlanarGemm())
    flat = bool(fields.long_rows)
    if slot < table.TRANSPOSE_IN:
        vectors, shape = divmod(slot, table.HEIGHTS**2)
        groups, inner = divmod(shape, table.HEIGHTS)
        sums = groups * inner * (vectors + 1) * lanes
        return Microkernel(
            microkernel.multiply_tile.part, lambda call: 2 * sums * call["tiles"] * _elements(call)
        )
    if table.PLANAR_GEMM <= slot < table.LOAD_ROWS:
        height, filters = divmod(slot - table.PLANAR_GEMM, table.HEIGHTS)
        rows = 1 if flat else height  # rows that the columns of a call do not include
        return Microkernel(
            pixel_microkernel.sum_rows.part,
            lambda call: (
                2 * rows * filters * lanes * call["elements"] * ceil_div(call["columns"], lanes)
            ),
        )
    if slot == table.FEW_OUTPUTS:
        if flat:  # for the last pixels of a row
            pixels, filters = 1, tail_filters(g, lanes)
        else:
            pixels, filters = g.tile_m, compiled.constant["tile_filters"]
        flops = 2 * pixels * filters * lanes
        return Microkernel(
            few_outputs.sum_windows.part,
            lambda call: (
                flops * ceil_div(call["pixels"], pixels) * ceil_div(call["elements"], lanes)
            ),
        )
    if table.PLANES <= slot < table.PLANAR_GEMM or table.SHIFTED_ROWS <= slot < table.LOAD_NOTHING:
        return _planes_kernel(slot, g, lanes)
    if table.DEPTHWISE <= slot < table.PLANES:
        by_row, pixels = divmod(slot - table.DEPTHWISE, table.HEIGHTS)
        taps = pixels * (g.S if by_row else 1)  # of all pixels of the register tile
        if by_row and compiled.layout.in_place:
            taps = _row_taps(g, *row_shapes(g)[pixels][:3])
        fmas = taps * lanes * compiled.constant["group_channels"]
        return Microkernel(
            depthwise_microkernel.sum_channels.part,
            lambda call: 2 * fmas * call["tiles"] * call["vectors"] * call["tap_count"],
        )
    return None


def _planes_kernel(slot: int, g: Geometry, lanes: int) -> Microkernel:
    """The microkernel of depthwise planes that are copied, or read in place."""
    flops = 2 * lanes * g.R * g.S
    if slot < table.SHIFTED_ROWS:
        flops *= slot - table.PLANES
        return Microkernel(sum_plane.part, lambda call: flops * ceil_div(call["columns"], lanes))
    together = variant(g, lanes, 0).together

    def counted(call: dict[str, int]) -> int:
        rows, vectors = ceil_div(call["rows"], together), ceil_div(call["columns"], lanes)
        return flops * call["channels"] * rows * vectors

    return Microkernel(shift_rows.part, counted)


def _row_taps(g: Geometry, pixels: int, before: int, after: int) -> int:
    """Taps of a filter row that are not padding, summed over the pixels of a register tile."""
    end = (pixels - 1) * g.stride_w + g.S - after
    return sum(before <= p * g.stride_w + s < end for p in range(pixels) for s in range(g.S))


def _elements(call: dict[str, int]) -> int:
    """Elements that one output sums: the total of the lengths in the run table."""
    words = RUN_BYTES // 8
    runs = (ctypes.c_int64 * (words * call["run_count"])).from_address(call["runs"])
    return sum(runs[1::words])


def _noting(kernel: Microkernel, address: int, tally: list[int]) -> ctypes._FuncPointer:
    """A function that records the operations of a call, then calls the microkernel at `address`."""
    part = kernel.part
    integers, floats = [ctypes.c_int64] * len(part.integers), [ctypes.c_double] * len(part.floats)
    kind = ctypes.CFUNCTYPE(None, *integers, *floats)
    real = kind(address)

    def note(*values: int) -> None:
        tally.append(kernel.flops(dict(zip(part.parameters, values, strict=True))))
        real(*values)

    return kind(note)
