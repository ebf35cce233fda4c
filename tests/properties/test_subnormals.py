"""Subnormals are preserved, or flushed where the caller asks for it; never outside a call."""

import itertools
import os
import subprocess
import sys

import cost_tables
import numpy as np
import pytest

from implicit_conv import config, conv2d, plan_conv2d
from implicit_conv.testing import Case

CASES = {
    "implicit_gemm": Case(C=20, K=40, size=(20, 20), padding=((1, 1), (1, 1))),
    "pointwise": Case(C=20, K=40, size=(20, 20), kernel=(1, 1), layout="NHWC"),
    "depthwise": Case(groups=40, size=(20, 20), layout="NHWC"),
    "winograd_f2": Case(C=20, K=40, size=(20, 20), dtype="float64"),
}
THREADS = 2


def unit(case):
    """What sums are multiples of; Winograd halves a filter's taps twice."""
    return 4 * np.finfo(case.dtype).smallest_subnormal


def subnormal(case, which):
    """Arrays of small integers, those of x or of w (0, 1) times the unit, and without it."""
    arrays = list(case.inputs(0, integers=True))
    arrays[which] *= unit(case)
    return case.arrange(*arrays), case.arrange(*case.inputs(0, integers=True))


def magnitude(y):
    """Bits of |y|, which differ even where this thread's arithmetic flushes subnormals."""
    return y.view(f"u{y.itemsize}") << 1


@pytest.mark.parametrize("which", [0, 1], ids="xw")
@pytest.mark.parametrize("algorithm", CASES)
def test_they_are_kept_or_flushed(algorithm, which, monkeypatch):
    """Kept, their sums are exact; flushed, they are zero, whether filters come packed or not."""
    cost_tables.change(monkeypatch, "threads", flops=1)
    case = CASES[algorithm]
    small, integers = subnormal(case, which)
    options = {**case.options, "algorithm": algorithm}
    sums = magnitude(unit(case) * conv2d(*integers, **options))
    for threads, way in itertools.product((1, THREADS), ("keep", "flush", "keep")):
        with config(num_threads=threads, subnormals=way):
            y = conv2d(*small, **options)
            plan = plan_conv2d(*(a.shape for a in small), case.dtype, **options)
            packed = plan.pack(small[1])
        expected = sums * (way == "keep")
        np.testing.assert_array_equal(magnitude(y), expected)
        np.testing.assert_array_equal(magnitude(plan(small[0], packed)), expected)
        assert plan.engine.best.threads == threads
        assert ("subnormal" in plan.explain()) == (way == "flush")


def test_a_call_leaves_the_thread_as_it_was():
    (x, w), _ = subnormal(CASES["implicit_gemm"], 0)
    with config(subnormals="flush"):
        conv2d(x, w)
    assert magnitude(x).any()
    np.testing.assert_array_equal(magnitude(x * np.float32(1)), magnitude(x))


def test_the_environment_chooses():
    code = """
import numpy as np
from implicit_conv import conv2d
w = np.full((1, 1, 1, 1), 1e-40, np.float32)
print(conv2d(np.ones((1, 1, 2, 2), np.float32), w).max() == 0)
"""
    for value, words in (("flush", "True"), ("keep", "False"), ("drop", "keep, flush")):
        environment = {**os.environ, "IMPLICIT_CONV_SUBNORMALS": value}
        result = subprocess.run(
            [sys.executable, "-c", code],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert words in result.stdout + result.stderr


def test_config_accepts_keep_and_flush_alone():
    with pytest.raises(ValueError, match="choose from keep, flush"), config(subnormals="zero"):
        pass
