"""Weight gradients by implicit GEMM: register tiles whose lanes are filters.

    gemm_m  filters of a panel             A  panels of dy: [pixel][filter]
    gemm_n  taps x channels                B  rows of x in a thread's buffer, or x itself
    gemm_k  pixels of all load tiles       C  sums in memory, then dw

A load tile depends on the problem's shape alone, and so do the parts of load tiles that different
work items may sum; the order of a sum therefore depends on nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from implicit_conv.arrays.arrays import Array
from implicit_conv.cpu.candidates.candidate import Candidate, Words
from implicit_conv.cpu.candidates.gradient_method import GradientMethod, tile_parts
from implicit_conv.cpu.candidates.kernel_method import best, ranked
from implicit_conv.cpu.candidates.phrases import blocks_of, count, loads_of, plane_word
from implicit_conv.cpu.candidates.problem_views import ungrouped, widened
from implicit_conv.cpu.candidates.query import FLOATS, Refusal, Request, Serves
from implicit_conv.cpu.candidates.tiling import (
    BUFFER_SHARE,
    FAR_BYTES,
    Estimate,
    Near,
    balanced,
    plane_count,
    priced,
    rounded_up,
    thread_count,
)
from implicit_conv.cpu.machine.arch import CpuArch
from implicit_conv.cpu.machine.costs import FMAS_PER_CYCLE
from implicit_conv.cpu.run.call import Arrays, is_contiguous
from implicit_conv.kernels import schedule
from implicit_conv.kernels.cpu.runtime.layout import buffer_bytes
from implicit_conv.kernels.cpu.wgrad.layout import (
    LANE_TAPS,
    NEAR_PIXEL_BYTES,
    LanesLayout,
    WeightGradLayout,
    block_rows,
    panel_channels,
    tile_height,
)
from implicit_conv.kernels.geometry import Geometry
from implicit_conv.problem.problem import Problem
from implicit_conv.problem.schedule import Load, geometry

if TYPE_CHECKING:
    from implicit_conv.kernels.cpu.operator import Build, Operator

# Pixels of a load tile, which are added one by one, at most. With 128 instead, 1x1 layers of 512
# channels or more and 14 x 14 outputs took 7 to 14 % longer (Intel Xeon, AVX-512, 2026-11).
CHAIN_PIXELS = 256


@dataclass(frozen=True)
class WeightGrad(GradientMethod):
    """Implicit GEMM over pixels; x is read in place, from pixels or from planes of channels, or
    copied to row buffers.

    The channels and filters of a 1x1 filter may be swapped, so that vectors of channels are stored
    into a dw whose channels are contiguous.
    """

    name: ClassVar[str] = "GEMM over pixels"
    algorithms: ClassVar[tuple[str, ...]] = ("implicit_gemm",)
    serves: ClassVar[Serves] = FLOATS._replace(activations=(), operands=())
    in_place: bool = False
    joined: bool = False  # whether all columns of a filter row are rows of one matrix
    swapped: bool = False  # whether x and dy, and thus channels and filters, change their roles
    strided: bool = False  # whether what is read in place are planes, one for each channel

    @property
    def summary(self) -> str:
        """The method in a few words, for tables."""
        lanes, rows = ("channels", "dy") if self.swapped else ("filters", "x")
        how = "in place" if self.in_place else "copied"
        planes = "planes of " if self.strided else ""
        return f"GEMM over pixels, lanes are {lanes}, {planes}{rows} {how}"

    @property
    def needs(self) -> str:
        """What it needs of the strides of arrays, in words; empty if it accepts all strides."""
        rows = "filters of dy" if self.swapped else "channels of x"
        return f"contiguous {rows}" if self.in_place and not self.strided else ""

    order = "pixels"  # a name for the order of its sums

    @classmethod
    def candidates(
        cls, problem: Problem, arch: CpuArch, request: Request
    ) -> Iterator[Candidate | Refusal]:
        """One candidate: in place if x can be read in place, else copied."""
        view = widened(problem)
        swapped = is_pointwise_inside(problem) and not problem.weight_layout.endswith("K")
        if swapped:
            view = exchanged(view)
        joined = is_joined(view, arch)
        strided = reads_planes(view, arch) and not joined
        in_place = strided or (reads_in_place(view) and not joined)
        method = cls(in_place, joined, swapped, strided)
        costs = tilings(view, arch, method, request.near)
        yield from ranked(method, "implicit_gemm", problem, view, arch, costs, request)

    def fallbacks(self, c: Candidate, limit: float = math.inf) -> Iterator[Candidate]:
        """The variant with x copied, which has the same order of sums."""
        if self.in_place and not self.strided:
            method = replace(self, in_place=False)
            costs = tilings(c.view, c.arch, method)
            yield best(method, c.algorithm, c.problem, c.view, c.arch, costs, limit=limit)

    def accepts(self, c: Candidate, arrays: Arrays) -> bool:
        """Reading in place needs contiguous channels, or filters."""
        rows = arrays.y if self.swapped else arrays.x
        return not self.in_place or self.strided or is_contiguous(rows, -1)

    def operands(self, c: Candidate, x: Array, dy: Array) -> tuple[Array, Array]:
        """x and dy, with five axes, in the roles of x and dy of the view."""
        if not self.swapped:
            return x, dy
        problem = c.problem
        pixels = (
            slice(-lo, (count - 1) * step - lo + 1, step)
            for lo, count, step in zip(problem.pad_lo, problem.output, problem.stride, strict=True)
        )
        return dy, x[(slice(None), *pixels)]

    def repriced(self, c: Candidate, arch: CpuArch) -> Estimate:
        """The estimate of the candidate's tiling on a CPU."""
        return estimate(c.view, arch, c.geometry, c.chunk, self)

    def layout(self, c: Candidate) -> WeightGradLayout:
        """Sizes of scratch memory."""
        g = c.geometry
        return WeightGradLayout(
            g,
            c.itemsize,
            c.lanes,
            c.chunk,
            self.in_place,
            parts=part_count(c.problem),
            joined=self.joined,
            strided=self.strided,
        )

    def operator(self, c: Candidate, build: Build) -> Operator:
        """The compiled kernels of a candidate."""
        from implicit_conv.kernels.cpu.wgrad.operator import WeightGrad as WeightGradOperator

        return WeightGradOperator(self.layout(c), c.lanes, build)

    def as_problem(self, c: Candidate, loads: Sequence[Load]) -> list[Load]:
        """Loads of the array that has the role of x, which is dy if roles are swapped."""
        operand = "dy" if self.swapped else "x"
        return [load._replace(operand=operand) for load in loads]

    def describe(self, c: Candidate) -> Words:
        """Load tile, loads, blocks, work items."""
        g, layout = c.geometry, self.layout(c)
        channels = "planes" if self.strided else "contiguous"
        in_place = f"none: channels of x are {channels}, and taps outside the image are skipped"
        chunks = schedule.ceil_div(schedule.panel_count(g), c.chunk)
        return {
            "load tile": f"{count(g.tile_n, plane_word(g))} x {count(g.tile_p, 'output row')} x "
            f"{count(g.tile_q, 'output column')}, which are one chain of a sum",
            "loads": in_place if self.in_place else loads_of(g),
            "k-blocks": blocks_of(g),
            "work items": f"{count(layout.parts, 'part')} of {count(layout.part_tiles, 'tile')} x "
            f"{count(g.groups, 'group')} x {count(schedule.block_count(g), 'channel block')} x "
            f"{count(chunks, 'chunk')} of {count(c.chunk, 'panel')}",
        }


