"""Random problems for each family of GPU kernels, and example copies, for tests and checks."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from implicit_conv.gpu.cuda.arch import GpuArch, gpu_arch
from implicit_conv.gpu.plan.candidate import Choice
from implicit_conv.gpu.plan.direct import direct_rule
from implicit_conv.gpu.plan.families import FAMILIES, Family, family_name
from implicit_conv.gpu.plan.planner import choose, variants
from implicit_conv.kernels.geometry import CLAMP
from implicit_conv.kernels.gpu.call import Call
from implicit_conv.kernels.gpu.sizes import VECTOR_BYTES
from implicit_conv.kernels.gpu.targets import supports
from implicit_conv.kernels.gpu.variant import STAGED_TOGETHER, Rows, Strip, Variant
from implicit_conv.problem.options import GPU_DTYPES
from implicit_conv.problem.problem import Problem
from implicit_conv.testing import Case
from implicit_conv.tma.maps.maps import Im2colMap, Im2colWideMap, TensorMap
from implicit_conv.tma.maps.tiled import TiledMap

Array = NDArray[Any]
ROUNDING = {"bfloat16": 2.0**-8, "float16": 2.0**-11, "float32": 2.0**-24}  # relative, of y
SUM_UNITS = 64.0  # bound of the error in eps * sum|x||w|: the hardware chooses the order of sums
SMALL_SHARED = (20 << 10, 28 << 10, 40 << 10, 56 << 10, 80 << 10, 227 << 10)  # bytes


def random_case(rng: np.random.Generator, family: Family, v: Variant) -> Case:
    """A problem that spans two tiles along gemm_m and gemm_n and two channel blocks."""
    if v.strip:
        return _random_narrow_case(rng, family, v, v.strip)
    if v.band:
        return _random_rows_case(rng, family, v, v.band)
    while True:
        layout, weight_layout = family.layouts[rng.integers(len(family.layouts))]
        pads = rng.integers(0, 4, 4)
        k_unit = 16 // v.itemsize if v.packed else 1
        unit = v.alignment // v.itemsize
        columns = int(rng.integers(1 + v.folded, 5))
        channels = v.tile_c + int(rng.integers(1, v.tile_c))  # of a load: two channel blocks
        case = Case(
            N=int(rng.integers(1, 5)),
            C=_round(-(-channels // columns) if v.folded else channels, unit),
            K=_round(v.tile_n + int(rng.integers(1, v.tile_n)), k_unit),
            groups=int(rng.choice((1,) if v.folded else family.groups)),
            size=(int(rng.integers(3, 10)), int(rng.integers(3, 14))),
            kernel=(int(rng.integers(1, 4)), columns),
            stride=(int(rng.integers(1, 4)), int(rng.integers(1, 4))),
            dilation=(int(rng.integers(1, 3)), 1 if v.folded else int(rng.integers(1, 4))),
            padding=((int(pads[0]), int(pads[1])), (int(pads[2]), int(pads[3]))),
            layout=layout,
            weight_layout=weight_layout,
        )
        p, q = case.output
        case = _with_planes(rng, case) if v.volume and min(p, q) >= 1 else case
        rows = math.prod(case.output)
        if min(case.output) >= 1 and case.N * rows > v.tile_m and (p > 1 or not v.wide):
            return case


def _with_planes(rng: np.random.Generator, case: Case) -> Case:
    """The same rows and columns in volumes of one to five planes."""
    planes = {
        "size": int(rng.integers(1, 6)),
        "kernel": int(rng.integers(1, 4)),
        "stride": int(rng.integers(1, 4)),
        "dilation": int(rng.integers(1, 3)),
        "padding": (int(rng.integers(0, 3)), int(rng.integers(0, 3))),
    }
    own: dict[str, Any] = {name: (each, *getattr(case, name)) for name, each in planes.items()}
    return replace(case, N=min(case.N, 2), **own)


_FIRST: dict[str, Any] = {"N": 1, "layout": "NHWC", "weight_layout": "KRSC"}
FIRST_LAYERS = (
    Case(C=3, K=64, size=(112, 224), kernel=(7, 7), stride=(2, 2), padding=((3, 3),) * 2, **_FIRST),
    Case(C=3, K=32, size=(56, 56), padding=((1, 1),) * 2, **_FIRST),
    Case(C=3, K=96, size=(64, 64), kernel=(4, 4), stride=(4, 4), **_FIRST),
    Case(C=1, K=64, size=(33, 75), kernel=(5, 5), stride=(1, 2), **_FIRST),
)


def _random_narrow_case(rng: np.random.Generator, family: Family, v: Variant, strip: Strip) -> Case:
    """A problem that spans two or three panels of groups and two tiles of a panel.

    With three of them, one of two blocks has tiles of two.
    """
    unit = math.lcm(v.filters, strip.group_k)
    filters = _round(v.tile_n + int(rng.integers(1, 2 * v.tile_n + 1)), unit)
    layouts = [names for names in family.layouts if v.producer == "elements" or names[0] == "NHWC"]
    while True:
        layout, weight_layout = layouts[rng.integers(len(layouts))]
        pads, apart = rng.integers(0, 4, 4), strip.columns == 1
        case = Case(
            N=int(rng.integers(1, 5)),
            C=strip.group_c,
            K=strip.group_k,
            groups=filters // strip.group_k,
            size=(int(rng.integers(3, 10)), int(rng.integers(3, 14))),
            kernel=(int(rng.integers(1, 4)), int(rng.integers(1, 5)) if apart else strip.columns),
            stride=(int(rng.integers(1, 4)), int(rng.integers(1, 4)) if apart else strip.stride),
            dilation=(
                int(rng.integers(1, 3)),
                int(rng.integers(1, 4)) if apart else strip.dilation,
            ),
            padding=((int(pads[0]), int(pads[1])), (int(pads[2]), int(pads[3]))),
            layout=layout,
            weight_layout=weight_layout,
        )
        p, q = case.output
        if min(p, q) >= 1:
            return replace(case, N=max(case.N, v.tile_m // (p * q) + 1))


def _random_rows_case(rng: np.random.Generator, family: Family, v: Variant, band: Rows) -> Case:
    """A problem of two panels and two or more tiles down each image, some also across it."""
    order = {"vectors": "NHWC", "planes": "NCHW"}.get(v.producer)
    layouts = [names for names in family.layouts if order in (None, names[0])]
    unit = 1 if v.producer == "elements" else STAGED_TOGETHER
    widest = v.row_columns * band.stride[1] * 3 // 2 + band.kernel[1]
    highest = (3 * band.rows + 1) * band.stride[0] + band.kernel[0]
    while True:
        layout, weight_layout = layouts[rng.integers(len(layouts))]
        pads = rng.integers(0, 4, 4)
        case = Case(
            N=int(rng.integers(1, 4)),
            C=band.channels,
            K=_round(v.tile_n + int(rng.integers(1, v.tile_n)), 8 if v.packed else 1),
            size=(int(rng.integers(2, highest)), _round(int(rng.integers(2, widest)), unit)),
            kernel=band.kernel,
            stride=band.stride,
            padding=((int(pads[0]), int(pads[1])), (int(pads[2]), int(pads[3]))),
            layout=layout,
            weight_layout=weight_layout,
        )
        p, q = case.output
        if p > band.rows and q >= 1:
            return case


def _round(value: int, unit: int) -> int:
    return -(-value // unit) * unit


def problem_of(case: Case, dtype: str) -> Problem:
    """The problem of a case in `dtype`."""
    x = np.empty((case.N, case.C * case.groups, *case.size), np.uint8)
    w = np.empty((case.K * case.groups, case.C, *case.kernel), np.uint8)
    x, w = case.arrange(x, w)
    options = {**case.options, "rank": case.rank}
    return Problem.parse(x.shape, w.shape, dtype, dtypes=GPU_DTYPES, **options)


def plan_small(
    case: Case,
    family: Family,
    v: Variant,
    extra: int = 0,
    arch: GpuArch | None = None,
    **options: Any,
) -> Choice:
    """The choice for a case with the least shared memory that suffices, or `extra` sizes more."""
    problem = problem_of(case, v.dtype)
    arch, able = arch or gpu_arch(family.device), 0
    for size in SMALL_SHARED:
        try:
            made = choose(problem, replace(arch, smem_bytes=size), variant=v, **options)
        except ValueError:
            continue
        able += 1
        if able > extra or size == SMALL_SHARED[-1]:
            return made
    raise ValueError(f"{v.name} cannot run {case}")


def with_epilogue(made: Choice, biased: bool, residual: bool, scaled: bool = False) -> Choice:
    """The choice with the kernel for calls with or without a bias, a residual and a scale."""
    variant = replace(made.variant, biased=biased, residual=residual, scaled=scaled)
    return replace(made, variant=variant)


def stored(values: Array, dtype: str) -> Array:
    """float32 values as `dtype` stores them, rounded to even; 16-bit types as their bits, uint16.

    A NaN stays a NaN. numpy has no bfloat16.
    """
    values = np.asarray(values, np.float32)
    if dtype == "float32":
        return values
    if dtype == "float16":
        with np.errstate(over="ignore"):
            return values.astype(np.float16).view(np.uint16)
    bits = values.view(np.uint32)
    rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
    return np.where(np.isnan(values), 0x7FFF, rounded).astype(np.uint16)


def loaded(array: Array, dtype: str) -> Array:
    """The float32 values of a stored array."""
    if dtype == "bfloat16":
        return (array.astype(np.uint32) << 16).view(np.float32)
    return array if dtype == "float32" else array.view(np.float16).astype(np.float32)


def family_problems(
    family: Family, count: int, seed: int, arch: GpuArch | None = None
) -> Iterator[tuple[Case, Choice]]:
    """`count` random problems of a family, alternating its variants and sizes of memory."""
    rng, made = np.random.default_rng(seed), 0
    while made < count:
        v = family.variants[made % len(family.variants)]
        case = random_case(rng, family, v)
        try:
            chosen = plan_small(case, family, v, extra=made // 2 % 2, arch=arch)
        except ValueError:
            continue  # no tensor map can express the walk
        made += 1
        yield case, chosen


def production_problems(arch: GpuArch, count: int, seed: int) -> Iterator[tuple[Case, Choice]]:
    """`count` random problems of every kernel with which the planner may compute on `arch`."""
    rng = np.random.default_rng(seed)
    for dtype in GPU_DTYPES:
        for plain in production_variants(dtype, plain=True):
            if not supports(plain.target, arch.cc):
                continue
            made = 0
            while made < count:
                case = random_case(rng, FAMILIES[family_name(plain)], plain)
                last = case.layout == "NHWC"  # as the planner has it for the variants of a layout
                packed = plain.packed and (last or bool(plain.strip))
                v = replace(plain, packed=packed, linear=plain.linear and last)
                try:
                    chosen = choose(problem_of(case, dtype), arch, variant=v)
                except ValueError:
                    continue  # no tensor map can express the walk
                made += 1
                yield case, chosen


def production_variants(dtype: str, plain: bool) -> Iterator[Variant]:
    """The kernels that the planner may choose for usual channels, some for others and for groups.

    Those for other channels copy 4 bytes at a time, 8 in float32. Those for narrow groups are the
    largest and the smallest tile of vectors and of elements, for depthwise problems with and
    without a stride and for groups of four. Then come the kernels of first layers.
    """
    size = {"size": (9, 14), "layout": "NHWC", "weight_layout": "KRSC"}
    usual = Case(N=1, C=128, K=256, **size)  # type: ignore[arg-type]
    for v in variants(problem_of(usual, dtype), CLAMP, plain):
        if not v.strip:
            yield v
    for v in variants(problem_of(replace(usual, C=102), dtype), CLAMP, plain):
        if v.copy_bytes < VECTOR_BYTES:
            yield v
    for group, groups, stride in ((1, 64, 1), (1, 64, 2), (4, 16, 1), (1, 63, 1)):
        steps = stride, stride
        narrow = Case(1, group, group, groups, stride=steps, **size)  # type: ignore[arg-type]
        problem = problem_of(narrow, dtype)
        able = [
            v for v in variants(problem, CLAMP, plain) if v.strip and not direct_rule(problem, v)
        ]
        yield from (able[0], able[-1])
    for first in FIRST_LAYERS:
        yield from (v for v in variants(problem_of(first, dtype), CLAMP, plain) if v.band)


@dataclass(frozen=True)
class Copy:
    """One tensor copy: its map, its operands, and the order of the tensor's axes in memory."""

    name: str
    map: TensorMap
    coords: tuple[int, ...]
    offsets: tuple[int, ...] | None = None
    halo: int = 0
    offset: int = 0
    order: tuple[int, ...] = (0, 1, 2, 3)  # the map's axes in memory order; its own inverse

    @property
    def mode(self) -> str:
        """The instruction's mode."""
        return self.map.mode

    def tensor(self, rng: np.random.Generator) -> tuple[Array, Array]:
        """(random bits in memory order, the same memory with the map's axes)."""
        shape = [self.map.shape[axis] for axis in self.order]
        stored = rng.integers(0, 1 << 16, shape).astype(np.uint16)
        return stored, stored.transpose(self.order)

    def at(self, address: int) -> TensorMap:
        """The map for a tensor at `address`."""
        moved: TensorMap = replace(self.map, address=address)
        return moved


