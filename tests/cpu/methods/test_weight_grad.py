"""Weight gradients: which variant a problem gets. tests/api/test_weight_grad.py has results."""

from dataclasses import replace

import numpy as np
import pytest

from implicit_conv import plan_conv2d_weight_grad
from implicit_conv.cpu.candidates.problem_views import spatial
from implicit_conv.cpu.candidates.query import Refusal, Request
from implicit_conv.cpu.engines import wgrad
from implicit_conv.cpu.machine.arch import CpuArch, cpu_arch
from implicit_conv.cpu.machine.costs import EPYC
from implicit_conv.cpu.methods.weight_grad import WeightGrad, WeightGradLanes
from implicit_conv.problem import reference
from implicit_conv.testing import Case

ARCH = CpuArch(512, True, 48 << 10, 1 << 20, 1, 14)
DENSE = Case(N=2, C=40, K=64, size=(9, 11), padding=((1, 1), (1, 1)), layout="NHWC")
POINTS = replace(DENSE, kernel=(1, 1), padding=((0, 0), (0, 0)))


@pytest.mark.parametrize(
    ("case", "in_place", "joined", "swapped"),
    [
        (DENSE, True, False, False),
        (replace(DENSE, layout="NCHW"), False, False, False),
        (replace(DENSE, dtype="float16"), False, False, False),
        (replace(DENSE, padding_mode="reflect"), False, False, False),
        (replace(DENSE, C=3), False, True, False),  # few channels: columns of a filter row
        (POINTS, True, False, True),
        (replace(POINTS, weight_layout="RSCK"), True, False, False),  # filters are contiguous
        (replace(POINTS, padding=((1, 1), (0, 0))), True, False, False),
    ],
)
def test_the_variant_depends_on_layouts_and_channels(case, in_place, joined, swapped):
    (found,) = WeightGrad.candidates(spatial(case.problem), ARCH, Request())
    assert found.method == WeightGrad(in_place, joined, swapped)


def test_lanes_of_several_groups_need_groups():
    (refused,) = WeightGradLanes.candidates(spatial(DENSE.problem), ARCH, Request())
    assert isinstance(refused, Refusal) and "several groups" in refused.reason
    grouped = replace(DENSE, C=2, K=2, groups=20)
    (found,) = WeightGradLanes.candidates(spatial(grouped.problem), ARCH, Request())
    assert found.algorithm == "depthwise"


def test_channels_with_gaps_are_copied_in_the_same_order_of_sums():
    """A fallback runs, whose bits are those of x in place."""
    plan = wgrad.plan(DENSE.problem, cpu_arch(1), Request())
    assert plan.best.method.in_place
    rng = np.random.default_rng(0)
    wide = rng.standard_normal((*plan.x_shape[:-1], 80)).astype(np.float32)
    dy = rng.standard_normal(DENSE.problem.output_shape).astype(np.float32)
    x = wide[..., ::2]
    np.testing.assert_array_equal(plan.run(x, dy), plan.run(np.ascontiguousarray(x), dy))


PLANES = Case(N=2, C=70, K=40, size=(9, 11), padding=((1, 1), (0, 2)), layout="NCHW")


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize(
    "case",
    [
        PLANES,
        replace(PLANES, dtype="float64"),
        replace(PLANES, stride=(2, 2), dilation=(1, 2)),
        replace(PLANES, C=35, K=20, groups=2, kernel=(2, 5)),
        replace(PLANES, padding=((0, 0), (0, 0)), kernel=(1, 1)),  # dy is read so
        replace(PLANES, padding=((0, -1), (0, 0)), kernel=(1, 1), stride=(2, 3)),
        replace(PLANES, C=17, size=(70, 66), kernel=(1, 1), padding=((1, 0), (0, 0))),
    ],
    ids=lambda case: str(case.problem),
)
def test_planes_in_place_have_the_bits_of_copies(case, threads):
    """Where the costs of a CPU know them, whatever the strides of x and dy."""
    rng = np.random.default_rng(0)
    plans = []
    for cycles in (8.0, 0.0):
        rates = EPYC.weight_grad._replace(plane_row=cycles)
        costs = replace(EPYC, name=f"planes {cycles}", weight_grad=rates)
        arch = replace(cpu_arch(threads), costs=costs)
        plans.append(wgrad.plan(case.problem, arch, Request(precision="strict")))
    assert [plan.best.method.strided for plan in plans] == [True, False]
    shapes = plans[0].x_shape, plans[0].w_shape
    x, dy = (rng.standard_normal(shape).astype(case.dtype) for shape in shapes)
    expected = plans[1].run(x, dy)
    np.testing.assert_array_equal(plans[0].run(x, dy), expected)
    apart = (np.repeat(array, 2, 1)[:, ::2] for array in (x, dy))
    np.testing.assert_array_equal(plans[0].run(*apart), expected)
    last = (np.ascontiguousarray(np.moveaxis(array, 1, -1)) for array in (x, dy))
    channels_last = (np.moveaxis(array, -1, 1) for array in last)
    np.testing.assert_array_equal(plans[0].run(*channels_last), expected)
    x, dy = (rng.integers(-3, 4, shape).astype(case.dtype) for shape in shapes)
    options = {"stride": case.stride, "dilation": case.dilation, "groups": case.groups}
    exact = reference.weight_grad(x, dy, case.kernel, pads=case.padding, **options)
    np.testing.assert_array_equal(plans[0].run(x, dy), exact)


