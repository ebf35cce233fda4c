"""Tilings for fprop whose vector lanes are pixels, and what each would cost."""

from __future__ import annotations

from implicit_conv.arch import CpuArch
from implicit_conv.kernels import schedule as integers
from implicit_conv.kernels.cpu.sizes import (
    ScratchLayout,
    is_far,
    pixel_lanes_layout,
    tail_filters,
    tail_pixels,
)
from implicit_conv.kernels.geometry import Geometry
from implicit_conv.problem import Problem
from implicit_conv.schedule import geometry
from implicit_conv.tiling import (
    COPY_CYCLES,
    FAR_SHARE,
    FMA_LATENCY,
    FMAS_PER_CYCLE,
    ITEM_CYCLES,
    LOADS_PER_CYCLE,
    PLANE_ROW_CYCLES,
    TRANSPOSE_CYCLES,
    Estimate,
    balanced,
    divide,
    stream_cycles,
    thread_count,
)
from implicit_conv.tiling_channels import LOAD_CYCLES

TILE_COLUMNS = (112, 48)  # of a load tile, where whole rows are too long
PLANES_SHARE = 0.6  # of L2: a load tile's planes at most, which all panels pass over
FEW_FILTERS = 8  # of a register tile, so that three vectors of pixels have room: 7x7 and a rest
PIXEL_LANES_CYCLES = 2  # of a vector of sums: its start, clamp and store
STAGED_CYCLES = 0.5  # of a number of x or y in NHWC on its way to or from long rows
GATHER_CYCLES = 4  # of a number of a pixel that is left to dot products
PIXEL_ROW_CYCLES = 25  # transposing a row of pixels, beside its elements
DOT_CYCLES = 30  # of a register tile of dot products, beside these: adding up lanes


def unaligned_loads(arch: CpuArch) -> float:
    """Aligned loads that take as long as one at any address: longer vectors more often lie across
    two cache lines.
    """
    return 2 + arch.vector_bits / 256