@dataclass(frozen=True)
class WeightGradLanes(WeightGrad):
    """Vectors of filters of several groups, for groups of few channels and filters."""

    name: ClassVar[str] = "depthwise"
    algorithms: ClassVar[tuple[str, ...]] = ("depthwise",)

    @property
    def summary(self) -> str:
        """The method in a few words, for tables."""
        how = "x and dy in place" if self.in_place else "x copied"
        return f"vectors of filters of several groups, {how}"

    @property
    def needs(self) -> str:
        """What it needs of the strides of arrays, in words; empty if it accepts all strides."""
        return "contiguous channels of x and dy" if self.in_place else ""

    @classmethod
    def candidates(
        cls, problem: Problem, arch: CpuArch, request: Request
    ) -> Iterator[Candidate | Refusal]:
        """One candidate, if there are groups."""
        if problem.groups == 1:
            yield Refusal(cls.name, "it needs several groups")
            return
        view = ungrouped(widened(problem))
        in_place = reads_windows(problem, arch) and not view.converted
        costs = [lanes_tiling(problem, view, arch, in_place)]
        yield best(cls(in_place), "depthwise", problem, view, arch, costs)

    def fallbacks(self, c: Candidate, limit: float = math.inf) -> Iterator[Candidate]:
        """The variant with x and dy copied, which has the same order of sums."""
        if self.in_place:
            costs = [lanes_tiling(c.problem, c.view, c.arch, False)]
            yield best(WeightGradLanes(), c.algorithm, c.problem, c.view, c.arch, costs)

    def accepts(self, c: Candidate, arrays: Arrays) -> bool:
        """Reading in place needs contiguous channels."""
        return not self.in_place or all(is_contiguous(a, -1) for a in (arrays.x, arrays.y))

    def repriced(self, c: Candidate, arch: CpuArch) -> Estimate:
        """The estimate of the candidate's tiling on a CPU."""
        return lanes_tiling(c.problem, c.view, arch, self.in_place)[0]

    def layout(self, c: Candidate) -> LanesLayout:
        """Sizes of scratch memory."""
        return lanes_layout(c.problem, c.geometry, c.itemsize, c.lanes, self.in_place)

    def operator(self, c: Candidate, build: Build) -> Operator:
        """The compiled kernels of a candidate."""
        from implicit_conv.kernels.cpu.wgrad.operator import (
            WeightGradLanes as WeightGradLanesOperator,
        )

        return WeightGradLanesOperator(self.layout(c), c.lanes, build)