def depthwise_in_place(case, seed=0):
    """Whether a plan of depthwise filters reads in place, and the gradients of the same values with
    contiguous and with other strides, which are copied.
    """
    random = np.random.default_rng(seed)
    x, dy = (random.standard_normal(case.shapes[name]).astype(case.dtype) for name in "xy")
    x, dy = (np.ascontiguousarray(np.moveaxis(array, 1, -1)) for array in (x, dy))
    plan = plan_conv2d_weight_grad(
        x.shape,
        dy.shape,
        case.shapes["w"],
        case.dtype,
        stride=case.stride,
        padding=case.padding,
        dilation=case.dilation,
        groups=case.groups,
        layout="NHWC",
        precision="strict",
    )
    apart = (np.repeat(array, 2, -1)[..., ::2] for array in (x, dy))
    options = {"stride": case.stride, "pads": case.padding, "dilation": case.dilation}
    nchw = (np.moveaxis(array, -1, 1) for array in (x, dy))
    expected = reference.weight_grad(*nchw, case.kernel, groups=case.groups, **options)
    return plan, plan(x, dy), plan(*apart), expected


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kernel", [(1, 1), (3, 3), (5, 2), (3, 9)], ids=str)
def test_depthwise_in_place_has_the_bits_of_copies(kernel, dtype):
    """Tiles of several planes, rows without pixels in the image, and more taps than registers."""
    for groups, size, stride, dilation, pads in (
        (48, (13, 40), (2, 2), (1, 1), (1, 1)),
        (16, (9, 11), (2, 3), (2, 3), (4, 9)),
        (80, (4, 12), (1, 1), (1, 1), (3, 4)),
        (112, (30, 70), (1, 2), (1, 1), (0, 0)),
    ):
        case = Case(
            N=3,
            groups=groups,
            size=size,
            kernel=kernel,
            stride=stride,
            dilation=dilation,
            padding=((pads[0], pads[1]), (pads[1], pads[0])),
            dtype=dtype,
        )
        if min(case.output) < 1:
            continue
        plan, in_place, copied, expected = depthwise_in_place(case)
        assert plan.engine.best.method.in_place
        assert "x and dy in place" in plan.explain()
        np.testing.assert_array_equal(in_place, copied)
        tolerance = {"float32": 2e-5, "float64": 1e-13}[dtype] * np.sqrt(np.prod(case.output))
        np.testing.assert_allclose(in_place, expected, rtol=0, atol=10 * tolerance)


def test_the_order_of_sums_is_chosen_for_any_number_of_threads():
    """Depthwise filters over planes have methods with two orders, of which both are chosen."""
    random, orders = np.random.default_rng(0), set()
    for _ in range(200):
        case = Case(
            N=int(random.choice([1, 2, 9])),
            groups=int(random.choice([2, 3, 17, 64, 500])),
            size=tuple(map(int, random.choice([1, 5, 14, 40, 130], 2))),
            kernel=tuple(map(int, random.choice([1, 3, 5, 9, 31], 2))),
            stride=tuple(map(int, random.choice([1, 2], 2))),
            padding=((20, 20), (20, 20)),
        )
        plans = [
            wgrad.plan(case.problem, replace(ARCH, threads=threads), Request())
            for threads in (1, 2, 3, 8, 64)
        ]
        (order,) = {plan.best.method.order for plan in plans}
        orders.add(order)
    assert len(orders) == 2
