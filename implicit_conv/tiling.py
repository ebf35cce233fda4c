"""Tilings of a problem, and what each would cost: the planner's candidates and estimates.

Sizes come from the caches and the vector width; rules and constants stand here, with their reasons.
"""

from __future__ import annotations

from typing import NamedTuple

from implicit_conv.algorithms import by_pixels
from implicit_conv.arch import AMX_PIXELS, AMX_ROWS, CpuArch
from implicit_conv.kernels import schedule as integers
from implicit_conv.kernels.cpu.sizes import (
    PIXEL_ROWS,
    buffer_bytes,
    depthwise_layout,
    pixel_lanes_layout,
    planes_layout,
    winograd_layout,
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
BOXED_SCRATCH_BYTES = 4 << 20  # of a thread, for Winograd; the other algorithms stay below 2 MiB
DEPTHWISE_PIXELS = 14
PLANE_BYTES = 36 << 10  # of two planes' input rows: they stay in L1
PLANE_CHANNELS = 64  # of a work item, where there are enough for all threads
CHANNEL_VECTORS = (1, 2, 4, 8, 16)  # of a depthwise block, to choose from
BOXES = (14, 28, 42, 56)  # Winograd boxes of a load tile of several images, to choose from
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
LOAD_ROW_CYCLES = 100  # of a buffered row, beside its elements
TRANSPOSE_CYCLES = 1 / 3  # an element of a row that is transposed on the way
PACK_CYCLES = (0.65, 0.5)  # an element of the filter, packed as a whole, or just before its use
PACK_ROW_CYCLES = (0.4, 0.2)  # likewise where a row of a panel lies together
FILLED_LANES = 0.9  # of vectors whose lanes are pixels, at least
LAUNCH_CYCLES = 16000  # of one more image, on the way through Python
FAR_BYTES_PER_CYCLE = 12  # a core's stream from the last-level cache
FAR_BYTES = 16 << 20  # of a filter that the last-level cache keeps; a larger one is streamed
MEMORY_BYTES_PER_CYCLE = 4  # from memory
FAR_SHARE = 0.2  # of that stream, what does not hide behind the multiplications
ITEM_CYCLES = 500  # decoding a work item, calls, loop ends
ROW_CYCLES = 200  # depthwise in place: tap tables and border pixels of a row
CALL_CYCLES = 30  # a microkernel of few sums
PLANE_ROW_CYCLES = 25  # copying a row, beside its elements
UNALIGNED_LOADS = 4  # aligned loads that take as long as one across two cache lines
PIXEL_LANES_CYCLES = 2  # of a vector of sums: its start, clamp and store
PLANE_VECTOR_CYCLES = 3  # loop ends and clamp of one vector of pixels
DEPTHWISE_VECTOR_CYCLES = 10  # loop ends of one vector of channels
SUMS_CYCLES = 60  # start and end of a register tile's sums
BOX_CYCLES = 40  # of a box, to find and to transform it, beside its vectors
STAGED_CYCLES = 0.3  # an element of y that is copied from the staging tile
FAR_TRANSFORM = 2.5  # how many times as long transforms take that leave L2
TRANSFORM_FILTER_CYCLES = 0.12  # an element of a transformed filter
TRANSFORM_CYCLES = {2: 2.0, 4: 5.0}  # Winograd: a vector of a box, in or out


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
    multiply = tile_cycles(g, group, inner) * elements * vectors / 2
    filter_bytes = elements * vectors * lanes * problem.itemsize
    near = filter_bytes + buffer_bytes(g, problem.itemsize) <= arch.l2_bytes
    far = 0.0 if near else stream_cycles(filter_bytes)
    load = 0.0
    if not in_place:
        cost = COPY_CYCLES if problem.layout == "NHWC" else TRANSPOSE_CYCLES
        rows = g.tile_n * integers.image_rows(g) * g.phases_w
        load = buffer_bytes(g, problem.itemsize) / problem.itemsize * cost + rows * LOAD_ROW_CYCLES
    stream = max(multiply, far) + FAR_SHARE * far + store_cycles(problem, g)
    threads = thread_count(problem, arch)
    tile, chunk = divide(g, threads, problem.itemsize, stream, load + ITEM_CYCLES)
    packing = pack[tiles == g.groups] * g.groups * elements * g.K
    return Estimate(tiles * tile + packing, chunk)


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
    step = max(1, g.tile_m // inner)
    parts = integers.ceil_div(inner, g.tile_m)
    pixels = min(step, group) * inner / parts
    tiles = float(integers.ceil_div(group, step) * parts)
    tiles *= g.tile_n * g.tile_p * g.tile_q / (group * inner)
    fmas = max(2 * pixels / FMAS_PER_CYCLE, FMA_LATENCY)
    return tiles * max(fmas, (pixels + 2) / LOADS_PER_CYCLE)


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


def boxed_candidates(problem: Problem, arch: CpuArch, m: int) -> list[Geometry]:
    """Tilings of a problem rounded up to whole boxes; none where scratch would not do."""
    lanes = arch.lanes(problem.itemsize)
    p, q = problem.output
    found = set()
    for _, *extent in tiles(problem):
        rows, columns = (_up(size, m) for size in extent)
        found.add((1, rows, columns))
        if (rows, columns) == (p, q):  # several images, so that a panel serves more boxes
            boxes = p * q // m**2
            found |= {(max(1, min(problem.N, b // boxes)), p, q) for b in BOXES}
    tilings = [
        geometry(
            problem, tile=tile, tile_m=arch.tile_pixels, tile_c=max(1, problem.C),
            tile_k=2 * lanes,
        )
        for tile in sorted(found)
    ]  # fmt: skip
    return [
        g for g in tilings
        if winograd_layout(g, problem.itemsize, lanes, m, packs=False).total <= BOXED_SCRATCH_BYTES
    ]  # fmt: skip


def _up(extent: int, m: int) -> int:
    return integers.ceil_div(extent, m) * m


def boxed_estimate(problem: Problem, arch: CpuArch, g: Geometry, m: int) -> Estimate:
    """Cycles of one core for Winograd F(m x m, 3x3): transforms, products, loads, far panels."""
    lanes = arch.lanes(problem.itemsize)
    xis = integers.box_products(g, m)
    boxes = g.tile_n * g.tile_p * g.tile_q // m**2
    tiles = integers.tile_count(g)
    channels, filters = (integers.ceil_div(size, lanes) for size in (g.C, g.K))
    parts = integers.ceil_div(boxes, g.tile_m)
    part = max(2 * boxes / parts / FMAS_PER_CYCLE, FMA_LATENCY)
    part = max(part, (boxes / parts + 2) / LOADS_PER_CYCLE) * g.C + SUMS_CYCLES
    panels = integers.panel_count(g)
    multiply = parts * part * xis * filters / 2
    panel_bytes = xis * g.C * filters * lanes * problem.itemsize
    layout = winograd_layout(g, problem.itemsize, lanes, m, packs=False)
    near = panel_bytes + layout.total <= arch.l2_bytes
    far = 0.0 if near else stream_cycles(panel_bytes)
    vector = TRANSFORM_CYCLES[m]
    if layout.total > arch.l2_bytes:  # every panel reads the boxes again
        far += layout.boxes * panels / FAR_BYTES_PER_CYCLE
        vector *= FAR_TRANSFORM
    transform_in = boxes * (xis * channels * vector + BOX_CYCLES)
    transform_out = boxes * (xis * filters * vector + BOX_CYCLES * panels)
    transform_out += boxes * m**2 * g.K * STAGED_CYCLES
    cost = COPY_CYCLES if problem.layout == "NHWC" else TRANSPOSE_CYCLES
    load = layout.buffer / problem.itemsize * cost
    stream = max(multiply, far) + FAR_SHARE * far + transform_out + store_cycles(problem, g)
    threads = thread_count(problem, arch)
    again = load + transform_in + ITEM_CYCLES
    tile, chunk = divide(g, threads, problem.itemsize, stream, again)
    pack = (g.R * g.S * PACK_CYCLES[0] + xis * TRANSFORM_FILTER_CYCLES) * g.C * g.K
    if tiles > 1 and panel_bytes > FAR_BYTES:  # packed as a whole: written, and read once more
        pack += 2 * stream_cycles(panel_bytes)
    return Estimate(tiles * tile + pack, chunk)


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


def depthwise_candidates(problem: Problem, arch: CpuArch, in_place: bool) -> list[Geometry]:
    """Tilings of images, rows, columns and blocks of channels; all loads of a block are its own."""
    lanes = arch.lanes(problem.itemsize)
    blocks = {_up(balanced(problem.C, vectors * lanes), lanes) for vectors in CHANNEL_VECTORS}
    tilings = [
        geometry(
            problem, tile=tile, tile_m=min(arch.tile_pixels, DEPTHWISE_PIXELS), tile_c=block,
            tile_k=block,
        )
        for tile in tiles(problem)
        for block in sorted(blocks)
    ]  # fmt: skip
    limit = arch.l2_bytes * BUFFER_SHARE
    sizes = [depthwise_layout(g, problem.itemsize, lanes, in_place, False).total for g in tilings]
    fitting = [g for g, size in zip(tilings, sizes, strict=True) if size <= limit]
    return fitting or [tilings[sizes.index(min(sizes))]]


def depthwise_estimate(problem: Problem, arch: CpuArch, g: Geometry, in_place: bool) -> Estimate:
    """Cycles of one core: an FMA and a load a tap, loads of the tile, a copy on the way out."""
    lanes = arch.lanes(problem.itemsize)
    cost = COPY_CYCLES if problem.layout == "NHWC" else TRANSPOSE_CYCLES
    pixels = g.tile_n * g.tile_p * g.tile_q
    vectors = integers.ceil_div(min(g.tile_c, g.C), lanes)
    parts = integers.ceil_div(g.tile_q, g.tile_m)
    rows = pixels / g.tile_q
    calls = rows * parts * (CALL_CYCLES + vectors * DEPTHWISE_VECTOR_CYCLES)
    multiply = pixels * vectors * g.R * g.S / LOADS_PER_CYCLE + calls
    load = buffer_bytes(g, problem.itemsize) / problem.itemsize * cost
    store = pixels * min(g.tile_c, g.C) * cost
    if in_place:  # written in place too
        load = store = rows * ROW_CYCLES
    items = max(1, integers.tile_count(g) * integers.block_count(g))
    threads = thread_count(problem, arch)
    idle = integers.ceil_div(items, threads) * threads / items
    return Estimate(items * (multiply + load + store + ITEM_CYCLES) * idle, 1)


def by_planes(problem: Problem, arch: CpuArch) -> bool:
    """Whether a depthwise problem's vectors hold pixels of a row: where they fill half of one.

    The answer does not depend on batch or threads: "strict" rests on it.
    """
    return by_pixels(problem) and problem.output[1] >= arch.lanes(problem.itemsize) // 2


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
    """Cycles of one core: rows copied, an FMA a tap and vector, loads of the taps."""
    vectors = g.tile_p * integers.ceil_div(g.tile_q, arch.lanes(problem.itemsize))
    multiply = vectors * (g.R * g.S / LOADS_PER_CYCLE + PLANE_VECTOR_CYCLES) + CALL_CYCLES
    elements = buffer_bytes(g, problem.itemsize) / problem.itemsize
    load = integers.image_rows(g) * PLANE_ROW_CYCLES + elements * COPY_CYCLES
    items = integers.tile_count(g) * g.C
    threads = thread_count(problem, arch)
    cycles = items * (multiply + load) + threads * ITEM_CYCLES
    return Estimate(cycles, channel_chunk(g, threads))


def pixel_lanes_candidates(problem: Problem, arch: CpuArch) -> list[Geometry]:
    """Tilings of single images into rows whose input, of all channels, stays near the core."""
    p, q = problem.output
    filters = balanced(problem.K // problem.groups, arch.tile_pixels)
    found = {(1, balanced(p, rows), q) for rows in (2, 4, 8, 16, 32, 64)}
    tilings = [
        geometry(
            problem, tile=tile, tile_m=arch.tile_pixels, tile_c=problem.C // problem.groups,
            tile_k=filters,
        )
        for tile in sorted(found)
    ]  # fmt: skip
    lanes = arch.lanes(problem.itemsize)
    return [
        g for g in tilings
        if pixel_lanes_layout(g, problem.itemsize, lanes).total <= arch.l2_bytes * BUFFER_SHARE
    ]  # fmt: skip


def pixel_lanes_estimate(problem: Problem, arch: CpuArch, g: Geometry) -> Estimate:
    """Cycles of one core: an FMA a filter, output row and vector of pixels for each element."""
    lanes, elements = arch.lanes(problem.itemsize), g.C * g.R * g.S
    pairs = integers.ceil_div(g.tile_p, PIXEL_ROWS)
    filters = min(g.tile_k, g.K)
    loads = filters + PIXEL_ROWS * UNALIGNED_LOADS
    element = max(PIXEL_ROWS * filters / FMAS_PER_CYCLE, loads / LOADS_PER_CYCLE, FMA_LATENCY)
    vectors = pairs * integers.ceil_div(g.tile_q, lanes) * integers.panel_count(g)
    multiply = vectors * (elements * element + PIXEL_LANES_CYCLES * PIXEL_ROWS * filters)
    buffer = pixel_lanes_layout(g, problem.itemsize, lanes).buffer
    rows = g.C * integers.image_rows(g) * g.phases_w
    load = rows * PLANE_ROW_CYCLES + buffer / problem.itemsize * COPY_CYCLES
    threads = thread_count(problem, arch)
    tile, chunk = divide(g, threads, problem.itemsize, multiply, load + ITEM_CYCLES)
    return Estimate(integers.tile_count(g) * g.groups * tile, chunk)


def channel_chunk(g: Geometry, threads: int) -> int:
    """Channels of a work item, one plane after another."""
    items = max(1, ITEMS_PER_THREAD[0] * threads // max(1, integers.tile_count(g)))
    return max(1, min(PLANE_CHANNELS, integers.ceil_div(g.C, items)))
