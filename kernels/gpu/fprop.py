"""fprop on NVIDIA GPUs.

GEMM mapping: A = activation, gemm_m = N*P*Q in the order (n, p, q), or (p, n, slot) for im2col::w;
B = filter, gemm_n = K; C = output; gemm_k = R*S*C. The planes of a volume are stacked: its output
has Z*P rows and its filter T*R, and producers alone know of planes.

Stages of A hold one activation load, stages of B the filter of one tap. With im2col loads each has
one tap, so A and B move in step: one ring, whose stages have a part of A and a part of B. A load of
im2col::w serves all taps of a filter row, so A and B are two rings:

    producer warps                                consumer warps
    for load of the tile:                         for load of the tile:
        A: wait empty, load all phase buffers         A: wait full
        for tap of the load:                          for tap of the load:
            B: wait empty, load the filter                B: wait full
                                                          acc += A[phase buffer, shifted rows] x B
                                                          B: release
                                                      A: release
                                                  epilogue -> y

The three producers (tensor copies, cp.async, elements; producer.py) and the three consumers
(mma.sync, wgmma, fma; consumer.py) communicate through the rings alone. Depthwise convolutions and
groups of few channels have a kernel of their own, without rings (direct.py).
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from implicit_conv.kernels.gpu import blob, mbarrier, raster, ring, tap_tables, warp
from implicit_conv.kernels.gpu.call import Ints, Params
from implicit_conv.kernels.gpu.consumer import make_multiply, make_warp_origin
from implicit_conv.kernels.gpu.direct import make_direct
from implicit_conv.kernels.gpu.epilogue import make_store_tile
from implicit_conv.kernels.gpu.producer import make_producer
from implicit_conv.kernels.gpu.ptx import device, shared_base
from implicit_conv.kernels.gpu.ring import Rings
from implicit_conv.kernels.gpu.rows import make_rows
from implicit_conv.kernels.gpu.sizes import STAGE_BARRIERS_BYTES
from implicit_conv.kernels.gpu.variant import Variant

smem_base = shared_base()

# Registers per thread of a block of three warpgroups: at launch, then of the two that consume and
# of the one that produces. A warpgroup can only claim what another has given back, and waits for
# ever where that is too little: the pool holds the registers of the launch, which are 64 K / 384
# threads, rounded down to a multiple of 8.
REGISTER_THREADS, LAUNCH_REGISTERS = 384, 168
CONSUMER_REGISTERS, PRODUCER_REGISTERS = 216, 72
assert 2 * CONSUMER_REGISTERS + PRODUCER_REGISTERS <= 3 * LAUNCH_REGISTERS


@functools.cache
def make_fprop(v: Variant) -> Any:
    """The kernel of variant `v`; its one argument is the params blob."""
    if v.strip:
        return make_direct(v)
    if v.band:
        return make_rows(v)
    consume, produce = make_consumer(v), make_producer(v)
    start_consumer, start_producer = make_register_split(v)
    consumer_warps, arrivals = v.consumer_warps, v.arrivals
    fence_init = mbarrier.fence_init if v.producer == "tma" else device(lambda: None)
    write_tables = tap_tables.write if v.wide else device(lambda g, call, table, row_bytes: None)
    init_b = ring.init if v.wide else device(lambda ring, producers, consumers, lane: None)
    row_bytes = v.row_bytes

    def fprop(argument: Any) -> None:
        params, base = blob.unpack(argument), smem_base()
        call = params.call
        index, lane = warp.index(), warp.lane()
        barriers = base + call.barriers_at
        a_ring = ring.Ring(barriers, base + call.a_at, call.a_stage, call.a_stages)
        barriers += STAGE_BARRIERS_BYTES * call.a_stages
        b_ring = ring.Ring(barriers, base + call.b_at, call.b_stage, call.b_stages)
        rings = a_ring, b_ring
        if index == 0:
            ring.init(a_ring, arrivals, consumer_warps, lane)
            init_b(b_ring, arrivals, consumer_warps, lane)
            fence_init()
            write_tables(params.geometry, call, base + call.tap_tables_at, row_bytes)
        warp.sync_block()
        if index < consumer_warps:
            start_consumer()
            consume(params, base, rings, index)
        else:
            start_producer()
            produce(params, base, rings, index - consumer_warps)

    return fprop


@functools.cache
def make_consumer(v: Variant) -> Any:
    """The consumer's role: computes a warp's part of each tile from the stages and stores it."""
    warp_origin, store_tile = make_warp_origin(v), make_store_tile(v)
    sum_tile, start = make_sum_loads(v) if v.wide else make_sum_taps(v)
    staging_bytes = v.staging_bytes

    @device
    def consume(params: Params, base: int, rings: Rings, index: int) -> None:
        call, lane = params.call, warp.lane()
        origin = *warp_origin(index), lane
        staging = base + call.staging_at + index * staging_bytes
        tables = base + call.tap_tables_at
        state = start
        tile = warp.block()
        while tile < call.tiles:
            group, tile_m, panel = raster.tile_at(call, tile)
            acc, state = sum_tile(params, tables, rings, (tile_m, *origin), state)
            store_tile(params, staging, (group, tile_m, panel), origin, acc)
            tile += warp.blocks()

    return consume


def make_sum_taps(v: Variant) -> Any:
    """(sum_tile, start) for A and B in one ring; its state is (stage, parity)."""
    multiply, zeros = make_multiply(v), (np.float32(0),) * v.accumulators
    rows, _ = raster.make_filter_rows(v)

    @device
    def sum_tile(params: Params, tables: int, rings: Rings, place: Ints, state: Ints) -> Any:
        a_ring, b_ring = rings
        g, (_, row, column, lane) = params.geometry, place
        stage, parity = state
        acc = zeros
        for _ in range(rows(g) * g.S * params.call.k_blocks):
            ring.wait_full(a_ring, stage, parity)
            a, b = ring.address(a_ring, stage), ring.address(b_ring, stage)
            acc = multiply(acc, a, b, row, column, lane)
            ring.release(a_ring, stage, lane)
            stage, parity = ring.advance(a_ring, stage, parity)
        return acc, (stage, parity)

    return sum_tile, (0, 0)


def make_sum_loads(v: Variant) -> Any:
    """(sum_tile, start) for two rings; the state has stage and parity of A, then of B."""
    multiply, zeros = make_multiply(v), (np.float32(0),) * v.accumulators
    pixel, load_rows = raster.make_pixel(v), raster.make_load_rows(v)

    @device
    def sum_tile(params: Params, tables: int, rings: Rings, place: Ints, state: Ints) -> Any:
        a_ring, b_ring = rings
        g, (tile_m, row, column, lane) = params.geometry, place
        a, a_parity, b, b_parity = state
        _, p, _, _ = pixel(params, tile_m, 0)
        first, end = load_rows(params, p)
        acc = zeros
        for _ in range((end - first) * params.call.k_blocks):
            ring.wait_full(a_ring, a, a_parity)
            for tap in range(g.S):
                view = ring.address(a_ring, a) + tap_tables.tap_offset(tables, tap)
                ring.wait_full(b_ring, b, b_parity)
                acc = multiply(acc, view, ring.address(b_ring, b), row, column, lane)
                ring.release(b_ring, b, lane)
                b, b_parity = ring.advance(b_ring, b, b_parity)
            ring.release(a_ring, a, lane)
            a, a_parity = ring.advance(a_ring, a, a_parity)
        return acc, (a, a_parity, b, b_parity)

    return sum_tile, (0, 0, 0, 0)


def make_register_split(v: Variant) -> Any:
    """(start_consumer, start_producer): the producer gives registers to the consumers."""
    nothing = device(lambda: None)
    if v.consumer != "wgmma" or v.threads != REGISTER_THREADS:
        return nothing, nothing
    more, fewer = CONSUMER_REGISTERS, PRODUCER_REGISTERS
    return warp.set_registers("inc", more), warp.set_registers("dec", fewer)
