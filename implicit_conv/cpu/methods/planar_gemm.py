"""fprop over planes: vector lanes are pixels of an output row, filters are read in place.

    gemm_m  filters of a panel       A  filters in KCRS, broadcast element by element
    gemm_n  pixels of a load tile    B  rows of all channels' planes, shifted views of them
    gemm_k  channels x taps          C  y

A plane is one channel of one image. Filters need not be packed, and vectors are full even with few
filters. With a 1x1 filter all pixels of a tile form one flat row, which is read in place in NCHW.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from implicit_conv.arrays.arrays import Array
from implicit_conv.cpu.candidates.candidate import Candidate, Words
from implicit_conv.cpu.candidates.kernel_method import KernelMethod, ranked
from implicit_conv.cpu.candidates.phrases import blocks_of, count, geometry_items, loads_of
from implicit_conv.cpu.candidates.problem_views import ROW_NEED, STEPS, flattened, is_pointwise
from implicit_conv.cpu.candidates.query import Refusal, Request, Serves
from implicit_conv.cpu.candidates.tiling import (
    FAR_BYTES,
    Estimate,
    Near,
    at_least,
    balanced,
    divide,
    priced,
    stream_cycles,
    thread_count,
)
from implicit_conv.cpu.machine.arch import CpuArch
from implicit_conv.cpu.machine.costs import FMAS_PER_CYCLE
from implicit_conv.cpu.run.call import Arrays, as_row, is_row
from implicit_conv.cpu.run.packed import reads_filters_in_place
from implicit_conv.kernels import schedule
from implicit_conv.kernels.cpu.planar_gemm.layout import (
    PlanarGemmLayout,
    is_far,
    tail_filters,
    tail_pixels,
)
from implicit_conv.kernels.geometry import Geometry
from implicit_conv.problem.problem import Problem
from implicit_conv.problem.schedule import geometry

if TYPE_CHECKING:
    from implicit_conv.kernels.cpu.operator import Build, Operands, Operator

ROW_TILES = (1, 2, 4, 8, 16, 32)  # register tiles of a load tile's rows or vectors: choices
KEPT_TILES = 2  # register tiles of a load tile whose pixels are kept
TILE_COLUMNS = (112, 48)  # output columns of a load tile, if whole rows are too long
PLANES_SHARE = 0.6  # share of L2 that a load tile's planes may fill: every panel reads them
PAGE_BYTES, NEAR_PAGES = 4096, 64  # of memory, and those that a core finds at once
LARGEST_COPY = 1 << 19  # bytes of a filter whose copy leaves a call to compiled code
FEW_FILTERS = 8  # filters of a register tile that leave registers for 3 vectors of pixels


@dataclass(frozen=True)
class PlanarGemm(KernelMethod):
    """Rows of planes, or one flat row, which may be read in place."""

    name: ClassVar[str] = "planar GEMM"
    algorithms: ClassVar[tuple[str, ...]] = ("implicit_gemm", "pointwise")
    copies_filters: ClassVar[bool] = True
    serves: ClassVar[Serves] = Serves(("float32", "float64"), "standard")
    in_place: bool = False
    flat: bool = False
    one_row: bool = False  # whether x and y are seen as one row of pixels
    keeps: bool = False  # in place for the first panel of filters, which copies it for the others

    @property
    def summary(self) -> str:
        """The method in a few words, for tables."""
        rows = "pixels of an image as one row" if self.flat else "pixels of an image row"
        how = "in place" if self.in_place else "copied"
        return f"vector lanes are {rows}, x {'copied by the first filters' if self.keeps else how}"

    @property
    def needs(self) -> str:
        """What it needs of the strides of arrays, in words; empty if it accepts all strides."""
        images = "contiguous images of x" if self.in_place else ""
        return " and ".join(filter(None, (images, ROW_NEED if self.one_row else "")))

    @classmethod
    def candidates(
        cls, problem: Problem, arch: CpuArch, request: Request
    ) -> Iterator[Candidate | Refusal]:
        """One candidate: in place if planes are rows, else copied; in place there are two on CPUs
        where the pages of planes cost time.
        """
        algorithm = request.gemm_algorithm(problem)
        if algorithm is None:
            return
        reason = refusal(problem, algorithm)
        one_row = is_pointwise(problem) and not problem.channels_last
        view = flattened(problem) if one_row else problem
        flat, near = set(view.kernel) == {1}, request.near
        ways = (False, True) if one_row and arch.costs.planar_gemm.page else (False,)
        for keeps in ways if near is None else {near.method.keeps}.intersection(ways):
            method = cls(in_place=one_row, one_row=one_row, flat=flat, keeps=keeps)
            costs = [] if reason else tilings(method, view, arch, near)
            if costs:
                yield from ranked(method, algorithm, problem, view, arch, costs, request)
            elif not keeps:
                all_of = f"a load tile of all {problem.C // problem.groups} channels"
                yield Refusal(cls.name, reason or f"{all_of} does not fit in L2")

    def repriced(self, c: Candidate, arch: CpuArch) -> Estimate:
        """The estimate of the candidate's tiling on a CPU."""
        return estimate(self, c.view, arch, c.geometry, c.layout.scratch(False).buffer)

    def layout(self, c: Candidate) -> PlanarGemmLayout:
        """Sizes of scratch memory and filters."""
        return _sizes(self, c.problem, c.geometry, c.lanes, c.chunk)

    def operator(self, c: Candidate, build: Build) -> Operator:
        """The compiled kernels of a candidate."""
        from implicit_conv.kernels.cpu.planar_gemm import operator

        compiled = operator.FlatPlanarGemm if self.flat else operator.PlanarGemm
        return compiled(self.layout(c), c.lanes, build)

    def filter_bytes(self, c: Candidate, w: Array | None = None) -> int:
        """Bytes of the copy of a filter in another order than KCRS."""
        in_place = reads_filters_in_place(c.problem) if w is None else w[:1].flags.c_contiguous
        return 0 if in_place else self.packed(c).bytes

    def accepts(self, c: Candidate, arrays: Arrays) -> bool:
        """Reading in place needs contiguous images of x, and one row pixels that form one."""
        given = (arrays.x, arrays.y, arrays.residual)
        rows = not self.one_row or all(is_row(c.problem, a) for a in given if a is not None)
        images = arrays.x[:1].transpose(0, 4, 1, 2, 3)
        return rows and (not self.in_place or bool(images.flags.c_contiguous))

    def arguments(self, c: Candidate, operands: Operands) -> Iterator[Operands]:
        """Planes as rows if pixels are one row; filters are copied to KCRS order if needed."""
        x, _, y, residual = operands
        if self.one_row:
            x, y = as_row(c.problem, x), as_row(c.problem, y)
            residual = None if residual is None else as_row(c.problem, residual)
        yield operands._replace(x=x, y=y, residual=residual)

    def describe(self, c: Candidate) -> Words:
        """Load tile, loads, k-blocks, work items."""
        g = c.geometry
        rows = schedule.pixel_rows(g)
        columns = count(g.tile_q, "output column")
        pixels = f"{count(g.tile_p, 'output row')} x {columns} of one image"
        tile, rest = "rows", ""
        if self.flat:
            pixels, tile = (
                f"{count(g.tile_p * g.tile_q, 'pixel')} of an image as one row",
                "vectors",
            )
            tail = g.tile_p * g.tile_q % c.lanes
            if 0 < tail <= tail_pixels(c.lanes):
                rest = f", the last {tail} by dot products"
        plain = reads_filters_in_place(c.problem)
        how = "read in place" if plain else "copied to KCRS first, unless they come packed"
        in_place = "none: the pixels of a channel are contiguous; x is read in place"
        taps = f" x {count(schedule.taps(g), 'tap')}"
        return {
            "load tile": f"{pixels}, cut into register tiles of at most {g.tile_k} filters x "
            f"{rows} {tile} x {c.lanes} pixels{rest}; filters are {how}",
            "loads": in_place if self.in_place else loads_of(g),
            "k-blocks": blocks_of(g, taps),
            "work items": geometry_items(g, c.chunk),
        }


