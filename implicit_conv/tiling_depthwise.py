"""Tilings for depthwise convolution, over channels or over planes, and for groups of a few channels
that share vectors; and what each would cost.
"""

from __future__ import annotations

import math

from implicit_conv.algorithms import STEPS
from implicit_conv.arch import CpuArch
from implicit_conv.kernels import schedule as integers
from implicit_conv.kernels.cpu.shapes import depthwise_row
from implicit_conv.kernels.cpu.sizes import (
    buffer_bytes,
    depthwise_layout,
    planes_layout,
)
from implicit_conv.kernels.geometry import Geometry
from implicit_conv.problem import Problem
from implicit_conv.schedule import geometry
from implicit_conv.tiling import (
    BUFFER_SHARE,
    COPY_CYCLES,
    FMAS_PER_CYCLE,
    ITEM_CYCLES,
    ITEMS_PER_THREAD,
    LOADS_PER_CYCLE,
    PACK_CYCLES,
    PLANE_ROW_CYCLES,
    Estimate,
    balanced,
    rounded_up,
    thread_count,
    tiles,
)

DEPTHWISE_PIXELS = 14
CHANNEL_VECTORS = (1, 2, 4, 8, 16)  # of a depthwise block, to choose from
PLANE_BYTES = 36 << 10  # of two planes' input rows: they stay in L1
PLANES_APART = 4  # numbers from a pixel of a plane to the next, at most
STAGED_PLANE_CYCLES = 80  # of a plane that goes through the staging tile
APART_CYCLES = 0.35  # of a number among these, on its way to a plane and back
PLANE_CHANNELS = 64  # of a work item, where there are enough for all threads
ROW_CYCLES = 200  # depthwise in place: tap tables of a row
BORDER_CYCLES = 5  # likewise of a vector and tap at the border, whose pixels are summed one by one
BORDER_TAPS = 0.75  # of a filter that these meet
STREAMED_BYTES = 17  # a cycle, of x read in place and of y
WAY_BYTES, LINE = 4096, 64  # of L1: addresses a multiple of the first apart share a set
NEAR_CROWD = 2  # how many times the lines that fit may be wanted where they come from L2
CROWDED_CYCLES = 4.5  # of a vector that comes from L2, or from farther, once more
FAR_TAPS = 1.35  # times as long each tap of x read in place takes, where none shares its load
BUFFER_CYCLES = 0.45  # of an element of a channels-last buffer, and of its way there
CALL_CYCLES = 30  # a microkernel of few sums
GROUP_FMAS = 1.15  # time of an FMA of group lanes, with its share in what is between
SPREAD_CYCLES = 0.8  # loading a vector and repeating a channel of each group in it
SWAP_CYCLES = 0.6  # of an element that is transposed on the way to a buffer, or from it
PLANE_TAP_CYCLES = 0.6  # of a vector of pixels
PLANE_VECTOR_CYCLES = 3  # loop ends and clamp of one vector of pixels
DEPTHWISE_VECTOR_CYCLES = 10  # loop ends of one vector of channels


def leaves_out_padding(problem: Problem, arch: CpuArch) -> bool:
    """Whether x can be read where it lies: pixels at its border leave out what meets padding."""
    return problem.layout == "NHWC" and problem.C >= arch.lanes(problem.itemsize)


def depthwise_candidates(
    problem: Problem, arch: CpuArch, in_place: bool, block: int = 0
) -> list[Geometry]:
    """Tilings of images, rows, columns and blocks of channels; all loads of a block are its own.

    The blocks are of `block` channels, where filters packed for another plan ask for them.
    """
    lanes = arch.lanes(problem.itemsize)
    whole = rounded_up(problem.C, lanes)
    blocks = _blocks(problem.C, lanes)
    if in_place:  # the last block too fills a vector: more channels would be read than there are
        blocks = {size for size in blocks if not 0 < problem.C % size < lanes} or {whole}
    if block:
        blocks = {block}
    return _tilings(problem, arch, {(size, size) for size in blocks}, in_place)


def _blocks(extent: int, lanes: int) -> set[int]:
    """Whole vectors that cut `extent` channels, or filters, into blocks of like size."""
    return {rounded_up(balanced(extent, vectors * lanes), lanes) for vectors in CHANNEL_VECTORS}


