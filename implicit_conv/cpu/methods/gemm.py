"""Implicit GEMM: the loads of the schedule, multiplied by register tiles whose lanes are filters.

    gemm_m  pixels of a load tile          A  rows of x in a thread's buffer, or x itself
    gemm_n  filters of a panel             B  packed panels [K / tile_k][C / tile_c][R][S][tile_c]
    gemm_k  taps x channels of a k-block   C  y, or a staging tile that is transposed into y

"pointwise" is implicit GEMM of a 1x1 filter, with all contiguous pixels as one row. bfloat16 is
widened to float32, or multiplied by dot products of pairs of channels if the CPU has them; integers
are widened to those of their sums, or multiplied by dot products of four channels.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, ClassVar

from implicit_conv.arrays import Array
from implicit_conv.cpu.arch import (
    AMX_PIXELS,
    AMX_ROWS,
    BFLOAT16,
    INT8,
    MATRIX_PIXELS,
    CpuArch,
)
from implicit_conv.cpu.call import Arrays, is_contiguous
from implicit_conv.cpu.candidate import Candidate, Method, Refusal, Request, Words, best, ranked
from implicit_conv.cpu.costs import (
    BUFFER_SHARE,
    COPY_CYCLES,
    DISPLACED_CYCLES,
    FAR_SHARE,
    FMA_LATENCY,
    FMAS_PER_CYCLE,
    ITEM_CYCLES,
    LOADS_PER_CYCLE,
    PACK_CYCLES,
    TRANSPOSE_CYCLES,
)
from implicit_conv.cpu.packed import PackedOrder
from implicit_conv.cpu.tiling import (
    Estimate,
    column_share,
    divide,
    rounded_up,
    store_cycles,
    stream_cycles,
    thread_count,
    tiles,
)
from implicit_conv.cpu.views import POINTWISE_RULE, ROW_NEED, flattened, is_pointwise, widened
from implicit_conv.cpu.words import (
    blocks_of,
    count,
    geometry_items,
    loads_of,
    plane_word,
    share_left_out,
)
from implicit_conv.kernels import schedule
from implicit_conv.kernels.cpu.gemm.layout import GemmLayout
from implicit_conv.kernels.cpu.runtime.layout import LINE, buffer_bytes
from implicit_conv.kernels.geometry import Geometry
from implicit_conv.problem import Problem
from implicit_conv.schedule import Load, geometry, trace

if TYPE_CHECKING:
    from implicit_conv.kernels.cpu.operator import Build, Operands, Operator

# Elements (taps x channels) of a channel block at most: its panel should stay in L2 while all
# register tiles of a load tile read it. The block depends on the filter alone, so that the order of
# a sum does not depend on batch size, threads or tile, which precision "strict" requires.
BLOCK_ELEMENTS = 5120
BLOCKS = 128  # channel blocks at most, since their sums are added one by one
# Words of which a run is a multiple, and pixels of the largest register tile, by what multiplies
# several pixels at once: a key of BFLOAT16.
TILE_WORDS = {"amx": AMX_ROWS, "matrices": 2}
TILE_PIXELS = {"amx": AMX_PIXELS, "matrices": MATRIX_PIXELS}
# Costs were fitted on an EPYC 9005 (Zen 5, AVX-512), one thread, 2026-11; see cpu/costs.py.
AMX_CYCLES = 2.0  # cycles per element (tap x pair) of one AMX tile of pixels and two of filters
TILE_PIXEL_CYCLES = 100 / 14  # fixed cycles per pixel of a register tile, without its sums
RUN_CYCLES = 25  # fixed cycles per run of a register tile's taps
PIXEL_COPY_CYCLES = 4  # cycles to copy a pixel of one group, at least
LOAD_ROW_CYCLES = 100  # fixed cycles per buffered row


@dataclass(frozen=True)
class Gemm(Method):
    """Implicit GEMM over channels or words of several channels; x is read in place or copied."""

    algorithms: ClassVar[tuple[str, ...]] = ("implicit_gemm", "pointwise")
    in_place: bool = False
    flat: bool = False  # whether all contiguous pixels are one row
    channels: int = 1
    multiplier: str = ""  # a key of TILE_WORDS, if several pixels are multiplied at once

    @property
    def summary(self) -> str:
        """The method in a few words, for tables."""
        rows = "GEMM over all pixels as one row" if self.flat else "GEMM over image rows"
        return f"{rows}, x {'in place' if self.in_place else 'copied'}"

    @property
    def needs(self) -> str:
        """What it needs of the strides of arrays, in words; empty if it accepts all strides."""
        channels = "contiguous channels of x" if self.in_place else ""
        pixels = ROW_NEED if self.flat else ""
        return " and ".join(filter(None, (channels, pixels)))

    @classmethod
    def candidates(
        cls, problem: Problem, arch: CpuArch, request: Request
    ) -> Iterator[Candidate | Refusal]:
        """One candidate: in place if x can be read in place, and no pixels of a register tile would
        displace each other from L1; else copied.
        """
        if request.admits("pointwise") and not is_pointwise(problem):
            yield Refusal("pointwise", POINTWISE_RULE)
        algorithm = request.gemm_algorithm(problem)
        if algorithm is None:
            return
        flat = algorithm == "pointwise"
        summed, channels, multiplier = summed_view(problem, arch)
        view = flattened(summed) if flat else summed
        pixels = view.N * math.prod(view.output)
        machine = tiled(arch, multiplier)
        spread = not displaced_rows(view, machine, min(machine.tile_pixels, pixels))
        method = cls(reads_in_place(view) and spread, flat, channels, multiplier)
        costs = tilings(view, arch, method)
        yield from ranked(method, algorithm, problem, view, arch, costs, request)

    def fallbacks(self, c: Candidate, limit: float = math.inf) -> Iterator[Candidate]:
        """Variants with image rows instead of one row, or x copied, which read the same panels."""
        summed = summed_view(c.problem, c.arch)[0]
        for flat in (True, False) if self.flat else (False,):
            view = flattened(summed) if flat else summed
            for in_place in (True, False) if reads_in_place(view) else (False,):
                method = replace(self, in_place=in_place, flat=flat)
                if method != self:
                    costs = tilings(view, c.arch, method)
                    yield best(method, c.algorithm, c.problem, view, c.arch, costs, limit=limit)

    def layout(self, c: Candidate) -> GemmLayout:
        """Sizes of scratch memory and packed filters."""
        return GemmLayout(
            c.geometry,
            c.itemsize,
            c.lanes,
            c.chunk,
            self.in_place,
            self.channels,
            c.problem.is_integer,
            self.channels == 4 and c.problem.dtype == c.problem.filter_dtype,
        )

    def operator(self, c: Candidate, build: Build) -> Operator:
        """The compiled kernels of a candidate."""
        from implicit_conv.kernels.cpu.gemm.operator import Gemm as GemmOperator

        return GemmOperator(c.layout, c.lanes, build, self.multiplier)

    def packed(self, c: Candidate) -> PackedOrder:
        """Panels of filters, with taps ordered by phase buffer unless rows have no gaps."""
        g, problem = c.geometry, c.problem
        phases = g.phases_w if g.step_w > 1 else 1
        key = (
            "GEMM panels",
            self.channels,
            self.multiplier == "matrices",
            problem.K,
            problem.C,
            problem.kernel,
            problem.dtypes,
            c.arch.vector_bits,
            g.K,
            g.groups,
            g.tile_c,
            g.tile_k,
            phases,
        )
        return PackedOrder(key, c.layout.packed_bytes)

    def accepts(self, c: Candidate, arrays: Arrays) -> bool:
        """Reading in place needs contiguous channels, and one row needs pixels that form one."""
        x = arrays.x
        if self.in_place and not is_contiguous(x, -1):
            return False
        given = (x, arrays.y, arrays.residual)
        return not self.flat or all(
            is_row(c.problem, array) for array in given if array is not None
        )

    def arguments(self, c: Candidate, arrays: Arrays) -> Iterator[Operands]:
        """Arrays as they are, or with the pixels of the geometry as one row."""
        from implicit_conv.kernels.cpu.operator import Operands

        x, w, y, residual = arrays
        if self.flat:
            x, y = as_row(c, x), as_row(c, y)
            residual = None if residual is None else as_row(c, residual)
        yield Operands(x, w, y, residual)

    def loads(self, c: Candidate) -> list[Load]:
        """The loads that pack the panels, then the loads of x."""
        return self.as_problem(c, trace(c.geometry, c.itemsize, self.in_place, c.chunk))

    def as_problem(self, c: Candidate, loads: Sequence[Load]) -> list[Load]:
        """Convert a first channel that counts elements of several channels."""
        return [
            load._replace(coords=(*load.coords[:-1], self.channels * load.coords[-1]))
            for load in loads
        ]

    def describe(self, c: Candidate) -> Words:
        """Load tile, loads, k-blocks, work items."""
        g = c.geometry
        tile = f"{count(g.tile_p, 'output row')} x {count(g.tile_q, 'output column')}"
        tile = f"{count(g.tile_q, 'pixel')} of one row" if self.flat else tile
        in_place = "none: channels of x are contiguous and no tap reads padding; x is read in place"
        taps = f" x {count(schedule.taps(g), 'tap')}{share_left_out(g)}"
        return {
            "multiply": multiply_words(self, c),
            "load tile": f"{count(g.tile_n, plane_word(g))} x {tile}, cut into register tiles of "
            f"at most {g.tile_m} pixels x {g.tile_k} filters "
            f"({count(g.tile_k // c.lanes, 'vector')})",
            "loads": in_place if self.in_place else loads_of(g),
            "k-blocks": blocks_of(g, taps),
            "work items": geometry_items(g, c.chunk),
        }


def multiply_words(method: Gemm, c: Candidate) -> str:
    """The instructions that multiply, in words."""
    problem = c.problem
    if problem.is_integer:
        how = INT8["quads" if method.channels == 4 else "widen"].format(problem.sum_dtype)
        return f"{problem.dtype} x {problem.filter_dtype} by {how}"
    if problem.dtype == problem.sum_dtype:
        return "FMAs" if c.arch.fma else "multiplications and additions (no FMA)"
    how = method.multiplier or ("pairs" if method.channels > 1 else "widen")
    return f"{problem.dtype} by {BFLOAT16[how]}"


def is_row(problem: Problem, array: Array) -> bool:
    """Whether the pixels of an image, or of all images if channels are last, have a single
    stride.
    """
    pixels = zip(array.shape[:4], array.strides[:4], strict=True)
    steps = [axis for axis in list(pixels)[0 if problem.channels_last else 1 :] if axis[0] > 1]
    return all(outer == inner * size for (_, outer), (size, inner) in pairwise(steps))


def as_row(c: Candidate, array: Array) -> Array:
    """A view with the pixels of an image, or of all images if channels are last, as one row."""
    n, *_, channels = array.shape
    images = 1 if c.problem.channels_last else n
    return array.reshape(images, 1, 1, c.geometry.Q, channels)


def words_view(problem: Problem, word_channels: int) -> Problem:
    """A problem with words of `word_channels` channels as its channels, each as wide as a sum.

    The last word is filled up with zeros if need be, so that x must be copied.
    """
    channels = problem.C // problem.groups
    return replace(
        problem,
        C=schedule.ceil_div(channels, word_channels) * problem.groups,
        dtype=problem.sum_dtype,
        w_dtype=None,
        converted=channels % word_channels > 0,
    )


def summed_view(problem: Problem, arch: CpuArch) -> tuple[Problem, int, str]:
    """(view of `problem` for its sums, channels of an element, what multiplies several pixels)."""
    channels, word_channels = problem.C // problem.groups, dot_channels(problem, arch)
    whole = channels % word_channels == 0 or problem.groups == 1  # no word spans two groups
    if word_channels == 1 or not whole:
        return widened(problem), 1, ""
    view = words_view(problem, word_channels)
    step = TILE_WORDS.get(arch.bfloat16, 0) if problem.dtype == "bfloat16" else 0
    whole = step > 0 and not (view.C // view.groups % step or channel_block(view) % step)
    return view, word_channels, arch.bfloat16 if whole else ""


def dot_channels(problem: Problem, arch: CpuArch) -> int:
    """Channels that a dot product of the CPU multiplies at once; 1 if it has none for `problem`."""
    if problem.dtype == "bfloat16":
        single = problem.C // problem.groups == 1  # it would be half of a pair
        return 1 if arch.bfloat16 == "widen" or single else 2
    if arch.int8 == "widen" or problem.sum_dtype != "int32" or not problem.is_integer:
        return 1
    if "int16" in problem.dtypes:
        return 1
    # Where signs are inverted no tap may be skipped.
    skips = problem.dtype == problem.filter_dtype and schedule.skips_taps(
        problem.kernel[-1], problem.output[-1], problem.dilation[-1], problem.stride[-1]
    )
    return 1 if skips else 4


def reads_in_place(problem: Problem) -> bool:
    """Whether x is read in place: no tap reads padding, and channels and pixels are contiguous.

    A stride leaves gaps between pixels. Such rows fill only half of a cache's sets, and prefetchers
    do not follow them; copies of them took 3 to 10 % less time.
    """
    inside = all(
        lo <= 0 and (out - 1) * stride + (taps - 1) * dilation - lo < size
        for lo, out, stride, taps, dilation, size in zip(
            problem.pad_lo,
            problem.output,
            problem.stride,
            problem.kernel,
            problem.dilation,
            problem.size,
            strict=True,
        )
    )
    contiguous = problem.channels_last and set(problem.stride) == {1}
    return inside and contiguous and not problem.converted


def displaced_rows(problem: Problem, arch: CpuArch, rows: int) -> int:
    """Of `rows` pixels that are read in place side by side, those for which L1 has no way.

    AMX reads whole lines, so that none of its pixels is read twice.
    """
    if arch.tile_pixels == AMX_PIXELS:
        return 0
    return max(0, rows - arch.kept_lines(problem.C * problem.itemsize))


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


def tilings(view: Problem, arch: CpuArch, method: Gemm) -> list[tuple[Estimate, Geometry]]:
    """Tilings of `view`, each with its estimate."""
    arch = tiled(arch, method.multiplier)
    return [
        (estimate(view, arch, g, method.in_place), g)
        for g in geometries(view, arch, method.in_place)
    ]


def tiled(arch: CpuArch, multiplier: str) -> CpuArch:
    """The CPU with the register tiles of what multiplies."""
    return replace(arch, tile_pixels=TILE_PIXELS.get(multiplier, arch.tile_pixels))


def geometries(problem: Problem, arch: CpuArch, in_place: bool) -> list[Geometry]:
    """Tilings whose row buffers fit their share of L2; if none does, the smallest of all."""
    lanes = arch.lanes(problem.itemsize)
    block = spread_block(problem, arch)
    # With few channels rows are buffered without gaps: all taps of a filter row are then one run.
    gapless = 1 < problem.stride[-1] <= problem.kernel[-1] and problem.dilation[-1] == 1
    plain_rows = gapless and block < lanes
    found = [
        geometry(
            problem,
            tile=tile,
            tile_m=arch.tile_pixels,
            tile_c=block,
            tile_k=2 * lanes,
            step_w=1 if plain_rows else None,
        )
        for tile in tiles(problem)
    ]
    if in_place:
        return found
    limit = arch.l2_bytes * BUFFER_SHARE
    fitting = [g for g in found if buffer_bytes(g, problem.itemsize) <= limit]
    return fitting or [min(found, key=lambda g: buffer_bytes(g, problem.itemsize))]


def estimate(
    problem: Problem,
    arch: CpuArch,
    g: Geometry,
    in_place: bool,
    pack: tuple[float, float] = PACK_CYCLES,
) -> Estimate:
    """Cycles of one core for the whole problem: register tiles, loads, far panels, idle threads."""
    lanes = arch.lanes(problem.itemsize)
    elements = schedule.taps(g) * max(1, g.C)
    tile_count = schedule.tile_count(g) * g.groups
    _, group, inner = schedule.by_role(g, g.tile_n, g.tile_p, g.tile_q)
    vectors = schedule.ceil_div(g.K, lanes)
    multiply = tile_cycles(g, group, inner) * elements * vectors / 2 * column_share(g)
    pixels = g.tile_n * g.tile_p * g.tile_q
    pixel_tiles = schedule.ceil_div(pixels, g.tile_m)
    if in_place:
        displaced = displaced_rows(problem, arch, min(g.tile_m, pixels))
        multiply += pixel_tiles * elements * vectors / 2 * displaced * DISPLACED_CYCLES
    register_tiles = pixel_tiles * schedule.panel_count(g) * schedule.block_count(g)
    multiply += register_tiles * (
        g.tile_m * TILE_PIXEL_CYCLES + schedule.filter_rows(g) * RUN_CYCLES
    )
    filter_bytes = elements * vectors * lanes * problem.itemsize
    near = filter_bytes + buffer_bytes(g, problem.itemsize) <= arch.l2_bytes
    far = 0.0 if near else stream_cycles(filter_bytes)
    load = 0.0
    if not in_place:
        cost = COPY_CYCLES if problem.channels_last else TRANSPOSE_CYCLES
        rows = g.tile_n * schedule.image_rows(g) * g.phases_w
        pixel = cost * min(g.C, g.tile_c)
        if problem.channels_last and g.groups > 1:  # a cache line each, of a few channels
            pixel = max(pixel, PIXEL_COPY_CYCLES)
        load = rows * (schedule.row_pitch(g) / g.phases_w * pixel + LOAD_ROW_CYCLES)
    stream = max(multiply, far) + FAR_SHARE * far + store_cycles(problem, g)
    threads = thread_count(problem, arch)
    tile, chunk = divide(g, threads, problem.itemsize, stream, load + ITEM_CYCLES)
    packing = pack[tile_count == g.groups] * g.groups * elements * g.K
    return Estimate(tile_count * tile + packing, chunk)


def tile_cycles(g: Geometry, group: int, inner: int) -> float:
    """Cycles to add one element (tap x channel) to all sums of a load tile and two vectors."""
    if g.tile_m == AMX_PIXELS:
        rows = g.tile_n * g.tile_p * g.tile_q / inner
        return float(rows * schedule.ceil_div(inner, AMX_ROWS) * AMX_CYCLES)

    def cycles(pixels: int) -> float:
        """Cycles of a register tile."""
        if g.tile_m == MATRIX_PIXELS:  # for two words: 4 products and a shuffle per two pixels
            vectors = max(5 * schedule.ceil_div(pixels, 2) / FMAS_PER_CYCLE, FMA_LATENCY)
            return max(vectors, (pixels + 4) / LOADS_PER_CYCLE) / 2
        fmas = max(2 * pixels / FMAS_PER_CYCLE, FMA_LATENCY)
        return max(fmas, (pixels + 2) / LOADS_PER_CYCLE)

    total = 0.0
    for height, tile_count in schedule.cuts(inner, g.tile_m):
        step = schedule.rows_together(height, g.tile_m) if height else 1
        whole, rest = divmod(group, step)
        last = cycles(rest * height) if rest else 0.0
        total += tile_count * (whole * cycles(step * height) + last)
    return total * g.tile_n * g.tile_p * g.tile_q / (group * inner)
