"""Weight gradients: variants -> candidates -> best -> choice. It needs no GPU.

The estimate is cycles of both launches, in the manner of candidate.py:

    computing   rounds x max(resident x k-blocks x busy, k-blocks x max(busy, waiting) + epilogue)
    moving      x, dy, and the sums of all splits twice, through device memory

where a multiprocessor is `busy` with a k-block for the longer of multiplying and loading it. More
splits fill more multiprocessors, and are more sums to add. A copy of x or dy is a launch that reads
the array and writes the copy.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from operator import attrgetter

from implicit_conv.errors import PlanError
from implicit_conv.gpu.cuda.arch import WGMMA_FLOPS, GpuArch
from implicit_conv.gpu.plan.candidate import (
    BLOCK_BYTES,
    COPY_CYCLES,
    COPY_WARPS,
    FILL_BYTES_PER_CYCLE,
    IMPERFECT_OVERLAP,
    L2_BYTES_PER_CYCLE,
    LATENCY_CYCLES,
    LAUNCH_SECONDS,
    NORM,
    OTHER_STORES,
    OTHER_TILE_CYCLES,
    RATE_SHARE,
    READ_SHARE,
    STEP_CYCLES,
    TILE_CYCLES,
    W_OFFSET_MAX,
    WRITE_SHARE,
    Estimate,
)
from implicit_conv.gpu.plan.image_copies import Copies, Copy, copies
from implicit_conv.gpu.plan.layout import MAX_STAGES
from implicit_conv.gpu.plan.maps import wgrad_maps
from implicit_conv.gpu.plan.views import Viewed
from implicit_conv.kernels.geometry import Geometry
from implicit_conv.kernels.gpu.call import INDICES
from implicit_conv.kernels.gpu.sizes import COPY_BLOCKS, STAGE_BARRIERS_BYTES, VECTOR_BYTES
from implicit_conv.kernels.gpu.targets import requirement, supports
from implicit_conv.kernels.gpu.wgrad_variant import ImageCopy, SplitSum, WgradVariant
from implicit_conv.kernels.schedule import ceil_div
from implicit_conv.problem.problem import Problem
from implicit_conv.problem.schedule import geometry

# tile_m, tile_n, warps along gemm_m, warps along gemm_n, blocks of a multiprocessor
TILES = ((128, 128, 2, 4, 1), (128, 64, 4, 2, 2), (64, 128, 2, 4, 2), (64, 64, 2, 2, 2))
# tile_m, tile_n and resident blocks of wgmma; three taps of 64 channels are 192 columns
WGMMA_TILES = ((128, 256, 1), (128, 192, 1), (128, 128, 2), (64, 192, 2), (64, 128, 3))
FLOAT_PIXELS, PIXELS = 32, 64  # of a stage of float32, and of 16-bit elements
MOST_SPLITS = 1024
MOST_WAVES = 4  # of blocks that are considered
ADD_SECONDS = 2.5e-6  # a second launch that follows a first; an order of magnitude


@dataclass(frozen=True)
class WgradCandidate:
    """A kernel that was considered: with stages, splits and estimate, or the reason of its refusal.

    Each split has `k_blocks` stages of pixels.
    """

    copies: Copies
    variant: WgradVariant
    stages: int = 0
    splits: int = 0
    k_blocks: int = 0
    estimate: Estimate | None = None
    reason: str = ""

    @property
    def view(self) -> Problem:
        """The convolution of the arrays that the kernel loads."""
        return self.copies.view

    @property
    def cycles(self) -> float:
        """Estimated cycles of all launches; infinite for a refused candidate."""
        return self.estimate.cycles if self.estimate else math.inf

    @property
    def name(self) -> str:
        """The kernel, and what is copied for it."""
        x, names = self.copies.x, self.copies.names
        rows = " by filter rows" if x and x.window else ""
        return self.variant.name + (f" on copies of {names}{rows}" if names else "")

    @property
    def sums(self) -> int:
        """Sums of dw of a split, those of padded channels included."""
        return elements(self.view, self.variant)

    @property
    def sums_bytes(self) -> int:
        """Bytes of the sums of all splits, with those of dy if db is asked for."""
        return 4 * (self.sums + self.view.K * self.variant.biased) * self.splits

    @property
    def copies_in_order(self) -> Iterator[tuple[int, Copy, int]]:
        """(0 for x or 1 for dy, its copy, offset in the workspace) of each: sums come first."""
        at = self.sums_bytes
        for place, copy in enumerate((self.copies.x, self.copies.dy)):
            if copy:
                yield place, copy, at
                at += copy.bytes

    @property
    def workspace_bytes(self) -> int:
        """Device memory for the sums of all splits and the copies."""
        return self.sums_bytes + sum(copy.bytes for copy in self.copies.all)


@dataclass(frozen=True)
class WgradChoice(Viewed):
    """The chosen kernel, and the candidates it won against.

    `problem` is the convolution in the caller's layouts, `view` the same one of channels-last
    arrays, and `out_dtype` the dtype of dw.
    """

    problem: Problem
    view: Problem
    arch: GpuArch
    out_dtype: str
    best: WgradCandidate
    candidates: tuple[WgradCandidate, ...] = ()
    limit: int | None = None  # the most bytes of workspace

    @property
    def estimate(self) -> Estimate:
        """The estimate of the chosen kernel."""
        assert self.best.estimate
        return self.best.estimate

    @property
    def variant(self) -> WgradVariant:
        """The chosen kernel."""
        return self.best.variant

    @property
    def split_sum(self) -> SplitSum:
        """The kernel that adds the splits."""
        return SplitSum(self.out_dtype, self.variant.biased)

    @property
    def geometry(self) -> Geometry:
        """The Geometry of the convolution that the first kernel computes."""
        return wgrad_geometry(self.best.view, self.variant)

    @property
    def tiles(self) -> tuple[int, int, int]:
        """(groups, gemm_m tiles, gemm_n tiles), each of which every split has."""
        return tile_counts(self.best.view, self.variant)

    @property
    def blocks(self) -> int:
        """Blocks of the first launch: one for each tile of each split."""
        return math.prod(self.tiles) * self.best.splits

    @property
    def workspace_bytes(self) -> int:
        """Device memory for the sums of all splits and copies of x and dy."""
        return self.best.workspace_bytes

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block: stages, then their barriers."""
        return self.best.stages * (self.variant.stage_bytes + STAGE_BARRIERS_BYTES)

    @property
    def launches(self) -> list[tuple[WgradVariant | SplitSum | ImageCopy, int, int]]:
        """(kernel, blocks, bytes of shared memory) of each launch: copies, sums, their sum."""
        count = math.prod(self.view.weight_shape) + self.view.K * self.variant.biased
        adds = self.split_sum, int(ceil_div(count, SplitSum.threads)), 0
        if not self.blocks:
            return [adds] if count else []
        most = COPY_BLOCKS * self.arch.sms
        copied = [
            (c.kernel, min(most, int(ceil_div(c.bytes, VECTOR_BYTES * ImageCopy.threads))), 0)
            for c in self.best.copies.all
        ]
        return [*copied, (self.variant, self.blocks, self.shared_bytes), adds]


