"""Depthwise convolution: a filter sees one channel, so channels are the lanes of every vector.

    y[pixel, c] = sum over taps of x[pixel + tap, c] * w[tap, c]

One work item is a load tile and a block of channels:

    execute the tile's loads into this thread's buffer                    (the loads of fprop)
    for each register tile (pixels of a row):
        microkernel: sums over shifted views of the buffer -> y, or the staging tile
    staging tile -> residual, activation, layout -> y

Filters are packed as ``[channel block][tap][channel]``, a block's channels rounded up to vectors.
"""

import functools

import numpy as np
from numba import carray, types

from implicit_conv.kernels.cpu import memory
from implicit_conv.kernels.cpu.cache import kernel
from implicit_conv.kernels.cpu.compiled import schedule
from implicit_conv.kernels.cpu.launch import ENTRY, next_item
from implicit_conv.kernels.cpu.table import (
    DEPTHWISE,
    LOAD_TILE,
    STORE_TILE,
    compile_emitted,
    compile_part,
    run_part,
    transpose_slot,
)
from implicit_conv.kernels.cpu.vector import BYTES, I64, Emitter, i64

ARGUMENTS = (
    "a",  # addresses: activations, filters, tap offsets, initial sums, output
    "w",
    "taps",
    "sums",
    "out",
    "tap_count",
    "a_pixel",  # strides in bytes, between pixels and between the filters of two taps
    "w_tap",
    "out_pixel",
    "vectors",
)
SIGNATURE = types.void(*[types.int64] * len(ARGUMENTS), types.float64, types.float64)
PIXELS = 8  # of the largest register tile: with 16 registers, 8 sums and what they are made of fit


def emit(pixels, e, *values):
    """Sums of `pixels` neighbouring pixels, for `vectors` vectors of channels one after another."""
    *integers, low, high = values
    at = dict(zip(ARGUMENTS, integers, strict=True))
    builder = e.builder
    low, high = (e.splat(e.narrow(bound)) for bound in (low, high))
    step = e.lanes * e.itemsize
    names = ("a", "w", "sums", "out")
    taps = builder.inttoptr(at["taps"], BYTES)

    def vector(_, pointers):
        a, w, sums, out = pointers

        def tap(index, carried):
            filters, *total = carried
            entry = e.at(taps, builder.mul(index, i64(8)))
            offset = builder.load(e.pointer(entry, I64))
            source = e.opaque(e.at(a, offset))
            weight = e.load(filters)
            for p in range(pixels):
                value = e.load(e.at(source, builder.mul(at["a_pixel"], i64(p))))
                total[p] = e.multiply_add(value, weight, total[p])
            return [e.at(filters, at["w_tap"]), *total]

        first = [e.load(sums)] * pixels
        _, *total = e.loop(at["tap_count"], 1, [w, *first], tap)
        for p in range(pixels):
            address = e.at(out, builder.mul(at["out_pixel"], i64(p)))
            e.store(e.clamp(total[p], low, high), address)
        return [e.at(pointer, step) for pointer in pointers]

    e.loop(at["vectors"], 1, [builder.inttoptr(at[name], BYTES) for name in names], vector)


def microkernel(a, w, taps, sums, out, tap_count, a_pixel, w_tap, out_pixel, vectors, low, high):
    """Template of the depthwise microkernels."""
    body(  # noqa: F821, bound
        a, w, taps, sums, out, tap_count, a_pixel, w_tap, out_pixel, vectors, low, high
    )


@functools.cache
def compile_microkernel(pixels, lanes, itemsize, fma):
    """The compiled microkernel of `pixels` pixels."""

    def emit_part(builder, values):
        emit(pixels, Emitter(builder, lanes, itemsize, fma), *values)

    name = f"depthwise_{pixels}_{lanes}x{itemsize}"
    return compile_emitted(SIGNATURE, microkernel, name, emit_part)


