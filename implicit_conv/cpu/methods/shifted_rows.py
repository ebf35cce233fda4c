"""Depthwise convolution of planes in place: rows of x are loaded once and shifted in registers.

    y[n, c, p, q] = sum over r, s of x[n, c, p*stride + r*dilation - pad, ...] * w[c, r, s]

Vector lanes are output columns of one channel. A row that fits in a vector is loaded with zeros for
its padding, and each filter column takes its lanes by one permutation; two output rows share a
vector if they fit. Longer rows are cut into vectors; with stride 2 along W, permutations take every
second lane of two of them. Rows of padding are read from a row of zeros.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from implicit_conv.cpu.candidates.candidate import Candidate, Words
from implicit_conv.cpu.candidates.kernel_method import KernelMethod, best, ranked
from implicit_conv.cpu.candidates.phrases import count
from implicit_conv.cpu.candidates.problem_views import STEPS, ungrouped
from implicit_conv.cpu.candidates.query import Refusal, Request, Serves
from implicit_conv.cpu.candidates.tiling import (
    Estimate,
    Near,
    at_least,
    balanced,
    priced,
    thread_count,
)
from implicit_conv.cpu.machine.arch import CpuArch
from implicit_conv.cpu.methods import depthwise, planar_depthwise
from implicit_conv.cpu.run.call import Arrays, is_contiguous
from implicit_conv.cpu.run.packed import PackedOrder
from implicit_conv.kernels import schedule
from implicit_conv.kernels.geometry import Geometry
from implicit_conv.problem.problem import Problem
from implicit_conv.problem.schedule import Load, geometry
from implicit_conv.process.preparation import imports

if TYPE_CHECKING:
    from implicit_conv.kernels.cpu.operator import Build, Operator
    from implicit_conv.kernels.cpu.shifted_rows.layout import ShiftedRowsLayout

TAPS = 64  # taps of a filter at most, which kernels unroll for each vector of a register tile
# Vectors of sums of a register tile at most, which share rows of x, with 32 registers and with 16.
MANY_VECTORS, FEW_VECTORS = 7, 4
TILE_ROWS = (16, 64, 1 << 20)  # output rows of a load tile: choices


@imports
def _layout() -> Any:
    """The layout, which only depthwise problems need."""
    from implicit_conv.kernels.cpu.shifted_rows import layout

    return layout


@dataclass(frozen=True)
class ShiftedRows(KernelMethod):
    """One channel at a time, x in place."""

    name: ClassVar[str] = "depthwise over planes in place"
    algorithms: ClassVar[tuple[str, ...]] = ("depthwise",)
    serves: ClassVar[Serves] = Serves(("float32", "float64"), "standard")

    @property
    def summary(self) -> str:
        """The method in a few words, for tables."""
        return "vector lanes are pixels of one channel, rows of x in place"

    @property
    def order(self) -> str:
        """Each lane sums the taps of its own pixel."""
        return "taps of a channel"

    @property
    def needs(self) -> str:
        """What it needs of the strides of arrays, in words."""
        return "contiguous pixels of the rows of x"

    def spare(self, g: Geometry) -> Geometry:
        """The tiling with register tiles of one vector."""
        return g._replace(tile_m=1)

    @classmethod
    def candidates(
        cls, problem: Problem, arch: CpuArch, request: Request
    ) -> Iterator[Candidate | Refusal]:
        """One candidate."""
        if depthwise.refusal(problem, arch, request):
            return
        view = ungrouped(problem)
        reason = refusal(view)
        if reason:
            yield Refusal(cls.name, f"it needs {reason}")
            return
        found = geometries(view, arch, request.near)
        costs = priced(found, lambda g: estimate(view, arch, g), view, request.near)
        yield from ranked(cls(), "depthwise", problem, view, arch, costs, request)

    def fallbacks(self, c: Candidate, limit: float = math.inf) -> Iterator[Candidate]:
        """The planes copied, for any strides."""
        costs = planar_depthwise.tilings(c.view, c.arch)
        copied = planar_depthwise.PlanarDepthwise()
        yield best(copied, c.algorithm, c.problem, c.view, c.arch, costs, limit=limit)

    def repriced(self, c: Candidate, arch: CpuArch) -> Estimate:
        """The estimate of the candidate's tiling on a CPU."""
        return estimate(c.view, arch, c.geometry)

    def layout(self, c: Candidate) -> ShiftedRowsLayout:
        """Sizes of scratch memory and packed filters."""
        sizes = c.geometry, c.itemsize, c.lanes, c.chunk
        layout: ShiftedRowsLayout = _layout().ShiftedRowsLayout(*sizes, in_place=True)
        return layout

    def operator(self, c: Candidate, build: Build) -> Operator:
        """The compiled kernels of a candidate."""
        from implicit_conv.kernels.cpu.shifted_rows.operator import (
            ShiftedRows as ShiftedRowsOperator,
        )

        return ShiftedRowsOperator(self.layout(c), c.lanes, build)

    def packed(self, c: Candidate) -> PackedOrder:
        """The taps of one filter after another."""
        return planar_depthwise.packed_planes(c)

    def accepts(self, c: Candidate, arrays: Arrays) -> bool:
        """Vectors are loaded from x in place."""
        return is_contiguous(arrays.x, 3)

    def loads(self, c: Candidate) -> list[Load]:
        """None: rows of x are read in place, and filters channel by channel."""
        return []

    def describe(self, c: Candidate) -> Words:
        """Load tile, loads, k-blocks, work items."""
        g = c.geometry
        short = _layout().short_rows(g, c.lanes)
        pair = "2 output rows" if short and short.pair else "1 output row"
        chunks = int(schedule.ceil_div(schedule.panel_count(g), c.chunk))
        return {
            "load tile": f"{count(g.tile_p, 'output row')} x {count(g.tile_q, 'output column')} of "
            f"one channel, cut into register tiles of at most {count(g.tile_m, 'vector')} with "
            f"pixels of {pair}",
            "loads": "none: rows of x are read in place and shifted in registers",
            "k-blocks": f"1 block of {count(schedule.taps(g), 'tap')}: each channel has its own "
            "sums",
            "work items": f"{count(schedule.tile_count(g), 'tile')} x {count(chunks, 'chunk')} of "
            f"{count(c.chunk, 'channel')}",
        }


