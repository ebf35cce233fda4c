"""Load tiles to choose from, the division of the work, and estimates that several methods share.

Costs are in cycles of one core unless another unit is stated, and come from the table of the CPU;
see `machine.costs`.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from implicit_conv.cpu.machine.arch import CpuArch
from implicit_conv.kernels import schedule
from implicit_conv.kernels.geometry import Geometry
from implicit_conv.problem.problem import Problem

SPARE_PIXELS = 4  # of a spare register tile: so many that FMAs do not wait for one another
FAR_BYTES = 16 << 20  # bytes of the largest filter or result that the last-level cache keeps

ITEMS_PER_THREAD = (4, 2, 1)  # choices; with more items an interrupted core delays others less
BUFFER_SHARE = 0.5  # share of L2 that a thread's row buffers may fill
STAGED_BYTES = 320 << 10  # bytes of sums per thread that stay in L2 between channel blocks

TILE_PIXELS = (14, 56, 112, 224, 448, 896)  # output pixels of a load tile: choices

TILE_ROWS = (2, 4, 8)  # rows of load tiles whose rows are long: choices


class Estimate(NamedTuple):
    """The cost of a tiling, with the cheapest division of its work."""

    cycles: float  # of one core, for the whole problem
    chunk: int  # filter panels per work item; for depthwise methods channels or blocks of them
    packing: float = 0.0  # of these cycles, those that a packed filter saves


class Tiling(NamedTuple):
    """How the work of a candidate is cut."""

    geometry: Geometry
    chunk: int  # see Estimate


class Near(NamedTuple):
    """The choice for a near size, from which another size takes over its method and tiling."""

    method: Any
    geometry: Geometry
    estimate: Estimate
    pixels: int  # output pixels of the near size


def few_pixels(g: Geometry, pixels: int) -> Geometry:
    """The tiling with register tiles of at most so many pixels, of which none leaves out taps."""
    return g if g.tile_m <= pixels else g._replace(tile_m=pixels, skips_w=0)


def priced(
    found: Iterable[Geometry],
    price: Callable[[Geometry], Estimate],
    problem: Problem,
    near: Near | None,
) -> list[tuple[Estimate, Geometry]]:
    """Each of the tilings `found` with its estimate; if it is taken over from a near size, with
    that of the near size, in proportion to the work.
    """
    if near is None:
        return [(price(g), g) for g in found]
    cycles, chunk, packing = near.estimate
    share = output_pixels(problem) / max(1, near.pixels)
    return [(Estimate(packing + (cycles - packing) * share, chunk, packing), g) for g in found]


def output_pixels(problem: Problem) -> int:
    """The output pixels of all images."""
    return problem.N * math.prod(problem.output)


def tiles(problem: Problem, near: Near | None = None) -> list[tuple[int, int, int]]:
    """The extents (output planes, output rows, output columns) of load tiles to choose from; that
    one of them alone which a `near` size chose, if it is given.

    A tile has several planes only if it has all rows and columns of each.
    """
    _, p, q = problem.output
    if near is not None:
        return [like(problem, near.geometry)]
    found, most = set(), plane_count(problem)
    for pixels in TILE_PIXELS:
        columns = balanced(q, pixels)
        for rows in {1, *[balanced(p, share // columns) for share in TILE_PIXELS]}:
            planes = max(1, pixels // (p * q)) if (rows, columns) == (p, q) else 1
            found.add((min(planes, most), rows, columns))
    return sorted(found)


def like(problem: Problem, near: Geometry) -> tuple[int, int, int]:
    """The extents of load tiles of about as many rows and pixels as those of `near`."""
    _, p, q = problem.output
    columns = balanced(q, *at_least(TILE_PIXELS, near.tile_q))
    (area,) = at_least(TILE_PIXELS, near.tile_p * near.tile_q)
    rows = balanced(p, area // columns) if near.tile_p > 1 or near.P == 1 else 1
    planes = 1
    if near.tile_n > 1 and (rows, columns) == (p, q):
        (pixels,) = at_least(TILE_PIXELS, near.tile_n * area)
        planes = min(plane_count(problem), max(1, pixels // (p * q)))
    return planes, rows, columns


def at_least(choices: Sequence[int], extent: int) -> tuple[int]:
    """The smallest of `choices`, in rising order, from which a tile of `extent` may come; `extent`
    itself if it comes from none.
    """
    place = bisect_left(choices, extent)
    return (choices[place] if place < len(choices) else extent,)


def long_tiles(problem: Problem) -> list[tuple[int, int, int]]:
    """Extents of load tiles of several rows, each longer than half of the largest of TILE_PIXELS;
    a tile of one row would load most image rows several times.
    """
    _, p, q = problem.output
    if 2 * q <= TILE_PIXELS[-1]:
        return []
    return [(1, balanced(p, rows), balanced(q, TILE_PIXELS[-1])) for rows in TILE_ROWS]


def plane_count(problem: Problem) -> int:
    """The output planes that a load tile may have at most: those of an image, or all images if each
    has a single plane.
    """
    depth = problem.output[0]
    return depth if depth > 1 else max(1, problem.N)


def met_planes(g: Geometry) -> float:
    """The share of filter planes that read more than zeros, over all output planes."""
    if g.T == 1:
        return 1.0
    used = (schedule.used_planes(g, 0, g.Z, t) for t in range(g.T))
    return sum(end - first for first, end in used) / (g.T * g.Z)


def balanced(extent: int, limit: int) -> int:
    """The smallest tile that covers `extent` in as few pieces as tiles of `limit` do."""
    pieces = -(-extent // max(1, limit))
    return -(-extent // pieces)


def rounded_up(extent: int, m: int) -> int:
    """`extent`, rounded up to a multiple of `m`."""
    return -(-extent // m) * m


def stored_bytes(problem: Problem) -> int:
    """Bytes of an element of x, w and y as they are stored; sums may be wider."""
    return 2 if problem.converted else problem.itemsize


def stream_cycles(arch: CpuArch, filter_bytes: float) -> float:
    """Cycles to read a packed filter that is larger than the core's own caches."""
    costs = arch.costs
    rate = costs.common.far_bytes if filter_bytes <= FAR_BYTES else costs.common.memory_bytes
    return filter_bytes / rate


