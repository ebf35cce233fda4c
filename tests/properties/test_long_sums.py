"""Long sums: chains bound the error of equal terms, whichever method adds them up.

Additions of equal terms may round in the same direction. Their exact sum is the number of terms
times the term, which float64 holds. `test_sum_bound` has data that loses more.
"""

import itertools
import math
from dataclasses import fields, replace

import numpy as np
import pytest
from conformance import examples
from ways import arches

from implicit_conv.cpu.methods.im2col import Im2col
from implicit_conv.cpu.plan.planner import METHODS
from implicit_conv.testing import EPS, Case, changed, plan_of

# Values of all elements of x and w, whose products need more bits than those of a small integer:
# sums of their multiples are rounded, many of them in the same direction.
VALUES = (0.1, 0.7, 1.1)
SAME = ((1, 1), (1, 1))
CASES = {  # sums of at least 30,000 terms, or of a filter row too long for one chain
    "channel blocks": Case(C=3334, K=4, size=(6, 36), padding=SAME),
    "pairs": Case(C=3334, K=40, size=(4, 4), padding=SAME, dtype="bfloat16"),
    "Winograd": Case(C=2000, K=20, size=(8, 8), padding=SAME),  # 2,000 terms a product
    "windows": Case(  # 9,000 terms; they have 10,240 at most
        C=3, K=4, size=(601, 9), kernel=(600, 5), dtype="bfloat16", layout="NHWC"
    ),
    "1x1": Case(C=30_000, K=8, size=(8, 8), kernel=(1, 1)),
    "vectors of channels": Case(C=60_000, K=8, size=(2, 2), kernel=(1, 1), layout="NHWC"),
    "taps": Case(groups=2, size=(174, 190), kernel=(173, 174)),
    "a long row": Case(groups=2, size=(1, 1040), kernel=(1, 1001)),
    "taps of channels": Case(groups=32, size=(174, 176), kernel=(173, 174), layout="NHWC"),
    "rows of channels": Case(groups=32, size=(300, 110), kernel=(299, 101), layout="NHWC"),
    "groups": Case(C=2, K=2, groups=32, size=(123, 125), kernel=(122, 123), layout="NHWC"),
}


def plans(case):
    """A plan for each candidate of a case, on each way of multiplying that this CPU has."""
    for arch in arches(case.dtype):
        plan = plan_of(case, arch, precision="fast", out_dtype="float32")
        for c in plan.candidates:
            yield changed(plan, **{field.name: getattr(c, field.name) for field in fields(c)})


def largest_error(y, exact):
    """The largest error in units of eps * exact, for sums of positive terms."""
    return float(np.abs(y.astype(np.float64) - exact).max()) / (EPS["float32"] * exact)


# Units that a method may lose where it is not 64. Equal elements make equal errors of transforms,
# which do not cancel: 569 were seen for F6, with elements from 0.1 to 1.3.
UNITS = {"winograd_f6": 1024}


@pytest.mark.parametrize("name", CASES)
def test_thirty_thousand_equal_terms_lose_few_units(name):
    case = CASES[name]
    x, w = case.inputs(0)
    pad = case.padding[0][0]
    for value, plan in itertools.product(VALUES, plans(case)):
        x[...], w[...] = value, value
        exact = case.C * case.kernel[0] * case.kernel[1] * float(x.flat[0]) ** 2
        y = plan(*case.arrange(x, w))
        y = (
            y[:, pad : y.shape[1] - pad]
            if case.layout == "NHWC"
            else y[:, :, pad : y.shape[2] - pad]
        )
        if pad:  # other outputs have fewer terms
            y = y[..., pad:-pad]
        assert largest_error(y, exact) <= UNITS.get(plan.algorithm, 64), plan.engine.best.name


def ran(case):
    """The methods that have a candidate of a case, on any way of multiplying that this CPU has."""
    plans = (plan_of(case, arch, precision="fast") for arch in arches(case.dtype))
    return {type(c.method) for plan in plans for c in plan.candidates}


def test_the_cases_run_all_methods_that_have_long_sums():
    """A method with few terms has none; numpy sums those of Im2col."""
    found = set().union(*map(ran, CASES.values())) | {Im2col}
    for method in set(METHODS) - found:
        for case in examples(method):
            channels = -(-30_000 // math.prod(case.kernel))
            large = tuple(173 * taps for taps in case.kernel)
            size = tuple(map(max, large, case.size))
            for long in replace(case, C=channels), replace(case, kernel=large, size=size):
                assert method not in ran(long), f"add a case of {method.__name__}, such as {long}"


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "case",
    [
        Case(C=1 << 26, size=(1, 1), kernel=(1, 1)),
        Case(C=1 << 22, K=2, size=(4, 4), kernel=(4, 4), padding=((1, 1), (1, 1))),
        Case(size=(8192, 8200), kernel=(8192, 8192)),
    ],
    ids=str,
)
def test_two_to_the_26_equal_terms_lose_at_most_217_units(case):
    problem = case.problem
    for value in np.float32(VALUES):
        exact = (1 << 26) * float(value) ** 2
        x, w = (np.full(s, value) for s in (problem.input_shape, problem.weight_shape))
        y = next(plans(case))(x, w)
        inside = y if case.padding[0][0] == 0 else y[:, :, 1:2, 1:2]
        assert largest_error(inside, exact) <= 217  # half of 18 + 16 * 26, rounded down