def refusal(problem: Problem) -> str:
    """What it needs that `problem` does not have, or an empty string."""
    taps, step = math.prod(problem.kernel), problem.stride[-1]
    rules = (
        (not problem.channels_last or problem.C == 1, "planes whose pixels are contiguous"),
        (problem.kernel[0] == problem.size[0] == problem.output[0] == 1, "images with two axes"),
        (not problem.repeats, "padding of zeros"),
        (taps <= TAPS, f"at most {TAPS} taps, not {taps}"),
        (step in STEPS, f"strides 1 and 2 along W, not {step}"),
    )
    return next((rule for holds, rule in rules if not holds), "")


def geometries(problem: Problem, arch: CpuArch, near: Near | None = None) -> list[Geometry]:
    """Tilings of one channel and image into whole rows."""
    _, p, q = problem.output
    lanes = arch.lanes(problem.itemsize)
    choices = TILE_ROWS if near is None else at_least(TILE_ROWS, near.geometry.tile_p)
    whole = geometry(problem, tile=(1, p, q), tile_m=1, tile_c=1, tile_k=1)
    short = _layout().short_rows(whole, lanes)
    most = MANY_VECTORS if 2 * arch.tile_pixels > 16 else FEW_VECTORS
    found = []
    for rows in sorted({balanced(p, rows) for rows in choices}):
        vectors = int(schedule.ceil_div(rows, 2 if short and short.pair else 1))
        found.append(whole._replace(tile_p=rows, tile_m=balanced(vectors, most)))
    return found


def estimate(problem: Problem, arch: CpuArch, g: Geometry) -> Estimate:
    """Cycles of one core: FMAs of all taps of each vector of sums, which hide most loads."""
    costs = arch.costs
    lanes = arch.lanes(problem.itemsize)
    short = _layout().short_rows(g, lanes)
    planes = costs.planes
    each = planes.strided_tap, planes.strided_vector
    if short or g.stride_w == 1:
        each = (planes.short_tap, planes.short_vector)
        each = each if short else (planes.long_tap, planes.long_vector)
    rows = schedule.ceil_div(g.tile_p, 2 if short and short.pair else 1)
    vectors = rows * schedule.ceil_div(g.tile_q, lanes)
    tap = max(each[0], costs.common.fma_latency / g.tile_m)  # FMAs on few sums wait for one another
    tile = vectors * (schedule.taps(g) * tap + each[1]) + costs.planes.channel
    threads = thread_count(problem, arch)
    chunk = planar_depthwise.channel_chunk(g, threads)
    items = max(1, schedule.tile_count(g) * schedule.ceil_div(g.C, chunk))
    idle = schedule.ceil_div(items, threads) * threads / items
    cycles = schedule.tile_count(g) * g.C * tile * idle + threads * costs.common.item
    return Estimate(cycles, chunk)
