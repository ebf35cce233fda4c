"""Depthwise convolution: one channel and one filter per group; vector lanes are channels.

    y[n, p, q, c] = sum over r, s of x[n, p*stride + r*dilation - pad, ..., c] * w[c, r, s]

Each lane sums its own channel. x is read in place if its channels are contiguous; otherwise load
tiles are copied to channels-last buffers. `small_groups` is for groups of a few channels, and
`planar_depthwise` computes one channel at a time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from implicit_conv.cpu.candidates.candidate import Candidate, Words
from implicit_conv.cpu.candidates.kernel_method import KernelMethod, best, ranked
from implicit_conv.cpu.candidates.phrases import count, loads_of, plane_word
from implicit_conv.cpu.candidates.problem_views import ungrouped, widened
from implicit_conv.cpu.candidates.query import Refusal, Request
from implicit_conv.cpu.candidates.tiling import (
    BUFFER_SHARE,
    TILE_PIXELS,
    Estimate,
    Near,
    balanced,
    few_pixels,
    priced,
    rounded_up,
    stored_bytes,
    thread_count,
    tiles,
)
from implicit_conv.cpu.machine.arch import CpuArch
from implicit_conv.cpu.machine.costs import FMAS_PER_CYCLE
from implicit_conv.cpu.run.call import Arrays, is_contiguous
from implicit_conv.cpu.run.packed import PackedOrder
from implicit_conv.kernels import schedule
from implicit_conv.kernels.cpu.depthwise.layout import (
    ALIGNED_VECTORS,
    DepthwiseLayout,
    depthwise_row,
)
from implicit_conv.kernels.cpu.runtime.layout import LINE, buffer_bytes
from implicit_conv.kernels.geometry import Geometry
from implicit_conv.problem.problem import Problem
from implicit_conv.problem.schedule import Load, depthwise_trace, geometry

if TYPE_CHECKING:
    from implicit_conv.kernels.cpu.operator import Build, Operator

RULE = "it needs one channel and one filter per group"
PIXELS = 14  # output pixels of a register tile at most
ROWS, ROWS_TAPS = 2, 12  # rows of those that share image rows, and taps of their filters at most
CHANNEL_VECTORS = (1, 2, 4, 8, 16, 64)  # vectors of a block of channels: choices
PIECE_BYTES = 1024  # of a far pixel, from which on a prefetcher expects them

COLUMN_ORDER = "taps of a channel, column by column"  # of sums


@dataclass(frozen=True)
class Depthwise(KernelMethod):
    """Blocks of channels; x is read in place or copied.

    Taps are added row by row where that is faster, or `by_columns`, as over planes.
    """

    name: ClassVar[str] = "depthwise"
    algorithms: ClassVar[tuple[str, ...]] = ("depthwise",)
    in_place: bool = False
    by_columns: bool = False

    @property
    def summary(self) -> str:
        """The method in a few words, for tables."""
        taps = ", taps by columns" if self.by_columns else ""
        return f"vector lanes are channels, x {'in place' if self.in_place else 'copied'}{taps}"

    def spare(self, g: Geometry) -> Geometry:
        """The tiling with register tiles of two pixels and of one, if x is copied."""
        return g if self.in_place else few_pixels(g, 2)

    @property
    def order(self) -> str:
        """Each lane sums the taps of its own channel."""
        return COLUMN_ORDER if self.by_columns else "taps of a channel"

    @property
    def needs(self) -> str:
        """What it needs of the strides of arrays, in words; empty if it accepts all strides."""
        return "contiguous channels of x" if self.in_place else ""

    @classmethod
    def candidates(
        cls, problem: Problem, arch: CpuArch, request: Request
    ) -> Iterator[Candidate | Refusal]:
        """Two candidates: x in place, and x copied; under precision "strict" x copied, in the two
        orders of sums.
        """
        reason = refusal(problem, arch, request)
        if reason:
            yield Refusal("depthwise", reason)
            return
        view = ungrouped(widened(problem))
        variants = [cls()]
        if request.strict:
            yield Refusal(
                "depthwise in place",
                "its order of sums differs at the border, which precision 'strict' does not allow",
            )
            if sums_planes_in_one_pass(view):
                variants.append(cls(by_columns=True))
        elif not reads_in_place(view, arch):
            yield Refusal(
                "depthwise in place",
                "it needs channels that are contiguous in x and fill at least one vector",
            )
        else:
            variants.insert(0, cls(in_place=True))
        for method in variants:
            costs = tilings(view, arch, method.in_place, near=request.near)
            yield from ranked(method, "depthwise", problem, view, arch, costs, request)

    def fallbacks(self, c: Candidate, limit: float = math.inf) -> Iterator[Candidate]:
        """x copied, in blocks of the size that `c` has, so that both read one packed filter."""
        if self.in_place:
            costs = tilings(c.view, c.arch, False, block=c.geometry.tile_c)
            yield best(Depthwise(), c.algorithm, c.problem, c.view, c.arch, costs, limit=limit)

    def repriced(self, c: Candidate, arch: CpuArch) -> Estimate:
        """The estimate of the candidate's tiling on a CPU."""
        return estimate(c.view, arch, c.geometry, self.in_place)

    def layout(self, c: Candidate) -> DepthwiseLayout:
        """Sizes of scratch memory and packed filters."""
        return DepthwiseLayout(
            c.geometry,
            c.itemsize,
            c.lanes,
            c.chunk,
            self.in_place,
            by_columns=self.by_columns,
            rows=rows_together(c.arch, c.geometry) if self.in_place else 1,
        )

    def operator(self, c: Candidate, build: Build) -> Operator:
        """The compiled kernels of a candidate."""
        from implicit_conv.kernels.cpu.depthwise.operator import Depthwise as DepthwiseOperator

        return DepthwiseOperator(self.layout(c), c.lanes, build)

    def packed(self, c: Candidate) -> PackedOrder:
        """Filters of blocks of channels."""
        g, problem = c.geometry, c.problem
        key = (
            "depthwise blocks",
            problem.K,
            problem.kernel,
            problem.dtypes,
            c.arch.vector_bits,
            g.tile_c,
            g.tile_k,
        )
        return PackedOrder(key, c.layout.packed_bytes)

    def accepts(self, c: Candidate, arrays: Arrays) -> bool:
        """Reading in place needs contiguous channels of x."""
        return not self.in_place or is_contiguous(arrays.x, -1)

    def loads(self, c: Candidate) -> list[Load]:
        """The loads of x; filters are gathered channel by channel, not by loads of the schedule."""
        return depthwise_trace(c.geometry, c.itemsize, self.in_place)

    def describe(self, c: Candidate) -> Words:
        """Load tile, loads, k-blocks, work items."""
        return describe_blocks(c, self.in_place, (1, 1))