def refusal(problem: Problem, algorithm: str) -> str:
    """Why vector lanes cannot be pixels, or an empty string."""
    if problem.stride[-1] not in STEPS:
        return f"it supports strides 1 and 2 along W, not {problem.stride[-1]}"
    if min(problem.C, problem.K) < 1:
        return "it needs at least one channel and one filter"
    if algorithm == "pointwise" and set(problem.output) == {1}:
        return "a single output pixel fills no vector"
    return ""


def tilings(
    method: PlanarGemm, problem: Problem, arch: CpuArch, near: Near | None = None
) -> list[tuple[Estimate, Geometry]]:
    """Tilings with their estimates."""
    found = geometries(method, problem, arch, near)
    return priced(found, lambda g: estimate(method, problem, arch, g, found[g]), problem, near)


def geometries(
    method: PlanarGemm, problem: Problem, arch: CpuArch, near: Near | None = None
) -> dict[Geometry, int]:
    """Tilings of single images whose input fits in L2 with all channels, with the bytes of their
    row buffers; of planes in place these are not counted.
    """
    _, p, q = problem.output
    lanes = arch.lanes(problem.itemsize)

    def tiling(rows: int, columns: int, filters: int) -> Geometry:
        return geometry(
            problem,
            tile=(1, rows, columns),
            tile_m=arch.tile_pixels,
            tile_c=problem.C // problem.groups,
            tile_k=filters,
        )

    found = set()
    # A pixel that is read from beyond L2 should serve more filters.
    whole = tiling(p, q, 1)
    far = method.in_place and is_far(whole, problem.itemsize)
    sizes = (arch.tile_pixels,) if far else (arch.tile_pixels, FEW_FILTERS)
    if method.keeps:
        sizes = (min(FEW_FILTERS, arch.tile_pixels),)
    panels = {balanced(problem.K // problem.groups, most) for most in sizes}
    if near is not None:
        panels = panels & {near.geometry.tile_k} or panels
    for filters in panels:
        rows = schedule.pixel_rows(whole._replace(tile_k=filters))
        steps: Sequence[int] = sorted({1, 2, *[rows * tiles for tiles in ROW_TILES]})
        if method.one_row:  # its tiles have whole vectors except the last
            vectors = int(schedule.ceil_div(q, lanes))
            steps = sorted({*steps, 3 * rows})
            if near is not None:
                steps = at_least(steps, int(schedule.ceil_div(near.geometry.tile_q, lanes)))
            extents = {(1, balanced(vectors, step) * lanes) for step in steps}
            if method.keeps:  # whole register tiles
                extents = {(1, min(vectors, KEPT_TILES * rows) * lanes)}
        else:
            columns = (q,) if schedule.is_single_tap(whole) else (q, *TILE_COLUMNS)
            if near is not None:
                steps = at_least(steps, near.geometry.tile_p)
                if near.geometry.tile_q < near.geometry.Q:
                    columns = at_least(TILE_COLUMNS[::-1], near.geometry.tile_q)
                else:
                    columns = (q,)
            rows_of_tiles = {balanced(p, step) for step in steps}
            columns_of_tiles = {balanced(q, most) for most in columns}
            extents = set(itertools.product(rows_of_tiles, columns_of_tiles))
        found |= {tiling(*extent, filters) for extent in extents}
    limit = arch.l2_bytes * PLANES_SHARE
    if method.keeps or not method.in_place:
        return {
            g: scratch.buffer
            for g in sorted(found)
            if (scratch := _sizes(method, problem, g, lanes).scratch(False)).total <= limit
        }
    pixels = max(lanes, limit // (problem.itemsize * problem.C // problem.groups))
    return dict.fromkeys([g for g in sorted(found) if g.tile_q <= pixels], 0)


def _sizes(
    method: PlanarGemm, problem: Problem, g: Geometry, lanes: int, chunk: int = 1
) -> PlanarGemmLayout:
    own = method.in_place, problem.channels_last, method.keeps
    return PlanarGemmLayout(g, problem.itemsize, lanes, chunk, *own)


def estimate(
    method: PlanarGemm, problem: Problem, arch: CpuArch, g: Geometry, buffer: int
) -> Estimate:
    """Cycles of one core: sums, loads into a `buffer` of so many bytes unless x is read in place,
    filters from beyond L2.
    """
    costs = arch.costs
    lanes = arch.lanes(problem.itemsize)
    panels, in_place = schedule.panel_count(g), method.in_place
    taps, pages = schedule.taps(g), page_cycles(problem, arch) if in_place else 0.0
    single = taps == 1
    own = costs.planar_gemm
    vector = own.aligned if single and not in_place else own.unaligned
    multiply = panels * _sum_cycles(arch, g, lanes, vector, pages)
    if method.keeps:
        first = _sum_cycles(arch, g, lanes, own.unaligned + own.keep, pages)
        multiply = first + (panels - 1) * _sum_cycles(arch, g, lanes, own.kept, 0.0)
    y_bytes = problem.N * math.prod(problem.output) * problem.K * problem.itemsize
    stays = method.keeps and y_bytes <= arch.l2_bytes  # so that parts of rows cost nothing
    if g.tile_q < g.Q and not (problem.channels_last or stays):
        multiply += g.tile_p * g.K * own.segment
    load = 0.0 if in_place else _load_cycles(problem, arch, g, lanes, buffer)
    tail = g.tile_p * g.tile_q % lanes
    if single and tail <= tail_pixels(lanes):  # which dot products compute
        load += tail * g.C * costs.planar_gemm.gather
    if problem.channels_last:
        vectors = g.tile_p * schedule.ceil_div(g.tile_q, lanes)
        blocks = panels * schedule.ceil_div(min(g.tile_k, g.K), lanes)
        if single:
            vectors = schedule.ceil_div(g.tile_p * g.tile_q, lanes)
            blocks = schedule.ceil_div(g.K, lanes)
            multiply += g.tile_p * g.tile_q * g.K * costs.planar_gemm.staged
            load += g.tile_p * g.tile_q * g.C * costs.planar_gemm.staged
        multiply += vectors * blocks * lanes**2 * costs.common.transpose
    elif y_bytes > FAR_BYTES:
        multiply += g.tile_p * g.tile_q * g.K * problem.itemsize * own.far_store
    filter_bytes = g.K * g.C * taps * problem.itemsize
    planes = g.C * g.tile_q * problem.itemsize if in_place else buffer
    if filter_bytes + planes > arch.l2_bytes:
        far = stream_cycles(arch, filter_bytes)
        multiply = max(multiply, far) + costs.common.far_share * min(multiply, far)
    threads = thread_count(problem, arch)
    cycles, chunk = divide(arch, g, threads, problem.itemsize, multiply, load + costs.common.item)
    copy = 0 if reads_filters_in_place(problem) else g.groups * g.K * g.C * taps
    large = copy * problem.itemsize > LARGEST_COPY
    packing = threads * copy * (own.large_filter if large else own.filter)
    return Estimate(cycles + packing, chunk, packing)


def page_cycles(problem: Problem, arch: CpuArch) -> float:
    """Cycles by which reading an element of x in place is slower, because that of each channel is
    on another page, and these are too many for the first level of address translation.
    """
    plane = math.prod(problem.size) * problem.itemsize
    pages = problem.C // problem.groups * min(1.0, plane / PAGE_BYTES)
    return min(1.0, plane / PAGE_BYTES) * arch.costs.planar_gemm.page * (pages > NEAR_PAGES)


def _sum_cycles(arch: CpuArch, g: Geometry, lanes: int, vector: float, pages: float) -> float:
    """Cycles of a load tile and panel: an FMA per element, filter and vector of pixels, which takes
    the time of `vector` loads, and `pages` per element and register tile.
    """
    costs = arch.costs
    filters, rows = min(g.tile_k, g.K), schedule.pixel_rows(g)
    elements = g.C * schedule.taps(g)
    kept = arch.kept_lines(elements * arch.vector_bits // (8 * lanes))

    def sums(vectors: int) -> float:
        """Cycles of `vectors` vectors, in register tiles of at most `rows`."""
        if vectors > rows:
            return vectors // rows * sums(rows) + sums(vectors % rows)
        loads = filters + vectors * vector
        element = max(
            vectors * filters / FMAS_PER_CYCLE,
            loads / costs.common.loads_per_cycle,
            costs.common.fma_latency,
        )
        element += max(0, filters - kept) * costs.common.displaced + pages
        cycles = elements * element + costs.planar_gemm.sums * vectors * filters
        return cycles if vectors else 0.0

    def flat_row(pixels: int) -> float:
        """Cycles of a tile of `pixels`: vectors, then the rest as a vector or dot products."""
        vectors, tail = divmod(pixels, lanes)
        if tail > tail_pixels(lanes):
            return sums(vectors) + sums(1)
        few = tail_filters(g, lanes)
        element = max((few + 1) * costs.common.unaligned_load, costs.common.fma_latency)
        dots = schedule.ceil_div(g.C, lanes) * element + costs.planar_gemm.dot
        return sums(vectors) + tail * schedule.ceil_div(filters, few) * dots

    if elements > g.C:
        calls = costs.planar_gemm.call * schedule.ceil_div(g.tile_p, rows)
        return float(schedule.ceil_div(g.tile_q, lanes) * (sums(g.tile_p) + calls))
    whole, rest = divmod(g.P * g.Q, g.tile_p * g.tile_q)
    total = whole * flat_row(g.tile_p * g.tile_q) + flat_row(rest)
    return float(total / (whole + (rest > 0)))


def _load_cycles(problem: Problem, arch: CpuArch, g: Geometry, lanes: int, buffer: int) -> float:
    """Cycles to load a tile: fixed cycles per row, and cycles per element."""
    costs = arch.costs
    elements = buffer / problem.itemsize
    rows = schedule.image_rows(g) * g.phases_w
    if problem.channels_last:
        filled = schedule.ceil_div(g.C, lanes) * lanes / g.C
        return rows * costs.planar_gemm.pixel_row + elements * filled * costs.common.transpose
    return g.C * rows * costs.common.plane_row + elements * costs.common.copy
