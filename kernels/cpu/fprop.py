"""fprop on the CPU.

GEMM mapping: A = activation, gemm_m = N*P*Q; B = filter, gemm_n = K; C = output; gemm_k = R*S*C.

One work item is a load tile (images x output rows x output columns) and a chunk of filter panels:

    for each channel block:
        execute the tile's loads into this thread's buffer          (or read x where it lies)
        for each panel of the chunk:
            for each register tile of the load tile:
                microkernel: sums over shifted views of the buffer -> y, or the staging tile
            staging tile -> residual, activation, layout -> y
"""

import functools
from typing import NamedTuple

from numba import carray

from implicit_conv.kernels.cpu import memory
from implicit_conv.kernels.cpu.cache import kernel
from implicit_conv.kernels.cpu.compiled import schedule
from implicit_conv.kernels.cpu.epilogue import make_store
from implicit_conv.kernels.cpu.launch import ENTRY, next_item
from implicit_conv.kernels.cpu.load import make_load_tile
from implicit_conv.kernels.cpu.microkernel import call_microkernel
from implicit_conv.kernels.cpu.table import compile_variant, microkernel_slot

UNBOUNDED = -float("inf"), float("inf")


class View(NamedTuple):
    """Pixels of a tile in memory: address of the first, byte strides of the three nested axes."""

    address: int
    outer: int
    group: int
    inner: int


class Runs(NamedTuple):
    """The run table: its address, runs of a filter row, and the panel bytes they consume."""

    address: int
    per_row: int
    panel_bytes: int


@functools.cache
def make_write_runs(itemsize):
    """write_runs for elements of `itemsize` bytes."""

    @kernel()
    def write_runs(call, g, channels, width, address):
        """Write the run table, filter row by filter row.

        A run is (byte offset, elements); taps whose rows lie one behind the other make one run.
        """
        pixel = channels * itemsize
        pitch = schedule.row_pitch(g) * pixel
        to, end, count = address, 0, 0
        for r in range(g.R):
            count = 0
            for i in range(g.S):
                s = schedule.column_tap(g, i)
                if call.in_place:
                    at = r * g.dilation_h * call.x_h + s * g.dilation_w * call.x_w
                else:
                    at = schedule.tap_row(g, r) * pitch + schedule.tap_column(g, s) * pixel
                if count > 0 and at == end:
                    memory.write(to - 8, memory.read(to - 8) + channels)
                else:
                    memory.write(to, at)
                    memory.write(to + 8, channels)
                    to += 16
                    count += 1
                end = at + pixel
        return Runs(address, count, g.S * channels * width * itemsize)

    return write_runs