@kernel()
def pack_channels(call, g, block):
    """Filters of one channel block, tap by tap; lanes past the last channel are zero."""
    channels = min(g.tile_c, g.C - block * g.tile_c)
    pitch = schedule.ceil_div(channels, call.lanes) * call.lanes * call.itemsize
    target = call.panels + block * call.panel_group
    source = call.w + block * g.tile_c * call.w_k
    taps = g.R * g.S
    memory.zero(target, taps * pitch)
    rows_follow = g.R == 1 or call.w_r == g.S * call.itemsize
    if rows_follow and (g.S == 1 or call.w_s == call.itemsize):
        for c in range(0, channels, call.lanes):
            for tap in range(0, taps, call.lanes):
                rows, columns = min(call.lanes, channels - c), min(call.lanes, taps - tap)
                slot = transpose_slot(1, rows < call.lanes or columns < call.lanes)
                run_part(
                    call.kernels, slot, source + c * call.w_k + tap * call.itemsize, call.w_k,
                    target + tap * pitch + c * call.itemsize, pitch, rows, columns,
                )  # fmt: skip
        return
    for tap in range(taps):
        at = source + tap // g.S * call.w_r + tap % g.S * call.w_s
        for c in range(channels):
            to = target + tap * pitch + c * call.itemsize
            memory.copy(to, at + c * call.w_k, call.itemsize)


@kernel()
def write_taps(call, g, channels, address):
    """Byte offset of every tap's view of the buffer, in the order of the packed filters."""
    pixel = channels * call.itemsize
    pitch = schedule.row_pitch(g) * pixel
    for r in range(g.R):
        for s in range(g.S):
            offset = schedule.tap_row(g, r) * pitch + schedule.tap_column(g, s) * pixel
            memory.write(address, offset)
            address += 8


@kernel()
def run_item(blob, origin, block, scratch):
    """One load tile and one block of channels."""
    call, g = carray(blob, 1)[0].call, carray(blob, 1)[0].geometry
    n, p, q = origin
    images, rows, columns = schedule.tile_extent(g, n, p, q)
    c = block * g.tile_c
    channels = min(g.tile_c, g.C - c)
    vectors = schedule.ceil_div(channels, call.lanes)
    width = vectors * call.lanes
    run_part(call.kernels, LOAD_TILE, blob, scratch, n, p, q, c, channels)
    taps = scratch + call.runs
    write_taps(call, g, channels, taps)
    pixel = channels * call.itemsize
    pitch = schedule.row_pitch(g) * pixel
    low, high = -np.inf, np.inf
    if call.clamps:
        low, high = memory.read_float(call.activation + 8), memory.read_float(call.activation + 16)
    parts = schedule.ceil_div(columns, g.tile_m)
    w_tap, step = width * call.itemsize, schedule.column_step(g) * pixel
    weights = call.panels + block * call.panel_group
    sums = call.bias + block * call.bias_panel
    staged = call.staged or channels < width
    staging = scratch + call.staging
    out = (staging, rows * columns * w_tap, columns * w_tap, w_tap)  # address, byte strides
    if not staged:
        y = call.y + n * call.y_n + p * call.y_p + q * call.y_q + c * call.y_k
        out = (y, call.y_n, call.y_p, call.y_q)
    for image in range(images):
        for row in range(rows):
            a = scratch + (image * schedule.image_rows(g) + row) * pitch
            to = out[0] + image * out[1] + row * out[2]
            for part in range(parts):
                begin, end = part * columns // parts, (part + 1) * columns // parts
                run_part(
                    call.kernels, DEPTHWISE + end - begin, a + begin * step, weights, taps, sums,
                    to + begin * out[3], g.R * g.S, step, w_tap, out[3], vectors, low, high,
                )  # fmt: skip
    if staged:
        run_part(call.kernels, STORE_TILE, blob, staging, width, n, p, q, c, channels)


def depthwise(blob, thread):
    """The launchable operator: items are (load tile, channel block)."""
    call, g = carray(blob, 1)[0].call, carray(blob, 1)[0].geometry
    scratch = call.scratch + thread * call.scratch_bytes
    blocks = schedule.block_count(g)
    item = next_item(blob)
    while item < call.items:
        run_item(blob, schedule.tile_origin(g, item // blocks), item % blocks, scratch)
        item = next_item(blob)


def pack(blob, thread):
    """The launchable packer: items are channel blocks."""
    call, g = carray(blob, 1)[0].call, carray(blob, 1)[0].geometry
    item = next_item(blob)
    while item < call.items:
        pack_channels(call, g, item)
        item = next_item(blob)


@functools.cache
def compile_depthwise():
    """The compiled operator."""
    return compile_part(ENTRY, depthwise, "depthwise")


@functools.cache
def compile_pack():
    """The compiled packer."""
    return compile_part(ENTRY, pack, "depthwise_pack")