def lanes_layout(
    problem: Problem, g: Geometry, itemsize: int, lanes: int, in_place: bool
) -> LanesLayout:
    """Sizes for a geometry whose channel block is that of a panel."""
    return LanesLayout(
        g,
        itemsize,
        lanes,
        in_place=in_place,
        parts=part_count(problem),
        group_channels=problem.C // problem.groups,
        group_filters=problem.K // problem.groups,
    )


def reads_windows(problem: Problem, arch: CpuArch) -> bool:
    """Whether depthwise filters read x and dy in place: their channels are whole vectors."""
    depthwise = problem.groups == problem.C == problem.K
    whole = problem.C % arch.lanes(problem.itemsize) == 0
    return depthwise and whole and problem.channels_last and not problem.repeats


def window_vectors(problem: Problem, arch: CpuArch) -> int:
    """Vectors of a panel that is read in place: the more of a pixel is read at once, the better,
    but each of a filter row's taps has a sum in a register.
    """
    registers = 32 if 2 * arch.tile_pixels > 16 else 16
    most = registers // (1 + min(LANE_TAPS, problem.kernel[-1]))
    vectors = problem.C // arch.lanes(problem.itemsize)
    return balanced(vectors, max(1, most))


def lanes_tiling(
    problem: Problem, view: Problem, arch: CpuArch, in_place: bool
) -> tuple[Estimate, Geometry]:
    """The only tiling of `view`, which has one group, and its estimate."""
    costs = arch.costs
    lanes = arch.lanes(view.itemsize)
    channels, filters = problem.C // problem.groups, problem.K // problem.groups
    width = lanes * (window_vectors(problem, arch) if in_place else 2)
    g = geometry(
        view,
        tile=load_tile(view),
        tile_m=arch.tile_pixels,
        tile_c=max(1, panel_channels(width, max(1, filters), channels, problem.groups)),
        tile_k=width,
    )
    layout = lanes_layout(problem, g, view.itemsize, lanes, in_place)
    pixels = g.tile_n * g.tile_p * g.tile_q
    vectors = int(schedule.ceil_div(min(g.K, width), lanes))
    cost = costs.common.copy if problem.channels_last else costs.common.transpose
    elements = buffer_bytes(g, view.itemsize) / view.itemsize
    rows = schedule.filter_rows(g)
    multiply = pixels * vectors * rows * (g.S + 1) / costs.common.loads_per_cycle
    multiply += rows * schedule.ceil_div(g.S, LANE_TAPS) * costs.weight_grad.tile
    if (channels, filters) != (1, 1):
        multiply += elements / max(1, g.tile_c) * g.tile_k * costs.weight_grad.expand
    item = multiply * channels + costs.common.item
    over_planes = (channels, filters) == (1, 1) and not problem.channels_last
    if not in_place:
        if over_planes:
            cost += costs.weight_grad.plane_element
            item += (schedule.tile_rows(g) + g.tile_n * g.tile_p) * costs.weight_grad.panel_row
        item += elements * cost + pixels * g.tile_k * cost
    items = max(1, schedule.panel_count(g) * layout.parts)
    idle = 1.0
    if not over_planes:  # where another order of sums may be chosen, and must be for any threads
        threads = thread_count(problem, arch)
        idle = schedule.ceil_div(items, threads) * threads / items
    return Estimate(schedule.panel_count(g) * schedule.tile_count(g) * item * idle, 1), g


