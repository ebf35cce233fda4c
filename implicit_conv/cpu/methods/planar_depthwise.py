"""Depthwise convolution over planes: one channel at a time, vector lanes are pixels of a row.

A plane is one channel of one image. It is copied to rows of whole vectors, and each filter tap
multiplies a shifted view of these rows. The method suits NCHW, and NHWC with so few channels that
the pixels of a plane have a stride of a few elements.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from implicit_conv.cpu.candidates.candidate import Candidate, Words
from implicit_conv.cpu.candidates.kernel_method import KernelMethod, ranked
from implicit_conv.cpu.candidates.phrases import count, loads_of
from implicit_conv.cpu.candidates.problem_views import STEPS, ungrouped, widened
from implicit_conv.cpu.candidates.query import Refusal, Request
from implicit_conv.cpu.candidates.tiling import (
    ITEMS_PER_THREAD,
    Estimate,
    Near,
    at_least,
    balanced,
    priced,
    thread_count,
)
from implicit_conv.cpu.machine.arch import CpuArch
from implicit_conv.cpu.methods import depthwise
from implicit_conv.cpu.run.packed import PackedOrder
from implicit_conv.kernels import schedule
from implicit_conv.kernels.cpu.runtime.layout import buffer_bytes
from implicit_conv.kernels.geometry import Geometry
from implicit_conv.problem.problem import Problem
from implicit_conv.problem.schedule import Load, depthwise_trace, geometry
from implicit_conv.process.preparation import imports

if TYPE_CHECKING:
    from implicit_conv.kernels.cpu.operator import Build, Operator
    from implicit_conv.kernels.cpu.planar_depthwise.layout import PlanarDepthwiseLayout

PLANE_BYTES = 36 << 10  # bytes of the input rows of two planes at most, which stay in L1
PIXEL_STEP = 4  # stride in elements between pixels of a plane at most
CHANNELS = 64  # channels of a work item at most

TILE_ROWS = (8, 16, 32, 64, 128)  # output rows of a load tile: choices


@imports
def _layout() -> Any:
    """The layout, which only depthwise problems need."""
    from implicit_conv.kernels.cpu.planar_depthwise import layout

    return layout


@dataclass(frozen=True)
class PlanarDepthwise(KernelMethod):
    """One channel at a time."""

    name: ClassVar[str] = "depthwise over planes"
    algorithms: ClassVar[tuple[str, ...]] = ("depthwise",)

    @property
    def summary(self) -> str:
        """The method in a few words, for tables."""
        return "vector lanes are pixels of one channel"

    @property
    def order(self) -> str:
        """Each lane sums the taps of its own pixel."""
        return depthwise.COLUMN_ORDER

    def spare(self, g: Geometry) -> Geometry:
        """The tiling with single rows."""
        return g._replace(tile_p=1)

    @classmethod
    def candidates(
        cls, problem: Problem, arch: CpuArch, request: Request
    ) -> Iterator[Candidate | Refusal]:
        """One candidate, if rows fill at least half a vector."""
        if depthwise.refusal(problem, arch, request):
            return
        view = ungrouped(widened(problem))
        reason = refusal(view, arch, request)
        if reason:
            yield Refusal(cls.name, reason)
            return
        costs = tilings(view, arch, request.near)
        yield from ranked(cls(), "depthwise", problem, view, arch, costs, request)

    def repriced(self, c: Candidate, arch: CpuArch) -> Estimate:
        """The estimate of the candidate's tiling on a CPU."""
        return estimate(c.view, arch, c.geometry)

    def layout(self, c: Candidate) -> PlanarDepthwiseLayout:
        """Sizes of scratch memory and packed filters."""
        sizes = c.geometry, c.itemsize, c.lanes, c.chunk
        layout: PlanarDepthwiseLayout = _layout().PlanarDepthwiseLayout(*sizes)
        return layout

    def operator(self, c: Candidate, build: Build) -> Operator:
        """The compiled kernels of a candidate."""
        from implicit_conv.kernels.cpu.planar_depthwise.operator import (
            PlanarDepthwise as PlanarDepthwiseOperator,
        )

        return PlanarDepthwiseOperator(self.layout(c), c.lanes, build, pixel_step(c.problem))

    def packed(self, c: Candidate) -> PackedOrder:
        """The taps of one filter after another."""
        return packed_planes(c)

    def loads(self, c: Candidate) -> list[Load]:
        """The loads of x; filters are gathered channel by channel, not by loads of the schedule."""
        return depthwise_trace(c.geometry, c.itemsize, False)

    def describe(self, c: Candidate) -> Words:
        """Load tile, loads, k-blocks, work items."""
        g = c.geometry
        chunks = int(schedule.ceil_div(schedule.panel_count(g), c.chunk))
        return {
            "load tile": f"{count(g.tile_p, 'output row')} x {count(g.tile_q, 'output column')} of "
            f"one channel, cut into register tiles of at most {_layout().PLANE_ROWS} rows x "
            f"{c.lanes} pixels (1 vector)",
            "loads": loads_of(g),
            "k-blocks": f"1 block of {count(schedule.taps(g), 'tap')}: each channel has its own "
            "sums",
            "work items": f"{count(schedule.tile_count(g), 'tile')} x {count(chunks, 'chunk')} of "
            f"{count(c.chunk, 'channel')}",
        }


