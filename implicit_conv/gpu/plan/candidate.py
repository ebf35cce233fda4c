"""Candidates: the kernels considered for a problem on a GPU, with an estimate or a refusal.

A method is a `Variant`: a loader, a matrix instruction and a tile. The estimate is cycles of a
launch, `launch + (computing^3 + moving^3)^(1/3)`, since what is shorter is mostly hidden:

    moving      x and y through device memory
    computing   rounds x max(resident x busy, max(busy, waiting) + epilogue)

A multiprocessor has `resident` blocks, each with a tile a round. It is `busy` with a tile for the
longer of multiplying and loading it, and a block waits for the k-blocks that its stages cannot hold
ahead. While one block stores, the others multiply. Multiplying counts junk: slots past Q, rows past
the last pixel, columns past K, channels past C. direct.py has the cycles of a tile on the CUDA
cores, rows.py those of a kernel by rows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy.typing as npt

from implicit_conv.gpu.cuda.arch import WGMMA_FLOPS, GpuArch
from implicit_conv.gpu.plan.direct import direct_rule, direct_tiles, tile_cycles
from implicit_conv.gpu.plan.layout import SharedLayout, shared_layout
from implicit_conv.gpu.plan.maps import activation_map
from implicit_conv.gpu.plan.rows import row_tiles, rows_cycles, rows_rule
from implicit_conv.gpu.plan.views import Viewed, is_channels_last
from implicit_conv.kernels import schedule
from implicit_conv.kernels.geometry import ZEROS, Geometry
from implicit_conv.kernels.gpu.call import INDICES
from implicit_conv.kernels.gpu.targets import requirement, supports
from implicit_conv.kernels.gpu.variant import Variant
from implicit_conv.problem.options import ITEMSIZES, PADDING_MODES, Activation
from implicit_conv.problem.problem import Problem
from implicit_conv.problem.schedule import geometry

UNBOUNDED = (-math.inf, math.inf)

W_OFFSET_MAX = 31  # the largest w_offset of an im2col::w copy
PERMUTED_OFFSET_MAX = 255  # the largest offset of a plain im2col copy of a 4-D map

# Constants of the estimate, per multiprocessor. Those of wgmma are fitted to 44 layers of ResNet-50
# on an H200, with up to 14 kernels each: times are within 10 % (rms), and the chosen kernels take
# 1.2 % longer in sum than the fastest with 256 images, 2.5 % with 32. Those of other loads are
# orders of magnitude.
LAUNCH_SECONDS = 5.2e-6  # between events, with a cold L2
RATE_SHARE = 0.8  # of the peak of matrix instructions, clocks included
FILL_BYTES_PER_CYCLE = 107  # of loads that hold up wgmma of 64 rows or columns in shared memory
L2_BYTES_PER_CYCLE = 58
# Of a warp, to issue a copy, or 16 bytes of elements, which wait for memory before they are stored.
# A copy of 4 or 8 bytes is taken to cost as much as one of 16. No GPU has shown that, and it is
# rather too much: for 16 bytes of x, sm_80 issues 37 instructions with one copy, 58 with two and 75
# with four.
COPY_CYCLES = {"tma": 0.0, "cp_async": 4.0, "elements": 40.0}
COPY_WARPS = 4  # warps that issue copies at the same time, where threads compute addresses
LATENCY_CYCLES = 1550  # from the request of a stage to its use
LINE_STORES, OTHER_STORES = 130, 16  # bytes of y in a cycle of the epilogue: whole lines, or others
STEP_CYCLES = 60  # barriers and addresses of one filter tap, where warps multiply fragments
TILE_CYCLES = 400  # a tile's fixed cost with wgmma: first loads, decoding of its index
OTHER_TILE_CYCLES = 1500  # that of other families
READ_SHARE, WRITE_SHARE = 1.0, 0.73  # of the data sheet's rate of device memory
IMPERFECT_OVERLAP = 0.1  # share of the shorter that adds to `busy`, but for wgmma
NORM = 3  # how little the shorter of computing and moving adds to the longer
BLOCK_BYTES = 1024  # of shared memory that the driver keeps of each block
LINE_BYTES = 128  # that device memory moves where a tile needs some channels of a pixel


class Request(NamedTuple):
    """The options of `conv2d`; those of the `convolution` itself are pairs of name and value."""

    convolution: tuple[tuple[str, Any], ...] = ()
    activation: Activation = None
    out_dtype: object = None
    precision: str = "standard"
    algorithm: str = "auto"


class Estimate(NamedTuple):
    """The cost of a candidate: cycles of the launch, and their parts."""

    cycles: float
    multiply: float  # cycles of one tile
    load: float  # cycles of one tile
    waves: int
    junk: float  # share of the multiplied gemm_m rows that are no output pixel


@dataclass(frozen=True)
class Candidate:
    """A kernel that was considered: with layout and estimate, or with the reason of its refusal.

    `view` is the convolution as it would compute it.
    """

    view: Problem
    variant: Variant
    geometry: Geometry
    layout: SharedLayout | None = None
    estimate: Estimate | None = None
    reason: str = ""

    @property
    def cycles(self) -> float:
        """Estimated cycles of the launch; infinite for a refused candidate."""
        return self.estimate.cycles if self.estimate else math.inf


@dataclass(frozen=True)
class Choice(Viewed):
    """The chosen kernel with what a launch derives from it, and the candidates it won against.

    `problem` is the convolution in the caller's layouts, `view` the same one of the arrays that the
    kernel reads: their axes in the order in which they are stored, and perhaps in another shape
    (views.py). `fallback` is the choice for arrays that only a copy would give the view's shapes,
    or that this kernel cannot load; None where slower kernels load them from the same view.
    `limits` are the bounds of the activation's clamp, or the slope of a leaky ReLU.
    """

    problem: Problem
    view: Problem
    arch: GpuArch
    variant: Variant
    geometry: Geometry
    layout: SharedLayout
    estimate: Estimate
    candidates: tuple[Candidate, ...] = ()
    limits: tuple[float, float] = UNBOUNDED
    fallback: Choice | None = None
    read: ClassVar[str] = "x"  # the name of x in messages
    order: ClassVar[tuple[Any, ...]] = ()  # what the order of a packed filter depends on
    workspace_bytes: ClassVar[int] = 0
    has_epilogue: ClassVar[bool] = True
    writes_once: ClassVar[bool] = True  # each element of y

    @property
    def x_shape(self) -> tuple[int, ...]:
        """The shape of x."""
        return self.problem.input_shape

    @property
    def y_shape(self) -> tuple[int, ...]:
        """The shape of y."""
        return self.problem.output_shape

    @property
    def y_channels(self) -> int:
        """The channels of y."""
        return self.problem.K

    @property
    def y_dtype(self) -> str:
        """The dtype of y."""
        return self.variant.y_dtype

    @property
    def packed_shape(self) -> tuple[int, ...]:
        """The shape of a packed filter: K, R, S, C."""
        return tuple(self.problem.weight_shape[axis] for axis in self.filter_axes)

    @property
    def takes_any_filter(self) -> bool:
        """Whether the kernel reads filters with any strides as fast as packed ones."""
        return self.variant.band is not None

    def ordered(self, w: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """A filter in the order in which it is packed."""
        return w.transpose(self.filter_axes)

    @property
    def tiles(self) -> tuple[int, int, int]:
        """(groups, gemm_m tiles, gemm_n tiles); on the CUDA cores a panel of groups is a group."""
        return tile_counts(self.geometry, self.variant)

    @property
    def blocks(self) -> int:
        """Blocks of the launch: at most those that run together; each visits several tiles."""
        return min(math.prod(self.tiles), self.arch.sms * self.variant.resident)


def tile_counts(g: Geometry, v: Variant) -> tuple[int, int, int]:
    """`Choice.tiles` of a geometry."""
    if v.strip:
        panels, tiles_m, _ = direct_tiles(g, v)
        return panels, tiles_m, 1
    if v.band:
        return 1, row_tiles(g, v).all, int(schedule.panel_count(g))
    return g.groups, int(schedule.gemm_m_tiles(g, v.wide)), int(schedule.panel_count(g))


def refusal(view: Problem, arch: GpuArch, v: Variant, strict: bool = False) -> str:
    """The reason why a kernel cannot compute the problem, or an empty string."""
    if not supports(v.target, arch.cc):
        return f"needs {requirement(v.target)}"
    if strict and (v.wide or v.consumer == "wgmma"):
        return "precision 'strict' needs one order of sums: tap by tap, without wgmma"
    if v.volume != (view.rank == 3):
        return "its loads read images" if view.rank == 3 else "its loads read volumes"
    return _padding_rule(view, v) or _copies_rule(view, v) or _maps_rule(view, v)


def padding_mode(view: Problem) -> int:
    """The number of the mode by which padding repeats pixels, or ZEROS."""
    return PADDING_MODES.index(view.padding_mode) if view.repeats else ZEROS


def _padding_rule(view: Problem, v: Variant) -> str:
    """The reason why padding cannot repeat pixels as it should, or an empty string."""
    if padding_mode(view) != v.padding_mode:
        return f"its loads do not pad in mode {view.padding_mode!r}"
    least = view.padding_mode == "reflect"  # the first pixel is not repeated
    for size, *pads in zip(view.size, view.pad_lo, view.pad_hi, strict=True):
        if view.repeats and not 0 <= min(pads) <= max(pads) <= size - least:
            return (
                f"padding {tuple(pads)} in mode {view.padding_mode!r} of {size} pixels is negative "
                f"or more than {size - least}; pad before, or use device='cpu'"
            )
    return ""


def _copies_rule(view: Problem, v: Variant) -> str:
    if v.strip or v.band:
        return direct_rule(view, v) if v.strip else rows_rule(view, v)
    reason = fold_rule(view) if v.folded else ""
    return reason or ("" if v.producer == "elements" else _channels_rule(view, v))


def _channels_rule(view: Problem, v: Variant) -> str:
    """The reason why channels cannot be copied `copy_bytes` at a time, or an empty string."""
    channels = view.C // view.groups * view.itemsize
    if not is_channels_last(view):
        return (
            f"copies of {v.copy_bytes} bytes need channels-last x and w (NHWC, KRSC), "
            f"not {view.layout}, {view.weight_layout}"
        )
    if not channels:
        return "there are no channels to copy"
    if channels % v.copy_bytes:
        return (
            f"a pixel has {channels} bytes of channels in a group, "
            f"which is no multiple of {v.copy_bytes}"
        )
    return ""


def _maps_rule(view: Problem, v: Variant) -> str:
    if v.producer != "tma":
        return ""
    if view.groups > 1:
        return f"a tensor map covers one group, but the problem has {view.groups}"
    if not view.N:
        return "a tensor map covers images, of which there are none"
    try:
        activation_map(view, v)
    except ValueError as error:
        return " ".join(str(error).split())
    return ""


def _words_rule(g: Geometry, v: Variant) -> str:
    """Whether extents, steps and indices fit in the 32-bit words that a kernel computes with."""
    counts = tile_counts(g, v)
    rows, tiles = counts[1] * v.tile_m, math.prod(counts)
    stacked = max(g.D * g.H, g.T * g.R, g.Z * g.P)
    numbers = {
        "an extent": max(g),
        "a row of planes": stacked,
        "a row number": rows,
        "a tile number": tiles,
    }
    for what, number in numbers.items():
        if number >= INDICES:
            return f"{what} of {number} exceeds {INDICES - 1}, the most that it can count"
    return ""


def gpu_geometry(view: Problem, v: Variant) -> Geometry:
    """The Geometry of a problem divided into the tiles of a kernel."""
    made = geometry(
        view,
        tile=(1, 1, 1),
        tile_m=v.tile_m,
        tile_c=v.tile_c,
        tile_k=v.tile_n,
        offset_max=PERMUTED_OFFSET_MAX if v.permuted else W_OFFSET_MAX,
    )
    return folded(made) if v.folded else made


def folded(g: Geometry) -> Geometry:
    """The geometry whose rows are counted in elements, and whose only column is a filter row.

    In a channels-last image the pixels that a filter row reads are contiguous, so the S taps of C
    channels are one tap of S * C channels. First layers gain most: with 3 channels and a 7x7 filter
    a load has 21 of 32 elements instead of 3 of 32, and there are 7 k-blocks of it instead of 49.
    The image's row is then counted in elements: padding begins and ends inside a load, anywhere.

    Tensor copies cannot make these loads, because the strides of a map are multiples of 16 bytes
    and those of 3 channels are not. A copy of x with 8 channels would allow them, but a call
    allocates nothing and launches one kernel.
    """
    return g._replace(
        C=g.S * g.C,
        S=1,
        W=g.W * g.C,
        stride_w=g.stride_w * g.C,
        pad_w=g.pad_w * g.C,
        dilation_w=1,
        step_w=g.stride_w * g.C,
        phases_w=1,
        remainders_w=1,
    )


def fold_rule(view: Problem) -> str:
    """The reason why the loads of a problem cannot be folded, or an empty string."""
    if not is_channels_last(view):
        return (
            "folded loads need channels-last x and w (NHWC, KRSC), "
            f"not {view.layout}, {view.weight_layout}"
        )
    if view.groups > 1:
        return f"the channels of neighbouring pixels are not contiguous in {view.groups} groups"
    columns, dilation = view.kernel[-1], view.dilation[-1]
    if columns > 1 and dilation > 1:
        return f"a dilation of {dilation} leaves gaps between the pixels of a filter row"
    return "" if columns > 1 and view.C else "there are no columns to fold"


def consider(view: Problem, arch: GpuArch, v: Variant, strict: bool) -> Candidate:
    """The candidate of a kernel: its estimate, or the reason of its refusal."""
    g = gpu_geometry(view, v)
    reason = refusal(view, arch, v, strict) or _words_rule(g, v)
    if reason:
        return Candidate(view, v, g, reason=reason)
    room = shared_room(arch, v)
    layout = shared_layout(v, g, room)
    if layout is None:
        what = "the filters of a panel" if v.strip or v.band else "two stages"
        reason = f"{what} do not fit {room} bytes of shared memory"
        return Candidate(view, v, g, reason=reason)
    return Candidate(view, v, g, layout, estimate(g, v, layout, arch))


def shared_room(arch: GpuArch, v: Variant) -> int:
    """Bytes of shared memory that a block may have, so that `resident` of them run together."""
    return arch.smem_bytes // v.resident - BLOCK_BYTES * (v.resident > 1)


def estimate(g: Geometry, v: Variant, layout: SharedLayout, arch: GpuArch) -> Estimate:
    """Cycles of a launch; the docstring of this module has the formula."""
    if v.strip:
        multiply, load = tile_cycles(g, v, arch.fma_flops)
        return _estimate(g, v, arch, multiply, load, 0.0, store_cycles(v))
    if v.band:
        return _estimate(g, v, arch, rows_cycles(v), 0.0, 0.0, 0.0)
    taps = int(schedule.taps(g)) * schedule.block_count(g)
    loads = taps // schedule.load_taps(g, v.wide)
    rate = {"mma": arch.mma_flops, "fma": arch.fma_flops, "wgmma": WGMMA_FLOPS}[v.consumer]
    share = RATE_SHARE if v.itemsize == 2 else 1.0
    step = 0 if v.consumer == "wgmma" else STEP_CYCLES
    multiply = taps * (2 * v.tile_m * v.tile_n * v.tile_c / (share * rate) + step)
    moved = loads * layout.a_load + taps * layout.b_load
    if v.consumer == "wgmma" and min(v.tile_m, v.tile_n) < 128:
        multiply += moved / FILL_BYTES_PER_CYCLE
    issue = moved / v.copy_bytes * COPY_CYCLES[v.producer] / COPY_WARPS
    load = max(moved / L2_BYTES_PER_CYCLE, issue)
    waiting = taps * LATENCY_CYCLES / layout.b_stages
    fixed = TILE_CYCLES if v.consumer == "wgmma" else OTHER_TILE_CYCLES
    return _estimate(g, v, arch, multiply, load, waiting, store_cycles(v) + fixed)


def store_cycles(v: Variant) -> float:
    """Cycles of the epilogue of a tile."""
    size = v.tile_m * v.tile_n * ITEMSIZES[v.y_dtype]
    return size / (LINE_STORES if v.staged else OTHER_STORES)


def _estimate(
    g: Geometry,
    v: Variant,
    arch: GpuArch,
    multiply: float,
    load: float,
    waiting: float,
    rest: float,
) -> Estimate:
    """The estimate from the cycles of a tile: those beside multiplying and loading are `rest`."""
    counts = tile_counts(g, v)
    rounds = -(-math.prod(counts) // (arch.sms * v.resident))
    rows = counts[1] * v.tile_m
    junk = 1 - g.N * g.Z * g.P * g.Q / rows if rows else 0.0
    shorter = 0.0 if v.consumer == "wgmma" else min(multiply, load)
    busy = max(multiply, load) + IMPERFECT_OVERLAP * shorter
    computed = rounds * max(v.resident * busy, max(busy, waiting) + rest)
    moved = memory_seconds(g, v, arch) * arch.hertz
    cycles = LAUNCH_SECONDS * arch.hertz + (computed**NORM + moved**NORM) ** (1 / NORM)
    return Estimate(cycles, multiply, load, rounds, junk)


def memory_seconds(g: Geometry, v: Variant, arch: GpuArch) -> float:
    """Seconds in which device memory moves x and y of a launch.

    A tile on the CUDA cores may hold few channels of its pixels; a line is moved for each.
    """
    outputs = g.N * g.Z * g.P * g.Q
    pixels = min(g.N * g.D * g.H * g.W, outputs * schedule.taps(g))  # a stride may leave some out
    sizes = g.C * g.groups * v.itemsize, g.K * g.groups * ITEMSIZES[v.y_dtype]
    seconds = pixels * sizes[0] / READ_SHARE + outputs * sizes[1] / WRITE_SHARE
    seconds /= arch.memory
    if not v.strip:
        return seconds
    pixel = min(LINE_BYTES, sizes[0])
    return seconds * pixel / min(pixel, v.tile_n * v.itemsize)
