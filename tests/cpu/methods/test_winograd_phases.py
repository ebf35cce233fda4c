"""Stride phases by Winograd: filters with few taps, against the float64 reference.

The taps of a phase lie a stride apart, and so do its pixels.
"""

import numpy as np
import pytest

from implicit_conv import plan_conv1d, plan_conv2d, plan_conv_transpose2d
from implicit_conv.cpu.engines.stride_phases import Phases
from implicit_conv.testing import Case
from implicit_conv.testing.check import check
from implicit_conv.testing.trial import Trial

LAYOUTS = {1: ("NCW", "NWC"), 2: ("NCHW", "NHWC"), 3: ("NCDHW", "NDHWC")}
WEIGHTS = {1: ("KCS", "KSC"), 2: ("KCRS", "KRSC"), 3: ("KCTRS", "KTRSC")}
# (image, taps, stride, padding) of convolutions whose phases have 2 or 3 taps along an axis.
SHAPES = [
    ((16, 12), (4, 4), (2, 2), ((1, 1), (1, 1))),
    ((15, 21), (4, 4), (2, 2), ((1, 1), (1, 1))),  # odd: pixels beyond the last window
    ((17, 11), (4, 5), (2, 2), ((0, 2), (2, 1))),  # phases of 2x2 and 2x3 taps
    ((13, 20), (5, 5), (2, 2), ((2, 1), (2, 2))),
    ((14, 9), (6, 2), (3, 1), ((-1, 2), (1, 0))),
    ((41,), (4,), (2,), ((1, 1),)),
    ((67,), (8,), (4,), ((2, 2),)),
    ((5, 9, 10), (4, 4, 4), (2, 2, 2), ((1, 1), (1, 1), (1, 1))),
    ((7, 11, 8), (3, 4, 4), (2, 2, 2), ((1, 1), (1, 1), (1, 1))),
]


@pytest.mark.parametrize("operator", ["conv_transpose", "input_grad"])
@pytest.mark.parametrize("order", [0, 1], ids=["channels first", "channels last"])
@pytest.mark.parametrize(("size", "kernel", "stride", "padding"), SHAPES)
def test_all_pixels(size, kernel, stride, padding, order, operator):
    """Of integers, whose sums are exact; memory beyond the arrays is inaccessible."""
    rank = len(size)
    case = Case(
        N=2,
        C=35,
        K=19,
        size=size,
        kernel=kernel,
        stride=stride,
        dilation=(1,) * rank,
        padding=padding,
        layout=LAYOUTS[rank][order],
        weight_layout=WEIGHTS[rank][order],
    )
    epilogue = {}
    if operator == "conv_transpose":
        epilogue = {"biased": True, "added": True, "activation": "relu"}
    for guard, packed in ("begin", False), ("end", False), ("end", True):
        trial = Trial(
            case,
            operator,
            padding=padding,
            algorithm="winograd_f2",
            guard=guard,
            packed=packed,
            **epilogue,
        )
        assert trial.plan().algorithm == "winograd_f2"
        check(trial)


def test_phases_of_different_methods():
    """The phase with a single tap is a product, which other methods compute."""
    case = Case(C=64, K=64, size=(57, 57), kernel=(3, 3), stride=(2, 2), padding=((1, 1), (1, 1)))
    for values in "integers", "normal":
        trial = Trial(case, "input_grad", padding=case.padding, values=values)
        (phases,) = (c for c in trial.plan().candidates if c.method == Phases())
        found = {part.best.problem.kernel: part.best.algorithm for part in phases.parts}
        assert found[1, 2, 2] == "winograd_f2"
        assert found[1, 1, 1] != "winograd_f2"
        check(trial)


@pytest.mark.parametrize(
    ("make", "x", "w", "options"),
    [
        (plan_conv2d, (1, 128, 28, 28), (128, 128, 2, 2), {"padding": "same"}),
        (plan_conv2d, (1, 128, 28, 28), (128, 128, 1, 3), {"padding": "same"}),
        (plan_conv1d, (1, 256, 400), (256, 256, 3), {"padding": 1}),
        (plan_conv_transpose2d, (1, 128, 32, 32), (128, 64, 4, 4), {"stride": 2, "padding": 1}),
    ],
)
def test_strict_sums_are_not_transformed(make, x, w, options):
    """By default the estimates choose Winograd here."""
    assert make(x, w, **options).algorithm == "winograd_f2"
    assert make(x, w, **options, precision="strict").algorithm == "implicit_gemm"


def test_plans_of_near_sizes_share_kernels():
    """Of as many boxes, or of others: every size has its own results."""
    rng = np.random.default_rng(0)
    w = rng.integers(-3, 4, (33, 17, 2, 2)).astype(np.float32)
    for rows, columns in (8, 8), (4, 16), (9, 7), (31, 30), (8, 8), (3, 50):
        case = Case(C=17, K=33, size=(rows, columns), kernel=(2, 2), padding=((1, 0), (0, 1)))
        x = rng.integers(-3, 4, (1, 17, rows, columns)).astype(np.float32)
        plan = plan_conv2d(x.shape, w.shape, **case.options, algorithm="winograd_f2")
        np.testing.assert_array_equal(plan(x, w), case.reference(x, w))
