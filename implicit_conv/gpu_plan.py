"""The GPU planner: candidates -> estimate -> best -> derived. It needs no GPU.

The estimate is cycles of a launch: waves x (larger of multiplying and loading a tile, and its
epilogue). Multiplying counts junk (slots past Q, rows past the last pixel, columns past K, channels
past C).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from implicit_conv.errors import PlanError
from implicit_conv.gpu_arch import WGMMA_FLOPS, GpuArch, gpu_arch
from implicit_conv.gpu_layout import SharedLayout, buffer_rows, buffers, shared_layout
from implicit_conv.gpu_maps import activation_map
from implicit_conv.kernels import schedule
from implicit_conv.kernels.activation import CLAMP
from implicit_conv.kernels.geometry import Geometry
from implicit_conv.kernels.ptx import TARGETS, supports
from implicit_conv.kernels.tile import Tile
from implicit_conv.kernels.variant import Variant
from implicit_conv.problem import GPU_DTYPES, Problem
from implicit_conv.schedule import KBlock, Load, Tap, geometry

UNBOUNDED = (-math.inf, math.inf)
W_OFFSET_MAX = {
    False: 31,
    True: 255,
}  # of im2col::w, and of its walk through a permuted 4-D im2col map

LOADS = (("w", "tma"), ("im2col", "tma"), ("im2col", "cp_async"), ("im2col", "elements"))
MMA_TILES = ((128, 128, 2, 4), (128, 64, 4, 2), (64, 64, 2, 2), (64, 32, 4, 1))  # and warps
WGMMA_COLUMNS = (256, 128, 64)

# Machine constants of the estimate, in bytes or cycles a multiprocessor; orders of magnitude only.
L2_BYTES_PER_CYCLE = 48
COPY_CYCLES = {"tma": 0.0, "cp_async": 4.0, "elements": 40.0}  # to issue 16 bytes, over 128 threads
THREADS_OF_PRODUCER = 128
EPILOGUE_BYTES_PER_CYCLE = 16
STEP_CYCLES = 60  # barriers and addresses of one filter tap
IMPERFECT_OVERLAP = 0.1  # share of the shorter of multiplying and loading that adds to the longer
TILE_CYCLES = 1500  # start of a tile: first loads, decoding


class Estimate(NamedTuple):
    """What a candidate costs: cycles of the launch, and where they come from."""

    cycles: float
    multiply: float  # cycles of a tile
    load: float
    waves: int
    junk: float  # share of multiplied gemm_m rows that are no output pixel


class Candidate(NamedTuple):
    """A kernel considered: with an estimate, or with the reason why it cannot serve."""

    variant: Variant
    geometry: Geometry
    layout: SharedLayout | None
    estimate: Estimate | None
    reason: str = ""


@dataclass(frozen=True)
class Options:
    """What has to be asked for, since no hardware run has proved it yet."""

    permuted_axes: bool = False
    shifted_descriptors: bool = False


@dataclass(frozen=True)
class GpuPlan:
    """What was chosen for one problem on one GPU, and what follows from it."""

    problem: Problem
    arch: GpuArch
    variant: Variant
    geometry: Geometry
    layout: SharedLayout
    estimate: Estimate
    candidates: tuple[Candidate, ...] = ()
    limits: tuple[float, float] = UNBOUNDED
    algorithm: str = "implicit_gemm"

    @property
    def tile(self) -> Tile:
        """The choices in the words that all engines share."""
        v, slots = self.variant, self.geometry.slots if self.variant.wide else 0
        return Tile(
            v.mode, v.tile_m, v.tile_n, v.tile_c, self.layout.a_stages, slots,
            16 * v.tiles_m, 8 * v.tiles_n,
        )  # fmt: skip

    @property
    def tiles(self) -> tuple[int, int, int]:
        """(groups, gemm_m tiles, gemm_n tiles)."""
        g = self.geometry
        return (
            g.groups,
            int(schedule.gemm_m_tiles(g, self.variant.wide)),
            int(schedule.panel_count(g)),
        )

    @property
    def blocks(self) -> int:
        """Blocks of the launch: one a multiprocessor, each of which visits tiles in turn."""
        groups, m, n = self.tiles
        return min(groups * m * n, self.arch.sms)

    @property
    def workspace_bytes(self) -> int:
        """Device memory beside the arrays: none."""
        return 0

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
        from implicit_conv.gpu_explain import explain

        return explain(self)

    def trace(self) -> list[Load]:
        """All loads of a launch, tile by tile, in the order of each tile's producer."""
        groups, m, n = self.tiles
        blocks = (block for tile in range(groups * m * n) for block in k_blocks(self, tile))
        return [load for block in blocks for load in block.loads]


