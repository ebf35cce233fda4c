"""fprop of groups of a few filters, and no more channels: several groups share a vector."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from sampling import examples

from implicit_conv import plan_conv2d
from implicit_conv.cpu.engines.executed_loads import executed_loads
from implicit_conv.cpu.machine.arch import cpu_arch
from implicit_conv.cpu.methods.small_groups import SmallGroups
from implicit_conv.testing import Case, plan_of

SAME = ((1, 1), (1, 1))


@pytest.fixture(autouse=True)
def chosen(force_method):
    """Groups share vectors wherever they can."""
    force_method(SmallGroups)


def small_groups_plan(case, threads=2, activation=None, **machine):
    return plan_of(case, replace(cpu_arch(threads), **machine), activation=activation)


def is_chosen(plan):
    return isinstance(plan.engine.best.method, SmallGroups)


@st.composite
def cases(draw):
    pad = st.tuples(st.integers(-1, 3), st.integers(-1, 3))
    taps = st.sampled_from([1, 2, 3, 5, 7, 9])
    filters = draw(st.sampled_from([2, 4, 8, 16]))
    case = Case(
        N=draw(st.integers(1, 3)),
        C=draw(st.sampled_from([filters, filters, *range(1, filters)])),
        K=filters,
        groups=draw(st.sampled_from([2, 3, 7, 8, 17])),
        size=draw(st.tuples(st.integers(1, 14), st.integers(1, 40))),
        kernel=(draw(taps), draw(taps)),
        stride=draw(st.tuples(st.integers(1, 3), st.integers(1, 3))),
        dilation=draw(st.tuples(st.integers(1, 2), st.integers(1, 2))),
        padding=(draw(pad), draw(pad)),
        layout=draw(st.sampled_from(["NCHW", "NHWC"])),
        weight_layout=draw(st.sampled_from(["KCRS", "KRSC", "RSCK"])),
        dtype=draw(st.sampled_from(["float32", "float32", "float64", "float16", "bfloat16"])),
    )
    assume(min(case.output) >= 1)
    return case


@examples(50, 400, 130)
@given(
    case=cases(),
    added=st.sets(st.sampled_from(["bias", "residual", "leaky_relu", "packed", "gaps"])),
    l2_bytes=st.sampled_from([16 << 10, 1 << 20]),
    seed=st.integers(0, 2**31),
)
def test_integers_are_exact(case, added, l2_bytes, seed):
    """Over every epilogue, packed and plain filters, x with gaps between elements, small tiles."""
    x, w = case.inputs(seed, integers=True)
    activation, operands, expected = case.epilogue(case.reference(x, w), added)
    expected = case.rounded(expected)
    plan = small_groups_plan(case, l2_bytes=l2_bytes, activation=activation)
    assume(is_chosen(plan))
    x, w = case.arrange(x, w)
    if case.layout == "NHWC":
        expected = expected.transpose(0, 2, 3, 1)
    out = None
    if "gaps" in added:
        wide = np.full((*x.shape[:3], 2 * x.shape[3]), np.nan, x.dtype)
        wide[..., ::2] = x
        x = wide[..., ::2]
        out = np.empty((*expected.shape[2:], *expected.shape[:2]), x.dtype).transpose(2, 3, 0, 1)
    y = plan(x, plan.pack(w) if "packed" in added else w, **operands, out=out)
    np.testing.assert_array_equal(y.astype(float), expected)


@pytest.mark.parametrize("bits", [128, 256, 512])
def test_vectors_hold_whole_groups(bits):
    """Of 2 filters and more, and no more channels: these would not fit into a vector."""

    def lanes_are_groups(channels, filters, groups=6, **options):
        case = Case(C=channels, K=filters, groups=groups, padding=SAME, **options)
        return is_chosen(small_groups_plan(case, vector_bits=bits))

    for dtype, size in ("float32", 4), ("float64", 8), ("bfloat16", 4):
        lanes = bits // 8 // size
        fitting = {k for k in range(1, 40) if lanes_are_groups(k, k, dtype=dtype)}
        assert fitting == {k for k in (2, 4, 8, 16) if k <= lanes}
    fitting = {c for c in range(1, 8) if lanes_are_groups(c, 4)}
    assert fitting == {1, 2, 3, 4}
    assert lanes_are_groups(4, 4, groups=2)
    assert not lanes_are_groups(4, 4, groups=1)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("channels", [1, 4])
def test_executed_loads_are_the_planned_ones(layout, stride, channels):
    case = Case(
        N=2,
        C=channels,
        K=4,
        groups=10,
        size=(9, 20),
        padding=SAME,
        stride=(stride, stride),
        layout=layout,
    )
    x, w = case.arrange(*case.inputs(0))
    plan = small_groups_plan(case)
    assert is_chosen(plan)
    assert executed_loads(plan.engine, x, w) == sorted(plan.trace())


def test_threads_and_tiles_leave_the_bits_alone():
    case = Case(N=2, C=4, K=4, groups=40, size=(64, 51), padding=SAME, layout="NHWC")
    x, w = case.arrange(*case.inputs(3))
    plan = small_groups_plan(case, threads=1)
    other = small_groups_plan(case, threads=3, l2_bytes=64 << 10)
    assert plan.engine.best.geometry != other.engine.best.geometry
    np.testing.assert_array_equal(plan(x, w), other(x, w))


def test_filters_packed_for_other_groups_are_refused():
    """Though both have as many channels and filters."""
    packed = small_groups_plan(Case(C=4, K=4, groups=8)).pack(np.ones((32, 4, 3, 3), np.float32))
    other = small_groups_plan(Case(C=2, K=2, groups=16))
    with pytest.raises(ValueError, match="packed"):
        other(np.ones((1, 32, 5, 7), np.float32), packed)


def test_it_is_chosen_for_groups_of_few_channels_but_not_for_strict(monkeypatch):
    monkeypatch.undo()
    multiplied = plan_conv2d((1, 28, 28, 48), (96, 1, 3, 3), padding=1, groups=48, layout="NHWC")
    assert is_chosen(multiplied)
    shapes = (1, 56, 56, 128), (128, 4, 3, 3)
    for options in {}, {"stride": 2}, {"dtype": "bfloat16"}:
        plan = plan_conv2d(*shapes, padding=1, groups=32, layout="NHWC", **options)
        assert is_chosen(plan)
        assert plan.algorithm == "implicit_gemm"
        assert "lanes are filters of several groups" in plan.explain()
    strict = plan_conv2d(*shapes, padding=1, groups=32, layout="NHWC", precision="strict")
    assert not is_chosen(strict)
    assert not is_chosen(plan_conv2d((1, 128, 56, 56), shapes[1], padding=1, groups=32))
