"""Tilings of a problem, and what each would cost: the planner's candidates and estimates.

Sizes come from the caches and the vector width; rules and constants stand here, with their reasons,
those of one algorithm beside its tilings: `tiling_boxes`, `tiling_depthwise`, `tiling_pixels`.
"""

from __future__ import annotations

from typing import NamedTuple

from implicit_conv.arch import AMX_PIXELS, AMX_ROWS, CpuArch
from implicit_conv.kernels import schedule as integers
from implicit_conv.kernels.cpu.sizes import (
    buffer_bytes,
)
from implicit_conv.kernels.geometry import Geometry
from implicit_conv.problem import Problem
from implicit_conv.schedule import geometry

# A panel of one channel block should stay in L2 while a tile's register tiles pass over it:
# elements (taps x channels) of a block. It depends on the filter alone, so that the order of a sum
# never depends on batch, threads or tile: "strict" rests on it.
BLOCK_ELEMENTS = 5120
TILE_PIXELS = (14, 56, 112, 224, 448, 896)  # output pixels of a load tile, to choose from
BUFFER_SHARE = 0.5  # of L2: a thread's input buffer at most
STAGED_BYTES = 320 << 10  # sums of a thread that wait for the next channel block; more leave L2
FLOPS_PER_THREAD = 2e6  # less is done before another thread wakes, in about 2 us
BYTES_PER_THREAD = 256e3  # likewise where memory takes the time: about 10 us of a copy
ITEMS_PER_THREAD = (4, 2, 1)  # to choose from: more, and an interrupted core delays the others less
INTERRUPTION = 0.1  # of a work item's time, what waiting for the last one costs

# Machine constants of the estimate, in cycles; orders of magnitude that hold for current cores.
# Those of single parts were measured on a Zen 5, one thread, by leaving the part out.
FMAS_PER_CYCLE = 2
AMX_CYCLES = 2.0  # a tile of pixels against two of filters, an element: 16 a product of 16 pairs
LOADS_PER_CYCLE = 2
FMA_LATENCY = 4
COPY_CYCLES = 1 / 8  # an element of a channels-last row
TILE_PIXEL_CYCLES = 100 / 14  # of a pixel of a register tile, beside its sums
RUN_CYCLES = 25  # of a run of its taps
PIXEL_COPY_CYCLES = 4  # a pixel of one group, at least
LOAD_ROW_CYCLES = 100  # of a buffered row, beside its elements
TRANSPOSE_CYCLES = 1 / 3  # an element of a row that is transposed on the way
PACK_CYCLES = (0.65, 0.5)  # an element of the filter, packed as a whole, or just before its use
PACK_ROW_CYCLES = (0.4, 0.2)  # likewise where a row of a panel lies together
FILLED_LANES = 0.9  # of vectors whose lanes are pixels, at least
SHARED_PANELS = 0.15  # of the time, what it costs that each thread reads what another has packed
LAUNCH_CYCLES = 16000  # of one more image, on the way through Python
FAR_BYTES_PER_CYCLE = 12  # a core's stream from the last-level cache
FAR_BYTES = 16 << 20  # of a filter that the last-level cache keeps; a larger one is streamed
MEMORY_BYTES_PER_CYCLE = 8  # from memory
FAR_SHARE = 0.2  # of that stream, what does not hide behind the multiplications
ITEM_CYCLES = 500  # decoding a work item, calls, loop ends
PLANE_ROW_CYCLES = 8  # copying a row of a plane, beside its elements


def reads_in_place(problem: Problem) -> bool:
    """Whether x can be read as it lies: no tile touches padding, channels lie together, and so do
    pixels. A stride would leave gaps: such rows fill half of a cache's sets, and prefetchers lose
    them; copied, they took 3 to 10 % less time.
    """
    inside = all(
        lo <= 0 and (out - 1) * stride + (taps - 1) * dilation - lo < size
        for lo, out, stride, taps, dilation, size in zip(
            problem.pad_lo, problem.output, problem.stride, problem.kernel, problem.dilation,
            problem.size, strict=True,
        )
    )  # fmt: skip
    together = problem.layout == "NHWC" and problem.stride == (1, 1)
    return inside and together and not problem.converted