@kernel()
def multiply(call, g, extent, rows, a, panel, sums, out, runs, vectors, low, high):
    """Consumer: every register tile of a load tile, for one panel and one channel block.

    `extent` counts the pixels along (outer, group, inner), `rows` is (first, count, by group): the
    output rows of the tile, by group where the group axis runs along them.
    """
    outer, group, inner = extent
    step = max(1, g.tile_m // inner)
    parts = schedule.ceil_div(inner, g.tile_m)
    for first in range(0, group, step):
        groups = min(step, group - first)
        p, count, by_group = rows
        if by_group:
            p, count = p + first, groups
        r, r_end = schedule.valid_rows(g, p, count)
        for o in range(outer):
            begin = 0
            for part in range(parts):
                end = (part + 1) * inner // parts
                call_microkernel(
                    memory.read(call.kernels + 8 * microkernel_slot(vectors, groups, end - begin)),
                    a.address + o * a.outer + first * a.group + begin * a.inner,
                    panel + r * runs.panel_bytes,
                    runs.address + 16 * r * runs.per_row,
                    sums.address + o * sums.outer + first * sums.group + begin * sums.inner,
                    out.address + o * out.outer + first * out.group + begin * out.inner,
                    (r_end - r) * runs.per_row,
                    a.inner,
                    a.group,
                    sums.inner,
                    sums.group,
                    out.inner,
                    out.group,
                    low,
                    high,
                )
                begin = end


@functools.cache
def make_run_item(lanes, itemsize, record=False):
    """run_item for elements of `itemsize` bytes and vectors of `lanes`."""
    load_tile = make_load_tile(lanes, itemsize, record)
    write_runs = make_write_runs(itemsize)
    store = make_store(lanes, itemsize)

    @kernel()
    def activation_view(call, g, channels, origin, group, c, buffer):
        """A: the tile's pixels in the buffer, or in x itself."""
        if call.in_place:
            n, p, q = origin
            at = call.x + n * call.x_n + (group * g.C + c) * call.x_c
            at += (p * g.stride_h - g.pad_h) * call.x_h + (q * g.stride_w - g.pad_w) * call.x_w
            strides = schedule.by_role(g, call.x_n, g.stride_h * call.x_h, g.stride_w * call.x_w)
            return View(at, strides[0], strides[1], strides[2])
        pixel = channels * itemsize
        row = schedule.row_pitch(g) * pixel
        image = schedule.image_rows(g) * row
        strides = schedule.by_role(g, image, row, schedule.column_step(g) * pixel)
        return View(buffer, strides[0], strides[1], strides[2])

    @kernel()
    def run_item(call, g, group, origin, extent, first_panel, end_panel, scratch):
        """One load tile and one chunk of panels."""
        n, p, q = origin
        pixels = extent[0] * extent[1] * extent[2]
        by_role = schedule.by_role(g, extent[0], extent[1], extent[2])
        rows = (p, extent[1], g.P > 1 and g.Q > 1)
        y_strides = schedule.by_role(g, call.y_n, call.y_p, call.y_q)
        y = call.y + n * call.y_n + p * call.y_p + q * call.y_q + group * g.K * call.y_k
        panels = call.panels + group * call.panel_group
        blocks = schedule.block_count(g)
        for block in range(blocks):
            c = block * g.tile_c
            channels = min(g.tile_c, g.C - c)
            load_tile(call, g, group * g.C + c, channels, origin, extent, scratch)
            a = activation_view(call, g, channels, origin, group, c, scratch)
            for panel in range(first_panel, end_panel):
                k = panel * g.tile_k
                filters = min(g.tile_k, g.K - k)
                vectors = schedule.ceil_div(filters, lanes)
                width = vectors * lanes
                runs = write_runs(call, g, channels, width, scratch + call.runs)
                staged = call.staged or filters < width
                if staged:
                    slot = panel - first_panel if blocks > 1 else 0
                    pixel = width * itemsize
                    strides = schedule.by_role(
                        g, extent[1] * extent[2] * pixel, extent[2] * pixel, pixel
                    )
                    at = scratch + call.staging + slot * pixels * g.tile_k * itemsize
                else:
                    strides = y_strides
                    at = y + k * call.y_k
                out = View(at, strides[0], strides[1], strides[2])
                sums = out
                if block == 0:
                    bias = group * schedule.panel_count(g) + panel
                    sums = View(call.bias + bias * call.bias_panel, 0, 0, 0)
                low, high = -float("inf"), float("inf")
                if block == blocks - 1 and not staged:
                    low, high = (
                        memory.read_float(call.activation + 8),
                        memory.read_float(call.activation + 16),
                    )
                weights = panels + (k * g.C + c * width) * g.R * g.S * itemsize
                multiply(call, g, by_role, rows, a, weights, sums, out, runs, vectors, low, high)
                if staged and block == blocks - 1:
                    store(call, g, at, width, filters, origin, extent, group * g.K + k)

    return run_item


def fprop(blob, thread):
    """Template of the launchable operators: items are (group, load tile, chunk of panels)."""
    words = carray(blob, 1)[0]
    call, g = words.call, words.geometry
    scratch = call.scratch + thread * call.scratch_bytes
    panels, tiles = schedule.panel_count(g), schedule.tile_count(g)
    chunks = schedule.ceil_div(panels, call.chunk)
    item = next_item(blob)
    while item < call.items:
        first = item % chunks * call.chunk
        end = min(first + call.chunk, panels)
        tile, group = item // chunks % tiles, item // (chunks * tiles)
        origin = schedule.tile_origin(g, tile)
        extent = schedule.tile_extent(g, origin[0], origin[1], origin[2])
        run_item(call, g, group, origin, extent, first, end, scratch)  # noqa: F821, bound
        item = next_item(blob)


@functools.cache
def compile_fprop(lanes, itemsize, record=False):
    """The launchable operator for elements of `itemsize` bytes and vectors of `lanes`."""
    name = f"fprop_{lanes}x{itemsize}{'_record' if record else ''}"
    return compile_variant(ENTRY, fprop, name, run_item=make_run_item(lanes, itemsize, record))
