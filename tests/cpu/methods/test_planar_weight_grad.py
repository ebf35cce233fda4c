"""Weight gradients of depthwise filters over planes: what conformance alone does not show."""

from dataclasses import replace

import numpy as np
import pytest

from implicit_conv import plan_conv2d_weight_grad, plan_conv3d_weight_grad
from implicit_conv.cpu.candidates.problem_views import spatial
from implicit_conv.cpu.candidates.query import Refusal, Request
from implicit_conv.cpu.engines import wgrad
from implicit_conv.cpu.machine.arch import CpuArch, cpu_arch
from implicit_conv.cpu.methods.planar_weight_grad import PlanarWeightGrad
from implicit_conv.kernels.cpu.wgrad.layout import PlaneTaps
from implicit_conv.problem import reference
from implicit_conv.testing import Case

ARCH = CpuArch(512, True, 48 << 10, 1 << 20, 1, 14)
CASE = Case(N=2, groups=5, size=(14, 22), stride=(2, 2), padding=((1, 1), (1, 1)))
pytestmark = pytest.mark.skipif(
    cpu_arch().vector_bits < 256, reason="this CPU has no masked loads of vectors"
)


@pytest.fixture(autouse=True)
def prefer(force_method):
    """The planner prefers the method wherever it can run."""
    force_method(PlanarWeightGrad)


def planned(case, **options):
    """A plan of the method for a case."""
    make = plan_conv2d_weight_grad if len(case.size) == 2 else plan_conv3d_weight_grad
    plan = make(
        case.shapes["x"],
        case.shapes["y"],
        case.shapes["w"],
        case.dtype,
        stride=case.stride,
        padding=case.padding,
        dilation=case.dilation,
        groups=case.groups,
        **options,
    )
    assert isinstance(plan.engine.best.method, PlanarWeightGrad)
    return plan


def integers(case, seed=0):
    """x and dy, whose sums of products are exact, and the gradient by the reference."""
    random = np.random.default_rng(seed)
    x, dy = (random.integers(-3, 4, case.shapes[name]).astype(case.dtype) for name in "xy")
    options = {"stride": case.stride, "pads": case.padding, "dilation": case.dilation}
    return x, dy, reference.weight_grad(x, dy, case.kernel, groups=case.groups, **options)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kernel", [(1, 1), (3, 3), (5, 5), (2, 4), (3, 30)], ids=str)
def test_integers_are_exact(kernel, dtype):
    """Rows narrower than a vector and longer than several, all of them at an edge; padding wider
    than the filter and cropped images, more taps than registers.
    """
    found = 0
    for width in (1, 2, 7, 8, 15, 16, 17, 31, 33, 70):
        for stride, dilation, pads in (
            ((1, 1), (1, 1), ((1, 1), (1, 1))),
            ((2, 2), (1, 1), ((1, 1), (1, 1))),
            ((3, 2), (1, 1), ((0, 5), (40, 3))),
            ((2, 2), (2, 3), ((3, 2), (5, 38))),
            ((1, 1), (3, 2), ((-1, 6), (6, -1))),
            ((2, 2), (1, 1), ((0, 0), (-1, 0))),
        ):
            case = Case(
                N=2,
                groups=3,
                size=(9, width),
                kernel=kernel,
                stride=stride,
                dilation=dilation,
                padding=pads,
                dtype=dtype,
            )
            if min(case.output) > 0:
                x, dy, expected = integers(case, width)
                np.testing.assert_array_equal(planned(case)(x, dy), expected, f"{case}")
                found += 1
    assert found > 20


def test_filters_with_depth_and_images_of_several_load_tiles():
    volume = Case(
        N=2,
        groups=3,
        size=(5, 6, 9),
        kernel=(3, 2, 3),
        stride=(2, 1, 2),
        dilation=(2, 1, 1),
        padding=((1, 3), (1, 1), (1, 1)),
    )
    large = replace(CASE, groups=2, N=3, size=(250, 300))
    long = replace(CASE, groups=2, N=1, size=(3, 18000), stride=(1, 2))
    for case in volume, large, long:
        x, dy, expected = integers(case)
        np.testing.assert_array_equal(planned(case)(x, dy), expected)
    assert planned(large).engine.best.layout.parts > 1
    assert planned(long).engine.best.geometry.tile_q < long.output[1]