def _tilings(
    problem: Problem,
    arch: CpuArch,
    blocks: set[tuple[int, int]],
    in_place: bool,
    step_w: int | None = None,
) -> list[Geometry]:
    """Tilings by blocks of (channels, filters), whose input buffer fits its share of L2."""
    lanes = arch.lanes(problem.itemsize)
    pixels = min(arch.tile_pixels, DEPTHWISE_PIXELS)
    tilings = [
        geometry(
            problem, tile=tile, tile_m=pixels if in_place else balanced(tile[2], pixels),
            tile_c=channels, tile_k=filters, step_w=step_w,
        )
        for tile in tiles(problem)
        for channels, filters in sorted(blocks)
    ]  # fmt: skip
    limit = arch.l2_bytes * BUFFER_SHARE
    sizes = [depthwise_layout(g, problem.itemsize, lanes, in_place, False).total for g in tilings]
    fitting = [g for g, size in zip(tilings, sizes, strict=True) if size <= limit]
    return fitting or [tilings[sizes.index(min(sizes))]]


def depthwise_estimate(problem: Problem, arch: CpuArch, g: Geometry, in_place: bool) -> Estimate:
    """Cycles of one core: an FMA and a load a tap, what lies far is streamed, and either the tile
    is copied, or pixels whose taps lie apart go one by one at the border.
    """
    pixel = g.R * g.S / LOADS_PER_CYCLE
    rows = g.tile_n * g.tile_p
    y_bytes = rows * g.tile_q * g.tile_c * (2 if problem.converted else problem.itemsize)
    if not in_place:
        beside = _copy_cycles(problem, g)
        beside += y_bytes / STREAMED_BYTES if problem.layout == "NHWC" else 0.0
        return _estimate(problem, arch, g, pixel, beside)
    beside = rows * ROW_CYCLES + y_bytes * (1 + g.stride_h * g.stride_w) / STREAMED_BYTES
    vectors = rows * g.tile_c / arch.lanes(problem.itemsize)
    if depthwise_row(g, in_place) is None:
        taps = border_columns(g) * g.tile_q / g.Q * BORDER_TAPS * g.R * g.S
        beside += vectors * taps * BORDER_CYCLES
        pixel *= FAR_TAPS
    else:
        loads = g.stride_w + (g.S - 1) / g.tile_m  # of a pixel and filter row
        wait = max(0.0, CROWDED_CYCLES - g.S / loads / FMAS_PER_CYCLE)  # beyond its FMAs
        beside += vectors * g.tile_q * loads * wait * crowded_rows(problem, arch, g)
    return _estimate(problem, arch, g, pixel, beside)


