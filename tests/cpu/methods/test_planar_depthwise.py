"""Depthwise convolution over planes: what its results alone do not show."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from implicit_conv import config, conv1d, conv2d, conv3d, plan_conv2d
from implicit_conv.cpu.candidates.problem_views import spatial
from implicit_conv.cpu.candidates.query import Refusal, Request
from implicit_conv.cpu.engines.executed_loads import executed_loads
from implicit_conv.cpu.machine.arch import CpuArch
from implicit_conv.cpu.methods.planar_depthwise import PlanarDepthwise
from implicit_conv.cpu.methods.shifted_rows import ShiftedRows
from implicit_conv.kernels.cpu.planar_depthwise.operator import plane_filter
from implicit_conv.testing import Case, plan_of

ARCH = CpuArch(512, True, 48 << 10, 1 << 20, 1, 14)
CASE = Case(N=2, groups=5, size=(40, 37), padding=((1, 1), (1, 1)))


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_few_channels_in_nhwc_are_convolved_as_planes(dtype):
    """Pixels as lanes, where channels would leave most of a vector empty."""
    for channels, layout in (1, "NHWC"), (3, "NHWC"), (4, "NHWC"), (3, "NCHW"):
        shape = (1, 40, 40, channels) if layout == "NHWC" else (1, channels, 40, 40)
        options = {"padding": 2, "groups": channels, "layout": layout, "algorithm": "depthwise"}
        plan = plan_conv2d(shape, (channels, 1, 5, 5), dtype, **options)
        assert isinstance(plan.engine.best.method, PlanarDepthwise | ShiftedRows)


@pytest.mark.parametrize("changes", [{}, {"layout": "NHWC", "groups": 4}, {"stride": (2, 2)}])
def test_executed_loads_are_the_planned_ones(changes, force_method):
    force_method(PlanarDepthwise)
    case = replace(CASE, **changes)
    plan = plan_of(case)
    assert isinstance(plan.engine.best.method, PlanarDepthwise)
    assert executed_loads(plan.engine, *case.arrange(*case.inputs(0))) == sorted(plan.trace())


@pytest.mark.parametrize("kernel", [(3, 3), (7, 7), (20, 3), (1, 9)])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("dilation", [1, 3, 9])
def test_filters_differ_between_sizes_in_their_phases_alone(kernel, stride, dilation):
    found = {}
    for size in itertools.product((24, 33, 70, 200), repeat=2):
        steps = {"stride": (stride,) * 2, "dilation": (dilation,) * 2}
        pads = tuple((taps * dilation, taps * dilation) for taps in kernel)
        problem = spatial(replace(CASE, size=size, kernel=kernel, padding=pads, **steps).problem)
        for c in PlanarDepthwise.candidates(problem, ARCH, Request()):
            g = c.geometry
            found.setdefault((g.phases_h, g.phases_w), set()).add(plane_filter(g))
    assert found and all(len(filters) == 1 for filters in found.values())


def test_a_nan_stays_in_its_plane(force_method):
    """Lanes beyond the end of a row are not those of another row or channel."""
    force_method(PlanarDepthwise)
    x, w = CASE.inputs(0)
    x[1, 2, 7, 36] = np.nan
    wrong = np.argwhere(np.isnan(plan_of(CASE)(x, w)))
    assert {tuple(at) for at in wrong} == {(1, 2, p, q) for p in (6, 7, 8) for q in (35, 36)}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"stride": (1, 3)}, "strides 1 and 2 along W, not 3"),
        ({"layout": "NHWC"}, "a stride of 1 to 4, not 5"),
        ({"size": (40, 7)}, "fill less than half of 16 vector lanes"),
    ],
)
def test_refusals(changes, reason):
    problem = spatial(replace(CASE, **changes).problem)
    (found,) = PlanarDepthwise.candidates(problem, ARCH, Request())
    assert isinstance(found, Refusal) and reason in found.reason


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    ("kernel", "changes"),
    [
        ((1, 128), {}),  # the taps of a block
        ((1, 129), {}),
        ((1, 1100), {}),
        ((2, 300), {"size": (6, 400)}),  # rows of two blocks and a rest
        ((2, 257), {"stride": (2, 2), "size": (7, 400)}),
        ((9, 1), {"size": (20, 70), "stride": (2, 1)}),  # two passes, and pairs of output rows
    ],
)
def test_long_filters_are_right(kernel, changes, dtype, force_method):
    """Small integers, whose sums are exact: tiles of 1 to 5 rows, rows that end amid one."""
    force_method(PlanarDepthwise)
    case = replace(CASE, kernel=kernel, dtype=dtype, **{"size": (3, 1300), **changes})
    rng = np.random.default_rng(0)
    x, w = (rng.integers(-8, 9, case.shapes[name]).astype(dtype) for name in "xw")
    padded = np.pad(x, ((0, 0), (0, 0), *case.padding))
    windows = np.lib.stride_tricks.sliding_window_view(padded, kernel, axis=(2, 3))
    windows = windows[:, :, :: case.stride[0], :: case.stride[1]]
    expected = np.einsum("ncpqrs,crs->ncpq", windows, w[:, 0])
    np.testing.assert_array_equal(plan_of(case)(x, w), expected)


@pytest.mark.parametrize("taps", [128, 129, 1025])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_long_rows_have_equal_bits_with_precision_strict(taps, dtype):
    """Whatever the batch, the number of threads and the length of the signal."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((3, 2, 2500)).astype(dtype)
    w = rng.standard_normal((2, 1, taps)).astype(dtype)

    def convolve(x, threads):
        with config(num_threads=threads):
            return conv1d(x, w, groups=2, precision="strict")

    whole = convolve(x, 2)
    size = np.finfo(dtype).eps * np.abs(w).sum() * np.abs(x).max()
    for n, c in np.ndindex(3, 2):
        exact = np.correlate(x[n, c].astype(float), w[c, 0].astype(float), "valid")
        np.testing.assert_allclose(whole[n, c], exact, rtol=0, atol=4 * size)
    np.testing.assert_array_equal(convolve(x[1:2], 1), whole[1:2])
    for length in (1, 9, 700):
        part = np.ascontiguousarray(x[..., : length + taps - 1])
        np.testing.assert_array_equal(convolve(part, 1), whole[..., :length])


@pytest.mark.parametrize("kernel", [(3, 3), (21, 21), (2, 3, 3)])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_few_columns_have_the_bits_of_many_with_precision_strict(kernel, dtype):
    """As chunks of dask do, although other methods compute narrow images in less time."""
    channels, convolve = 16, conv2d if len(kernel) == 2 else conv3d
    rng, size = np.random.default_rng(0), [taps + 4 for taps in kernel[:-1]]
    x = rng.standard_normal((1, channels, *size, 40 + kernel[-1])).astype(dtype)
    w = rng.standard_normal((channels, 1, *kernel)).astype(dtype)
    whole = convolve(x, w, groups=channels, precision="strict")
    for columns in (2, 3, 7, 8):
        part = np.ascontiguousarray(x[..., : columns - 1 + kernel[-1]])
        y = convolve(part, w, groups=channels, precision="strict")
        np.testing.assert_array_equal(y, whole[..., :columns])
