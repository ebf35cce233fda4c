"""fprop by dot products: vector lanes are channels, x and filters are both read in place.

    y[pixel, k] = sum over lanes of (sum over channel vectors of x[pixel, c] * w[k, c])

It suits few pixels or few filters with contiguous channels: classifiers, heads, squeeze and
excitation, and windows that cover a whole image. Nothing is packed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from implicit_conv.arrays.arrays import Array
from implicit_conv.cpu.candidates.candidate import Candidate, Words
from implicit_conv.cpu.candidates.kernel_method import KernelMethod, ranked
from implicit_conv.cpu.candidates.phrases import count, geometry_items
from implicit_conv.cpu.candidates.problem_views import ROW_NEED, flattened, is_pointwise, widened
from implicit_conv.cpu.candidates.query import FLOATS, Refusal, Request, Serves
from implicit_conv.cpu.candidates.tiling import (
    BUFFER_SHARE,
    Estimate,
    Near,
    balanced,
    divide,
    priced,
    stored_bytes,
    stream_cycles,
    thread_count,
)
from implicit_conv.cpu.machine.arch import CpuArch
from implicit_conv.cpu.machine.costs import FMAS_PER_CYCLE
from implicit_conv.cpu.run.call import Arrays, is_contiguous, is_row
from implicit_conv.cpu.run.packed import PackedOrder, PlainOrder
from implicit_conv.kernels import schedule
from implicit_conv.kernels.geometry import Geometry
from implicit_conv.problem.problem import Problem
from implicit_conv.problem.schedule import geometry
from implicit_conv.process.preparation import imports

if TYPE_CHECKING:
    from implicit_conv.kernels.cpu.few_outputs.layout import FewOutputsLayout
    from implicit_conv.kernels.cpu.operator import Build, Operands, Operator

PANEL_FILTERS = 64  # filters of a panel at most, whose sums share a staging tile


@imports
def _layout() -> Any:
    """The layout, which only candidates for memory or for a call need."""
    from implicit_conv.kernels.cpu.few_outputs import layout

    return layout


@dataclass(frozen=True)
class FewOutputs(KernelMethod):
    """A row of pixels times filters, both with contiguous elements."""

    name: ClassVar[str] = "few outputs"
    algorithms: ClassVar[tuple[str, ...]] = ("implicit_gemm", "pointwise")
    copies_filters: ClassVar[bool] = True
    serves: ClassVar[Serves] = FLOATS._replace(precision="standard")

    @property
    def summary(self) -> str:
        """The method in a few words, for tables."""
        return "vector lanes are channels, x and w in place"

    @property
    def needs(self) -> str:
        """What it needs of the strides of arrays, in words."""
        return f"contiguous channels of x, and {ROW_NEED}"

    @classmethod
    def candidates(
        cls, problem: Problem, arch: CpuArch, request: Request
    ) -> Iterator[Candidate | Refusal]:
        """One candidate, if the elements of windows and filters are contiguous."""
        algorithm = request.gemm_algorithm(problem)
        if algorithm is None:
            return
        summed = widened(problem)
        reason = refusal(summed)
        if reason:
            yield Refusal(cls.name, reason)
            return
        view = rows_of_channels(summed)
        found = geometries(view, arch, request.near)
        costs = priced(found, lambda g: estimate(view, arch, g), view, request.near)
        threads = thread_count(view, arch)
        yield from ranked(cls(), algorithm, problem, view, arch, costs, request, threads)

    def repriced(self, c: Candidate, arch: CpuArch) -> Estimate:
        """The estimate of the candidate's tiling on a CPU."""
        return estimate(c.view, arch, c.geometry)

    def layout(self, c: Candidate) -> FewOutputsLayout:
        """Sizes of scratch memory and filters."""
        g, stored = c.geometry, stored_bytes(c.view)
        filters = register_filters(c.view, c.arch, g)
        sizes = g, c.itemsize, c.lanes, c.chunk
        layout: FewOutputsLayout = _layout().FewOutputsLayout(*sizes, True, stored, filters)
        return layout

    def operator(self, c: Candidate, build: Build) -> Operator:
        """The compiled kernels of a candidate."""
        from implicit_conv.kernels.cpu.few_outputs.operator import FewOutputs as LanesOperator

        return LanesOperator(self.layout(c), c.lanes, build)

    def packed(self, c: Candidate) -> PackedOrder:
        """The filter in its own layout, which has the order of a window's elements."""
        return PlainOrder.of(c.problem, filter_order(c.problem))

    def accepts(self, c: Candidate, arrays: Arrays) -> bool:
        """The elements of a pixel must be contiguous, and all pixels must form one row."""
        x, given = arrays.x, (arrays.x, arrays.y, arrays.residual)
        if not all(is_row(c.problem, array) for array in given if array is not None):
            return False
        if whole_window(c.problem):
            return bool(windows(c.problem, x)[:1].flags.c_contiguous)
        return is_contiguous(x, -1)

    def arguments(self, c: Candidate, operands: Operands) -> Iterator[Operands]:
        """All pixels as one row, channels last; a filter that is not contiguous is copied."""
        x, w, y, residual = operands
        assert w is not None
        w = w.transpose(["KCTRS".index(letter) for letter in filter_order(c.problem)])
        added = None if residual is None else as_row(c, residual)
        pixels = as_row(c, windows(c.problem, x))
        yield operands._replace(x=pixels, w=w, y=as_row(c, y), residual=added)

    def describe(self, c: Candidate) -> Words:
        """Load tile, loads, k-blocks, work items."""
        g, filters = c.geometry, register_filters(c.view, c.arch, c.geometry)
        return {
            "load tile": f"{count(g.tile_q, 'pixel')} of one row, cut into register tiles of "
            f"{count(g.tile_m, 'pixel')} x {count(filters, 'filter')}, {c.lanes} channels at a "
            "time",
            "loads": "none: windows of x and filters are contiguous, both are read in place",
            "k-blocks": f"1 block of {count(g.C, 'channel')}",
            "work items": geometry_items(g, c.chunk),
        }


