"""Weight gradients of depthwise filters over planes: vector lanes are pixels of one channel.

    dw[c, r, s] = sum over pixels of dy[c, pixel] * x[c, pixel + tap]

x and dy are read in place, where the pixels of a row are contiguous. All taps of a pass have a
vector of sums in registers while the pixels of a plane are read once, and the lanes are added at
the end.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from implicit_conv.cpu.candidates.candidate import Candidate, Words
from implicit_conv.cpu.candidates.gradient_method import GradientMethod, tile_parts
from implicit_conv.cpu.candidates.kernel_method import best
from implicit_conv.cpu.candidates.phrases import count
from implicit_conv.cpu.candidates.problem_views import ungrouped
from implicit_conv.cpu.candidates.query import Refusal, Request, Serves
from implicit_conv.cpu.candidates.tiling import (
    ITEMS_PER_THREAD,
    Estimate,
    balanced,
    thread_count,
)
from implicit_conv.cpu.machine.arch import CpuArch
from implicit_conv.cpu.run.call import Arrays, is_contiguous
from implicit_conv.kernels import schedule
from implicit_conv.kernels.cpu.wgrad.layout import PlanesLayout, PlaneTaps
from implicit_conv.kernels.geometry import Geometry
from implicit_conv.problem.problem import Problem
from implicit_conv.problem.schedule import geometry

if TYPE_CHECKING:
    from implicit_conv.kernels.cpu.operator import Build, Operator

STRIDES = (1, 2)  # strides along W whose columns a shuffle of two vectors gathers
MASKED_BITS = 256  # of vectors on a CPU with masked loads: AVX and AVX-512 have them
CHAIN_VECTORS = 256  # vectors of pixels of a load tile, which are added one by one, at most
LEAST_BYTES = 16  # bytes of a vector at least
CHANNELS = 32  # channels of a work item at most: their sums stay in L1
SPARE_REGISTERS = 7  # registers beside those of sums: dy, and columns of x that are shuffled


@dataclass(frozen=True)
class PlanarWeightGrad(GradientMethod):
    """Vectors of pixels of one channel, for filters of one channel; x and dy are read in place."""

    name: ClassVar[str] = "depthwise over planes"
    algorithms: ClassVar[tuple[str, ...]] = ("depthwise",)
    serves: ClassVar[Serves] = Serves(("float32", "float64"), "standard", (), ())
    order = "lanes of pixels"  # a name for the order of its sums

    @property
    def summary(self) -> str:
        """The method in a few words, for tables."""
        return "vectors of pixels of one channel, x and dy in place"

    @property
    def needs(self) -> str:
        """What it needs of the strides of arrays, in words."""
        return "contiguous pixels of the rows of x and dy"

    @classmethod
    def lack(cls, arch: CpuArch) -> str:
        """Vectors at the sides of rows are masked."""
        missing = arch.vector_bits < MASKED_BITS
        return "it needs masked loads, which neither SSE nor NEON has" * missing

    @classmethod
    def candidates(
        cls, problem: Problem, arch: CpuArch, request: Request
    ) -> Iterator[Candidate | Refusal]:
        """One candidate, if the filters are depthwise."""
        reason = cls.lack(arch) or refusal(problem)
        if reason:
            yield Refusal(cls.name, reason)
            return
        view = ungrouped(problem)
        g = tiling(view, arch)
        yield best(cls(), "depthwise", problem, view, arch, [(estimate(view, arch, g), g)])

    def accepts(self, c: Candidate, arrays: Arrays) -> bool:
        """Vectors of pixels are loaded in place."""
        return all(is_contiguous(array, 3) for array in (arrays.x, arrays.y))

    def repriced(self, c: Candidate, arch: CpuArch) -> Estimate:
        """The estimate of the candidate's tiling on a CPU."""
        return estimate(c.view, arch, c.geometry)

    def layout(self, c: Candidate) -> PlanesLayout:
        """Sizes of scratch memory."""
        rows, columns = pass_taps(c.geometry, c.arch)
        return PlanesLayout(
            c.geometry,
            c.itemsize,
            plane_lanes(c.view, c.arch),
            c.chunk,
            in_place=True,
            parts=part_count(c.geometry),
            pass_rows=rows,
            pass_columns=columns,
        )

    def operator(self, c: Candidate, build: Build) -> Operator:
        """The compiled kernels of a candidate."""
        from implicit_conv.kernels.cpu.wgrad.operator import WeightGradPlanes

        layout = self.layout(c)
        return WeightGradPlanes(layout, layout.lanes, build)

    def describe(self, c: Candidate) -> Words:
        """Load tile, loads, blocks, work items."""
        g, layout = c.geometry, self.layout(c)
        return {
            "load tile": f"{count(g.tile_p, 'output row')} x {count(g.tile_q, 'output column')} of "
            f"1 channel, of which every lane of {layout.lanes} adds its own",
            "loads": "none: pixels of a row are contiguous, and rows outside the image are skipped",
            "k-blocks": f"{count(pass_count(g, c.arch), 'pass')} over at most {layout.pass_rows} x "
            f"{layout.pass_columns} taps",
            "work items": f"{count(layout.parts, 'part')} of {count(layout.part_tiles, 'tile')} x "
            f"{count(layout.items, 'chunk')} of {count(c.chunk, 'channel')}",
        }