def describe_blocks(c: Candidate, in_place: bool, group: tuple[int, int]) -> Words:
    """The rows of `explain` for blocks of channels; `group` is (channels, filters) of a group."""
    g = c.geometry
    padding = "read the pixels that it repeats" if g.padding_mode else "are skipped"
    contiguous = f"none: channels of x are contiguous and read in place; taps in padding {padding}"
    return {
        "load tile": f"{count(g.tile_n, plane_word(g))} x {count(g.tile_p, 'output row')} x "
        f"{count(g.tile_q, 'output column')}, cut into register tiles of at most {g.tile_m} "
        f"pixels x {c.lanes} filters (1 vector)",
        "loads": contiguous if in_place else loads_of(g),
        "k-blocks": f"1 block of {count(group[0], 'channel')} x {count(schedule.taps(g), 'tap')} "
        "per filter",
        "work items": f"{count(schedule.tile_count(g), 'tile')} x "
        f"{count(schedule.block_count(g), 'block')} of {g.tile_k} filters",
    }


def refusal(problem: Problem, arch: CpuArch, request: Request) -> str:
    """Why depthwise methods cannot compute `problem`, or an empty string.

    Under precision "strict" the order of sums must not depend on batch size or threads.
    """
    if not problem.groups == problem.C == problem.K:
        return RULE
    return ""


