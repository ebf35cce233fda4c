"""Groups of a few channels: vector lanes are filters of several groups.

Each lane multiplies the channels of its own group one after another; one load of a vector has the
channels of all its groups. Depthwise convolution with a channel multiplier is such a problem. Tiles
are always copied: in a buffer no pixel is at a border, and fewer pixels share a set of a cache.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from implicit_conv.cpu.candidates.candidate import Candidate, Words
from implicit_conv.cpu.candidates.kernel_method import KernelMethod, ranked
from implicit_conv.cpu.candidates.problem_views import ungrouped, widened
from implicit_conv.cpu.candidates.query import Refusal, Request, Serves
from implicit_conv.cpu.candidates.tiling import (
    Estimate,
    Near,
    priced,
)
from implicit_conv.cpu.machine.arch import CpuArch
from implicit_conv.cpu.machine.costs import FMAS_PER_CYCLE
from implicit_conv.cpu.methods.depthwise import (
    block_tilings,
    blocks_estimate,
    channel_blocks,
    copy_cycles,
    describe_blocks,
)
from implicit_conv.cpu.run.packed import PackedOrder
from implicit_conv.kernels import schedule
from implicit_conv.kernels.cpu.depthwise.layout import DepthwiseLayout
from implicit_conv.kernels.geometry import Geometry
from implicit_conv.problem.problem import Problem
from implicit_conv.problem.schedule import Load, depthwise_trace

if TYPE_CHECKING:
    from implicit_conv.kernels.cpu.operator import Build, Operator


@dataclass(frozen=True)
class SmallGroups(KernelMethod):
    """Vector lanes are filters of several groups."""

    name: ClassVar[str] = "small groups"
    algorithms: ClassVar[tuple[str, ...]] = ("implicit_gemm", "pointwise")
    serves: ClassVar[Serves] = Serves(precision="standard")

    @property
    def summary(self) -> str:
        """The method in a few words, for tables."""
        return "vector lanes are filters of several groups"

    @classmethod
    def candidates(
        cls, problem: Problem, arch: CpuArch, request: Request
    ) -> Iterator[Candidate | Refusal]:
        """One candidate, if the filters of whole groups fill a vector."""
        algorithm = request.gemm_algorithm(problem)
        if algorithm is None or problem.groups == 1:
            return
        view = widened(problem)
        reason = refusal(view, arch.lanes(view.itemsize))
        if reason:
            yield Refusal(cls.name, reason)
            return
        view = ungrouped(view)
        group = group_of(problem)
        found = geometries(view, arch, group, request.near)
        costs = priced(found, lambda g: estimate(view, arch, g, group[0]), view, request.near)
        yield from ranked(cls(), algorithm, problem, view, arch, costs, request)

    def repriced(self, c: Candidate, arch: CpuArch) -> Estimate:
        """The estimate of the candidate's tiling on a CPU."""
        return estimate(c.view, arch, c.geometry, group_of(c.problem)[0])

    def layout(self, c: Candidate) -> DepthwiseLayout:
        """Sizes of scratch memory and packed filters."""
        return DepthwiseLayout(c.geometry, c.itemsize, c.lanes, c.chunk, group=group_of(c.problem))

    def operator(self, c: Candidate, build: Build) -> Operator:
        """The compiled kernels of a candidate."""
        from implicit_conv.kernels.cpu.depthwise.operator import Depthwise as DepthwiseOperator

        return DepthwiseOperator(self.layout(c), c.lanes, build)

    def packed(self, c: Candidate) -> PackedOrder:
        """The filters of each block of groups."""
        g, problem = c.geometry, c.problem
        key = (
            "group blocks",
            group_of(problem),
            problem.groups,
            problem.kernel,
            problem.dtypes,
            c.arch.vector_bits,
            g.tile_c,
            g.tile_k,
        )
        return PackedOrder(key, c.layout.packed_bytes)

    def loads(self, c: Candidate) -> list[Load]:
        """The loads of x; filters are gathered channel by channel, not by loads of the schedule."""
        return depthwise_trace(c.geometry, c.itemsize, False)

    def describe(self, c: Candidate) -> Words:
        """Load tile, loads, k-blocks, work items."""
        return describe_blocks(c, False, group_of(c.problem))


def group_of(problem: Problem) -> tuple[int, int]:
    """(channels, filters) of one group."""
    return problem.C // problem.groups, problem.K // problem.groups


def refusal(problem: Problem, lanes: int) -> str:
    """Why groups cannot share vectors, or an empty string."""
    channels, filters = group_of(problem)
    if not 1 < filters <= lanes or lanes % filters:
        return (
            f"it needs 2 or more filters per group that divide {lanes} vector lanes, not {filters}"
        )
    if not 1 <= channels <= filters:
        return f"it needs 1 to {filters} channels per group of {filters} filters, not {channels}"
    return ""


def geometries(
    problem: Problem, arch: CpuArch, group: tuple[int, int], near: Near | None = None
) -> list[Geometry]:
    """Tilings of images, rows, columns and blocks of groups."""
    channels, filters = group
    lanes = arch.lanes(problem.itemsize)
    blocks = channel_blocks(problem.K, lanes) if near is None else {near.geometry.tile_k}
    # Rows are buffered without gaps if taps of a filter row then share vectors.
    by_row = problem.stride[-1] == 2 <= problem.kernel[-1] and problem.dilation[-1] == 1
    sizes = {(block // filters * channels, block) for block in blocks}
    step = 1 if by_row else None
    return block_tilings(problem, arch, sizes, in_place=False, step_w=step, near=near)


def estimate(problem: Problem, arch: CpuArch, g: Geometry, group_channels: int) -> Estimate:
    """Cycles of one core: for each channel of a group, FMAs or the vectors that repeat it."""
    costs = arch.costs
    taps = schedule.taps(g)
    by_row = g.phases_w == g.dilation_w == 1  # whether the taps of a filter row share these vectors
    shared = schedule.column_pixels(g, g.tile_m) + g.S - 1
    spread = schedule.filter_rows(g) * shared / g.tile_m if by_row else taps
    pixel = group_channels * max(
        taps / FMAS_PER_CYCLE * costs.depthwise.group_fmas, spread * costs.depthwise.spread
    )
    sums = blocks_estimate(problem, arch, g, pixel, copy_cycles(problem, arch, g))
    packing = g.K * group_channels * taps * arch.costs.common.pack_filter
    return Estimate(sums.cycles + packing, sums.chunk, packing)