def is_joined(problem: Problem, arch: CpuArch) -> bool:
    """Whether channels are too few to be the rows of register tiles by themselves, and the columns
    of a filter row are contiguous.
    """
    contiguous = problem.dilation[-1] == 1 and problem.stride[-1] <= problem.kernel[-1]
    few = problem.C // problem.groups < arch.lanes(problem.itemsize)
    return contiguous and few and problem.kernel[-1] > 1


def is_pointwise_inside(problem: Problem) -> bool:
    """Whether filters are 1x1, no output pixel reads padding, and there are no groups.

    Then x and dy can change their roles: dw[k, c] and dw[c, k] are sums over the same pixels.
    """
    return (
        set(problem.kernel) == {1}
        and problem.groups == 1
        and all(
            lo <= 0 and (out - 1) * stride - lo < size
            for lo, out, stride, size in zip(
                problem.pad_lo, problem.output, problem.stride, problem.size, strict=True
            )
        )
    )


def exchanged(problem: Problem) -> Problem:
    """The problem whose x is dy and whose dy is the pixels of x that the outputs read."""
    ones, zeros = (1,) * problem.rank, (0,) * problem.rank
    return replace(
        problem,
        C=problem.K,
        K=problem.C,
        size=problem.output,
        stride=ones,
        pad_lo=zeros,
        pad_hi=zeros,
        dilation=ones,
    )


def reads_in_place(problem: Problem) -> bool:
    """Whether x is read in place: taps that read zeros are skipped, so zeros around x allow it."""
    pixel = problem.C * problem.itemsize * problem.stride[-1]
    in_image = problem.channels_last and not problem.repeats
    return in_image and not problem.converted and pixel <= NEAR_PIXEL_BYTES


def reads_planes(problem: Problem, arch: CpuArch) -> bool:
    """Whether x is read in place from planes, one for each channel."""
    in_image = not (problem.channels_last or problem.repeats)
    return arch.costs.weight_grad.plane_row > 0 and in_image and not problem.converted