def store_cycles(problem: Problem, arch: CpuArch, g: Geometry) -> float:
    """Cycles to store a load tile: to transpose it if filters are not contiguous in y, to round it
    to 16 bits, and to begin a row of a y that no cache holds.
    """
    costs = arch.costs
    rows, cost = g.tile_n * g.tile_p, 0.0 if problem.channels_last else costs.common.transpose
    if problem.converted:
        cost += costs.common.copy
    y_bytes = problem.N * math.prod(problem.output) * problem.K * stored_bytes(problem)
    far = problem.channels_last and y_bytes > FAR_BYTES
    return rows * (g.tile_q * g.K * cost + far * costs.common.far_row)


def thread_count(problem: Problem, arch: CpuArch) -> int:
    """The number of threads that have enough work to pay for their wake-up."""
    costs = arch.costs
    if arch.threads == 1:
        return 1
    enough = max(problem.flops / costs.threads.flops, problem.bytes / costs.threads.bytes)
    return max(1, min(arch.threads, int(enough)))


def divide(
    arch: CpuArch, g: Geometry, threads: int, itemsize: int, shared: float, again: float
) -> tuple[float, int]:
    """The cheapest division of the filter panels of a load tile among work items: (cycles of one
    core for all load tiles, panels of an item).

    All panels of a tile cost `shared` cycles, and each item `again` cycles more. One item takes all
    panels, unless more items keep all threads busy. With several channel blocks an item has few
    panels, because their sums must stay in L2 until the last block.
    """
    tile_count = schedule.tile_count(g) * g.groups
    tile_items = max(1, tile_count)
    panels = max(1, schedule.panel_count(g))
    least = 1
    if schedule.block_count(g) > 1:
        sums = g.tile_n * g.tile_p * g.tile_q * g.tile_k * itemsize
        least = -(-panels * sums // STAGED_BYTES)
    found = []
    for share in ITEMS_PER_THREAD if threads > 1 else (1,):
        wanted = -(-share * threads // tile_items) if threads > 1 else 1
        chunk = -(-panels // min(panels, max(wanted, least)))
        chunks = -(-panels // chunk)
        items = tile_items * chunks
        idle = -(-items // threads) * threads / items
        cycles = (shared + again * chunks) * idle
        waits = 1 + arch.costs.threads.interruption * threads / items
        found.append((cycles * waits, cycles, chunk))
    _, cycles, chunk = min(found)
    return tile_count * cycles, chunk
