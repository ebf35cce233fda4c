"""Tilings for Winograd, whose load tiles come in boxes of outputs, and what each would cost."""

from __future__ import annotations

from implicit_conv.arch import CpuArch
from implicit_conv.kernels import schedule as integers
from implicit_conv.kernels.cpu.sizes import winograd_layout
from implicit_conv.kernels.geometry import Geometry
from implicit_conv.problem import Problem
from implicit_conv.schedule import geometry
from implicit_conv.tiling import (
    COPY_CYCLES,
    FAR_BYTES,
    FAR_BYTES_PER_CYCLE,
    FAR_SHARE,
    FMA_LATENCY,
    FMAS_PER_CYCLE,
    ITEM_CYCLES,
    LOADS_PER_CYCLE,
    PACK_CYCLES,
    TRANSPOSE_CYCLES,
    Estimate,
    divide,
    rounded_up,
    store_cycles,
    stream_cycles,
    thread_count,
    tiles,
)

BOXED_SCRATCH_BYTES = 4 << 20  # of a thread, for Winograd; the other algorithms stay below 2 MiB
BOXES = (14, 28, 42, 56)  # Winograd boxes of a load tile of several images, to choose from
SUMS_CYCLES = 60  # start and end of a register tile's sums
BOX_CYCLES = 10  # of a box, to find and to transform it, beside its vectors
BOX_ROW_CYCLES = 40  # likewise of a row of boxes
STAGED_CYCLES = 0.3  # an element of y that is copied from the staging tile
FAR_TRANSFORM = 2.5  # how many times as long transforms take that leave L2
TRANSFORM_FILTER_CYCLES = 0.12  # an element of a transformed filter
TRANSFORM_CYCLES = {2: 2.0, 4: 5.0}  # Winograd: a vector of a box, in or out


def boxed_candidates(problem: Problem, arch: CpuArch, m: int) -> list[Geometry]:
    """Tilings of a problem rounded up to whole boxes; none where scratch would not do."""
    lanes = arch.lanes(problem.itemsize)
    p, q = problem.output
    found = set()
    for _, *extent in tiles(problem):
        rows, columns = (rounded_up(size, m) for size in extent)
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


def boxed_estimate(problem: Problem, arch: CpuArch, g: Geometry, m: int) -> Estimate:
    """Cycles of one core for Winograd F(m x m, 3x3): transforms, products, loads, far panels."""
    lanes = arch.lanes(problem.itemsize)
    xis = integers.box_products(g, m)
    boxes = g.tile_n * g.tile_p * g.tile_q // m**2
    tiles = integers.tile_count(g)
    channels, filters = (integers.ceil_div(size, lanes) for size in (g.C, g.K))
    heights = integers.ceil_div(boxes, g.tile_m)
    part = max(2 * boxes / heights / FMAS_PER_CYCLE, FMA_LATENCY)
    part = max(part, (boxes / heights + 2) / LOADS_PER_CYCLE) * g.C + SUMS_CYCLES
    panels = integers.panel_count(g)
    multiply = heights * part * xis * filters / 2
    panel_bytes = xis * g.C * filters * lanes * problem.itemsize
    layout = winograd_layout(g, problem.itemsize, lanes, m, packs=False)
    near = panel_bytes + layout.total <= arch.l2_bytes
    parts = panels if tiles == 1 else 1  # each is read as soon as it is packed
    far = 0.0 if near else parts * stream_cycles(panel_bytes / parts)
    vector = TRANSFORM_CYCLES[m]
    if layout.total > arch.l2_bytes:  # every panel reads the boxes again
        far += layout.boxes * panels / FAR_BYTES_PER_CYCLE
        vector *= FAR_TRANSFORM
    rows = g.tile_n * g.tile_p / m
    each = boxes * BOX_CYCLES + rows * BOX_ROW_CYCLES
    transform_in = boxes * xis * channels * vector + each
    transform_out = boxes * xis * filters * vector + each * panels
    if problem.layout == "NCHW" or any(extent % m for extent in problem.output):
        transform_out += boxes * m**2 * g.K * STAGED_CYCLES
    cost = COPY_CYCLES if problem.layout == "NHWC" else TRANSPOSE_CYCLES
    load = layout.buffer / problem.itemsize * cost
    stream = max(multiply, far) + FAR_SHARE * far + transform_out + store_cycles(problem, g)
    threads = thread_count(problem, arch)
    again = load + transform_in + ITEM_CYCLES
    tile, chunk = divide(g, threads, problem.itemsize, stream, again)
    pack = (g.R * g.S * PACK_CYCLES[0] + xis * TRANSFORM_FILTER_CYCLES) * g.C * g.K
    if tiles > 1 and panel_bytes > FAR_BYTES:  # packed as a whole: written, and read once more
        pack += stream_cycles(panel_bytes)
    return Estimate(tiles * tile + pack, chunk)