def load_tile(problem: Problem) -> tuple[int, int, int]:
    """The (output planes, rows, columns) of a load tile: at most CHAIN_PIXELS pixels."""
    _, p, q = problem.output
    columns = balanced(q, CHAIN_PIXELS)
    rows = balanced(p, CHAIN_PIXELS // columns) if columns == q else 1
    planes = 1
    if (rows, columns) == (p, q):
        planes = balanced(plane_count(problem), CHAIN_PIXELS // (p * q))
    return planes, rows, columns


def part_count(problem: Problem) -> int:
    """Parts of the load tiles: several if dw alone has too few elements to keep threads busy.

    It depends on the shape alone and is the same for all methods, so that all of them have the same
    order of sums.
    """
    depth, p, q = problem.output
    images, planes = (problem.N, depth) if depth > 1 else (1, problem.N)
    tiles = images * math.prod(map(schedule.ceil_div, (planes, p, q), load_tile(problem)))
    elements = problem.K * problem.C // problem.groups * math.prod(problem.kernel)
    return tile_parts(elements, tiles)


def tilings(
    view: Problem, arch: CpuArch, method: WeightGrad, near: Near | None = None
) -> list[tuple[Estimate, Geometry]]:
    """Tilings of `view`: channel blocks and chunks of panels, each with its estimate; those of
    `near`, if it is given.
    """
    lanes = arch.lanes(view.itemsize)
    channels = max(1, view.C // view.groups)

    def tiling(block: int) -> Geometry:
        return geometry(
            view,
            tile=load_tile(view),
            tile_m=arch.tile_pixels,
            tile_c=block,
            tile_k=2 * lanes,
            step_w=1 if method.joined else None,
        )

    if near is not None:
        found = [tiling(near.geometry.tile_c)]
        return priced(found, lambda g: estimate(view, arch, g, 1, method), view, near)
    blocks = {
        min(channels, rounded_up(schedule.ceil_div(channels, parts), lanes))
        for parts in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64)
    }
    costs = []
    for g in map(tiling, sorted(blocks)):
        panels = max(1, schedule.panel_count(g))
        chunks = {schedule.ceil_div(panels, parts) for parts in (1, 2, 3, 4, 6, 8, 16, 32, 64)}
        costs += [(estimate(view, arch, g, chunk, method), g) for chunk in sorted(chunks)]
    return costs


def estimate(
    problem: Problem, arch: CpuArch, g: Geometry, chunk: int, method: WeightGrad
) -> Estimate:
    """Cycles of one core for the whole problem: register tiles, loads, sums, idle threads."""
    costs = arch.costs
    lanes = arch.lanes(problem.itemsize)
    layout = WeightGradLayout(
        g,
        problem.itemsize,
        lanes,
        chunk,
        method.in_place,
        parts=part_count(problem),
        joined=method.joined,
    )
    tiles = schedule.tile_count(g)
    pixels = g.tile_n * g.tile_p * g.tile_q
    taps = schedule.filter_rows(g) * (1 if method.joined else g.S)
    rows = block_rows(g, min(g.C, g.tile_c), method.joined)
    vectors = 2 if g.K > lanes else 1
    multiply = 0.0
    for height, number in schedule.cuts(max(1, rows), tile_height(g, vectors)):
        pixel = max(
            height * vectors / FMAS_PER_CYCLE,
            (height + vectors) / costs.common.loads_per_cycle,
            costs.common.fma_latency,
        )
        fixed = costs.weight_grad.tile + height * vectors * costs.weight_grad.sums
        if method.strided:
            fixed += height * costs.weight_grad.plane_row
        multiply += number * (pixels * pixel + fixed)
    multiply *= taps * schedule.panel_count(g)
    blocks = schedule.block_count(g)
    chunks = schedule.ceil_div(max(1, schedule.panel_count(g)), chunk)
    cost = costs.common.copy if problem.channels_last else costs.common.transpose
    load = 0.0
    if not method.in_place:
        load += buffer_bytes(g, problem.itemsize) / problem.itemsize * cost * chunks
    load += pixels * schedule.panel_count(g) * g.tile_k * cost
    size = buffer_bytes(g, problem.itemsize) + chunk * layout.panel_bytes
    if size > 2 * arch.l2_bytes:
        load += multiply * costs.common.far_share
    if problem.bytes > FAR_BYTES:
        load += (buffer_bytes(g, problem.itemsize) * chunks + pixels * g.K * problem.itemsize) / (
            costs.common.memory_bytes
        )
    sums = 0.0
    if layout.item_sums > arch.l2_bytes * BUFFER_SHARE:
        sums = costs.common.far_share * 2 * layout.item_sums * chunks / costs.common.far_bytes
    items = max(1, layout.parts * layout.items)
    threads = thread_count(problem, arch)
    idle = schedule.ceil_div(items, threads) * threads / items
    cycles = g.groups * blocks * tiles * (multiply + load + sums) + items * costs.common.item
    return Estimate(cycles * idle, chunk)
