"""Tilings for fprop whose vector lanes are pixels, and what each would cost."""

from __future__ import annotations

import itertools

from implicit_conv.arch import CpuArch
from implicit_conv.kernels import schedule as integers
from implicit_conv.kernels.cpu.sizes import (
    pixel_lanes_layout,
)
from implicit_conv.kernels.geometry import Geometry
from implicit_conv.problem import Problem
from implicit_conv.schedule import geometry
from implicit_conv.tiling import (
    BUFFER_SHARE,
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

TILE_COLUMNS = (112, 48)  # of a load tile, where whole rows are too long
PIXEL_LANES_CYCLES = 2  # of a vector of sums: its start, clamp and store


def unaligned_loads(arch: CpuArch) -> float:
    """Aligned loads that take as long as one at any address: longer vectors more often lie across
    two cache lines.
    """
    return 2 + arch.vector_bits / 256


def pixel_lanes_candidates(problem: Problem, arch: CpuArch, in_place: bool) -> list[Geometry]:
    """Tilings of single images whose input, of all channels, stays near the core."""
    p, q = problem.output
    filters = balanced(problem.K // problem.groups, arch.tile_pixels)

    def tiling(rows: int, columns: int) -> Geometry:
        return geometry(
            problem, tile=(1, rows, columns), tile_m=arch.tile_pixels,
            tile_c=problem.C // problem.groups, tile_k=filters,
        )  # fmt: skip

    rows = integers.pixel_rows(tiling(p, q))
    lanes = arch.lanes(problem.itemsize)
    steps = [1, 2, *(rows * tiles for tiles in (1, 2, 4, 8, 16, 32))]
    if in_place:  # one row, of whole vectors but for its last one
        vectors = integers.ceil_div(q, lanes)
        tilings = {tiling(1, balanced(vectors, step) * lanes) for step in steps}
    else:
        extents = itertools.product(steps, (q, *TILE_COLUMNS))
        tilings = {tiling(balanced(p, step), balanced(q, columns)) for step, columns in extents}
    return [
        g for g in sorted(tilings)
        if pixel_lanes_layout(g, problem.itemsize, lanes).total <= arch.l2_bytes * BUFFER_SHARE
    ]  # fmt: skip


def pixel_lanes_estimate(problem: Problem, arch: CpuArch, g: Geometry, in_place: bool) -> Estimate:
    """Cycles of one core: sums, loads of the tile unless x is read in place, far filters."""
    lanes = arch.lanes(problem.itemsize)
    multiply = _sum_cycles(arch, g, lanes, in_place)
    load = 0.0 if in_place else _load_cycles(problem, g, lanes)
    if problem.layout == "NHWC":
        rows = g.tile_p * integers.ceil_div(g.tile_q, lanes) * integers.panel_count(g)
        blocks = integers.ceil_div(min(g.tile_k, g.K), lanes)
        multiply += rows * blocks * lanes**2 * TRANSPOSE_CYCLES
    filter_bytes = g.K * g.C * g.R * g.S * problem.itemsize
    buffer = pixel_lanes_layout(g, problem.itemsize, lanes).buffer
    if filter_bytes + buffer > arch.l2_bytes:
        far = stream_cycles(filter_bytes)
        multiply = max(multiply, far) + FAR_SHARE * min(multiply, far)
    threads = thread_count(problem, arch)
    tile, chunk = divide(g, threads, problem.itemsize, multiply, load + ITEM_CYCLES)
    return Estimate(integers.tile_count(g) * g.groups * tile, chunk)


def _sum_cycles(arch: CpuArch, g: Geometry, lanes: int, in_place: bool) -> float:
    """Of a load tile: an FMA a filter, output row and vector of pixels for each element."""
    filters, rows = min(g.tile_k, g.K), integers.pixel_rows(g)

    def sums(vectors: int) -> float:
        """Of this many vectors, as register tiles of at most `rows`."""
        if vectors > rows:
            return vectors // rows * sums(rows) + sums(vectors % rows)
        loads = filters + vectors * unaligned_loads(arch)
        element = max(vectors * filters / FMAS_PER_CYCLE, loads / LOADS_PER_CYCLE, FMA_LATENCY)
        cycles = g.C * g.R * g.S * element + PIXEL_LANES_CYCLES * vectors * filters
        return cycles if vectors else 0.0

    if not in_place:
        return integers.ceil_div(g.tile_q, lanes) * sums(g.tile_p) * integers.panel_count(g)
    whole, rest = divmod(g.Q, g.tile_q)
    row = whole * sums(g.tile_q // lanes) + sums(rest // lanes) + sums(g.Q % lanes > 0)
    return row / (whole + (rest > 0)) * integers.panel_count(g)


def _load_cycles(problem: Problem, g: Geometry, lanes: int) -> float:
    """Of a load tile: rows, plane by plane or of all channels together, and their elements."""
    numbers = pixel_lanes_layout(g, problem.itemsize, lanes).buffer / problem.itemsize
    rows = integers.image_rows(g) * g.phases_w
    if problem.layout == "NHWC":
        filled = integers.ceil_div(g.C, lanes) * lanes / g.C
        return rows * PLANE_ROW_CYCLES + numbers * filled * TRANSPOSE_CYCLES
    return g.C * rows * PLANE_ROW_CYCLES + numbers * COPY_CYCLES