def choose_wgrad(
    problem: Problem,
    arch: GpuArch,
    view: Problem,
    out_dtype: str,
    limit: int | None = None,
    variant: WgradVariant | None = None,
    biased: bool = False,
) -> WgradChoice:
    """The best kernel for the weight gradient of `problem`; with `variant`, that kernel alone.

    `view` is the problem of channels-last arrays with two spatial axes, `limit` the most bytes of
    workspace. If it is `biased`, the gradient of a bias is computed too.

    Raises
    ------
    PlanError
        No kernel can compute the problem; the message gives the reason of each.
    """
    plain = Copies(view)
    if variant is not None:
        candidates: tuple[WgradCandidate, ...] = (consider_wgrad(plain, arch, variant, limit),)
    else:
        candidates = consider_all([plain, *copies(view)], arch, limit, biased)
    best = min(candidates, key=attrgetter("cycles"))
    if best.reason:
        reasons = "\n".join(f"  {c.name}: {c.reason}" for c in candidates)
        raise PlanError(f"no GPU kernel can compute the weight gradient of {view}:\n{reasons}")
    return WgradChoice(problem, view, arch, out_dtype, best, candidates, limit)


def consider_all(
    views: Iterable[Copies], arch: GpuArch, limit: int | None, biased: bool = False
) -> tuple[WgradCandidate, ...]:
    """The candidates of all kernels; elements of a copy are not loaded one by one."""
    return tuple(
        consider_wgrad(each, arch, replace(v, biased=biased), limit)
        for each in views
        for v in wgrad_variants(each.view.dtype, each.copy_bytes)
        if v.producer != "elements" or not each.all
    )