def example_copies() -> list[Copy]:
    """Copies that differ in mode, stride, wrap, fill, halo, offset, swizzle and axes."""
    shape = (3, 5, 7, 64)
    common: dict[str, Any] = {"shape": shape, "dtype": "uint16", "channels_per_pixel": 64}
    tap = {**common, "pixels_per_column": 64, "swizzle": "128B"}
    row = {**common, "pixels_per_column": 24, "lower_corner_w": -1}
    plain = Im2colMap(lower_corner=(-1, -1), upper_corner=(-1, -1), traversal_stride=1, **tap)
    strided = Im2colMap(lower_corner=(-1, -1), upper_corner=(-1, -1), traversal_stride=2, **tap)
    narrow = Im2colMap(
        lower_corner=(0, 0),
        upper_corner=(-2, -2),
        traversal_stride=1,
        **{**tap, "channels_per_pixel": 32, "swizzle": "64B"},
    )
    wide = Im2colWideMap(upper_corner_w=0, traversal_stride=1, **row)
    wide_strided = Im2colWideMap(upper_corner_w=0, traversal_stride=2, **row)
    wide_128 = Im2colWideMap(upper_corner_w=0, traversal_stride=1, mode="w128", **row)
    pixel, line = 128, 7 * 128
    permuted = Im2colMap(
        lower_corner=(0, -1),
        upper_corner=(4, 0),
        traversal_stride=1,
        shape=(5, 3, 7, 64),
        dtype="uint16",
        channels_per_pixel=64,
        pixels_per_column=26,
        swizzle="128B",
        strides=(line, 5 * line, pixel),
    )
    filters = TiledMap(shape=(40, 9, 72), dtype="uint16", box=(64, 1, 64), swizzle="128B")
    return [
        Copy("im2col", plain, (0, -1, -1, 0), (0, 0)),
        Copy("im2col tap", plain, (1, 2, 3, 0), (2, 2)),
        Copy("im2col past the batch", plain, (2, 3, 3, 0), (1, 1)),
        Copy("im2col stride 2", strided, (0, -1, 1, 0), (1, 2)),
        Copy("im2col 64B", narrow, (0, 0, 0, 32), (1, 1)),
        Copy("im2col channels past C", narrow, (0, 0, 0, 48), (0, 0)),
        Copy("im2col::w", wide, (0, 2, -1, 0), None, 2, 0),
        Copy("im2col::w offset", wide, (1, 0, 3, 0), None, 3, 1),
        Copy("im2col::w row outside", wide, (0, -1, -1, 0), None, 2, 0),
        Copy("im2col::w stride 2", wide_strided, (0, 4, -1, 0), None, 1, 1),
        Copy("im2col::w::128", wide_128, (0, 2, -1, 0), None, 2, 1),
        Copy("permuted axes", permuted, (2, 0, -1, 0), (0, 0), order=(1, 0, 2, 3)),
        Copy("permuted axes offset", permuted, (0, 1, 3, 0), (0, 1), order=(1, 0, 2, 3)),
        Copy("tile of more filters than there are", filters, (0, 4, 0), order=(0, 1, 2)),
        Copy("tile of channels past C", filters, (8, 8, 64), order=(0, 1, 2)),
    ]


def dump_call(copy: Copy, y: int, size: int) -> Call:
    """The Call of the dump kernel (kernels/gpu/dump.py) for a copy of `size` bytes to address y."""
    n, h, w, c = copy.coords if copy.mode != "tiled" else (copy.coords[0], 0, *copy.coords[1:])
    first, second = copy.offsets if copy.offsets is not None else (copy.halo, copy.offset)
    fields = dict.fromkeys(Call._fields, 0)
    operands = {"x_n": n, "x_h": h, "x_w": w, "x_c": c, "w_r": first, "w_s": second}
    return Call(**{**fields, **operands, "y": y, "a_load": size})
