"""The filters of all stride phases, packed in one pass over w, against the float64 reference."""

import cost_tables
import numpy as np
import pytest

import implicit_conv as ic
from implicit_conv.cpu.engines import fold, phase_packing
from implicit_conv.cpu.engines.stride_phases import Phases
from implicit_conv.cpu.methods.gemm import Gemm
from implicit_conv.cpu.methods.winograd import Winograd
from implicit_conv.cpu.plan import planner
from implicit_conv.problem import reference
from implicit_conv.process import cache
from implicit_conv.testing import Case
from implicit_conv.testing.check import check
from implicit_conv.testing.trial import Trial


class Noted:
    """A launch whose runs are noted."""

    def __init__(self, launch, made):
        self._launch, self._made = launch, made

    def __getattr__(self, name):
        return getattr(self._launch, name)

    def run(self, *arrays):
        self._made.append(self)
        self._launch.run(*arrays)


@pytest.fixture(autouse=True)
def passes(monkeypatch):
    """Phases run wherever it is possible; counts the calls that pack them together."""
    cache.clear()
    monkeypatch.setattr(fold, "refusal", lambda problem: "a test asks for phases")
    monkeypatch.setattr(planner, "METHODS", (Gemm,))  # whichever the CPU's estimates would choose
    made, packed = [], phase_packing.packed_filters

    def counted(*given):
        found, steps = packed(*given), given[-1]
        steps[-1] = steps[-1]._replace(launch=Noted(steps[-1].launch, made))
        return found

    monkeypatch.setattr(phase_packing, "packed_filters", counted)
    yield made
    cache.clear()


def plan_and_arrays(size, kernel, channels=20, filters=40, dtype="float32", **options):
    """A plan of a transposed convolution, x, w, and y by the reference."""
    rng = np.random.default_rng(0)
    x = rng.integers(-3, 4, (2, channels, *size)).astype(dtype)
    w = rng.integers(-3, 4, (channels, filters, *kernel)).astype(dtype)
    make = getattr(ic, f"plan_conv_transpose{len(size)}d")
    plan = make(x.shape, w.shape, dtype=dtype, **options)
    case = plan.problem
    pads = list(zip(case.pad_lo, case.pad_hi, strict=True))
    y = reference.input_grad(
        x, w, case.input_shape, pads=pads, stride=case.stride, dilation=case.dilation
    )
    return plan, x, w, y


