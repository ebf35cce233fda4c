"""The CPU planner: candidates -> estimate -> best -> derived; arrays never come here."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from implicit_conv.arch import CpuArch
from implicit_conv.errors import PlanError
from implicit_conv.kernels import schedule as integers
from implicit_conv.kernels.cpu.sizes import buffer_bytes, panel_bytes, scratch_layout
from implicit_conv.kernels.geometry import Geometry
from implicit_conv.kernels.tile import Tile
from implicit_conv.problem import Problem
from implicit_conv.schedule import Load, geometry, trace

if TYPE_CHECKING:
    from implicit_conv.arrays import Array
    from implicit_conv.cpu import PackedFilter

ALGORITHMS = (
    "auto", "implicit_gemm", "pointwise", "depthwise", "winograd_f2", "winograd_f4", "gemm_im2col",
)  # fmt: skip
SERVED = ("implicit_gemm", "pointwise")
PRECISIONS = ("strict", "standard", "fast")

# A panel of one channel block should stay in L2 while a tile's register tiles pass over it:
# elements
# (taps x channels) of a block. It depends on the filter alone, so that the order of a sum never
# depends
# on batch, threads or tile: "strict" rests on it.
BLOCK_ELEMENTS = 5120
TILE_PIXELS = (14, 56, 112, 224, 448, 896)  # output pixels of a load tile, to choose from
BUFFER_SHARE = 0.5  # of L2: a thread's input buffer at most
FLOPS_PER_THREAD = (
    2e6  # a launch costs about 2 us; less work than this is done before a thread wakes
)
ITEMS_PER_THREAD = 4  # enough that an interrupted core delays the others little

# Machine constants of the estimate, in cycles; orders of magnitude that hold for current cores.
FMAS_PER_CYCLE = 2
LOADS_PER_CYCLE = 2
FMA_LATENCY = 4
COPY_CYCLES = 1 / 8  # an element of a channels-last row
TRANSPOSE_CYCLES = 1 / 3  # an element of a row that is transposed on the way
PACK_CYCLES = 1.0  # an element of the filter, packed as a whole: written and read again
PACK_IN_LOOP_CYCLES = 0.7  # packed just before its use
FAR_BYTES_PER_CYCLE = 12  # a core's stream from the last-level cache
ITEM_CYCLES = 500  # decoding a work item, calls, loop ends


@dataclass(frozen=True)
class Plan:
    """What was chosen for one problem on one machine, and what follows from it.

    `threads` run `geometry`'s tiles, `chunk` filter panels a work item; `in_place` says that x is
    read where it lies. `collapsed` geometries take the pixels of an image (or of all images) as one
    row.
    """

    problem: Problem
    arch: CpuArch
    algorithm: str
    precision: str
    tile: Tile
    geometry: Geometry
    threads: int
    chunk: int
    in_place: bool
    collapsed: bool
    cycles: float
    activation: tuple[float, float, float] = (0.0, -math.inf, math.inf)
    unbatched: bool = False
    out_dtype: str | None = None

    @property
    def workspace_bytes(self) -> int:
        """Scratch of all threads, beside the packed filter."""
        lanes, itemsize = self.arch.lanes(self.problem.itemsize), self.problem.itemsize
        packs = self.packs_in_loop
        layout = scratch_layout(self.geometry, itemsize, lanes, self.chunk, self.in_place, packs)
        return self.threads * layout.total

    @property
    def packs_in_loop(self) -> bool:
        """Whether a plain filter is packed panel by panel, just before the only item that uses it.

        A panel is then still in L2 when it is used, and no packed filter is kept.
        """
        return integers.tile_count(self.geometry) == 1

    @property
    def packed_bytes(self) -> int:
        """The packed filter."""
        lanes, itemsize = self.arch.lanes(self.problem.itemsize), self.problem.itemsize
        return self.geometry.groups * int(panel_bytes(self.geometry, lanes, itemsize))

    @property
    def peak_bytes(self) -> int:
        """Scratch, packed filter and output."""
        n, k, p, q = (self.problem.N, self.problem.K, *self.problem.output)
        return self.workspace_bytes + self.packed_bytes + n * k * p * q * self.problem.itemsize

    @property
    def flops(self) -> int:
        """Multiplications and additions of the problem, padding counted."""
        return self.problem.flops

    @property
    def bytes(self) -> int:
        """Bytes of x, w and y, each once."""
        return self.problem.bytes

    def explain(self) -> str:
        """What was chosen, and why; for people."""
        from implicit_conv.explain import explain

        return explain(self)

    def pack(self, w: object) -> PackedFilter:
        """Pack a filter once, for many calls.

        Parameters
        ----------
        w : array in the problem's weight layout and dtype

        Raises
        ------
        ShapeError, DTypeError
            A filter that is not the one the plan was made for.
        """
        from implicit_conv.api import pack_filter

        return pack_filter(self, w)

    def __call__(
        self,
        x: object,
        w: object,
        bias: object = None,
        *,
        residual: object = None,
        out: Array | None = None,
    ) -> Array:
        """Convolve `x` with the filter `w`, packed by `pack` or plain; as `conv2d` does.

        Raises
        ------
        ShapeError, DTypeError
            Arrays that are not those the plan was made for.
        """
        from implicit_conv.api import run_plan

        return run_plan(self, x, w, bias, residual, out)

    def trace(self) -> list[Load]:
        """The loads the engine executes for packed arrays of the problem's layout."""
        return trace(self.geometry, self.problem.itemsize, self.in_place, self.chunk)


