"""Settings for the calls inside a `with config(...)`."""

from dataclasses import replace

import numpy as np
import pytest

import implicit_conv as ic
from implicit_conv.settings import Config


def test_config_sets_threads_and_algorithm():
    shapes = (1, 64, 56, 56), (64, 64, 1, 1)
    assert ic.plan_conv2d(*shapes).algorithm == "pointwise"
    with ic.config(num_threads=1, algorithm="implicit_gemm"):
        plan = ic.plan_conv2d(*shapes)
    assert (plan.engine.best.threads, plan.algorithm) == (1, "implicit_gemm")


def test_config_sets_a_default_back_for_the_calls_inside():
    with ic.config(num_threads=1, algorithm="implicit_gemm", device="cpu") as outer:
        with ic.config(num_threads=None, algorithm=None, device=None) as inner:
            assert inner == Config()
        with ic.config(num_threads=np.int64(3)) as inner:
            assert inner == replace(outer, num_threads=3)


@pytest.mark.parametrize("value", [0, -1, 1.5, True, "2"])
def test_config_refuses_thread_counts_that_are_none(value):
    with (
        pytest.raises((ValueError, TypeError), match=f"num_threads={value!r} must be"),
        ic.config(num_threads=value),
    ):
        pass


def test_a_plan_tells_its_compiler():
    shapes = (1, 2, 5, 6), (3, 2, 3, 3)
    assert "numba" not in ic.plan_conv2d(*shapes).explain()
    with ic.config(compiler="njit"):
        assert "compiled by numba.njit" in ic.plan_conv2d(*shapes).explain()