@pytest.mark.parametrize(
    ("size", "kernel", "stride", "channels", "filters"),
    [
        ((9, 11), (3, 3), 2, 20, 50),  # a panel of fewer filters, phases of 1, 2 and 4 taps
        ((5, 6), (4, 4), 2, 17, 33),  # as many taps as lanes, with AVX-512
        ((4, 5, 3), (3, 3, 3), 2, 20, 70),  # more taps than lanes
        ((40,), (8,), 4, 30, 65),
        ((7, 5), (3, 5), (2, 3), 3, 24),
        ((6,), (2,), 2, 3000, 8),  # several channel blocks
        ((7,), (5,), 3, 2, 1),
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_all_elements(passes, size, kernel, stride, channels, filters, dtype):
    given = size, kernel, channels, filters, dtype
    plan, x, w, y = plan_and_arrays(*given, stride=stride)
    out = np.full(y.shape, np.nan, dtype)
    np.testing.assert_array_equal(plan(x, w, out=out), y)
    assert len(passes) == 1


def test_channel_blocks_of_different_phases(passes):
    plan, x, w, y = plan_and_arrays((5,), (3,), 3000, 40, stride=2)
    blocks = [part.best_packed.geometry.tile_c for part in plan.engine.best.parts]
    assert len(set(blocks)) == 2
    assert min(blocks) < 3000
    np.testing.assert_array_equal(plan(x, w), y)
    assert len(passes) == 1


def test_sums_are_those_of_packed_filters(passes):
    plan, x, w, _ = plan_and_arrays((9, 8), (3, 3), stride=2, padding=1)
    x = x + np.float32(0.1)
    np.testing.assert_array_equal(plan(x, w), plan(x, plan.pack(w)))
    assert len(passes) == 1


def test_w_of_other_strides_is_packed_phase_by_phase(passes):
    plan, x, w, y = plan_and_arrays((9, 8), (3, 3), stride=2)
    for other in (np.asfortranarray(w), np.repeat(w, 2, axis=3)[..., ::2]):
        np.testing.assert_array_equal(plan(x, other), y)
    assert not passes
    # A channel's filters and taps are still a row.
    for other in (np.repeat(w, 2, axis=0)[::2], np.ascontiguousarray(w[::-1])[::-1]):
        np.testing.assert_array_equal(plan(x, other), y)
    assert len(passes) == 2


@pytest.mark.parametrize(
    "options", [{"groups": 2}, {"dtype": "bfloat16"}, {"max_workspace": 1 << 20}]
)
def test_what_is_packed_phase_by_phase(options):
    asked = {"dtype": "float32", "stride": 2, **options}
    plan = ic.plan_conv_transpose1d((1, 32, 20), (32, 40, 4), **asked)
    assert not any(c.method == Phases(together=True) for c in plan.candidates)
    assert "one pass over w" not in plan.explain()


def test_filters_without_rows_are_packed_phase_by_phase(passes):
    """Filters are contiguous in w: no pass is a candidate, and near sizes derive phases."""
    shapes = (1, 8, 8, 64), (64, 3, 3, 64), (1, 16, 16, 64)
    options = {"stride": 2, "padding": 1, "layout": "NHWC", "weight_layout": "KRSC"}
    plan = ic.plan_conv2d_input_grad(*shapes, **options)
    assert [c.method for c in plan.candidates if isinstance(c.method, Phases)] == [Phases()]
    dy, w = np.ones(shapes[0], np.float32), np.ones(shapes[1], np.float32)
    np.testing.assert_array_equal(plan(dy, w), plan(dy, plan.pack(w)))
    assert not passes


def test_a_plain_filter_takes_the_method_that_packs_in_one_pass(passes, monkeypatch):
    """Although another one is faster with a packed filter; near sizes of plain calls do so too."""
    monkeypatch.setattr(planner, "METHODS", (Gemm, Winograd))
    cost_tables.change(monkeypatch, "transposed", spread_tap=1e9)
    plan, x, w, y = plan_and_arrays((12, 14), (4, 4), 128, 128, stride=2, padding=1)
    plain, packed = plan.engine.best, plan.engine.best_packed
    assert {part.best_packed.algorithm for part in packed.parts} == {"winograd_f2"}
    assert {part.best.algorithm for part in plain.parts} == {"implicit_gemm"}
    assert "one pass over w does not pack its filter" in plan.explain()
    np.testing.assert_allclose(plan(x, w), y, atol=1e-2)
    assert len(passes) == 1
    np.testing.assert_allclose(plan(x, plan.pack(w)), y, atol=1e-2)
    assert len(passes) == 1
    for number in range(3):
        ic.conv_transpose2d(x[:, :, number:], w, stride=2, padding=1)
    assert len(passes) == 4


def test_explanation_and_bytes(passes):
    plan, _, w, _ = plan_and_arrays((9, 8), (3, 3), stride=2)
    assert "one pass over w packs the filters of all phases" in plan.explain()
    assert plan.engine.call_bytes >= w.nbytes


def test_threads(passes):
    with ic.config(num_threads=2):
        plan, x, w, y = plan_and_arrays((9, 8), (3, 3), 200, 300, stride=2)
        np.testing.assert_array_equal(plan(x, w), y)
    assert len(passes) == 1


@pytest.mark.parametrize(("channels", "filters"), [(3, 1), (9, 2), (20, 33)])
def test_nothing_beyond_w_is_read(passes, channels, filters):
    """Whole blocks have more lanes than taps, and w ends at an inaccessible page."""
    case = Case(
        C=filters,
        K=channels,
        size=(19,),
        kernel=(3,),
        stride=(2,),
        dilation=(1,),
        padding=((1, 1),),
        layout="NCW",
        weight_layout="KCS",
    )
    for guard in "begin", "end":
        check(Trial(case, "input_grad", padding=case.padding, guard=guard))
    assert len(passes) >= 2


@pytest.mark.parametrize("guard", ["begin", "end"])
def test_a_filter_of_one_channel_is_not_read_beyond_its_end(passes, guard):
    """The stride of its only channel is that of the whole filter."""
    case = Case(
        C=1,
        K=63,
        size=(16,),
        kernel=(3,),
        stride=(2,),
        dilation=(1,),
        padding=((0, 1),),
        layout="NCW",
        weight_layout="CKS",
    )
    check(Trial(case, "conv_transpose", padding="same", precision="strict", guard=guard))
    assert passes


@pytest.mark.parametrize("weight_layout", ["KCRS", "RSCK"])
@pytest.mark.parametrize("filters", [64, 128])
def test_panels_of_phases_are_equally_wide(weight_layout, filters, monkeypatch):
    """Where short sums have wide panels: some phases have few taps."""
    cost_tables.change(monkeypatch, "gemm", wide_elements=192)
    rng = np.random.default_rng(0)
    dy = rng.integers(-3, 4, (1, 14, 14, 64)).astype(np.float32)
    w = rng.integers(-3, 4, (64, filters, 3, 3)).astype(np.float32)
    expected = np.zeros((1, 29, 29, filters), np.float32)
    for r, s in np.ndindex(3, 3):
        expected[:, r : r + 27 : 2, s : s + 27 : 2] += dy @ w[:, :, r, s]
    given = w if weight_layout == "KCRS" else np.ascontiguousarray(w.transpose(2, 3, 1, 0))
    options = {"stride": 2, "layout": "NHWC", "weight_layout": weight_layout}
    dx = ic.conv2d_input_grad(dy, given, expected.shape, **options)
    np.testing.assert_array_equal(dx, expected)
    plan = ic.plan_conv2d_input_grad(dy.shape, given.shape, expected.shape, **options)
    np.testing.assert_array_equal(plan(dy, plan.pack(given)), expected)