def k_blocks(plan: GpuPlan, tile: int) -> Iterator[KBlock]:
    """Loads and taps of one tile, an activation load and its filter taps a k-block."""
    g, v, layout = plan.geometry, plan.variant, plan.layout
    _, tiles_m, tiles_n = plan.tiles
    group, m, panel = tile // (tiles_m * tiles_n), tile // tiles_n % tiles_m, tile % tiles_n
    n, p, q = schedule.gemm_m_pixel(g, v.wide, m, 0)
    rows, columns = (
        range(*schedule.load_rows(g, v.wide, p)),
        range(0, g.S, schedule.load_taps(g, v.wide)),
    )
    for r, s, c in itertools.product(rows, columns, range(0, g.C, g.tile_c)):
        taps = range(s, s + schedule.load_taps(g, v.wide))
        loads = [
            _activation_load(plan, b, (n, p, q), (r, s, group * g.C + c))
            for b in range(buffers(v, g))
        ]
        loads += [
            Load(
                "w",
                "tile",
                (group * g.K + panel * v.tile_n, r, t, c),
                None,
                0,
                0,
                0,
                v.tile_n,
                layout.b_load,
            )
            for t in taps
        ]
        yield KBlock(tuple(loads), tuple(Tap(r, t, *schedule.tap_view(g, v.wide, t)) for t in taps))


def _activation_load(
    plan: GpuPlan, b: int, pixel: tuple[int, int, int], step: tuple[int, int, int]
) -> Load:
    g, v = plan.geometry, plan.variant
    (n, p, q), (r, s, c) = pixel, step
    h, w, rows = p * g.stride_h - g.pad_h, q * g.stride_w - g.pad_w, buffer_rows(v, g, b)
    size = rows * v.row_bytes
    if not v.wide:
        offsets = (r * g.dilation_h, s * g.dilation_w)
        return Load("x", "im2col", (n, h, w, c), offsets, 0, 0, 0, rows, size)
    halo, offset = rows - v.tile_m, int(schedule.column_offset(g, b))
    return Load("x", "w", (n, h + r * g.dilation_h, w, c), None, halo, offset, b, rows, size)