@pytest.mark.parametrize("stride", [1, 2])
def test_a_nan_shows_in_the_taps_that_read_it_alone(stride):
    """Columns of x that no output reads, and those beside the lanes of a partial vector."""
    case = replace(CASE, stride=(1, stride), padding=((0, 0), (0, 0)), kernel=(2, 3))
    plan, (x, dy, expected) = planned(case), integers(case)
    used = (case.output[1] - 1) * stride + 3
    for column in range(case.size[1]):
        given = x.copy()
        given[1, 2, 5, column] = np.nan
        dw = plan(given, dy)
        reads = {
            s
            for s in range(3)
            if (column - s) % stride == 0 and 0 <= column - s < case.output[1] * stride
        }
        assert {at[-1] for at in np.argwhere(np.isnan(dw))} == reads
        assert bool(reads) == (column < used)
        np.testing.assert_array_equal(dw[[0, 1, 3, 4]], expected[[0, 1, 3, 4]])


def test_arrays_and_results_of_other_strides():
    """Rows with gaps and in reverse are read in place; pixels with gaps make another method run."""
    plan, (x, dy, expected) = planned(CASE), integers(CASE)
    for change in (
        lambda a: np.repeat(a, 2, 2)[:, :, ::2],
        lambda a: np.ascontiguousarray(a[::-1, ::-1, ::-1])[::-1, ::-1, ::-1],
        lambda a: np.repeat(a, 2, 3)[..., ::2],
    ):
        np.testing.assert_array_equal(plan(change(x), change(dy)), expected)
    for out in (
        np.full(expected.shape[::-1], np.nan, "float32").T,
        np.full((*expected.shape[:3], 6), np.nan, "float32")[..., ::-2],
    ):
        np.testing.assert_array_equal(plan(x, dy, out=out), expected)
    wide = planned(CASE, out_dtype="float64")(x, dy)
    assert wide.dtype == np.float64
    np.testing.assert_array_equal(wide, expected)


def test_sizes_of_one_kind_share_no_wrong_kernel():
    """Vectors are as narrow as rows, whose length is not part of a kind."""
    for width in (30, 4, 8, 100, 15, 30):
        case = replace(CASE, size=(6, width))
        x, dy, expected = integers(case)
        np.testing.assert_array_equal(planned(case)(x, dy), expected)


def test_the_order_of_sums_depends_on_no_number_of_threads():
    """Neither that of the method, nor which method computes a problem."""
    case = replace(CASE, groups=40, N=3)
    random = np.random.default_rng(0)
    x, dy = (random.standard_normal(case.shapes[name]).astype("float32") for name in "xy")
    few = replace(case, groups=2, size=(300, 300))
    a, b = (random.standard_normal(few.shapes[name]).astype("float32") for name in "xy")
    for problem, given in (case.problem, (x, dy)), (few.problem, (a, b)):
        results = [wgrad.plan(problem, cpu_arch(n), Request()).run(*given) for n in (1, 2, 5)]
        for other in results[1:]:
            np.testing.assert_array_equal(other, results[0])


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"groups": 1}, "one channel and one filter"),
        ({"K": 2}, "one channel and one filter"),
        ({"layout": "NHWC"}, "pixels are not contiguous"),
        ({"stride": (1, 3)}, "a stride of 1 or 2 along W, not 3"),
        ({"padding_mode": "reflect"}, "padding repeats pixels"),
    ],
)
def test_it_says_where_it_does_not_run(changes, reason):
    problem = spatial(replace(CASE, **{"C": 1, **changes}).problem)
    if "groups" in changes:
        problem = spatial(replace(CASE, groups=1, C=2).problem)
    (found,) = PlanarWeightGrad.candidates(problem, ARCH, Request())
    assert isinstance(found, Refusal) and reason in found.reason
    narrow = replace(ARCH, vector_bits=128)
    (found,) = PlanarWeightGrad.candidates(spatial(CASE.problem), narrow, Request())
    assert isinstance(found, Refusal) and "masked loads" in found.reason


def test_strict_keeps_its_order_of_sums():
    plan = wgrad.plan(CASE.problem, cpu_arch(1), Request(precision="strict"))
    assert plan.best.method.order == "pixels"


def test_columns_beyond_the_last_tap_are_not_loaded():
    """But for a single tap, whose even columns have odd ones beside them."""
    for columns in range(2, 9):
        for dilation in 1, 2, 3:
            loads = PlaneTaps(1, columns, 2, dilation).loads
            last = (columns - 1) * dilation
            assert max(first for first, _ in loads) == last - 1
            read = {s: first + rest for first, met in loads for s, rest in met.items()}
            assert read == {s: s * dilation for s in range(columns)}