def sums_planes_in_one_pass(problem: Problem) -> bool:
    """Whether taps over planes are added in COLUMN_ORDER; those of more rows are, pass by pass."""
    from implicit_conv.kernels.cpu.planar_depthwise.layout import ROWS_TOGETHER, TAPS_TOGETHER

    planes, rows, columns = problem.kernel
    return planes == 1 and rows <= min(ROWS_TOGETHER, TAPS_TOGETHER // columns)


def reads_in_place(problem: Problem, arch: CpuArch) -> bool:
    """Whether x can be read in place; pixels at the border then skip the taps in padding."""
    return problem.channels_last and problem.C >= arch.lanes(problem.itemsize)


def tilings(
    view: Problem, arch: CpuArch, in_place: bool, block: int = 0, near: Near | None = None
) -> list[tuple[Estimate, Geometry]]:
    """Tilings of `view`, each with its estimate; with `block`, those with blocks of that size, and
    the one most like `near`.
    """
    found = geometries(view, arch, in_place, block, near)
    return priced(found, lambda g: estimate(view, arch, g, in_place), view, near)


def geometries(
    problem: Problem, arch: CpuArch, in_place: bool, block: int = 0, near: Near | None = None
) -> list[Geometry]:
    """Tilings of images, rows, columns and blocks of channels; with `block`, of that size alone."""
    lanes = arch.lanes(problem.itemsize)
    block = block if near is None else near.geometry.tile_c
    blocks = {block} if block else channel_blocks(problem.C, lanes)
    if (
        in_place and not block
    ):  # a vector is filled: else more channels would be read than there are
        whole = rounded_up(problem.C, lanes)
        blocks = {size for size in blocks if not 0 < problem.C % size < lanes} or {whole}
    return block_tilings(problem, arch, {(size, size) for size in blocks}, in_place, near=near)


def channel_blocks(extent: int, lanes: int) -> set[int]:
    """Sizes in whole vectors that divide `extent` channels or filters into about equal blocks."""
    return {rounded_up(balanced(extent, vectors * lanes), lanes) for vectors in CHANNEL_VECTORS}


def register_pixels(arch: CpuArch) -> int:
    """Output pixels of a register tile at most, each of which has one vector of sums.

    The two vectors per pixel of GEMM tell whether there are more than 16 registers. If so, PIXELS
    sums leave room for a filter row's weights.
    """
    return PIXELS if 2 * arch.tile_pixels > 16 else arch.tile_pixels


def rows_together(arch: CpuArch, g: Geometry) -> int:
    """Output rows of a register tile of `g`, which reads x in place: ROWS of them where they share
    image rows, and registers hold the weights of all taps next to the sums.
    """
    fits = ROWS * g.tile_m <= PIXELS == register_pixels(arch) and g.R * g.S <= ROWS_TAPS
    shared = g.dilation_h == 1 and g.stride_h < g.R and g.tile_p >= ROWS
    one_chain = schedule.taps(g) <= schedule.CHAIN
    return ROWS if fits and shared and one_chain and depthwise_row(g, True) else 1


def fitted(problem: Problem, arch: CpuArch, g: Geometry) -> Geometry:
    """`g`, which reads x in place, with register tiles of several output rows if they can share
    image rows; else of few pixels, if L1 cannot keep those that more would read.
    """
    few = g._replace(tile_m=PIXELS // ROWS)
    rows = few._replace(tile_p=min(g.P, rounded_up(g.tile_p, ROWS)))
    if rows_together(arch, rows) > 1:
        return rows
    crowded = depthwise_row(g, True) and crowded_rows(problem, arch, g) > 0
    return few if crowded and register_pixels(arch) == PIXELS else g


def block_tilings(
    problem: Problem,
    arch: CpuArch,
    blocks: set[tuple[int, int]],
    in_place: bool,
    step_w: int | None = None,
    near: Near | None = None,
) -> list[Geometry]:
    """Tilings with blocks of (channels, filters) whose scratch memory fits its share of L2; if
    there are none, those that read little of it from beyond L2, as many taps of a row do.
    """
    lanes = arch.lanes(problem.itemsize)
    pixels = register_pixels(arch)
    extents = {*tiles(problem, near)}
    if in_place and near is None:
        extents.update(narrow_tiles(problem, arch))
        extents.update(deep_tiles(problem))
    found = [
        geometry(
            problem,
            tile=tile,
            tile_m=pixels if in_place else balanced(tile[2], pixels),
            tile_c=channels,
            tile_k=filters,
            step_w=step_w,
        )
        for tile in sorted(extents)
        for channels, filters in sorted(blocks)
    ]
    if in_place:
        found = [*dict.fromkeys(fitted(problem, arch, g) for g in found)]
    if len(found) == 1:
        return found
    sizes = [
        DepthwiseLayout(g, problem.itemsize, lanes, in_place=in_place).scratch(packs=False).total
        for g in found
    ]
    for limit in BUFFER_SHARE * arch.l2_bytes, 2 * arch.l2_bytes:
        fitting = [g for g, size in zip(found, sizes, strict=True) if size <= limit]
        if fitting:
            return fitting
    return [found[sizes.index(min(sizes))]]


def deep_tiles(problem: Problem) -> list[tuple[int, int, int]]:
    """The extents of tiles of a few rows of all planes, whose x stays in L2 from plane to plane."""
    z, p, q = problem.output
    return [(z, rows, q) for rows in (ROWS, 2 * ROWS) if 1 < z and rows <= p]


def narrow_tiles(problem: Problem, arch: CpuArch) -> list[tuple[int, int, int]]:
    """The extents of tiles so narrow that L1 keeps the pixels of an output row, although they share
    few sets; see `crowded_rows`.
    """
    _, p, q = problem.output
    t, r, s = problem.kernel
    kept, stride = arch.kept_lines(problem.C * stored_bytes(problem)), problem.stride[-1]
    columns = (kept - t * r * (s - stride)) // (t * r * stride + 1)
    if not 0 < columns < PIXELS:
        return []
    columns = balanced(q, columns)
    return [(1, balanced(p, pixels // columns), columns) for pixels in TILE_PIXELS]


def estimate(problem: Problem, arch: CpuArch, g: Geometry, in_place: bool) -> Estimate:
    """Cycles of one core: an FMA and a load per tap, reads of x and writes of y, and either the
    copy of a tile or the pixels at the border, which are summed singly if taps share no loads.
    """
    costs = arch.costs
    pixel = schedule.taps(g) / costs.common.loads_per_cycle
    rows, again = g.tile_n * g.tile_p, reread_cycles(problem, arch, g, in_place)
    y_bytes = rows * g.tile_q * pixel_bytes(problem, g)
    if not in_place:
        fixed = copy_cycles(problem, arch, g) + schedule.taps(g) * costs.depthwise.tap
        if problem.channels_last:
            fixed += y_bytes / costs.depthwise.streamed_bytes + far_copy_cycles(problem, arch, g)
        return blocks_estimate(problem, arch, g, pixel, fixed + again)
    x_bytes = y_bytes * g.stride_h * g.stride_w * (1 + far_planes(problem, arch, g))
    fixed = rows * costs.depthwise.row + (x_bytes + y_bytes) / costs.depthwise.streamed_bytes
    vectors = rows * g.tile_c / arch.lanes(problem.itemsize)
    if depthwise_row(g, in_place) is None:
        taps = border_columns(g) * g.tile_q / g.Q * costs.depthwise.border_taps * schedule.taps(g)
        fixed += vectors * taps * costs.depthwise.border
        pixel *= costs.depthwise.far_taps
    else:
        loads = g.stride_w + (g.S - 1) / g.tile_m  # of a pixel and image row
        crossing = crossing_share(problem, arch, g)
        pixel += image_rows(arch, g, in_place) * loads * crossing * costs.depthwise.crossing
        if crossing < 1:  # a block has one more vector
            pixel *= 1 + arch.lanes(problem.itemsize) / g.tile_k
        hidden = costs.depthwise.hiding_loads * g.S / loads / FMAS_PER_CYCLE
        wait = max(0.0, (1 + crossing) * costs.depthwise.crowded - hidden)
        fixed += vectors * g.tile_q * loads * wait * crowded_rows(problem, arch, g)
    return blocks_estimate(problem, arch, g, pixel, fixed + again)


def image_rows(arch: CpuArch, g: Geometry, in_place: bool) -> float:
    """Image rows that are loaded for each output row, where output rows may share them."""
    rows = rows_together(arch, g) if in_place else 1
    together, single = divmod(g.tile_p, rows)
    return g.T * (together * ((rows - 1) * g.stride_h + g.R) + single * g.R) / g.tile_p


def crossing_share(problem: Problem, arch: CpuArch, g: Geometry) -> float:
    """The share of loads of x in place that cross a line: arrays of numpy begin amid a line, but in
    large blocks only the first and the last vector do not begin with one.
    """
    lanes = arch.lanes(problem.itemsize)
    if g.tile_k < ALIGNED_VECTORS * lanes or problem.C % lanes:
        return 1.0
    return 2 * lanes / (g.tile_k + lanes)


def blocks_estimate(
    problem: Problem, arch: CpuArch, g: Geometry, pixel: float, fixed: float
) -> Estimate:
    """Cycles of one core, given `pixel` cycles per vector of sums and `fixed` cycles per tile and
    block of filters.
    """
    costs = arch.costs
    pixels, lanes = g.tile_n * g.tile_p * g.tile_q, arch.lanes(problem.itemsize)
    vectors = g.tile_k / lanes
    calls = pixels / g.tile_q * schedule.ceil_div(g.tile_q, g.tile_m)
    multiply = calls * (costs.depthwise.call + vectors * costs.depthwise.vector)
    multiply += pixels * vectors * pixel
    items = max(1, schedule.tile_count(g) * schedule.block_count(g))
    threads = thread_count(problem, arch)
    idle = schedule.ceil_div(items, threads) * threads / items
    blocks = schedule.ceil_div(g.K, lanes) / vectors  # the last one is cut off
    work = schedule.tile_count(g) * blocks * (multiply + fixed) + items * costs.common.item
    return Estimate(work * idle, 1)


def pixel_bytes(problem: Problem, g: Geometry) -> float:
    """Bytes of the lines that hold the channels of a block of one pixel; neighbouring blocks may
    share lines.
    """
    size = stored_bytes(problem)
    shared = g.tile_c < problem.C and problem.C * size % LINE
    return g.tile_c * size + (LINE - size if shared else 0)


def far_planes(problem: Problem, arch: CpuArch, g: Geometry) -> float:
    """How many times x in place is read again from beyond L2, for further output planes."""
    size = g.H * g.W * problem.C * stored_bytes(problem)
    if g.T * size <= arch.l2_bytes:
        return 0.0
    return max(0, g.T - g.stride_d) / g.tile_n * far_share(problem, arch)


def reread_cycles(problem: Problem, arch: CpuArch, g: Geometry, in_place: bool) -> float:
    """Cycles to read pixels again for the next output row of a tile, if L1 has not kept them."""
    costs = arch.costs
    pixel = pixel_bytes(problem, g)
    rows, columns = int(schedule.filter_rows(g)), min(g.W, g.tile_q * g.stride_w + g.S - 1)
    if (rows * columns + g.tile_q) * pixel <= costs.depthwise.near_share * arch.l1_bytes:
        return 0.0
    again = max(0.0, image_rows(arch, g, in_place) - g.stride_h)
    again *= g.tile_n * g.tile_p * columns
    return again * pixel / LINE * costs.depthwise.again


def far_share(problem: Problem, arch: CpuArch) -> float:
    """The share of x and y that does not fit in L2."""
    elements = problem.N * problem.C * (math.prod(problem.size) + math.prod(problem.output))
    return max(0.0, 1 - arch.l2_bytes / max(1, elements * stored_bytes(problem)))


def crowded_rows(problem: Problem, arch: CpuArch, g: Geometry) -> float:
    """The number of filter rows whose pixels, read in place, leave L1 before they are used again.

    Such pixels have strides with large powers of two, so they share few sets of L1. The rows are
    those that the previous output row has read; if all pixels share one set, they are all rows.
    """
    kept = arch.kept_lines(problem.C * stored_bytes(problem))
    rows = image_rows(arch, g, True)
    pixels = min(g.tile_m, g.tile_q)
    wanted = rows * min(g.W, (pixels - 1) * g.stride_w + g.S) + pixels
    again = rows if kept == arch.l1_ways else max(0, rows - g.stride_h)
    return again * max(0.0, 1 - kept / max(1, wanted))


def copy_cycles(problem: Problem, arch: CpuArch, g: Geometry) -> float:
    """Cycles to copy a tile to a channels-last buffer, and in NCHW to transpose its sums back."""
    costs = arch.costs
    elements = buffer_bytes(g, problem.itemsize) / problem.itemsize
    if problem.channels_last:
        return elements * costs.depthwise.buffer + elements / g.tile_c * costs.depthwise.copied
    return (elements + g.tile_n * g.tile_p * g.tile_q * min(g.tile_k, g.K)) * costs.depthwise.swap


def far_copy_cycles(problem: Problem, arch: CpuArch, g: Geometry) -> float:
    """Further cycles to copy a tile with contiguous channels from beyond L2."""
    costs = arch.costs
    elements = buffer_bytes(g, problem.itemsize) / problem.itemsize
    size = stored_bytes(problem)
    short = 0.0 if g.tile_c == problem.C else max(0.0, 1 - g.tile_c * size / PIECE_BYTES)
    pieces = elements / max(1, g.tile_c) * short * costs.depthwise.piece
    return far_share(problem, arch) * (elements * size / costs.depthwise.streamed_bytes + pieces)


def border_columns(g: Geometry) -> int:
    """The number of output columns for which a tap reads padding."""
    last = g.W - 1 - (g.S - 1) * g.dilation_w + g.pad_w  # input column of tap 0, unpadded
    inner = min(g.Q, last // g.stride_w + 1) - schedule.ceil_div(max(0, g.pad_w), g.stride_w)
    return g.Q - max(0, int(inner))