def as_row(c: Candidate, array: Array) -> Array:
    """A view of `array` with all pixels as one row, channels last."""
    return array.reshape(1, 1, 1, c.geometry.Q, array.size // c.geometry.Q)


def filter_order(problem: Problem) -> str:
    """The order in which the elements of a filter are read, which is that of a window."""
    return "KCTRS" if problem.weight_layout.startswith("KC") else "KTRSC"


def windows(problem: Problem, x: Array) -> Array:
    """A view of x whose axes after the first are those of a window, in the order of `filter_order`
    if the window covers an image.
    """
    return x if problem.channels_last else x.transpose(0, 4, 1, 2, 3)


def whole_window(problem: Problem) -> bool:
    """Whether a filter covers a whole image, so that there is one output pixel."""
    pads = (*problem.pad_lo, *problem.pad_hi)
    return problem.kernel == problem.size and set(problem.output) == {1} and not any(pads)


def refusal(problem: Problem) -> str:
    """Why vector lanes cannot be channels, or an empty string."""
    if problem.groups > 1 or min(problem.C, problem.K, problem.N) < 1:
        return "it needs one group, and at least one image, one channel and one filter"
    same_order = problem.channels_last == (filter_order(problem) == "KTRSC")
    if problem.weight_layout.endswith("K") or not (same_order or set(problem.kernel) == {1}):
        return (
            f"windows of {problem.layout} and {problem.weight_layout} filters differ in axis order"
        )
    if whole_window(problem):
        return ""
    if not problem.channels_last:
        return f"channels are not contiguous in {problem.layout}"
    return "" if is_pointwise(problem) else "windows are not contiguous in x"


def rows_of_channels(problem: Problem) -> Problem:
    """A problem as a row of pixels times filters; a window that covers an image is one pixel."""
    if not whole_window(problem):
        return flattened(problem)
    one = (1, 1, 1)
    return replace(
        problem,
        N=1,
        C=problem.C * math.prod(problem.kernel),
        size=(1, 1, problem.N),
        kernel=one,
        stride=one,
        dilation=one,
        layout="NHWC",
    )


def geometries(view: Problem, arch: CpuArch, like: Near | None = None) -> list[Geometry]:
    """Tilings of the row of pixels, for register tiles of 1, 2, 4, ... pixels.

    All channels of a work item's pixels fit in half of L2, since each group of filters reads them.
    """
    lanes = arch.lanes(view.itemsize)
    near = int(arch.l2_bytes * BUFFER_SHARE) // (view.C * view.itemsize)
    found = set()
    pixels = 1 if like is None else like.geometry.tile_m
    most = lanes if like is None else pixels
    while pixels <= min(most, view.output[-1]):
        filters = lanes // pixels
        panel = schedule.ceil_div(balanced(view.K, PANEL_FILTERS), filters) * filters
        for share in (1, 2, 4, 8):
            columns = balanced(view.output[-1], max(pixels, near // share))
            tile = (1, 1, columns)
            found.add(geometry(view, tile=tile, tile_m=pixels, tile_c=view.C, tile_k=panel))
        pixels *= 2
    return sorted(found)


def register_filters(view: Problem, arch: CpuArch, g: Geometry) -> int:
    """Filters of a register tile: a power of two, so that a vector has room for the sums of tile_m
    pixels, and L1 for a line of each filter (a vector may end amid a line, which is read again).
    """
    kept = arch.kept_lines(g.C * stored_bytes(view))
    most = min(arch.lanes(view.itemsize) // g.tile_m, g.K, kept)
    return 1 << (most.bit_length() - 1)


def estimate(view: Problem, arch: CpuArch, g: Geometry) -> Estimate:
    """Cycles of one core: an FMA per pixel, filter and vector of channels, then sums of lanes."""
    costs = arch.costs
    lanes = arch.lanes(view.itemsize)
    pixels, filters = g.tile_m, register_filters(view, arch, g)
    widened_loads = costs.few_outputs.widened_loads if view.converted else 1
    loads = (pixels + filters) * costs.common.unaligned_load * widened_loads
    element = max(pixels * filters / FMAS_PER_CYCLE, loads, costs.common.fma_latency)
    if g.tile_q * g.C * view.itemsize > arch.l1_bytes / 2:
        element += pixels * lanes * view.itemsize / costs.few_outputs.near_bytes
    tile = (
        schedule.ceil_div(g.C, lanes) * element
        + pixels * costs.few_outputs.pixel
        + costs.few_outputs.tile
    )
    tile_count = schedule.ceil_div(g.tile_q, pixels) * schedule.ceil_div(g.K, filters)
    filter_bytes = g.K * g.C * stored_bytes(view)
    far = 0.0 if filter_bytes <= arch.l2_bytes else stream_cycles(arch, filter_bytes)
    stream = max(tile_count * tile, far) + costs.common.far_share * min(tile_count * tile, far)
    threads = thread_count(view, arch)
    return Estimate(*divide(arch, g, threads, view.itemsize, stream, costs.common.item))