def refusal(problem: Problem) -> str:
    """Why the method cannot run, or an empty string."""
    step = problem.stride[-1]
    if not problem.groups == problem.C == problem.K > 0:
        return "it needs one channel and one filter per group"
    if problem.channels_last:
        return "pixels are not contiguous if channels are last"
    if step not in STRIDES:
        return f"it needs a stride of {' or '.join(map(str, STRIDES))} along W, not {step}"
    return "padding repeats pixels of x, which is read in place" if problem.repeats else ""


def plane_lanes(problem: Problem, arch: CpuArch) -> int:
    """Elements of a vector: the narrowest one that has the pixels of an output row, if one has."""
    lanes, least = arch.lanes(problem.itemsize), LEAST_BYTES // problem.itemsize
    while lanes >= 2 * max(least, problem.output[-1]):
        lanes //= 2
    return lanes


def tiling(view: Problem, arch: CpuArch) -> Geometry:
    """The tiling of `view`, which has one group: a load tile is one chain of every lane's sum."""
    _, p, q = view.output
    lanes = plane_lanes(view, arch)
    columns = balanced(q, CHAIN_VECTORS * lanes)
    rows = balanced(p, CHAIN_VECTORS // schedule.ceil_div(columns, lanes)) if columns == q else 1
    return geometry(view, tile=(1, rows, columns), tile_m=1, tile_c=1, tile_k=1)


def part_count(g: Geometry) -> int:
    """Parts of the load tiles, which different work items may sum."""
    return tile_parts(g.K * int(schedule.taps(g)), int(schedule.tile_count(g)))


def pass_taps(g: Geometry, arch: CpuArch) -> tuple[int, int]:
    """Filter rows and columns of a pass over the pixels, at most."""
    registers = 32 if 2 * arch.tile_pixels > 16 else 16
    most = registers - SPARE_REGISTERS
    columns = balanced(g.S, most)
    return balanced(g.R, most // columns), columns


def pass_count(g: Geometry, arch: CpuArch) -> int:
    """Passes over the pixels of a load tile."""
    rows, columns = pass_taps(g, arch)
    return int(g.T * schedule.ceil_div(g.R, rows) * schedule.ceil_div(g.S, columns))


def estimate(view: Problem, arch: CpuArch, g: Geometry) -> Estimate:
    """Cycles of one core: loads, shuffles and FMAs of all vectors, and the sums of lanes.

    They depend on no number of threads: other methods add in another order, and the order of a
    weight gradient is the same for all of them.
    """
    costs = arch.costs
    lanes = plane_lanes(view, arch)
    vectors, taps = schedule.ceil_div(g.tile_q, lanes), schedule.taps(g)
    passes = pass_count(g, arch)
    _, columns = pass_taps(g, arch)
    loads = g.stride_w * schedule.filter_rows(g) * row_loads(g, columns)
    vector = (
        loads * lanes * view.itemsize * costs.weight_grad.byte + passes * costs.weight_grad.vector
    )
    row = vectors * vector + passes * costs.weight_grad.row
    channel = g.tile_p * row + passes * costs.weight_grad.channel
    threads = thread_count(view, arch)
    chunk = max(1, min(CHANNELS, g.K // (ITEMS_PER_THREAD[0] * threads)))
    cycles = g.K * (schedule.tile_count(g) * channel + taps * costs.weight_grad.reduce)
    items = schedule.ceil_div(g.K, CHANNELS) * part_count(g)
    return Estimate(cycles + items * costs.common.item, int(chunk))


def row_loads(g: Geometry, columns: int) -> int:
    """Loads from a row of x for the outputs of a vector, in passes over `columns` filter columns;
    each has as many vectors as the stride.
    """
    cuts = [min(columns, g.S - s) for s in range(0, g.S, columns)]
    return sum(len(PlaneTaps(1, cut, g.stride_w, g.dilation_w).loads) for cut in cuts)