def wgrad_variants(dtype: str, copy_bytes: int = VECTOR_BYTES) -> Iterator[WgradVariant]:
    """The kernels to consider; cp.async copies so many bytes at a time."""
    if dtype != "float32":
        for m, n, resident in WGMMA_TILES:
            yield WgradVariant("tma", dtype, m, n, m // 16, 1, PIXELS, resident)
    narrow = dtype == "float32"  # fma multiplies, whose accumulators are fewer
    for m, n, warps_m, warps_n, resident in TILES[-1:] if narrow else TILES:
        pixels = FLOAT_PIXELS if narrow else PIXELS
        tile = m, n, warps_m, warps_n, pixels, resident
        yield WgradVariant("cp_async", dtype, *tile, copy_bytes)
        yield WgradVariant("elements", dtype, *tile)


def wgrad_geometry(view: Problem, v: WgradVariant) -> Geometry:
    """The Geometry of a problem, with tiles of a kernel."""
    sizes = {"tile_m": v.tile_m, "tile_c": v.unit, "tile_k": v.tile_n}
    return geometry(view, tile=(1, 1, 1), offset_max=W_OFFSET_MAX, **sizes)


def columns(view: Problem, v: WgradVariant) -> int:
    """Columns of gemm_n: the channels of each tap are padded to whole chunks."""
    return int(math.prod(view.kernel) * ceil_div(view.C // view.groups, v.unit) * v.unit)


def tile_counts(view: Problem, v: WgradVariant) -> tuple[int, int, int]:
    """`WgradChoice.tiles` of a problem."""
    rows = ceil_div(view.K // view.groups, v.tile_m)
    return view.groups, int(rows), int(ceil_div(columns(view, v), v.tile_n))


def elements(view: Problem, v: WgradVariant) -> int:
    """`WgradChoice.elements` of a problem."""
    return view.K * columns(view, v)


def wgrad_rule(copies: Copies, v: WgradVariant) -> str:
    """The reason why a kernel cannot compute a view with these copies, or an empty string."""
    view, x = copies.view, copies.x
    if v.producer == "tma":
        if view.groups > 1 or (x and x.window):
            found = f"the problem has {view.groups}" if view.groups > 1 else "these overlap"
            return f"a tensor map covers one group of separate pixels, but {found}"
        if not view.N or not view.C or not view.K:
            return "a tensor map covers pixels and channels, of which there are none"
        try:
            wgrad_maps(view, v)
        except ValueError as error:
            return " ".join(str(error).split())
    if v.producer == "cp_async":
        for name, count in (("x", view.C), ("dy", view.K)):
            size = count // view.groups * view.itemsize
            if size % v.copy_bytes:
                return (
                    f"a pixel of {name} has {size} bytes of channels in a group, "
                    f"which is no multiple of {v.copy_bytes}"
                )
    pixels = view.N * math.prod(view.output)
    numbers = {
        "an extent": max((*view.size, *view.kernel, view.C, view.K)),
        "a pixel number": 2 * (pixels + v.tile_k),  # with those past the last one
        "an element number": elements(view, v) + view.K + SplitSum.threads,
        "a chunk number": max((2 * c.bytes // VECTOR_BYTES for c in copies.all), default=0),
    }
    for what, number in numbers.items():
        if number >= INDICES:
            return f"{what} of {number} exceeds {INDICES - 1}, the most that it can count"
    return "" if view.C or not v.biased else "no block sums dy where there are no channels"


def consider_wgrad(
    copies: Copies, arch: GpuArch, v: WgradVariant, limit: int | None = None
) -> WgradCandidate:
    """The candidate of a kernel with its best number of splits, or the reason of its refusal."""
    view, made = copies.view, WgradCandidate(copies, v)
    reason = "" if supports(v.target, arch.cc) else f"needs {requirement(v.target)}"
    reason = reason or wgrad_rule(copies, v)
    room = arch.smem_bytes // v.resident - BLOCK_BYTES * (v.resident > 1)
    stages = min(MAX_STAGES, room // (v.stage_bytes + STAGE_BARRIERS_BYTES))
    if not reason and stages < 2:
        reason = f"two stages do not fit {room} bytes of shared memory"
    if reason:
        return replace(made, reason=reason)
    total = int(ceil_div(view.N * math.prod(view.output), v.tile_k))
    slots, tiles = arch.sms * v.resident, max(1, math.prod(tile_counts(view, v)))
    counts = {1, *(waves * slots // tiles for waves in range(1, MOST_WAVES + 1))}
    found = []
    for count in sorted(min(n, total, MOST_SPLITS) for n in counts if n):
        k_blocks = -(-total // count) if count else 0
        splits = -(-total // k_blocks) if count else 0
        made = replace(made, stages=stages, splits=splits, k_blocks=k_blocks)
        if limit is None or made.workspace_bytes <= limit:
            found.append(_estimated(arch, made))
    if found:
        return min(found, key=attrgetter("cycles"))
    least = replace(made, splits=1).workspace_bytes
    what = "sums and copies" if copies.all else "sums"
    reason = f"{what} take {least} bytes, more than max_workspace={limit}; allow {least}"
    return WgradCandidate(copies, v, reason=reason)


def _estimated(arch: GpuArch, made: WgradCandidate) -> WgradCandidate:
    """The candidate with its estimate; the docstring of this module has the formula."""
    view, v = made.view, made.variant
    wgmma = v.consumer == "wgmma"
    rate = {"mma": arch.mma_flops, "fma": arch.fma_flops, "wgmma": WGMMA_FLOPS}[v.consumer]
    share = RATE_SHARE if v.itemsize == 2 else 1.0
    width = v.tile_n + 8 * v.biased  # for db dy is multiplied by a tile of ones
    multiply = 2 * v.tile_m * width * v.tile_k / (share * rate)
    multiply += STEP_CYCLES * (not wgmma)
    if wgmma and v.tile_m < 128:
        multiply += v.stage_bytes / FILL_BYTES_PER_CYCLE
    issue = v.stage_bytes / v.copy_bytes * COPY_CYCLES[v.producer] / COPY_WARPS
    load = max(v.stage_bytes / L2_BYTES_PER_CYCLE, issue)
    busy = max(multiply, load) + IMPERFECT_OVERLAP * min(multiply, load) * (not wgmma)
    waiting = LATENCY_CYCLES / made.stages
    rest = (TILE_CYCLES if wgmma else OTHER_TILE_CYCLES) + 4 * v.tile_m * v.tile_n / OTHER_STORES
    blocks = math.prod(tile_counts(view, v)) * made.splits
    waves, k_blocks = -(-blocks // (arch.sms * v.resident)), made.k_blocks
    together = min(v.resident, -(-blocks // arch.sms)) if blocks else 0
    computed = waves * max(together * k_blocks * busy, k_blocks * max(busy, waiting) + rest)
    outputs = view.N * math.prod(view.output)
    pixels = min(view.N * math.prod(view.size), outputs * math.prod(view.kernel))
    x = made.copies.x
    read = x.bytes if x else pixels * view.C * v.itemsize
    read += outputs * view.K * v.itemsize
    moved = read / READ_SHARE / arch.memory * arch.hertz
    sums = made.sums_bytes * (1 / READ_SHARE + 1 / WRITE_SHARE)
    for copy in made.copies.all:
        sums += copy.source_bytes / READ_SHARE + copy.bytes / WRITE_SHARE
    fixed = LAUNCH_SECONDS + ADD_SECONDS * (1 + len(made.copies.all)) + sums / arch.memory
    cycles = fixed * arch.hertz + (computed**NORM + moved**NORM) ** (1 / NORM)
    junk = 1 - outputs / (made.splits * k_blocks * v.tile_k) if outputs else 0.0
    return replace(made, estimate=Estimate(cycles, multiply, load, waves, junk))