def packed_planes(c: Candidate) -> PackedOrder:
    """The order of filters whose taps follow one another, channel by channel."""
    key = ("depthwise planes", c.problem.K, c.problem.kernel, c.problem.dtype)
    return PackedOrder(key, c.layout.packed_bytes)


def pixel_step(problem: Problem) -> int:
    """The stride in elements between pixels of a plane."""
    return problem.C if problem.channels_last else 1


def refusal(problem: Problem, arch: CpuArch, request: Request) -> str:
    """Why vector lanes cannot be pixels of a plane, or an empty string.

    Under precision "strict" the answer must not depend on batch size, threads or the image's size,
    since other methods have another order of sums: parts of an image have the bits of the whole.
    """
    if problem.stride[-1] not in STEPS:
        return f"it supports strides 1 and 2 along W, not {problem.stride[-1]}"
    if not 1 <= pixel_step(problem) <= PIXEL_STEP:
        return f"it needs pixels of a channel with a stride of 1 to {PIXEL_STEP}, not {problem.C}"
    columns = problem.output[-1]
    lanes = arch.lanes(problem.itemsize)
    if columns < lanes // 2 and not request.strict:
        return f"rows of {columns} pixels fill less than half of {lanes} vector lanes"
    return ""


def tilings(
    view: Problem, arch: CpuArch, near: Near | None = None
) -> list[tuple[Estimate, Geometry]]:
    """Tilings of `view`, each with its estimate; with `near`, the one most like it."""
    found = geometries(view, arch, near)
    return priced(found, lambda g: estimate(view, arch, g), view, near)


def geometries(problem: Problem, arch: CpuArch, near: Near | None = None) -> list[Geometry]:
    """Tilings of one channel and image into rows whose input fits its share of L1; if there are
    none, into those whose plane fits in L2, where fewer tiles copy fewer rows of x again.
    """
    _, p, q = problem.output
    choices = TILE_ROWS if near is None else at_least(TILE_ROWS, near.geometry.tile_p)
    extents = {(1, balanced(p, rows), balanced(q, 1024)) for rows in choices}
    found = [
        geometry(problem, tile=tile, tile_m=arch.tile_pixels, tile_c=1, tile_k=1)
        for tile in sorted(extents)
    ]
    if len(found) == 1:
        return found
    lanes = arch.lanes(problem.itemsize)
    sizes = [
        _layout().PlanarDepthwiseLayout(g, problem.itemsize, lanes).scratch(packs=False).buffer
        for g in found
    ]
    for limit in PLANE_BYTES, 2 * arch.l2_bytes:
        fitting = [g for g, size in zip(found, sizes, strict=True) if size <= limit]
        if fitting:
            return fitting
    return found[:1]


def estimate(problem: Problem, arch: CpuArch, g: Geometry) -> Estimate:
    """Cycles of one core: rows are copied, and each tap shifts and multiplies every vector."""
    costs = arch.costs
    lanes = arch.lanes(problem.itemsize)
    rows = _layout().PLANE_ROWS
    whole, rest = divmod(g.tile_p, rows)
    multiply = whole * rows_cycles(arch, g, rows, lanes)
    if rest:
        multiply += rows_cycles(arch, g, rest, lanes)
    multiply += costs.planes.call
    elements = buffer_bytes(g, problem.itemsize) / problem.itemsize
    load = schedule.image_rows(g) * costs.common.plane_row + elements * costs.common.copy
    if g.phases_w > 1:
        load += elements * costs.planes.phase
    step = pixel_step(problem)
    if step > 1:
        load += elements * step * costs.planes.strided
    if step > 1 or problem.converted:
        load += costs.planes.staged
    threads = thread_count(problem, arch)
    chunk = channel_chunk(g, threads)
    chunks = schedule.ceil_div(g.C, chunk)
    items = max(1, schedule.tile_count(g) * chunks)
    idle = schedule.ceil_div(items, threads) * threads / items
    cycles = g.C * (multiply + load) + chunks * schedule.image_rows(g) * costs.planes.entry
    return Estimate(schedule.tile_count(g) * cycles * idle + threads * costs.common.item, chunk)


def rows_cycles(arch: CpuArch, g: Geometry, height: int, lanes: int) -> float:
    """Cycles of `height` output rows, in vectors of so many lanes: FMAs wait for one another
    where a register tile has few sums, and the filter rows of a pass share what is shifted.
    """
    costs = arch.costs
    vectors, wide = int(schedule.ceil_div(g.tile_q, lanes)), _layout().plane_tile_vectors(height)
    tap = costs.planes.tap
    if arch.vector_bits == 256:
        tap += lanes * costs.planes.shift / _layout().plane_pass_rows(g)
    tap = max(height * wide * tap, costs.common.fma_latency)
    taps = schedule.ceil_div(vectors, wide) * schedule.taps(g) * tap
    return float(taps + height * vectors * costs.planes.vector)


def channel_chunk(g: Geometry, threads: int) -> int:
    """The number of channels per work item."""
    items = max(1, ITEMS_PER_THREAD[0] * threads // max(1, schedule.tile_count(g)))
    return max(1, min(CHANNELS, int(schedule.ceil_div(g.C, items))))