def variants(problem: Problem, activation: int, plain: bool) -> Iterator[Variant]:
    """The kernels to consider: families x tiles."""
    packed = _packed(problem)
    for v in _families(problem.dtype, problem.C // problem.groups * problem.itemsize):
        yield replace(v, activation=activation, plain=plain, packed=packed)


def _families(dtype: str, channel_bytes: int) -> Iterator[Variant]:
    row_bytes = 64 if channel_bytes <= 64 else 128
    if dtype == "float32":
        for producer in ("cp_async", "elements"):
            yield Variant("im2col", producer, "fma", dtype, 64, 64, row_bytes, 2, 2)
        return
    for mode, producer in LOADS:
        for m, n, down, across in MMA_TILES:
            yield Variant(mode, producer, "mma", dtype, m, n, row_bytes, down, across)
    for n in WGMMA_COLUMNS:
        base = Variant("im2col", "tma", "wgmma", dtype, 128, n, row_bytes, 8, 1)
        yield replace(base, descriptors=True)
        yield replace(base, mode="w", permuted=True)
        yield replace(base, mode="w", permuted=True, descriptors=True)


def _packed(problem: Problem) -> bool:
    """Whether rows of K in y can be stored 16 bytes at a time."""
    row = problem.K // problem.groups * problem.itemsize
    return problem.layout == "NHWC" and row % 16 == 0


def refusal(problem: Problem, arch: GpuArch, v: Variant, options: Options) -> str:
    """Why a kernel cannot serve, or an empty string."""
    for rule in (_target_rule, _options_rule, _copies_rule, _maps_rule):
        reason = rule(problem, arch, v, options)
        if reason:
            return reason
    return ""


def _target_rule(problem: Problem, arch: GpuArch, v: Variant, options: Options) -> str:
    return "" if supports(v.target, arch.cc) else f"needs {TARGETS[v.target][1]}"


def _options_rule(problem: Problem, arch: GpuArch, v: Variant, options: Options) -> str:
    if v.permuted and not options.permuted_axes:
        return "permuted-axes maps are opt-in until a driver has taken one"
    if v.wide and v.descriptors and not options.shifted_descriptors:
        return "shifted descriptors are opt-in until the hardware probe has run"
    return ""


def _copies_rule(problem: Problem, arch: GpuArch, v: Variant, options: Options) -> str:
    if v.producer == "elements":
        return ""
    channels = problem.C // problem.groups * problem.itemsize
    if problem.layout != "NHWC" or problem.weight_layout != "KRSC":
        return (
            f"copies of 16 bytes need channels-last x and w (NHWC, KRSC), "
            f"not {problem.layout}, {problem.weight_layout}"
        )
    if channels % 16:
        return f"a pixel has {channels} bytes of channels in a group, no multiple of 16"
    return ""


def _maps_rule(problem: Problem, arch: GpuArch, v: Variant, options: Options) -> str:
    if v.producer != "tma":
        return ""
    if problem.groups > 1:
        return f"a tensor map serves one group, not {problem.groups}"
    try:
        activation_map(problem, v)
    except ValueError as error:
        return " ".join(str(error).split())
    return ""


def gpu_geometry(problem: Problem, v: Variant) -> Geometry:
    """The Geometry of a problem cut for a kernel."""
    return geometry(
        problem, tile=(1, 1, 1), tile_m=v.tile_m, tile_c=v.tile_c, tile_k=v.tile_n,
        offset_max=W_OFFSET_MAX[v.permuted],
    )  # fmt: skip


def consider(problem: Problem, arch: GpuArch, v: Variant, options: Options) -> Candidate:
    """A kernel with its estimate, or with the reason why not."""
    g = gpu_geometry(problem, v)
    reason = refusal(problem, arch, v, options)
    if reason:
        return Candidate(v, g, None, None, reason)
    layout = shared_layout(v, g, arch.smem_bytes)
    if layout is None:
        return Candidate(
            v, g, None, None, f"two stages do not fit {arch.smem_bytes} bytes of shared memory"
        )
    return Candidate(v, g, layout, estimate(g, v, layout, arch))


def estimate(g: Geometry, v: Variant, layout: SharedLayout, arch: GpuArch) -> Estimate:
    """Cycles of a launch; see the head of this file."""
    tiles = g.groups * schedule.gemm_m_tiles(g, v.wide) * schedule.panel_count(g)
    waves = -(-int(tiles) // arch.sms)
    taps = g.R * g.S * schedule.block_count(g)
    loads = taps // schedule.load_taps(g, v.wide)
    rate = {"mma": arch.mma_flops, "fma": arch.fma_flops, "wgmma": WGMMA_FLOPS}[v.consumer]
    multiply = taps * (2 * v.tile_m * v.tile_n * v.tile_c / rate + STEP_CYCLES)
    moved = loads * layout.a_load + taps * layout.b_load
    load = moved / L2_BYTES_PER_CYCLE
    load = max(load, moved / 16 * COPY_CYCLES[v.producer] / THREADS_OF_PRODUCER * 32)
    epilogue = v.tile_m * v.tile_n * v.itemsize / EPILOGUE_BYTES_PER_CYCLE
    rows = schedule.gemm_m_tiles(g, v.wide) * v.tile_m
    junk = 1 - g.N * g.P * g.Q / rows if rows else 0.0
    both = max(multiply, load) + IMPERFECT_OVERLAP * min(multiply, load)
    cycles = waves * (both + epilogue + TILE_CYCLES)
    return Estimate(cycles, multiply, load, waves, junk)


def plan(
    problem: Problem,
    arch: GpuArch,
    *,
    activation: tuple[float, float, float] | None = None,
    options: Options | None = None,
    variant: Variant | None = None,
) -> GpuPlan:
    """The plan of `problem` on `arch`; with `variant`, of that kernel alone.

    Parameters
    ----------
    activation : (kind, low, high), optional
        As `implicit_conv.activation.parse_activation` gives it; None also tells that there is no
        residual.
    options : Options
        What to admit before hardware has proved it.

    Raises
    ------
    PlanError
        No kernel can serve, with each one's reason.
    """
    kind = CLAMP if activation is None else int(activation[0])
    chosen = variants(problem, kind, activation is None)
    if variant is not None:
        chosen = iter([replace(variant, activation=kind)])
    candidates = tuple(consider(problem, arch, v, options or Options()) for v in chosen)
    able = [candidate for candidate in candidates if candidate.estimate is not None]
    if not able:
        reasons = "\n".join(f"  {c.variant.name}: {c.reason}" for c in candidates)
        raise PlanError(f"no GPU kernel serves {problem} on {arch.target}:\n{reasons}")
    best = min(able, key=_cycles)
    assert best.layout is not None and best.estimate is not None
    limits = UNBOUNDED if activation is None else activation[1:]
    return GpuPlan(
        problem, arch, best.variant, best.geometry, best.layout, best.estimate, candidates, limits
    )


def plan_for(
    x_shape: Sequence[int],
    w_shape: Sequence[int],
    dtype: str,
    *,
    device: str | GpuArch,
    activation: tuple[float, float, float] | None = None,
    options: Options | None = None,
    **conv: Any,
) -> GpuPlan:
    """The plan of a convolution by its shapes; what `plan_conv2d` gives for a GPU.

    Parameters
    ----------
    x_shape, w_shape : sequences of int, in the layouts among `conv`
    dtype : "float16", "bfloat16" or "float32"
    device : str or GpuArch
        A target name such as "sm_100", of a GPU that need not be at hand, or an arch.
    activation, options
        As for `plan`.
    conv
        stride, padding, dilation, groups, layout, weight_layout, as for `conv2d`.

    Raises
    ------
    ShapeError, DTypeError, PlanError
        Sizes that do not fit, a dtype or device that is not served.
    """
    problem = Problem.parse(x_shape, w_shape, dtype, dtypes=GPU_DTYPES, **conv)
    arch = gpu_arch(device) if isinstance(device, str) else device
    return plan(problem, arch, activation=activation, options=options)


def _cycles(candidate: Candidate) -> float:
    assert candidate.estimate is not None
    return candidate.estimate.cycles
