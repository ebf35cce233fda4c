"""Sums over no channels, filters or pixels are zeros, whatever function and method has them."""

import dataclasses

import numpy as np
import pytest

import implicit_conv
from implicit_conv import PlanError
from implicit_conv.cpu.candidates.candidate import Candidate
from implicit_conv.cpu.candidates.problem_views import spatial
from implicit_conv.cpu.candidates.query import Request
from implicit_conv.cpu.machine.arch import cpu_arch
from implicit_conv.cpu.plan.composite import Composite
from implicit_conv.problem.options import ALGORITHMS, PRECISIONS
from implicit_conv.testing.methods import NAMES

RANKS = (1, 2, 3)
NUMBERS = [(0, 4), (4, 0), (0, 0)]  # channels and filters
KINDS = ("float32", "float64", "float16", "int8", "uint8", "int16", "complex64")


def sizes(rank, channels, filters, groups, kernel):
    """The shapes of x, w and y of a convolution that pads as many pixels as it needs for y as x."""
    pixels = (6,) * rank
    x = 1, channels, *pixels
    return x, (filters, channels // groups, *(kernel,) * rank), (1, filters, *pixels)


def call(name, *args, **options):
    """The result of a function, of which the plan is explained too."""
    shapes = [getattr(value, "shape", value) for value in args[:3] if value is not None]
    plan = getattr(implicit_conv, f"plan_{name}")(*shapes, args[0].dtype, **options)
    assert plan.explain()
    return getattr(implicit_conv, name)(*args, **options)


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize(("channels", "filters"), NUMBERS)
@pytest.mark.parametrize("rank", RANKS)
def test_functions_of_float32(rank, channels, filters, groups):
    for kernel in (1, 3):
        options = {"padding": kernel // 2, "groups": groups}
        x_shape, w_shape, y_shape = sizes(rank, channels, filters, groups, kernel)
        x, w, y = (np.zeros(shape, np.float32) for shape in (x_shape, w_shape, y_shape))
        found = {
            f"conv{rank}d": (call(f"conv{rank}d", x, w, **options), y),
            f"conv_transpose{rank}d": (call(f"conv_transpose{rank}d", y, w, **options), x),
            "input_grad": (call(f"conv{rank}d_input_grad", y, w, x_shape, **options), x),
            "weight_grad": (call(f"conv{rank}d_weight_grad", x, y, w_shape, **options), w),
        }
        for name, (result, expected) in found.items():
            assert result.shape == expected.shape, name
            assert not result.any(), name


@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("rank", RANKS)
def test_what_an_epilogue_adds_is_left(rank, dtype):
    x_shape, w_shape, y_shape = sizes(rank, 0, 4, 1, 3)
    x, w = np.zeros(x_shape, dtype), np.zeros(w_shape, "int8" if dtype == "uint8" else dtype)
    bias = np.array([-2, -1, 1, 2])
    residual = np.arange(np.prod(y_shape)).reshape(y_shape) % 5
    floats = np.dtype(dtype).kind in "fc"
    kind = dtype if floats else "int32"
    bias, residual = bias.astype(kind), residual.astype(kind)
    expected = bias.reshape(4, *[1] * rank) + residual
    name = f"conv{rank}d"
    y = getattr(implicit_conv, name)(x, w, bias, padding=1, residual=residual)
    np.testing.assert_array_equal(y, expected)
    if dtype != "complex64":
        y = getattr(implicit_conv, name)(x, w, bias, padding=1, activation="relu")
        np.testing.assert_array_equal(
            y, np.broadcast_to(np.maximum(expected - residual, 0), y_shape)
        )
    if dtype in ("int8", "uint8"):
        rounded = getattr(implicit_conv, name)(
            x, w.astype(np.float32), np.array([-1e9, 0.5, 2.5, 1e9]), padding=1, out_dtype=dtype
        )
        limits = np.iinfo(dtype)
        saturated = np.array([limits.min, 0, 2, limits.max]).reshape(4, *[1] * rank)
        np.testing.assert_array_equal(rounded, np.broadcast_to(saturated, y_shape))


@pytest.mark.parametrize("kernel", [1, 3])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_an_algorithm_sums_nothing_or_says_why_it_cannot(algorithm, kernel):
    x, w = np.zeros((1, 0, 6, 6), np.float32), np.zeros((4, 0, kernel, kernel), np.float32)
    options = {"padding": kernel // 2, "algorithm": algorithm, "precision": "fast"}
    try:
        assert not call("conv2d", x, w, **options).any()
    except PlanError as error:
        assert f"algorithm {algorithm!r} cannot compute this problem: it " in str(error)


@pytest.mark.parametrize(
    "name", [name for name, method in NAMES.items() if not issubclass(method, Composite)]
)
def test_a_method_finds_candidates_or_refuses(name):
    """Also on other CPUs than this one."""
    host = cpu_arch()
    narrow = dataclasses.replace(host, vector_bits=128, tile_pixels=6, fma=False)
    amx = dataclasses.replace(host, bfloat16="amx", int8="quads")
    for dtype in ("float32", "bfloat16", "uint8"):
        for channels, filters in NUMBERS:
            for groups, kernel, stride in ((1, 1, 1), (1, 3, 1), (2, 3, 2), (4, 2, 2)):
                shapes = sizes(2, channels, filters, groups, kernel)[:2]
                plan = implicit_conv.plan_conv2d(
                    *shapes, dtype, stride=stride, padding=1, groups=groups
                )
                for arch in (host, narrow, amx):
                    for precision in PRECISIONS:
                        found = NAMES[name].candidates(
                            spatial(plan.problem), arch, Request(precision=precision)
                        )
                        for c in found:
                            assert not isinstance(c, Candidate) or c.seconds >= 0
