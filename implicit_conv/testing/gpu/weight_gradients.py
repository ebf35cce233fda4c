"""Random weight gradients for each of their GPU kernels, for tests and checks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from implicit_conv import conv2d_weight_grad
from implicit_conv.gpu.cuda.arch import GpuArch
from implicit_conv.gpu.plan.image_copies import copies
from implicit_conv.gpu.plan.views import images
from implicit_conv.gpu.plan.wgrad import WgradChoice, choose_wgrad, consider_all
from implicit_conv.kernels.gpu.wgrad_variant import WgradVariant
from implicit_conv.problem.options import GPU_DTYPES
from implicit_conv.testing import Case
from implicit_conv.testing.gpu.problems import loaded, problem_of, stored

Array = NDArray[Any]


def gradient_problems(
    kernels: Iterable[WgradVariant], arch: GpuArch, count: int, seed: int
) -> Iterator[WgradChoice]:
    """`count` random problems of each kernel: two tiles along gemm_m and gemm_n, several splits."""
    rng = np.random.default_rng(seed)
    for v in kernels:
        made = 0
        while made < count:
            case = random_gradient(rng, v)
            problem = problem_of(case, v.dtype)
            try:
                out = ("float32", v.dtype)[made % 2]
                choice = choose_wgrad(problem, arch, images(problem), out, variant=v)
            except ValueError:
                continue  # no tensor map can express the walk
            made += 1
            yield with_splits(choice, int(rng.integers(1, 4)), int(rng.integers(2, 4)))


def problems_on_copies(arch: GpuArch, count: int, seed: int) -> Iterator[WgradChoice]:
    """`count` random problems of few channels of each dtype, on each kind of copies of x and dy."""
    rng = np.random.default_rng(seed)
    for number in range(count * len(GPU_DTYPES)):
        v = WgradVariant("elements", GPU_DTYPES[number // count], 64, 64, 2, 2)
        channels, filters = (int(n) for n in rng.integers(1, 18, 2))
        case = replace(random_gradient(rng, v), C=channels, K=filters, groups=1)
        problem = problem_of(case, v.dtype)
        made = choose_wgrad(problem, arch, images(problem), v.dtype)
        for each in copies(made.view, ("x", "dy")):
            best = min(consider_all([each], arch, None), key=attrgetter("cycles"))
            yield with_splits(replace(made, best=best), int(rng.integers(1, 4)), stages=2)


def random_gradient(rng: np.random.Generator, v: WgradVariant) -> Case:
    """A problem with a ragged tile, and with padding, strides and dilations that differ."""
    unit = 1 if v.producer == "elements" else v.copy_bytes // v.itemsize
    while True:
        pads, kernel = rng.integers(0, 4, 4), rng.integers(1, 4, 2)
        taps = int(kernel.prod())
        case = Case(
            N=int(rng.integers(1, 4)),
            C=_round(v.tile_n // taps + int(rng.integers(1, 17)), unit),
            K=_round(v.tile_m + int(rng.integers(1, 17)), unit),
            groups=1 if v.producer == "tma" else int(rng.integers(1, 3)),
            size=(int(rng.integers(3, 10)), int(rng.integers(3, 14))),
            kernel=(int(kernel[0]), int(kernel[1])),
            stride=(int(rng.integers(1, 4)), int(rng.integers(1, 4))),
            dilation=(int(rng.integers(1, 3)), int(rng.integers(1, 4))),
            padding=((int(pads[0]), int(pads[1])), (int(pads[2]), int(pads[3]))),
            layout="NHWC",
            weight_layout="KRSC",
        )
        if min(case.output) >= 1:
            return case


def _round(value: int, unit: int) -> int:
    return -(-value // unit) * unit


def with_splits(choice: WgradChoice, splits: int, stages: int) -> WgradChoice:
    """The choice with about so many splits, and so many stages."""
    k_blocks = -(-choice.best.splits * choice.best.k_blocks // splits)
    total = -(-choice.geometry.N * choice.geometry.P * choice.geometry.Q // choice.variant.tile_k)
    k_blocks = min(k_blocks, total)
    best = replace(choice.best, stages=stages, splits=-(-total // k_blocks), k_blocks=k_blocks)
    return replace(choice, best=best, candidates=(best,))


def with_db(choice: WgradChoice) -> WgradChoice:
    """The choice, whose kernels also compute db."""
    best = replace(choice.best, variant=replace(choice.variant, biased=True))
    return replace(choice, best=best, candidates=(best,))


def gradient_inputs(choice: WgradChoice, seed: int) -> tuple[Array, Array]:
    """x and dy of small integers, float32 in the view's layouts."""
    rng, view = np.random.default_rng(seed), choice.view
    x, dy = (
        rng.integers(-3, 4, shape).astype(np.float32)
        for shape in (view.input_shape, view.output_shape)
    )
    return x, dy


def db_by_cpu(choice: WgradChoice, dy: Array) -> Array:
    """db, rounded to the dtype of dw, as float32."""
    db = dy.sum((0, 1, 2), dtype=np.float64).astype(np.float32)
    return loaded(stored(db, choice.out_dtype), choice.out_dtype)


def gradient_by_cpu(choice: WgradChoice, x: Array, dy: Array) -> Array:
    """dw in the view's layout, rounded to its dtype, as float32."""
    view = choice.view
    dw = conv2d_weight_grad(
        x,
        dy,
        view.weight_shape,
        view.stride,
        tuple(zip(view.pad_lo, view.pad_hi, strict=True)),
        view.dilation,
        view.groups,
        layout="NHWC",
        weight_layout="KRSC",
    )
    return loaded(stored(dw, choice.out_dtype), choice.out_dtype)
