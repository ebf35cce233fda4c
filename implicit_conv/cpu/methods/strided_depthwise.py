"""Input gradient of a depthwise convolution with a stride: all stride phases in one pass.

    dx[n, h, w, c] = sum over r, s of dy[n, p, q, c] * w[c, r, s], where
        p * stride + r * dilation - pad = h, and so on for w

It is also a transposed convolution. Each output row takes the filter rows that meet it, and each of
its columns the filter columns that meet it, so dy is read in place and dx is written once, in
order. Lanes are pixels of a row, or channels.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from implicit_conv.cpu.candidates.candidate import Candidate, Given, Words
from implicit_conv.cpu.candidates.kernel_method import KernelMethod, best
from implicit_conv.cpu.candidates.phrases import count
from implicit_conv.cpu.candidates.problem_views import spatial, ungrouped
from implicit_conv.cpu.candidates.query import Refusal, Request, Serves
from implicit_conv.cpu.candidates.tiling import (
    ITEMS_PER_THREAD,
    Estimate,
    balanced,
    rounded_up,
    thread_count,
)
from implicit_conv.cpu.machine.arch import CpuArch
from implicit_conv.cpu.machine.costs import FMAS_PER_CYCLE
from implicit_conv.cpu.run.call import Arrays, is_contiguous
from implicit_conv.cpu.run.packed import PackedOrder
from implicit_conv.kernels import schedule
from implicit_conv.kernels.cpu.runtime.program import Step, copied
from implicit_conv.kernels.cpu.strided_depthwise.layout import POSITIONS, StridedDepthwiseLayout
from implicit_conv.kernels.geometry import Geometry
from implicit_conv.problem.problem import Problem
from implicit_conv.problem.schedule import geometry

if TYPE_CHECKING:
    from implicit_conv.kernels.cpu.operator import Build, Operator

# Strides along W whose phases are interleaved in registers, in few shuffles; and the largest one
# if channels are the lanes. Each phase has sums of its own.
PLANAR_STRIDES = (*range(1, 9), 16, 32)
MOST_STRIDE = 32
TILE_BYTES = 64 << 10  # bytes of the sums of a work item that go through the staging tile, about
ROW_ELEMENTS = 2048  # output columns of a load tile of planes, about
BLOCK = 512  # channels of a block, about
MOST_SUMS = 16  # vectors of sums of a register tile, of 32 registers
CHANNELS = 64  # channels of a work item over planes at most


@dataclass(frozen=True)
class StridedDepthwise(KernelMethod):
    """All stride phases in one pass; `planar` if the lanes are pixels."""

    name: ClassVar[str] = "depthwise in one pass"
    algorithms: ClassVar[tuple[str, ...]] = ("depthwise",)
    serves: ClassVar[Serves] = Serves(("float32", "float64"), "standard")
    planar: bool = False
    copies: bool = False  # the array that is read, whose vectors are not contiguous

    @property
    def summary(self) -> str:
        """The method in a few words, for tables."""
        lanes = "pixels of one channel" if self.planar else "channels"
        copied = ", of a copy" if self.copies else ""
        return f"all stride phases in one pass{copied}, vector lanes are {lanes}"

    @property
    def needs(self) -> str:
        """What it needs of the strides of arrays, in words."""
        if self.copies:
            return ""
        return f"contiguous {'pixels' if self.planar else 'channels'} of the array that it reads"

    @classmethod
    def candidates(
        cls, problem: Problem, arch: CpuArch, request: Request
    ) -> Iterator[Candidate | Refusal]:
        """One candidate for the gradient of `problem`."""
        problem = spatial(problem)
        reason = refusal(problem, arch)
        if reason:
            yield Refusal(cls.name, reason)
            return
        view = ungrouped(problem)
        method = cls(planar=not problem.channels_last)
        g = tiling(view, arch, method.planar)
        costs = [(estimate(view, arch, g, method.planar), g)]
        yield best(method, "depthwise", problem, view, arch, costs)

    def fallbacks(self, c: Candidate, limit: float = math.inf) -> Iterator[Candidate]:
        """One that copies what it reads."""
        cycles = c.cycles + math.prod(c.problem.output_shape) * c.arch.costs.common.transpose
        yield replace(c, method=replace(self, copies=True), cycles=cycles)

    def workspace_bytes(self, c: Candidate) -> int:
        """Bytes of scratch memory of all threads, and of the copy."""
        copied = math.prod(c.problem.output_shape) * c.problem.itemsize if self.copies else 0
        return super().workspace_bytes(c) + copied

    def repriced(self, c: Candidate, arch: CpuArch) -> Estimate:
        """The estimate of the candidate's tiling on a CPU."""
        return estimate(c.view, arch, c.geometry, self.planar)

    def layout(self, c: Candidate) -> StridedDepthwiseLayout:
        """Sizes of scratch memory and packed filters."""
        return StridedDepthwiseLayout(
            c.geometry, c.itemsize, c.lanes, c.chunk, in_place=True, planar=self.planar
        )

    def operator(self, c: Candidate, build: Build) -> Operator:
        """The compiled kernels of a candidate."""
        from implicit_conv.kernels.cpu.strided_depthwise.operator import (
            StridedDepthwise as StridedDepthwiseOperator,
        )

        layout = self.layout(c)
        return StridedDepthwiseOperator(layout, c.lanes, build)

    def packed(self, c: Candidate) -> PackedOrder:
        """The taps of one channel after another, or blocks of channels tap by tap."""
        g, problem = c.geometry, c.problem
        key = ("strided depthwise", problem.K, problem.kernel, problem.dtype, self.planar, g.tile_k)
        return PackedOrder((*key, c.arch.vector_bits), c.layout.packed_bytes)

    def accepts(self, c: Candidate, arrays: Arrays) -> bool:
        """Vectors are loaded from the array that is read, in place."""
        return self.copies or is_contiguous(arrays.x, 3 if self.planar else -1)

    def steps(self, c: Candidate, given: Given) -> list[Step]:
        """See `KernelMethod`; the copy has the order of the vectors."""
        found = list[Step]()
        if self.copies:
            axes = (0, 4, 1, 2, 3) if self.planar else (0, 1, 2, 3, 4)
            copy = copied(given.arrays.x.transpose(axes), given.room, found)
            x = copy.transpose(sorted(range(5), key=axes.__getitem__))
            given = given._replace(arrays=given.arrays._replace(x=x))
        return found + super().steps(c, given)

    def describe(self, c: Candidate) -> Words:
        """Load tile, loads, k-blocks, work items."""
        g = c.geometry
        panel = "1 channel" if self.planar else f"{g.tile_k} channels"
        chunks = int(schedule.ceil_div(schedule.panel_count(g), c.chunk))
        return {
            "load tile": f"{count(g.tile_p, 'output row')} x {count(g.tile_q, 'output column')} of "
            f"{panel}, cut into register tiles of {g.tile_m * g.stride_w} columns, which have all "
            "phases of the stride",
            "loads": "none: the array is read in place, and taps of pixels outside it are skipped",
            "k-blocks": f"1 block of {count(schedule.taps(g), 'tap')}, of which a pixel has those "
            "of its phase",
            "work items": f"{count(schedule.tile_count(g), 'tile')} x {count(chunks, 'chunk')} of "
            f"{c.chunk} x {panel}",
        }


