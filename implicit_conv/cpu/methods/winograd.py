"""Winograd F(m x m, R x S): fewer multiplications, paid for by transforms of x, w and y.

    Y = A^T [ sum over t and c of (G g G^T) * (B^T d B) ] A

d is a window of x and g a filter, both of one plane and channel; * multiplies element by element.
Over all planes and channels these products are GEMMs, one for each element of the transform, and
use the microkernels of implicit GEMM. A tile has m x m outputs, but one
along an axis of filters with a single tap. Source: Lavin and Gray, "Fast Algorithms for
Convolutional Neural Networks", 2015.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from implicit_conv.cpu.candidates.candidate import Candidate, Words
from implicit_conv.cpu.candidates.kernel_method import KernelMethod, ranked
from implicit_conv.cpu.candidates.phrases import (
    blocks_of,
    count,
    geometry_items,
    loads_of,
    plane_word,
)
from implicit_conv.cpu.candidates.problem_views import widened
from implicit_conv.cpu.candidates.query import FLOATS, Refusal, Request, Serves
from implicit_conv.cpu.candidates.tiling import (
    FAR_BYTES,
    SPARE_PIXELS,
    Estimate,
    Near,
    balanced,
    divide,
    few_pixels,
    met_planes,
    plane_count,
    priced,
    rounded_up,
    store_cycles,
    stream_cycles,
    thread_count,
    tiles,
)
from implicit_conv.cpu.machine.arch import CpuArch
from implicit_conv.cpu.machine.costs import FMAS_PER_CYCLE
from implicit_conv.cpu.run.packed import PackedOrder
from implicit_conv.kernels import schedule
from implicit_conv.kernels.cpu.runtime.layout import ScratchLayout
from implicit_conv.kernels.cpu.winograd.layout import WinogradLayout
from implicit_conv.kernels.geometry import Geometry
from implicit_conv.problem.problem import Problem
from implicit_conv.problem.schedule import Load, geometry, trace

if TYPE_CHECKING:
    from implicit_conv.kernels.cpu.operator import Build, Operator

SCRATCH_BYTES = 4 << 20  # bytes of scratch memory per thread at most; other methods need < 2 MiB
ELEMENTS = 2048  # filter planes x channels at most: a transformed panel of more is not in L2
PLANES = (1, 4)  # output planes of a load tile whose filters have several planes: choices
TILES = (14, 28, 42, 56)  # m x m tiles of a load tile of several images: choices
# Channels and filters of a group at least, by taps of a filter plane and stride; one group may have
# any number. Zen 4, 2026-11, in times of what ran before: 3x3 with 8 took 1.5 to 3, with 16 at
# stride 2 up to 1.7, and fewer taps with 16 to 20 up to 1.3, where estimates promised a gain.
LEAST_CHANNELS = {(9, 1): 16, (9, 2): 24}
LEAST_CHANNELS_OF_FEW_TAPS = 32  # of filters with 2 to 6 taps

SMALL_FILTERS = tuple(itertools.product((1, 2, 3), repeat=2))[1:]  # (R, S) that F2 transforms


@dataclass(frozen=True)
class Winograd(KernelMethod):
    """F(2 x 2, R x S) of filters up to 3x3, and F(2 x 2, 3x3) at stride 2, whose errors are about
    those of a direct sum.
    """

    name: ClassVar[str] = "winograd_f2, winograd_f2_stride2"
    algorithms: ClassVar[tuple[str, ...]] = ("winograd_f2", "winograd_f2_stride2")
    serves: ClassVar[Serves] = FLOATS._replace(precision="standard")
    variants: ClassVar[tuple[tuple[int, int], ...]] = ((2, 1), (2, 2))  # (m, stride)
    m: int = 2
    stride: int = 1
    flushes: bool = False  # whether filters are transformed with subnormals treated as zero

    def spare(self, g: Geometry) -> Geometry:
        """The tiling with register tiles of a few pixels."""
        return few_pixels(g, SPARE_PIXELS)

    @property
    def algorithm(self) -> str:
        """The name that `conv2d` takes."""
        return f"winograd_f{self.m}{'_stride2' if self.stride == 2 else ''}"

    @property
    def filters(self) -> tuple[tuple[int, ...], ...]:
        """The (R, S) of filters that have transforms."""
        return SMALL_FILTERS if (self.m, self.stride) == (2, 1) else ((3, 3),)

    @property
    def block(self) -> int:
        """Outputs along an axis that are transformed together and share errors."""
        return self.m

    @property
    def summary(self) -> str:
        """The method in a few words, for tables."""
        return f"transformed tiles of {self.m}x{self.m} outputs"

    @classmethod
    def candidates(
        cls, problem: Problem, arch: CpuArch, request: Request
    ) -> Iterator[Candidate | Refusal]:
        """One candidate each for F2, with stride 1 and 2."""
        for m, stride in cls.variants:
            method = cls(m, stride, request.flushes)
            others = request.near is not None and request.near.method != method
            if others or not request.admits(algorithm := method.algorithm):
                continue
            reason = method.refusal(problem)
            view = problem if reason else method.view(problem)
            costs = [] if reason else method.tilings(view, arch, request.near)
            if not reason and not costs:
                reason = f"it needs more than {SCRATCH_BYTES >> 20} MiB of scratch memory a thread"
            if reason:
                yield Refusal(algorithm, reason)
                continue
            yield from ranked(method, algorithm, problem, view, arch, costs, request)

    def refusal(self, problem: Problem) -> str:
        """Why it cannot compute `problem`, or an empty string."""
        square = problem.stride[1:] == (self.stride, self.stride)
        if problem.kernel[1:] not in self.filters or not square or problem.dilation[1:] != (1, 1):
            several = len(self.filters) > 1
            taps = "of at most 3x3 taps and more than one" if several else "of 3x3 taps"
            return f"it needs a filter {taps}, stride {self.stride} and dilation 1"
        channels, filters = problem.C // problem.groups, problem.K // problem.groups
        least = self.least_channels(problem.kernel[1:])
        if problem.groups > 1 and min(channels, filters) < least:
            per = f"{least} channels and filters, not {channels} and {filters}"
            return f"it needs one group, or groups of at least {per}, to pay for the transforms"
        if not 1 <= problem.kernel[0] * channels <= ELEMENTS:
            most, planes = ELEMENTS // problem.kernel[0], problem.kernel[0]
            per = f" of filters with {planes} planes" if planes > 1 else ""
            return f"it supports 1 to {most} channels{per}, not {channels}"
        return ""

    def least_channels(self, taps: tuple[int, ...]) -> int:
        """Channels and filters of a group at least, of filters with planes of R x S `taps`."""
        return LEAST_CHANNELS.get((math.prod(taps), self.stride), LEAST_CHANNELS_OF_FEW_TAPS)

    def view(self, problem: Problem) -> Problem:
        """`problem`, padded on the high side so that its output has whole tiles.

        Pixels that a negative padding crops are no pixels of the view: its added outputs would
        read them, and an infinity among them would show in all outputs of a tile.
        """
        view = widened(problem)
        crops = [min(0, pad) for pad in view.pad_hi]
        box = self._box(view)
        added = (0, *[-view.output[1 + i] % box[i] * self.stride for i in range(2)])
        return view.changed(
            size=tuple(map(operator.add, view.size, crops)),
            pad_hi=tuple(map(sum, zip(view.pad_hi, map(operator.neg, crops), added, strict=True))),
        )

    def _box(self, problem: Problem) -> tuple[int, int]:
        """The output rows and columns of a tile."""
        _, r, s = problem.kernel
        return schedule.box_extent(r, self.m), schedule.box_extent(s, self.m)

    def tilings(
        self, view: Problem, arch: CpuArch, near: Near | None = None
    ) -> list[tuple[Estimate, Geometry]]:
        """Tilings of `view` into whole Winograd tiles whose scratch memory is small enough, with
        estimates.
        """
        box = self._box(view)
        lanes = arch.lanes(view.itemsize)
        _, p, q = view.output
        found, depth = set(), plane_count(view)
        for planes, *extent in tiles(view, near):
            rows, columns = map(rounded_up, extent, box)
            if view.kernel[0] > 1:
                # Several planes, so that fewer are loaded and transformed more than once.
                most = PLANES if near is None else [near.geometry.tile_n]
                found |= {(balanced(depth, limit), rows, columns) for limit in most}
                continue
            found.add((1 if near is None else planes, rows, columns))
            # Several planes, so that more tiles use a panel.
            if (rows, columns) == (p, q) and near is None:
                per_plane = p * q // math.prod(box)
                found |= {(max(1, min(depth, t // per_plane)), p, q) for t in TILES}
        channels = max(1, view.C // view.groups)
        geometries = [
            geometry(view, tile=tile, tile_m=arch.tile_pixels, tile_c=channels, tile_k=2 * lanes)
            for tile in sorted(found)
        ]
        sizes = {g: self._sizes(g, view.itemsize, lanes).scratch(packs=False) for g in geometries}
        fitting = [g for g in geometries if sizes[g].total <= SCRATCH_BYTES]
        return priced(fitting, lambda g: self.estimate(view, arch, g, sizes[g]), view, near)

    def _sizes(
        self, g: Geometry, itemsize: int, lanes: int, chunk: int = 1, p: int = 0, q: int = 0
    ) -> WinogradLayout:
        return WinogradLayout(g, itemsize, lanes, chunk, m=self.m, end=(p, q))

    def estimate(
        self, problem: Problem, arch: CpuArch, g: Geometry, scratch: ScratchLayout
    ) -> Estimate:
        """Cycles of one core: transforms, products, loads, and panels from beyond L2; `scratch` is
        a thread's.
        """
        costs, own = arch.costs, arch.costs.winograd
        lanes, m = arch.lanes(problem.itemsize), self.m
        xis, sizes = schedule.box_products(g, m), self._sizes(g, problem.itemsize, lanes)
        rows, outputs = schedule.box_extent(g.R, m), schedule.box_outputs(g, m)
        in_plane = g.tile_p * g.tile_q // outputs
        boxes, planes = g.tile_n * in_plane, schedule.buffered_planes(g, g.tile_n)
        tile_count = schedule.tile_count(g)
        channels, filters = (schedule.ceil_div(size, lanes) for size in (g.C, g.K))
        together = int(schedule.planes_together(g, g.tile_n))
        heights = schedule.ceil_div(together * in_plane, g.tile_m)
        pixels, elements = together * in_plane / heights, g.C * g.T * met_planes(g)
        pairs, single = divmod(filters, 2)  # of vectors of filters
        multiply = pairs * element_cycles(arch, pixels, 2) + single * element_cycles(
            arch, pixels, 1
        )
        panels = schedule.panel_count(g)
        multiply = multiply * elements + own.sums * filters / 2
        multiply += (g.T - 1) * own.plane * panels
        multiply *= g.tile_n / together * heights * xis
        panel_bytes, scratch_bytes = sizes.group_bytes, scratch.total
        near = panel_bytes + scratch_bytes <= arch.l2_bytes
        # A single tile reads each panel when it is packed; without filters there is none.
        parts = max(1, panels) if tile_count == 1 else 1
        far = 0.0 if near else parts * stream_cycles(arch, panel_bytes / parts)
        vector = {2: own.transform2, 4: own.transform4, 6: own.transform6}[m] * (
            own.line if 1 in (g.R, g.S) else 1
        )
        if scratch_bytes > arch.l2_bytes:  # every panel reads the transformed input again
            far += scratch.boxes * panels / costs.common.far_bytes
            vector *= own.far_transform
        each = in_plane * own.tile + g.tile_p / rows * own.tile_row  # of a plane
        transform_in = planes * (in_plane * xis * channels * vector + each)
        transform_out = boxes * xis * filters * vector + g.tile_n * each * panels
        if not problem.channels_last:
            transform_out += boxes * outputs * g.K * own.staged
        cost = costs.common.copy if problem.channels_last else costs.common.transpose
        load = scratch.buffer / problem.itemsize * cost
        if not problem.channels_last and g.tile_q < g.Q:
            load += planes * (g.tile_p * g.stride_h + g.R - g.stride_h) * g.C * own.segment
            transform_out += g.tile_n * g.tile_p * g.K * own.segment
        stream = (
            max(multiply, far)
            + costs.common.far_share * far
            + transform_out
            + store_cycles(problem, arch, g)
        )
        threads = thread_count(problem, arch)
        again = load + transform_in + costs.common.item
        cycles, chunk = divide(arch, g, threads, problem.itemsize, stream, again)
        weights = g.groups * g.T * g.C * g.K  # of one tap
        pack = (g.R * g.S * costs.common.pack_filter + xis * own.filter) * weights
        if tile_count > 1 and g.groups * panel_bytes > FAR_BYTES:
            # The whole packed filter is written and read again.
            pack += stream_cycles(arch, g.groups * panel_bytes)
        return Estimate(cycles + pack, chunk, pack)

    def repriced(self, c: Candidate, arch: CpuArch) -> Estimate:
        """The estimate of the candidate's tiling on a CPU."""
        return self.estimate(c.view, arch, c.geometry, c.layout.scratch(packs=False))

    def layout(self, c: Candidate) -> WinogradLayout:
        """Sizes of scratch memory and transformed filters."""
        _, *end = c.problem.output
        return self._sizes(c.geometry, c.itemsize, c.lanes, c.chunk, *end)

    def operator(self, c: Candidate, build: Build) -> Operator:
        """The compiled kernels of a candidate."""
        from implicit_conv.kernels.cpu.winograd.operator import Winograd as WinogradOperator

        return WinogradOperator(self.layout(c), c.lanes, build)

    def packed(self, c: Candidate) -> PackedOrder:
        """Transformed panels."""
        g, problem = c.geometry, c.problem
        key = (
            "Winograd panels",
            self.m,
            self.stride,
            self.flushes,
            problem.K,
            problem.C,
            problem.groups,
            problem.kernel,
            problem.dtype,
            c.arch.vector_bits,
            g.tile_k,
        )
        return PackedOrder(key, c.layout.packed_bytes)

    def loads(self, c: Candidate) -> list[Load]:
        """The loads that pack the panels, then the loads of x."""
        return trace(c.geometry, c.itemsize, False, c.chunk)

    def describe(self, c: Candidate) -> Words:
        """Load tile, loads, k-blocks, work items."""
        g, m = c.geometry, self.m
        rows, columns = self._box(c.view)
        return {
            "load tile": f"{count(g.tile_n, plane_word(g))} x {count(g.tile_p, 'output row')} x "
            f"{count(g.tile_q, 'output column')}, in Winograd tiles of {rows}x{columns} outputs; a "
            f"register tile has at most {g.tile_m} of these x {g.tile_k} filters "
            f"({count(g.tile_k // c.lanes, 'vector')})",
            "loads": loads_of(g),
            "k-blocks": blocks_of(g, f" for each of {schedule.box_products(g, m)} products"),
            "work items": geometry_items(g, c.chunk),
        }


def element_cycles(arch: CpuArch, pixels: float, vectors: int) -> float:
    """Cycles to add one element to the sums of a register tile of so many vectors of filters."""
    costs = arch.costs
    fmas = max(vectors * pixels / FMAS_PER_CYCLE, costs.common.fma_latency)
    return float(max(fmas, (pixels + vectors) / costs.common.loads_per_cycle))


@dataclass(frozen=True)
class LargeWinograd(Winograd):
    """F(4 x 4, 3x3) and F(6 x 6, 3x3), whose errors are larger."""

    name: ClassVar[str] = "winograd_f4, winograd_f6"
    algorithms: ClassVar[tuple[str, ...]] = ("winograd_f4", "winograd_f6")
    serves: ClassVar[Serves] = FLOATS._replace(precision="fast")
    variants: ClassVar[tuple[tuple[int, int], ...]] = ((4, 1), (6, 1))
    m: int = 4
