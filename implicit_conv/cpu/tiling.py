"""Load tiles worth an estimate, and the division of the work: what several methods share."""

from __future__ import annotations

from typing import NamedTuple

from implicit_conv.cpu.arch import CpuArch
from implicit_conv.cpu.costs import (
    BYTES_PER_THREAD,
    COPY_CYCLES,
    FAR_BYTES,
    FAR_BYTES_PER_CYCLE,
    FLOPS_PER_THREAD,
    INTERRUPTION,
    ITEMS_PER_THREAD,
    MEMORY_BYTES_PER_CYCLE,
    STAGED_BYTES,
    TRANSPOSE_CYCLES,
)
from implicit_conv.kernels import schedule
from implicit_conv.kernels.geometry import Geometry
from implicit_conv.problem import Problem

TILE_PIXELS = (14, 56, 112, 224, 448, 896)  # output pixels of a load tile, to choose from


class Estimate(NamedTuple):
    """What a tiling costs, and the division of its work that costs least."""

    cycles: float  # of one core, for the whole problem
    chunk: int  # filter panels (depthwise: channels, or blocks of them) of a work item


def tiles(problem: Problem) -> list[tuple[int, int, int]]:
    """(images, output rows, output columns) of load tiles worth an estimate.

    Whole rows are tried where they are not too long, whole images before several images.
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
    return int(schedule.ceil_div(extent, schedule.ceil_div(extent, max(1, limit))))


def rounded_up(extent: int, m: int) -> int:
    """The next multiple of `m`."""
    return int(schedule.ceil_div(extent, m)) * m


def stream_cycles(filter_bytes: float) -> float:
    """Cycles to read a packed filter that does not fit the core's own caches."""
    rate = FAR_BYTES_PER_CYCLE if filter_bytes <= FAR_BYTES else MEMORY_BYTES_PER_CYCLE
    return filter_bytes / rate


def store_cycles(problem: Problem, g: Geometry) -> float:
    """Cycles to store a load tile: a transpose where filters are not contiguous in y, and rounding
    to 16 bits.
    """
    cost = 0.0 if problem.layout == "NHWC" else TRANSPOSE_CYCLES
    if problem.converted:
        cost += COPY_CYCLES
    return g.tile_n * g.tile_p * g.tile_q * g.K * cost


def column_share(g: Geometry) -> float:
    """The share of the filter columns, over all output columns, that are multiplied."""
    used = q = 0
    while q < g.Q:
        stop, first, last = schedule.column_segment(g, q, g.Q)
        used, q = used + (stop - q) * (last - first), stop
    return used / (g.Q * g.S)


def thread_count(problem: Problem, arch: CpuArch) -> int:
    """Threads that have enough to do."""
    enough = max(problem.flops / FLOPS_PER_THREAD, problem.bytes / BYTES_PER_THREAD)
    return max(1, min(arch.threads, int(enough)))


def divide(g: Geometry, threads: int, itemsize: int, shared: float, again: float) -> Estimate:
    """Divide the filter panels of a load tile among work items; each costs `again` cycles more.

    One item takes all panels, or there are enough items for all threads; with several channel
    blocks an item has few panels, since its sums wait in L2.
    """
    tile_items = max(1, schedule.tile_count(g) * g.groups)
    panels = max(1, schedule.panel_count(g))
    least = 1
    if schedule.block_count(g) > 1:
        sums = g.tile_n * g.tile_p * g.tile_q * g.tile_k * itemsize
        least = schedule.ceil_div(panels * sums, STAGED_BYTES)
    found = []
    for share in ITEMS_PER_THREAD if threads > 1 else (1,):
        wanted = schedule.ceil_div(share * threads, tile_items) if threads > 1 else 1
        chunk = schedule.ceil_div(panels, min(panels, max(wanted, least)))
        chunks = schedule.ceil_div(panels, chunk)
        items = tile_items * chunks
        idle = schedule.ceil_div(items, threads) * threads / items
        cycles = (shared + again * chunks) * idle
        waits = 1 + INTERRUPTION * threads / items
        found.append((cycles * waits, Estimate(cycles, chunk)))
    return min(found)[1]
