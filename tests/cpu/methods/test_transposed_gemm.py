"""Transposed GEMM of pointwise problems: the same sums as GEMM, bit for bit."""

from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sampling import examples

from implicit_conv import config, conv2d, plan_conv2d
from implicit_conv.cpu.engines.executed_loads import executed_loads
from implicit_conv.cpu.machine.arch import cpu_arch
from implicit_conv.cpu.methods.gemm import Gemm
from implicit_conv.cpu.methods.transposed_gemm import TransposedGemm
from implicit_conv.testing import Case, changed, plan_of


@pytest.fixture(autouse=True)
def chosen(force_method):
    """Small problems too are transposed wherever they can be."""
    force_method(TransposedGemm)


def transposed_plan(case, precision="strict", activation=None):
    """The plan of `case`, which is transposed."""
    plan = plan_of(
        case, cpu_arch(2), precision=precision, algorithm="pointwise", activation=activation
    )
    assert is_chosen(plan)
    return plan


def is_chosen(plan):
    return isinstance(plan.engine.best.method, TransposedGemm)


@examples(100, 300)
@given(
    n=st.integers(1, 3),
    c=st.sampled_from([1, 2, 3, 16, 33, 70]),
    k=st.sampled_from([1, 2, 13, 14, 15, 29, 64, 70, 1000]),
    size=st.sampled_from([(4, 8), (7, 16), (14, 14), (1, 48), (16, 15), (3, 32)]),
    weight_layout=st.sampled_from(["KCRS", "KRSC"]),
    dtype=st.sampled_from(["float32", "float64"]),
    added=st.sets(st.sampled_from(["bias", "residual", "leaky_relu", "packed", "strided"])),
    seed=st.integers(0, 2**31),
)
def test_integers_are_exact(n, c, k, size, weight_layout, dtype, added, seed):
    case = Case(N=n, C=c, K=k, size=size, kernel=(1, 1), weight_layout=weight_layout, dtype=dtype)
    x, w = case.inputs(seed, integers=True)
    activation, operands, expected = case.epilogue(case.reference(x, w), added)
    plan = transposed_plan(case, activation=activation)
    x, w = case.arrange(x, w)
    if "strided" in added:  # a gap after each row, which transposed GEMM does not accept
        wide = np.zeros((*x.shape[:3], x.shape[3] + 1), dtype)
        wide[..., :-1] = x
        x = wide[..., :-1]
    y = plan(x, plan.pack(w) if "packed" in added else w, **operands)
    np.testing.assert_array_equal(y, expected)


@pytest.mark.parametrize("c", [5, 64, 6000])
def test_strict_sums_are_those_of_gemm(c):
    """The order of a sum is the same: equal bits, also where channels come in several blocks."""
    case = Case(N=2, C=c, K=33, size=(8, 8), kernel=(1, 1))
    x, w = case.arrange(*case.inputs(1))
    plan = transposed_plan(case)
    other = next(c for c in plan.candidates if type(c.method) is Gemm)
    other = changed(plan, **{field.name: getattr(other, field.name) for field in fields(other)})
    np.testing.assert_array_equal(plan(x, w), other(x, w))


def test_filters_of_other_strides_are_multiplied_by_gemm():
    case = Case(N=2, C=20, K=30, size=(8, 8), kernel=(1, 1), weight_layout="RSCK")
    x, w = case.inputs(2, integers=True)
    arrays = case.arrange(x, w)
    plan = transposed_plan(case)
    y = plan(*arrays)
    np.testing.assert_array_equal(y, case.reference(x, w))
    np.testing.assert_array_equal(plan(arrays[0], plan.pack(arrays[1])), y)


@pytest.mark.parametrize("c", [20, 6000])
def test_executed_loads_are_the_planned_ones(c):
    case = Case(N=2, C=c, K=30, size=(6, 8), kernel=(1, 1))
    x, w = case.arrange(*case.inputs(0))
    plan = transposed_plan(case)
    assert executed_loads(plan.engine, x, w) == sorted(plan.trace())
    read = {load.coords for load in plan.trace() if load.operand == "x"}
    assert {(n, 0, pixel, 0) for n in (0, 1) for pixel in (0, 32)} <= read


def test_it_is_chosen_where_transposes_would_cost_more(monkeypatch):
    monkeypatch.undo()
    w = (64, 64, 1, 1)
    with config(num_threads=1):
        assert is_chosen(plan_conv2d((1, 64, 56, 56), w, precision="strict"))
        few = plan_conv2d((1, 64, 7, 7), w, precision="strict")  # 49 pixels fill 4 vectors badly
    assert not is_chosen(few)
    x = np.ones((1, 64, 56, 56), np.float32)
    y = conv2d(x, np.ones((64, 64, 1, 1), np.float32), precision="strict")
    assert y[0, 0, 0, 0] == 64