def pixel_lanes_candidates(problem: Problem, arch: CpuArch, in_place: bool) -> list[Geometry]:
    """Tilings of single images whose input, of all channels, stays near the core."""
    p, q = problem.output
    lanes = arch.lanes(problem.itemsize)

    def tiling(rows: int, columns: int, filters: int) -> Geometry:
        return geometry(
            problem, tile=(1, rows, columns), tile_m=arch.tile_pixels,
            tile_c=problem.C // problem.groups, tile_k=filters,
        )  # fmt: skip

    found = set()
    # Far pixels are worth more filters each.
    far = in_place and is_far(tiling(p, q, 1), problem.itemsize)
    for most in (arch.tile_pixels,) if far else (arch.tile_pixels, FEW_FILTERS):
        filters = balanced(problem.K // problem.groups, most)
        whole = tiling(p, q, filters)
        rows = integers.pixel_rows(whole)
        steps = [1, 2, *(rows * tiles for tiles in (1, 2, 4, 8, 16, 32))]
        if in_place:  # one row, of whole vectors but for its last one
            vectors = integers.ceil_div(q, lanes)
            extents = {(1, balanced(vectors, step) * lanes) for step in (*steps, 3 * rows)}
        else:
            columns = (q,) if integers.is_single_tap(whole) else (q, *TILE_COLUMNS)
            extents = {(balanced(p, i), balanced(q, j)) for i in steps for j in columns}
        found |= {tiling(*extent, filters) for extent in extents}
    limit = arch.l2_bytes * PLANES_SHARE
    if not in_place:
        return [g for g in sorted(found) if _layout(problem, g, lanes, in_place).total <= limit]
    pixels = max(lanes, limit // (problem.itemsize * problem.C // problem.groups))
    return [g for g in sorted(found) if g.tile_q <= pixels]


def _layout(problem: Problem, g: Geometry, lanes: int, in_place: bool) -> ScratchLayout:
    """A thread's scratch."""
    return pixel_lanes_layout(g, problem.itemsize, lanes, in_place, problem.layout == "NHWC")


def pixel_lanes_estimate(problem: Problem, arch: CpuArch, g: Geometry, in_place: bool) -> Estimate:
    """Cycles of one core: sums, loads of the tile unless x is read in place, far filters."""
    lanes = arch.lanes(problem.itemsize)
    panels = integers.panel_count(g)
    multiply = panels * _sum_cycles(arch, g, lanes)
    buffer = _layout(problem, g, lanes, in_place).buffer
    load = 0.0 if in_place else _load_cycles(problem, g, lanes, buffer)
    load += _tail(g, lanes) * g.C * GATHER_CYCLES
    if problem.layout == "NHWC":
        vectors = g.tile_p * integers.ceil_div(g.tile_q, lanes)
        blocks = panels * integers.ceil_div(min(g.tile_k, g.K), lanes)
        if integers.is_single_tap(g):
            vectors = integers.ceil_div(g.tile_p * g.tile_q, lanes)
            blocks = integers.ceil_div(g.K, lanes)
            multiply += g.tile_p * g.tile_q * g.K * STAGED_CYCLES
            load += g.tile_p * g.tile_q * g.C * STAGED_CYCLES
        multiply += vectors * blocks * lanes**2 * TRANSPOSE_CYCLES
    filter_bytes = g.K * g.C * g.R * g.S * problem.itemsize
    planes = g.C * g.tile_q * problem.itemsize if in_place else buffer
    if filter_bytes + planes > arch.l2_bytes:
        far = stream_cycles(filter_bytes)
        multiply = max(multiply, far) + FAR_SHARE * min(multiply, far)
    threads = thread_count(problem, arch)
    tile, chunk = divide(g, threads, problem.itemsize, multiply, load + ITEM_CYCLES)
    return Estimate(integers.tile_count(g) * g.groups * tile, chunk)


def _tail(g: Geometry, lanes: int) -> int:
    """Pixels of a load tile that are left to dot products."""
    tail = g.tile_p * g.tile_q % lanes
    return tail if integers.is_single_tap(g) and tail <= tail_pixels(lanes) else 0


def _sum_cycles(arch: CpuArch, g: Geometry, lanes: int) -> float:
    """Of a load tile and panel: an FMA a filter and vector of pixels for each element."""
    filters, rows = min(g.tile_k, g.K), integers.pixel_rows(g)

    def sums(vectors: int) -> float:
        """Of this many vectors, as register tiles of at most `rows`."""
        if vectors > rows:
            return vectors // rows * sums(rows) + sums(vectors % rows)
        loads = filters + vectors * unaligned_loads(arch)
        element = max(vectors * filters / FMAS_PER_CYCLE, loads / LOADS_PER_CYCLE, FMA_LATENCY)
        cycles = g.C * g.R * g.S * element + PIXEL_LANES_CYCLES * vectors * filters
        return cycles if vectors else 0.0

    def long_row(pixels: int) -> float:
        """Of all pixels of a tile: vectors, and the last ones as a vector or by dot products."""
        vectors, tail = divmod(pixels, lanes)
        if tail > tail_pixels(lanes):
            return sums(vectors) + sums(1)
        few = tail_filters(g, lanes)
        element = max((few + 1) * LOAD_CYCLES, FMA_LATENCY)
        dots = integers.ceil_div(g.C, lanes) * element + DOT_CYCLES
        return sums(vectors) + tail * integers.ceil_div(filters, few) * dots

    if not integers.is_single_tap(g):
        return integers.ceil_div(g.tile_q, lanes) * sums(g.tile_p)
    whole, rest = divmod(g.P * g.Q, g.tile_p * g.tile_q)
    tiles = whole * long_row(g.tile_p * g.tile_q) + long_row(rest)
    return tiles / (whole + (rest > 0))


def _load_cycles(problem: Problem, g: Geometry, lanes: int, buffer: int) -> float:
    """Of a load tile: rows, plane by plane or of all channels together, and their elements."""
    numbers = buffer / problem.itemsize
    rows = integers.image_rows(g) * g.phases_w
    if problem.layout == "NHWC":
        filled = integers.ceil_div(g.C, lanes) * lanes / g.C
        return rows * PIXEL_ROW_CYCLES + numbers * filled * TRANSPOSE_CYCLES
    return g.C * rows * PLANE_ROW_CYCLES + numbers * COPY_CYCLES