def plan(problem: Problem, arch: CpuArch, precision: str, algorithm: str, collapse: bool) -> Plan:
    """The best tiling of `problem` on `arch`.

    Parameters
    ----------
    precision, algorithm : str
        As in `conv2d`.
    collapse : bool
        Whether x and y are packed, so that a pointwise problem's pixels may be taken as one row.

    Raises
    ------
    PlanError
        A precision or algorithm that is unknown or cannot serve the problem.
    """
    if precision not in PRECISIONS:
        raise PlanError(f"precision {precision!r} is none of {', '.join(PRECISIONS)}")
    if algorithm not in ALGORITHMS:
        raise PlanError(f"algorithm {algorithm!r} is none of {', '.join(ALGORITHMS)}")
    reason = refusal(problem, algorithm)
    if reason:
        raise PlanError(f"algorithm {algorithm!r} cannot serve this problem: {reason}")
    pointwise = algorithm != "implicit_gemm" and refusal(problem, "pointwise") is None
    view = collapsed(problem) if pointwise and collapse else problem
    best = min(candidates(view, arch), key=lambda g: estimate(view, arch, g))
    threads = thread_count(problem, arch)
    chunk = panel_chunk(best, threads)
    return Plan(
        problem=problem, arch=arch, algorithm="pointwise" if pointwise else "implicit_gemm",
        precision=precision, tile=tile_of(best, arch, problem), geometry=best, threads=threads,
        chunk=chunk, in_place=reads_in_place(view), collapsed=view is not problem,
        cycles=estimate(view, arch, best),
    )  # fmt: skip


def refusal(problem: Problem, algorithm: str) -> str | None:
    """Why `algorithm` cannot serve `problem`; None if it can."""
    if algorithm in ("auto", "implicit_gemm"):
        return None
    if algorithm not in SERVED:
        return f"it is not part of this version, which has {', '.join(SERVED)}"
    pads = (*problem.pad_lo, *problem.pad_hi)
    if problem.kernel != (1, 1) or problem.stride != (1, 1) or any(pads):
        return "pointwise needs a 1x1 filter, stride 1 and no padding"
    return None


def collapsed(problem: Problem) -> Problem:
    """A pointwise problem with all pixels that lie one behind the other as a single row."""
    h, w = problem.size
    if problem.layout == "NHWC":
        return replace(problem, N=1, size=(1, problem.N * h * w))
    return replace(problem, size=(1, h * w))


def reads_in_place(problem: Problem) -> bool:
    """Whether x can be read as it lies: no tile touches padding and channels lie together."""
    inside = all(
        lo <= 0 and (out - 1) * stride + (taps - 1) * dilation - lo < size
        for lo, out, stride, taps, dilation, size in zip(
            problem.pad_lo, problem.output, problem.stride, problem.kernel, problem.dilation,
            problem.size, strict=True,
        )
    )  # fmt: skip
    return inside and problem.layout == "NHWC"