def channel_block(problem: Problem) -> int:
    """Channels of a k-block: all, or equal blocks of at most BLOCK_ELEMENTS taps x channels."""
    channels = max(1, problem.C // problem.groups)
    taps = problem.kernel[0] * problem.kernel[1]
    blocks = integers.ceil_div(channels * taps, BLOCK_ELEMENTS)
    return integers.ceil_div(channels, min(blocks, channels))


def fills_tiles(problem: Problem, arch: CpuArch) -> bool:
    """Whether the pairs of channels of `problem` are whole tiles of AMX, block by block."""
    pairs, block = problem.C // problem.groups, channel_block(problem)
    return arch.bfloat16 == "amx" and pairs % AMX_ROWS == 0 and block % AMX_ROWS == 0


def candidates(problem: Problem, arch: CpuArch, in_place: bool) -> list[Geometry]:
    """Tilings whose input buffer fits its share of L2; if none does, the smallest of all."""
    lanes = arch.lanes(problem.itemsize)
    block = channel_block(problem)
    # Few channels: rows as they lie, so that all taps of a filter row make one run of the sum.
    gapless = 1 < problem.stride[1] <= problem.kernel[1] and problem.dilation[1] == 1
    plain_rows = gapless and block < lanes
    tilings = [
        geometry(
            problem, tile=tile, tile_m=arch.tile_pixels, tile_c=block, tile_k=2 * lanes,
            step_w=1 if plain_rows else None,
        )
        for tile in tiles(problem)
    ]  # fmt: skip
    if in_place:
        return tilings
    limit = arch.l2_bytes * BUFFER_SHARE
    fitting = [g for g in tilings if buffer_bytes(g, problem.itemsize) <= limit]
    return fitting or [min(tilings, key=lambda g: buffer_bytes(g, problem.itemsize))]


def tiles(problem: Problem) -> list[tuple[int, int, int]]:
    """(images, output rows, output columns) of load tiles worth an estimate.

    Whole rows where they are not too long, whole images before several images.
    """
    p, q = problem.output
    found = set()
    for pixels in TILE_PIXELS:
        columns = balanced(q, pixels)
        for rows in (1, *(balanced(p, share // columns) for share in TILE_PIXELS)):
            images = max(1, pixels // (p * q)) if (rows, columns) == (p, q) else 1
            found.add((min(images, max(1, problem.N)), rows, columns))
    return sorted(found)


def balanced(extent: int, limit: int) -> int:
    """The smallest tile that covers `extent` in as few pieces as tiles of `limit` would."""
    return integers.ceil_div(extent, integers.ceil_div(extent, max(1, limit)))


class Estimate(NamedTuple):
    """What a tiling would cost, and the division of its work that costs least."""

    cycles: float  # of one core
    chunk: int  # filter panels (depthwise: channels, or blocks of them) of a work item


def estimate(
    problem: Problem,
    arch: CpuArch,
    g: Geometry,
    in_place: bool,
    pack: tuple[float, float] = PACK_CYCLES,
) -> Estimate:
    """Cycles of one core for the whole problem: register tiles, loads, far panels, idle threads."""
    lanes = arch.lanes(problem.itemsize)
    elements = g.R * g.S * max(1, g.C)
    tiles = integers.tile_count(g) * g.groups
    _, group, inner = integers.by_role(g, g.tile_n, g.tile_p, g.tile_q)
    vectors = integers.ceil_div(g.K, lanes)
    multiply = tile_cycles(g, group, inner) * elements * vectors / 2 * column_share(g)
    pixels = g.tile_n * g.tile_p * g.tile_q
    register_tiles = integers.ceil_div(pixels, g.tile_m) * integers.panel_count(g)
    multiply += register_tiles * (g.tile_m * TILE_PIXEL_CYCLES + g.R * RUN_CYCLES)
    filter_bytes = elements * vectors * lanes * problem.itemsize
    near = filter_bytes + buffer_bytes(g, problem.itemsize) <= arch.l2_bytes
    far = 0.0 if near else stream_cycles(filter_bytes)
    load = 0.0
    if not in_place:
        cost = COPY_CYCLES if problem.layout == "NHWC" else TRANSPOSE_CYCLES
        rows = g.tile_n * integers.image_rows(g) * g.phases_w
        pixel = cost * min(g.C, g.tile_c)
        if problem.layout == "NHWC" and g.groups > 1:  # a cache line for each, of a few channels
            pixel = max(pixel, PIXEL_COPY_CYCLES)
        load = rows * (integers.row_pitch(g) / g.phases_w * pixel + LOAD_ROW_CYCLES)
    stream = max(multiply, far) + FAR_SHARE * far + store_cycles(problem, g)
    threads = thread_count(problem, arch)
    tile, chunk = divide(g, threads, problem.itemsize, stream, load + ITEM_CYCLES)
    packing = pack[tiles == g.groups] * g.groups * elements * g.K
    return Estimate(tiles * tile + packing, chunk)


def column_share(g: Geometry) -> float:
    """Of the filter columns of all output columns, those that are multiplied."""
    used = q = 0
    while q < g.Q:
        stop, first, last = integers.column_segment(g, q, g.Q)
        used, q = used + (stop - q) * (last - first), stop
    return used / (g.Q * g.S)


def stream_cycles(filter_bytes: float) -> float:
    """Cycles to read a packed filter that is not near the core."""
    rate = FAR_BYTES_PER_CYCLE if filter_bytes <= FAR_BYTES else MEMORY_BYTES_PER_CYCLE
    return filter_bytes / rate


def fills_vectors(problem: Problem, arch: CpuArch) -> bool:
    """Whether the pixels of an image fill their vectors well enough to be the lanes of them."""
    lanes, (p, q) = arch.lanes(problem.itemsize), problem.output
    return p * q >= FILLED_LANES * integers.ceil_div(p * q, lanes) * lanes


def swapped_estimate(problem: Problem, view: Problem, arch: CpuArch, g: Geometry) -> Estimate:
    """Cycles of one core for all images of `problem`, whose `view` has traded places."""
    cycles, chunk = estimate(view, arch, g, in_place=True, pack=PACK_ROW_CYCLES)
    if thread_count(view, arch) > 1:
        cycles *= 1 + SHARED_PANELS
    return Estimate(problem.N * (cycles + LAUNCH_CYCLES), chunk)


def store_cycles(problem: Problem, g: Geometry) -> float:
    """What the way out of a load tile costs: a transpose, where filters do not lie together, or the
    rounding to 16 bits.
    """
    cost = 0.0 if problem.layout == "NHWC" else TRANSPOSE_CYCLES
    if problem.converted:
        cost += COPY_CYCLES
    return g.tile_n * g.tile_p * g.tile_q * g.K * cost


def tile_cycles(g: Geometry, group: int, inner: int) -> float:
    """Cycles for one element of the sums of a load tile against two vectors of filters."""
    if g.tile_m == AMX_PIXELS:
        rows = g.tile_n * g.tile_p * g.tile_q / inner
        return rows * integers.ceil_div(inner, AMX_ROWS) * AMX_CYCLES

    def cycles(pixels: int) -> float:
        """Of a register tile."""
        fmas = max(2 * pixels / FMAS_PER_CYCLE, FMA_LATENCY)
        return max(fmas, (pixels + 2) / LOADS_PER_CYCLE)

    total = 0.0
    for height, tiles in integers.cuts(inner, g.tile_m):
        step = integers.rows_together(height, g.tile_m) if height else 1
        whole, rest = divmod(group, step)
        total += tiles * (whole * cycles(step * height) + (cycles(rest * height) if rest else 0.0))
    return total * g.tile_n * g.tile_p * g.tile_q / (group * inner)


def thread_count(problem: Problem, arch: CpuArch) -> int:
    """Threads that have enough to do."""
    enough = max(problem.flops / FLOPS_PER_THREAD, problem.bytes / BYTES_PER_THREAD)
    return max(1, min(arch.threads, int(enough)))


def divide(g: Geometry, threads: int, itemsize: int, shared: float, again: float) -> Estimate:
    """Divide the filter panels of a load tile among work items, each with `again` cycles of its
    own: one item, or enough for all threads; with several channel blocks, as few sums as may wait.
    """
    tiles = max(1, integers.tile_count(g) * g.groups)
    panels = max(1, integers.panel_count(g))
    least = 1
    if integers.block_count(g) > 1:
        sums = g.tile_n * g.tile_p * g.tile_q * g.tile_k * itemsize
        least = integers.ceil_div(panels * sums, STAGED_BYTES)
    found = []
    for share in ITEMS_PER_THREAD if threads > 1 else (1,):
        wanted = integers.ceil_div(share * threads, tiles) if threads > 1 else 1
        chunk = integers.ceil_div(panels, min(panels, max(wanted, least)))
        chunks = integers.ceil_div(panels, chunk)
        items = tiles * chunks
        idle = integers.ceil_div(items, threads) * threads / items
        cycles = (shared + again * chunks) * idle
        waits = 1 + INTERRUPTION * threads / items
        found.append((cycles * waits, Estimate(cycles, chunk)))
    return min(found)[1]


def whole(problem: Problem, arch: CpuArch) -> Geometry:
    """The problem as a single tile, its channels as a single block."""
    return geometry(
        problem, tile=(max(1, problem.N), *problem.output), tile_m=arch.tile_pixels,
        tile_c=max(1, problem.C // problem.groups), tile_k=2 * arch.lanes(problem.itemsize),
    )  # fmt: skip


def columns_estimate(problem: Problem, arch: CpuArch, workspace_bytes: int) -> Estimate:
    """Cycles of one core for a materialised im2col: FMAs at their peak, columns there and back."""
    fmas = problem.flops / (2 * arch.lanes(problem.itemsize) * FMAS_PER_CYCLE)
    return Estimate(fmas + 2 * workspace_bytes / FAR_BYTES_PER_CYCLE, 1)


def rounded_up(extent: int, m: int) -> int:
    """The next multiple of `m`."""
    return integers.ceil_div(extent, m) * m