def refusal(problem: Problem, arch: CpuArch) -> str:
    """Why the gradient of `problem` does not take one pass, or an empty string."""
    lanes, step = arch.lanes(problem.itemsize), problem.stride[-1]
    strides = range(1, MOST_STRIDE + 1) if problem.channels_last else PLANAR_STRIDES
    taps = most_taps(problem)
    rules = (
        (problem.groups == problem.C == problem.K, "one channel and one filter per group"),
        (min(problem.size) > 0, "a result with pixels"),
        (max(problem.stride) > 1, "a stride above 1: without one there is a single phase"),
        (step in strides, f"a stride of {', '.join(map(str, strides))} along W, not {step}"),
        (taps <= schedule.CHAIN, f"at most {schedule.CHAIN} taps of a phase, not {taps}"),
        (
            not problem.channels_last or problem.C >= lanes,
            f"channels that fill a vector of {lanes} lanes, not {problem.C}",
        ),
    )
    return next((f"it needs {rule}" for holds, rule in rules if not holds), "")


def most_taps(problem: Problem) -> int:
    """The largest number of taps that a pixel of the gradient of `problem` meets."""
    axes = zip(problem.kernel, problem.stride, problem.dilation, strict=True)
    return math.prod(
        int(schedule.ceil_div(taps, stride // math.gcd(stride, dilation)))
        for taps, stride, dilation in axes
    )


def tiling(problem: Problem, arch: CpuArch, planar: bool) -> Geometry:
    """The tiling of the gradient of `problem`: its input is dy, and its output dx."""
    g = geometry(problem, tile=(1, 1, 1), tile_m=1, tile_c=1, tile_k=1)
    lanes, positions = arch.lanes(problem.itemsize), int(schedule.ceil_div(g.W, g.stride_w))
    most = max(1, min(POSITIONS, register_sums(arch) // g.stride_w))
    if planar:
        block = 1
        tile_m = lanes * balanced(int(schedule.ceil_div(positions, lanes)), most)
    else:
        block, tile_m = rounded_up(balanced(g.C, BLOCK), lanes), balanced(positions, most)
        if 0 < g.C % block < lanes:  # every block fills a vector: else it would read beyond dy
            block = rounded_up(g.C, lanes)
    step = tile_m * g.stride_w
    row_limit = ROW_ELEMENTS if planar else TILE_BYTES // (block * problem.itemsize)
    columns = min(g.W, max(1, row_limit // step) * step)
    rows = balanced(g.H, TILE_BYTES // (columns * block * problem.itemsize))
    return g._replace(
        **{"D": g.Z, "H": g.P, "W": g.Q, "Z": g.D, "P": g.H, "Q": g.W},
        **{"tile_p": rows, "tile_q": columns, "tile_m": tile_m, "tile_c": block, "tile_k": block},
    )


def register_sums(arch: CpuArch) -> int:
    """Vectors of sums of a register tile, next to which there are registers for weights."""
    return MOST_SUMS if 2 * arch.tile_pixels > 16 else arch.tile_pixels


def estimate(problem: Problem, arch: CpuArch, g: Geometry, planar: bool) -> Estimate:
    """Cycles of one core: an FMA per vector and tap, and fixed cycles per register tile."""
    costs = arch.costs
    lanes = arch.lanes(problem.itemsize)
    tiles = schedule.ceil_div(g.tile_q, g.stride_w * g.tile_m) * g.tile_p
    phases = g.stride_d * g.stride_h * g.stride_w
    vectors = tiles * schedule.ceil_div(g.tile_k, lanes)
    sums = g.stride_w * (schedule.ceil_div(g.tile_m, lanes) if planar else g.tile_m)
    fmas = sums * max(1.0, schedule.taps(g) / phases) / FMAS_PER_CYCLE
    panel = vectors * (fmas + costs.planes.one_pass_tile)
    threads = thread_count(problem, arch)
    chunk = 1
    if planar:
        items = max(1, ITEMS_PER_THREAD[0] * threads // max(1, schedule.tile_count(g)))
        chunk = max(1, min(CHANNELS, int(schedule.ceil_div(g.C, items))))
    cycles = schedule.tile_count(g) * schedule.panel_count(g) * panel + threads * costs.common.item
    return Estimate(cycles, chunk)
