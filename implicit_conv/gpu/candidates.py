"""Kernels considered for a problem on a GPU: which there are, which can serve, what each costs.

The estimate is cycles of a launch: waves x (larger of multiplying and loading a tile, a tenth of
the smaller, and its epilogue). Multiplying counts junk: slots past Q, rows past the last pixel,
columns past K, channels past C.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from implicit_conv.gpu.arch import WGMMA_FLOPS, GpuArch
from implicit_conv.gpu.layout import SharedLayout, shared_layout
from implicit_conv.gpu.maps import activation_map
from implicit_conv.kernels import schedule
from implicit_conv.kernels.geometry import Geometry
from implicit_conv.kernels.gpu.ptx import TARGETS, supports
from implicit_conv.kernels.gpu.variant import Variant
from implicit_conv.problem import Problem
from implicit_conv.schedule import geometry

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
    """What limits or widens the choice of kernels.

    `strict` keeps one order of sums whatever the batch. The others have to be asked for, since no
    hardware run has proved them yet.
    """

    permuted_axes: bool = False
    shifted_descriptors: bool = False
    strict: bool = False


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
    if options.strict and (v.wide or v.consumer == "wgmma"):
        return "precision 'strict' keeps to one order of sums: tap by tap, not by wgmma"
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
    if not channels:
        return "there are no channels to copy"
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
