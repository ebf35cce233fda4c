"""The baseline: what its results alone do not show. tests/api/test_columns.py has more of it."""

import pytest

from implicit_conv import PlanError, config, plan_conv2d
from implicit_conv.cpu.candidates.kernel_method import KernelMethod
from implicit_conv.cpu.methods.im2col import Im2col
from implicit_conv.testing import Case, plan_of
from perf.counting import memory_of

CASE = Case(N=2, C=20, K=33, size=(30, 31))


def test_it_has_no_kernels_and_no_tiling():
    plan = plan_of(CASE, algorithm="gemm_im2col")
    assert not issubclass(Im2col, KernelMethod)
    assert plan.engine.best.tiling is None and plan.trace() == []
    assert "multiply    numpy's matmul" in plan.explain()


@pytest.mark.parametrize("weight_layout", ["KCRS", "RSCK"])
def test_the_matrix_and_the_copy_of_a_filter_count_as_memory(weight_layout):
    case = Case(N=1, C=200, K=300, size=(9, 9), weight_layout=weight_layout)
    plan, (x, w) = plan_of(case, algorithm="gemm_im2col"), case.arrange(*case.inputs(0))
    copied = w.nbytes if weight_layout == "RSCK" else 0
    assert plan.engine.call_bytes == plan.workspace_bytes + copied
    assert abs(memory_of(lambda: plan(x, w)).peak - plan.peak_bytes) < w.nbytes / 8


def test_it_keeps_subnormals_and_says_so():
    with config(subnormals="flush"), pytest.raises(PlanError, match="it keeps subnormals"):
        plan_conv2d((1, 2, 5, 5), (3, 2, 3, 3), algorithm="gemm_im2col")