def channel_block(problem: Problem) -> int:
    """Channels of a k-block: all of them, or equal blocks of at most BLOCK_ELEMENTS taps x
    channels.
    """
    channels = max(1, problem.C // problem.groups)
    taps = problem.kernel[0] * problem.kernel[1]
    blocks = integers.ceil_div(channels * taps, BLOCK_ELEMENTS)
    return integers.ceil_div(channels, min(blocks, channels))


def candidates(problem: Problem, arch: CpuArch) -> list[Geometry]:
    """Tilings whose input buffer fits its share of L2; if none does, the smallest of all."""
    lanes = arch.lanes(problem.itemsize)
    block = channel_block(problem)
    # Few channels: rows as they lie, so that all taps of a filter row make one run of the sum.
    plain_rows = problem.stride[1] > 1 and problem.dilation[1] == 1 and block < lanes
    tilings = [
        geometry(
            problem, tile=tile, tile_m=arch.tile_pixels, tile_c=block, tile_k=2 * lanes,
            step_w=1 if plain_rows else None,
        )
        for tile in tiles(problem)
    ]  # fmt: skip
    if reads_in_place(problem):
        return tilings
    limit = arch.l2_bytes * BUFFER_SHARE
    fitting = [g for g in tilings if buffer_bytes(g, problem.itemsize) <= limit]
    return fitting or [min(tilings, key=lambda g: buffer_bytes(g, problem.itemsize))]


def tiles(problem: Problem) -> set[tuple[int, int, int]]:
    """(images, output rows, output columns) of load tiles worth an estimate.

    Whole rows where they are not too long, whole images before several images.
    """
    p, q = problem.output
    found = set()
    for pixels in TILE_PIXELS:
        columns = balanced(q, pixels)
        for rows in (1, *(balanced(p, share // columns) for share in TILE_PIXELS)):
            images = max(1, pixels // (p * q)) if (rows, columns) == (p, q) else 1
            found.add((min(images, max(1, problem.N)), rows, columns))
    return found


def balanced(extent: int, limit: int) -> int:
    """The smallest tile that covers `extent` in as few pieces as tiles of `limit` would."""
    return integers.ceil_div(extent, integers.ceil_div(extent, max(1, limit)))


def estimate(problem: Problem, arch: CpuArch, g: Geometry) -> float:
    """Cycles of one core for the whole problem: register tiles, loads, far panels, idle threads."""
    lanes = arch.lanes(problem.itemsize)
    elements = g.R * g.S * max(1, g.C)
    tiles = integers.tile_count(g) * g.groups
    _, group, inner = integers.by_role(g, g.tile_n, g.tile_p, g.tile_q)
    vectors = integers.ceil_div(g.K, lanes)
    multiply = tile_cycles(g, group, inner) * elements * vectors / 2
    filter_bytes = elements * vectors * lanes * problem.itemsize
    near = filter_bytes + buffer_bytes(g, problem.itemsize) <= arch.l2_bytes
    far = 0.0 if near else filter_bytes / FAR_BYTES_PER_CYCLE
    load = 0.0
    if not reads_in_place(problem):
        cost = COPY_CYCLES if problem.layout == "NHWC" else TRANSPOSE_CYCLES
        load = buffer_bytes(g, problem.itemsize) / problem.itemsize * cost
    pack = PACK_IN_LOOP_CYCLES if tiles == g.groups else PACK_CYCLES
    threads = thread_count(problem, arch)
    chunks = integers.ceil_div(integers.panel_count(g), panel_chunk(g, threads))
    items = max(1, tiles * chunks)
    idle = integers.ceil_div(items, threads) * threads / items
    total = tiles * (max(multiply, far) + load * chunks + ITEM_CYCLES * chunks) * idle
    return total + pack * g.groups * elements * g.K


def tile_cycles(g: Geometry, group: int, inner: int) -> float:
    """Cycles for one element of the sums of a load tile against two vectors of filters."""
    step = max(1, g.tile_m // inner)
    parts = integers.ceil_div(inner, g.tile_m)
    pixels = min(step, group) * inner / parts
    tiles = float(integers.ceil_div(group, step) * parts)
    tiles *= g.tile_n * g.tile_p * g.tile_q / (group * inner)
    fmas = max(2 * pixels / FMAS_PER_CYCLE, FMA_LATENCY)
    return tiles * max(fmas, (pixels + 2) / LOADS_PER_CYCLE)


def thread_count(problem: Problem, arch: CpuArch) -> int:
    """Threads that have enough to do."""
    return max(1, min(arch.threads, int(problem.flops / FLOPS_PER_THREAD)))


def panel_chunk(g: Geometry, threads: int) -> int:
    """Filter panels of a work item: all, or fewer where there are too few tiles to share."""
    tiles = max(1, integers.tile_count(g) * g.groups)
    panels = max(1, integers.panel_count(g))
    if threads == 1 or tiles >= ITEMS_PER_THREAD * threads:
        return panels
    chunks = min(panels, integers.ceil_div(ITEMS_PER_THREAD * threads, tiles))
    return integers.ceil_div(panels, chunks)


def tile_of(g: Geometry, arch: CpuArch, problem: Problem) -> Tile:
    """The choices of `g` in the words that all engines share."""
    return Tile(
        mode="rows", tile_m=g.tile_n * g.tile_p * g.tile_q, tile_n=g.tile_k,
        tile_k=g.tile_c * g.R * g.S, stages=1, slots_per_row=g.slots, reg_m=g.tile_m,
        reg_n=2 * arch.lanes(problem.itemsize),
    )  # fmt: skip
