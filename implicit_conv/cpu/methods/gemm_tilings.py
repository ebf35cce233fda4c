"""Tilings of implicit GEMM: channel blocks, register tiles and load tiles, each with its estimate.

A register tile has up to `tile_m` pixels of a load tile and the filters of a panel; a channel block
is the part of gemm_k whose panel stays in L2 while all register tiles of a load tile read it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import replace

from implicit_conv.cpu.candidates.tiling import (
    BUFFER_SHARE,
    Estimate,
    Near,
    divide,
    long_tiles,
    met_planes,
    priced,
    rounded_up,
    store_cycles,
    stream_cycles,
    thread_count,
    tiles,
)
from implicit_conv.cpu.machine.arch import AMX_PIXELS, AMX_ROWS, MATRIX_PIXELS, CpuArch
from implicit_conv.cpu.machine.costs import FMAS_PER_CYCLE
from implicit_conv.kernels import schedule
from implicit_conv.kernels.cpu.gemm.layout import parts, segments
from implicit_conv.kernels.cpu.runtime.layout import LINE, buffer_bytes
from implicit_conv.kernels.geometry import Geometry
from implicit_conv.problem.problem import Problem
from implicit_conv.problem.schedule import geometry

# Elements (taps x channels) of a channel block at most: its panel should stay in L2 while all
# register tiles of a load tile read it. The block depends on the filter alone, so that the order of
# a sum does not depend on batch size, threads or tile, which precision "strict" requires.
BLOCK_ELEMENTS = 5120
BLOCKS = 128  # channel blocks at most, since their sums are added one by one
# Words of which a run is a multiple, and pixels of the largest register tile, by what multiplies
# several pixels at once: a key of BFLOAT16.
TILE_WORDS = {"amx": AMX_ROWS, "matrices": 2}
TILE_PIXELS = {"amx": AMX_PIXELS, "matrices": MATRIX_PIXELS}
WIDE_VECTORS, WIDE_PIXELS = 4, 6  # of a register tile of few pixels and many filters
# Share of the time of all sums at least for which columns on the sides become register tiles of
# their own, whose kernels the first call of a size must compile.
LEAST_GAIN = 0.02
MOST_TAPS = 7  # of a filter row, whose columns on the sides have a run table each
# BUFFER_SHARE of a large dilation, whose output rows share few image rows: in half of L2 a tile of
# 2,048 channels has one row, and every tile reads all filters. Three rows take 0.85 of the time.
DILATED_SHARE = 0.9


def spread_pixels(problem: Problem, arch: CpuArch) -> int:
    """Pixels of a register tile at most that are read in place and do not displace each other from
    L1.

    AMX reads whole lines, so that it does not matter to it.
    """
    if arch.tile_pixels == AMX_PIXELS:
        return AMX_PIXELS
    return min(arch.tile_pixels, arch.kept_lines(problem.C * problem.itemsize))


def channel_block(problem: Problem) -> int:
    """Channels of a k-block: all, or equal parts with at most BLOCK_ELEMENTS taps x channels, but
    no more than BLOCKS of them.
    """
    channels, blocks = _channels_and_blocks(problem)
    return int(schedule.ceil_div(channels, blocks))


def spread_block(problem: Problem, arch: CpuArch) -> int:
    """`channel_block`, or less where the pixels of a register tile would displace each other from
    L1.

    AMX reads whole lines, so that it does not matter to it.
    """
    channels, blocks = _channels_and_blocks(problem)
    if arch.tile_pixels == AMX_PIXELS:
        return channel_block(problem)
    line, block = LINE // problem.itemsize, channel_block(problem)
    while arch.kept_lines(block * problem.itemsize) < arch.tile_pixels:
        blocks += 1
        block = rounded_up(int(schedule.ceil_div(channels, blocks)), line)
    return block


def _channels_and_blocks(problem: Problem) -> tuple[int, int]:
    """The channels of a group, and the number of k-blocks that `channel_block` makes of them."""
    channels = max(1, problem.C // problem.groups)
    blocks = schedule.ceil_div(channels * math.prod(problem.kernel), BLOCK_ELEMENTS)
    return channels, int(min(blocks, channels, BLOCKS))


def tilings(
    view: Problem,
    arch: CpuArch,
    in_place: bool,
    multiplier: str = "",
    near: Near | None = None,
    skips: bool = True,
    channels: int = 1,
    vectors: int = 2,
) -> list[tuple[Estimate, Geometry]]:
    """Tilings of `view`, or the one most like `near`, each with its estimate. `skips` tells whether
    taps that read padding may be left out; an element has `channels`, a panel `vectors`.
    """
    slow = dot_cost(arch, channels, multiplier)
    arch = tiled(arch, multiplier, vectors)
    cycles = functools.cache(functools.partial(tile_cycles, arch, in_place=in_place))
    found = geometries(view, arch, in_place, near, vectors)
    if skips and not in_place:
        found = [leaving_out(g, cycles, near) for g in found]
    return priced(
        found, lambda g: estimate(view, arch, g, in_place, slow=slow, cycles=cycles), view, near
    )


def dot_cost(arch: CpuArch, channels: int, multiplier: str) -> float:
    """FMAs in the time of what multiplies elements of `channels` channels, if not several pixels
    are multiplied at once.
    """
    costs = arch.costs.gemm
    return 1.0 if multiplier else {2: costs.pairs, 4: costs.quads}.get(channels, 1.0)


def panel_vectors(problem: Problem, arch: CpuArch) -> int:
    """Vectors of a panel of x in place, whose elements are FMAs of single channels: more of them,
    and fewer pixels, need fewer loads, and more lines of filters of each element. Filters of stride
    phases, whose channels come first, have two, so that one pass over w packs them all.
    """
    if problem.weight_layout.startswith("C"):
        return 2
    elements = math.prod(problem.kernel) * problem.C // problem.groups
    many = problem.K // problem.groups % (WIDE_VECTORS * arch.lanes(problem.itemsize)) == 0
    return WIDE_VECTORS if many and 0 < elements <= arch.costs.gemm.wide_elements else 2


def tiled(arch: CpuArch, multiplier: str, vectors: int = 2) -> CpuArch:
    """The CPU with the register tiles of what multiplies, and of panels of `vectors`."""
    pixels = TILE_PIXELS.get(multiplier, arch.tile_pixels if vectors == 2 else WIDE_PIXELS)
    return arch if pixels == arch.tile_pixels else replace(arch, tile_pixels=pixels)


def geometries(
    problem: Problem, arch: CpuArch, in_place: bool, near: Near | None = None, vectors: int = 2
) -> list[Geometry]:
    """Tilings whose row buffers fit their share of L2; if none does, the smallest of all."""
    lanes = arch.lanes(problem.itemsize)
    block = spread_block(problem, arch) if near is None else near.geometry.tile_c
    # With few channels rows are buffered without gaps: all taps of a filter row are then one run.
    plain_rows = problem.stride[-1] > 1 and is_gapless(problem) and block < lanes
    choices = tiles(problem, near)
    if near is None and block < lanes:
        choices += long_tiles(problem)
    found = [
        geometry(
            problem,
            tile=tile,
            tile_m=spread_pixels(problem, arch) if in_place else arch.tile_pixels,
            tile_c=block,
            tile_k=vectors * lanes,
            step_w=1 if plain_rows else None,
        )
        for tile in choices
    ]
    if in_place or len(found) == 1:
        return found
    dilated = problem.output[-1] > 1 and problem.dilation[-1] >= 5 * problem.stride[-1]
    limit = arch.l2_bytes * (DILATED_SHARE if dilated else BUFFER_SHARE)
    fitting = [g for g in found if buffer_bytes(g, problem.itemsize) <= limit]
    return fitting or [min(found, key=lambda g: buffer_bytes(g, problem.itemsize))]


def leaving_out(
    g: Geometry, cycles: Callable[[Geometry], float], near: Near | None = None
) -> Geometry:
    """The tiling, whose columns on the sides leave out taps that read padding if that pays, or did
    for a `near` size: they are register tiles of their own, which span several rows.
    """
    if g.S > MOST_TAPS or (near is not None and not near.geometry.skips_w):
        return g
    left_out = g._replace(skips_w=1)
    if not schedule.skips_columns(left_out, False):
        return g
    if near is not None:
        return left_out
    return left_out if 1 - cycles(left_out) / cycles(g) > LEAST_GAIN else g


def is_gapless(problem: Problem) -> bool:
    """Whether the taps of a filter row read contiguous pixels, and all pixels of an image row."""
    return problem.stride[-1] <= problem.kernel[-1] and problem.dilation[-1] == 1


def estimate(
    problem: Problem,
    arch: CpuArch,
    g: Geometry,
    in_place: bool,
    pack: tuple[float, float] | None = None,
    slow: float = 1.0,
    cycles: Callable[[Geometry], float] | None = None,
) -> Estimate:
    """Cycles of one core for the whole problem: register tiles, loads, far panels, idle threads.
    `cycles` is `tile_cycles`, if they are known.
    """
    costs = arch.costs
    lanes = arch.lanes(problem.itemsize)
    elements = schedule.taps(g) * max(1, g.C)
    tile_count = schedule.tile_count(g) * g.groups
    vectors = schedule.ceil_div(g.K, lanes)
    of_tile = tile_cycles(arch, g, in_place) if cycles is None else cycles(g)
    multiply = of_tile * slow * elements * vectors / 2
    if g.tile_m < arch.tile_pixels:
        multiply *= 1 + costs.gemm.spread
    if g.tile_n == 1 or g.Z == 1:  # else the output planes of most tiles meet all filter planes
        multiply *= met_planes(g)
    pixels = g.tile_n * g.tile_p * g.tile_q
    pixel_tiles = schedule.ceil_div(pixels, g.tile_m)
    if in_place and schedule.skips_columns(g, in_place):
        # Columns on the sides are tiles of their own.
        pixel_tiles += g.tile_n * g.tile_p * (len(segments(g, in_place)) - 1)
    register_tiles = pixel_tiles * schedule.panel_count(g) * schedule.block_count(g)
    sums = g.tile_m * (g.tile_k / (2 * lanes))  # two vectors each
    multiply += register_tiles * (
        sums * costs.gemm.tile_pixel + schedule.filter_rows(g) * costs.gemm.run
    )
    filter_bytes = elements * vectors * lanes * problem.itemsize
    near = filter_bytes + buffer_bytes(g, problem.itemsize) <= arch.l2_bytes
    far = 0.0 if near else stream_cycles(arch, filter_bytes)
    load = 0.0
    if not in_place:
        cost = costs.common.copy if problem.channels_last else costs.common.transpose
        rows = schedule.tile_rows(g) * g.phases_w
        pixel = cost * min(g.C, g.tile_c)
        if problem.channels_last and g.groups > 1:  # a cache line each, of a few channels
            pixel = max(pixel, costs.gemm.pixel_copy)
        load = rows * (schedule.row_pitch(g) / g.phases_w * pixel + costs.gemm.load_row)
    stream = max(multiply, far) + costs.common.far_share * far + store_cycles(problem, arch, g)
    if g.tile_m < arch.tile_pixels:  # the first of its tiles reads a panel faster than L2 has it
        stream += costs.gemm.first_read * max(0.0, far - multiply / pixel_tiles)
    threads = thread_count(problem, arch)
    spent, chunk = divide(arch, g, threads, problem.itemsize, stream, load + costs.common.item)
    each = pack or (costs.common.pack_filter, costs.common.pack_panel)
    packing = each[tile_count == g.groups] * g.groups * elements * g.K
    return Estimate(spent + packing, chunk, packing)


def tile_cycles(arch: CpuArch, g: Geometry, in_place: bool) -> float:
    """Cycles to add one element (tap x channel) to all sums of a load tile and two vectors.

    Of segments of columns that skip taps, these are the mean cycles over all taps.
    """
    _, group, inner = schedule.by_role(g, g.tile_n, g.tile_p, g.tile_q)
    found = parts(g, inner, in_place)
    total = sum(
        [_row_cycles(arch, g, group, pixels, in_place) * taps / g.S for pixels, taps in found]
    )
    pixels = group * sum([pixels for pixels, _ in found])
    return total * g.tile_n * g.tile_p * g.tile_q / pixels


def _row_cycles(arch: CpuArch, g: Geometry, group: int, inner: int, in_place: bool) -> float:
    """Cycles to add one element to the sums of `group` rows of `inner` pixels."""
    costs = arch.costs
    if schedule.is_column(g, inner, in_place):
        group, inner = 1, group
    if g.tile_m == AMX_PIXELS:
        return float(group * schedule.ceil_div(inner, AMX_ROWS) * costs.gemm.amx)

    def cycles(pixels: int) -> float:
        """Cycles of a register tile."""
        if g.tile_m == MATRIX_PIXELS:  # for two words: 4 products and a shuffle per two pixels
            vectors = max(
                5 * schedule.ceil_div(pixels, 2) / FMAS_PER_CYCLE, costs.common.fma_latency
            )
            return max(vectors, (pixels + 4) / costs.common.loads_per_cycle) / 2
        fmas = max(2 * pixels / FMAS_PER_CYCLE, costs.common.fma_latency)
        return max(fmas, (pixels + 2) / costs.common.loads_per_cycle)

    total = 0.0
    for height, tile_count in schedule.cuts(inner, g.tile_m):
        if not tile_count:
            continue
        step = schedule.rows_together(g, height, in_place) if height else 1
        whole, rest = divmod(group, step)
        last = cycles(rest * height) if rest else 0.0
        total += tile_count * (whole * cycles(step * height) + last)
    return total