def crowded_rows(problem: Problem, arch: CpuArch, g: Geometry) -> int:
    """Filter rows whose pixels, read in place, leave L1 before they are needed: they lie such
    powers of two apart that they share few of its sets.

    Those that an output row before has read; where all pixels share a set, every row.
    """
    size = 2 if problem.converted else problem.itemsize
    sets = min(WAY_BYTES // LINE, WAY_BYTES // math.gcd(problem.C * size, WAY_BYTES))
    p, q = problem.output
    numbers = problem.N * problem.C * (math.prod(problem.size) + p * q)
    fitting = sets * (arch.l1_bytes // WAY_BYTES)
    if numbers * size <= arch.l2_bytes:
        fitting *= NEAR_CROWD
    if g.R * ((g.tile_m - 1) * g.stride_w + g.S) + g.tile_m <= fitting:
        return 0
    return g.R if sets == 1 else max(0, g.R - g.stride_h)


def _copy_cycles(problem: Problem, g: Geometry) -> float:
    """Of a tile that is copied, channels together; in NCHW both ways."""
    elements = buffer_bytes(g, problem.itemsize) / problem.itemsize
    if problem.layout == "NHWC":
        return elements * BUFFER_CYCLES
    return (elements + g.tile_n * g.tile_p * g.tile_q * min(g.tile_k, g.K)) * SWAP_CYCLES


def border_columns(g: Geometry) -> int:
    """Output columns that meet padding."""
    last = g.W - 1 - (g.S - 1) * g.dilation_w + g.pad_w  # input column of tap 0, unpadded
    inner = min(g.Q, last // g.stride_w + 1) - integers.ceil_div(max(0, g.pad_w), g.stride_w)
    return g.Q - max(0, inner)


def _estimate(
    problem: Problem, arch: CpuArch, g: Geometry, pixel: float, beside: float
) -> Estimate:
    """Likewise: a vector of sums of a pixel takes `pixel` cycles, a tile `beside` more."""
    pixels = g.tile_n * g.tile_p * g.tile_q
    vectors = integers.ceil_div(min(g.tile_k, g.K), arch.lanes(problem.itemsize))
    calls = pixels / g.tile_q * integers.ceil_div(g.tile_q, g.tile_m)
    multiply = calls * (CALL_CYCLES + vectors * DEPTHWISE_VECTOR_CYCLES)
    multiply += pixels * vectors * pixel
    items = max(1, integers.tile_count(g) * integers.block_count(g))
    threads = thread_count(problem, arch)
    idle = integers.ceil_div(items, threads) * threads / items
    return Estimate(items * (multiply + beside + ITEM_CYCLES) * idle, 1)


def group_lanes_candidates(
    problem: Problem, arch: CpuArch, group: tuple[int, int]
) -> list[Geometry]:
    """Likewise for groups of a few (channels, filters), which are always copied: in a buffer no
    pixel is at a border, and all lie less far apart, in more of a cache's sets.
    """
    channels, filters = group
    blocks = _blocks(problem.K, arch.lanes(problem.itemsize))
    # Rows as they lie, so that taps of a filter row share what they read.
    by_row = problem.stride[1] == 2 <= problem.kernel[1] and problem.dilation[1] == 1
    sizes = {(block // filters * channels, block) for block in blocks}
    return _tilings(problem, arch, sizes, in_place=False, step_w=1 if by_row else None)


def group_lanes_estimate(
    problem: Problem, arch: CpuArch, g: Geometry, group_channels: int
) -> Estimate:
    """Cycles of one core, likewise: of each channel of a group FMAs, or vectors that repeat it."""
    taps = g.R * g.S
    by_row = g.phases_w == g.dilation_w == 1  # then the taps of a filter row share these vectors
    shared = integers.column_pixels(g, g.tile_m) + g.S - 1
    spread = g.R * shared / g.tile_m if by_row else taps
    pixel = group_channels * max(taps / FMAS_PER_CYCLE * GROUP_FMAS, spread * SPREAD_CYCLES)
    cycles, chunk = _estimate(problem, arch, g, pixel, _copy_cycles(problem, g))
    return Estimate(cycles + g.K * group_channels * taps * PACK_CYCLES[0], chunk)


def by_planes(problem: Problem, arch: CpuArch) -> bool:
    """Whether a depthwise problem's vectors hold pixels of a row: where they fill half of one.

    The answer does not depend on batch or threads: "strict" rests on it.
    """
    served = problem.stride[1] in STEPS and 1 <= _apart(problem) <= PLANES_APART
    return served and problem.output[1] >= arch.lanes(problem.itemsize) // 2


def _apart(problem: Problem) -> int:
    """Numbers from a pixel of a plane to the next."""
    return problem.C if problem.layout == "NHWC" else 1


def plane_candidates(problem: Problem, arch: CpuArch) -> list[Geometry]:
    """Tilings of single channels and images into rows whose input fits its share of L1."""
    p, q = problem.output
    found = {(1, balanced(p, rows), balanced(q, 1024)) for rows in (8, 16, 32, 64, 128)}
    tilings = [
        geometry(problem, tile=tile, tile_m=arch.tile_pixels, tile_c=1, tile_k=1)
        for tile in sorted(found)
    ]
    lanes = arch.lanes(problem.itemsize)
    sizes = [planes_layout(g, problem.itemsize, lanes, packs=False).buffer for g in tilings]
    fitting = [g for g, size in zip(tilings, sizes, strict=True) if size <= PLANE_BYTES]
    return fitting or tilings[:1]


def plane_estimate(problem: Problem, arch: CpuArch, g: Geometry) -> Estimate:
    """Cycles of one core: rows copied, an FMA a tap and vector, vectors shifted for the taps."""
    vectors = g.tile_p * integers.ceil_div(g.tile_q, arch.lanes(problem.itemsize))
    multiply = vectors * (g.R * g.S * PLANE_TAP_CYCLES + PLANE_VECTOR_CYCLES) + CALL_CYCLES
    elements = buffer_bytes(g, problem.itemsize) / problem.itemsize
    load = integers.image_rows(g) * PLANE_ROW_CYCLES + elements * COPY_CYCLES
    if _apart(problem) > 1:
        load += elements * _apart(problem) * APART_CYCLES
    if _apart(problem) > 1 or problem.converted:
        load += STAGED_PLANE_CYCLES
    items = integers.tile_count(g) * g.C
    threads = thread_count(problem, arch)
    cycles = items * (multiply + load) + threads * ITEM_CYCLES
    return Estimate(cycles, channel_chunk(g, threads))


def channel_chunk(g: Geometry, threads: int) -> int:
    """Channels of a work item, one plane after another."""
    items = max(1, ITEMS_PER_THREAD[0] * threads // max(1, integers.tile_count(g)))
    return max(1, min(PLANE_CHANNELS, integers.ceil_div(g.C, items)))
