"""Transposed convolutions as one GEMM whose products are folded, against the float64 reference."""

import copy
import pickle

import cost_tables
import numpy as np
import pytest
from sampling import count, resampled

import implicit_conv as ic
from implicit_conv.cpu.candidates.problem_views import spatial
from implicit_conv.cpu.engines import fold, fold_blocks
from implicit_conv.cpu.machine.arch import cpu_arch
from implicit_conv.cpu.plan import tuning_cache
from implicit_conv.problem import reference
from implicit_conv.problem.options import LAYOUTS_OF
from implicit_conv.process import cache
from implicit_conv.process.disk import Store
from implicit_conv.testing import Case
from implicit_conv.testing.check import check
from implicit_conv.testing.draw import Dice
from implicit_conv.testing.storage import STORAGES, WRITABLE
from implicit_conv.testing.trial import Trial

ACTIVATIONS = (None, "relu", ("leaky_relu", 0.5), "silu")


@pytest.fixture(autouse=True)
def folds(monkeypatch, tmp_path):
    """Fold wherever it is possible, in small tiles and parts of rows; counts prepared calls."""
    cache.clear()
    cost_tables.change(monkeypatch, "transposed", phase_launch=1e9)
    monkeypatch.setattr(fold_blocks, "TILE_BYTES", 1024)
    monkeypatch.setattr(fold_blocks, "SHARED_PIXELS", 2)
    monkeypatch.setattr(fold_blocks, "PART_STRIDES", 5)
    monkeypatch.setattr(fold_blocks, "PART_ELEMENTS", 40)
    store = Store(tmp_path)  # of tuned choices
    monkeypatch.setattr(tuning_cache, "store", lambda: store)
    monkeypatch.setattr(tuning_cache, "_MEMORY", {})
    made, steps = [], fold.Fold.steps

    def counted(self, c, *others):
        found = steps(self, c, *others)  # not where its products take no such arrays
        made.append(c)
        return found

    monkeypatch.setattr(fold.Fold, "steps", counted)
    yield made
    cache.clear()


def drawn(number, rank, operator):
    """A trial that can be folded, of any sizes, strides, pads and epilogue."""
    dice = Dice(number, rank)
    most = {1: 40, 2: 9, 3: 5}[rank]
    kernel = tuple(dice.number(1, 7 if rank < 3 else 3) for _ in range(rank))
    stride = tuple(dice.number(1, 6 if rank < 3 else 3) for _ in range(rank))
    dy = tuple(dice.number(1, most) for _ in range(rank))
    pads = tuple(tuple(dice.number(-1, max(0, taps - 1)) for _ in range(2)) for taps in kernel)
    more = tuple(dice.number(0, step - 1) for step in stride)
    size = tuple(
        (pixels - 1) * step + taps - low - high + added
        for pixels, step, taps, (low, high), added in zip(
            dy, stride, kernel, pads, more, strict=True
        )
    )
    channels = dice.pick(1, 2, 5)
    case = Case(
        N=dice.pick(1, 1, 3),
        C=channels,
        K=dice.number(1, 20),
        size=tuple(max(1, extent) for extent in size),
        kernel=kernel,
        stride=stride,
        dilation=(1,) * rank,
        padding=pads,
        layout=dice.pick(*LAYOUTS_OF[rank]) if channels == 1 else LAYOUTS_OF[rank][0],
        weight_layout={1: "KCS", 2: "KCRS", 3: "KCTRS"}[rank],
        dtype=dice.pick("float32", "float64"),
    )
    epilogue = {}
    if operator == "conv_transpose":
        epilogue = {
            "activation": dice.pick(*ACTIVATIONS),
            "scaled": dice.happens(3),
            "biased": dice.happens(2),
            "added": dice.happens(3),
        }
    return Trial(
        case,
        operator,
        padding=case.padding,
        values=dice.pick("integers", "normal"),
        seed=number,
        packed=dice.happens(2),
        threads=dice.number(1, 2),
        storages=tuple(dice.pick("contiguous", *STORAGES[:-1]) for _ in range(3)),
        out=dice.pick("", *WRITABLE),
        **epilogue,
    )


@resampled
@pytest.mark.parametrize("operator", ["conv_transpose", "input_grad"])
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_random_trials(folds, operator, rank):
    """Of all strides, paddings and epilogues, in blocks and parts of rows."""
    tried, trials = 0, count(13, 120, 40)
    for number in range(trials):
        trial = drawn(number, rank, operator)
        if trial.case.is_valid and set(trial.case.stride) != {1}:
            check(trial)
            tried += 1
    assert len(folds) > 0.4 * tried > trials / 5
    assert max(len(blocks_of(made).all) for made in folds) > 2


def plan_and_arrays(rank=1, channels=24, filters=3, size=(31,), kernel=(12,), stride=4, **options):
    """A plan of a transposed convolution, x, w, and y by the reference."""
    rng = np.random.default_rng(0)
    x = rng.integers(-3, 4, (2, channels, *size)).astype(np.float32)
    w = rng.integers(-3, 4, (channels, filters, *kernel)).astype(np.float32)
    make = getattr(ic, f"plan_conv_transpose{rank}d")
    plan = make(x.shape, w.shape, stride=stride, **options)
    case = plan.problem
    pads = list(zip(case.pad_lo, case.pad_hi, strict=True))
    y = reference.input_grad(
        x, w, case.input_shape, pads=pads, stride=case.stride, dilation=case.dilation
    )
    return plan, x, w, y


def is_fold(plan):
    """Whether products are folded with plain filters."""
    return isinstance(plan.engine.best.method, fold.Fold)


def blocks_of(c):
    """The blocks of a candidate that folds products."""
    return fold_blocks.blocks_of(c.problem, c.arch)


@pytest.mark.parametrize(
    ("kernel", "stride"),
    [(1024, 256), (100, 100), (70, 33), (3, 128), (9, 7), (5, 2), (1, 2), (7, 3)],
)
def test_windows_of_any_length(folds, kernel, stride):
    """Whole vectors in a loop, pieces of vectors, gaps between windows, and pieces of the last."""
    plan, x, w, y = plan_and_arrays(kernel=(kernel,), stride=stride)
    for filters in w, plan.pack(w):
        out = np.full(y.shape, np.nan, np.float32)
        np.testing.assert_array_equal(plan(x, filters, out=out), y)
    assert len(folds) == 2


def test_a_filter_of_other_strides_is_computed_by_phases(folds):
    plan, x, w, y = plan_and_arrays()
    wide = np.repeat(w, 2, axis=2)[:, :, ::2]
    np.testing.assert_array_equal(plan(x, wide), y)
    assert not folds
    np.testing.assert_array_equal(plan(x, plan.pack(wide)), y)
    assert len(folds) == 1


def test_strict_sums_are_those_of_phases(folds, monkeypatch):
    plan, x, w, _ = plan_and_arrays(precision="strict")
    x = x + np.float32(0.1)
    y = plan(x, w)
    assert not folds
    cost_tables.change(monkeypatch, "transposed", phase_launch=0.0, spread_tap=-1e9)
    cache.clear()
    np.testing.assert_array_equal(plan_and_arrays(precision="strict")[0](x, w), y)


def test_explanation_facts_and_trace(folds):
    plan, x, w, _ = plan_and_arrays()
    text = plan.explain()
    assert "one GEMM of all taps, whose products are then added" in text
    assert "GEMM over all pixels as one row" in text
    facts = plan.facts()
    assert facts["flops"] == 2 * x.size * w[0].size
    assert f"{facts['milliseconds']:.3f} ms" in text.splitlines()[1]
    brief = plan.explain(brief=True)
    assert brief.startswith("runs        one GEMM of all taps, whose products are then added")
    assert "the next best is one convolution for each stride phase" in brief
    assert [part["kernel"] for part in facts["parts"]] == [plan.engine.best.most_work.name]
    blocks = len(blocks_of(plan.engine.best).all)
    assert blocks > 1
    product = plan.engine.best.parts[0].best
    assert plan.trace() == 2 * blocks * product.trace(product.problem)


def test_other_problems_stay_with_phases(folds):
    for options in (
        {"groups": 2},
        {"dilation": 2},
        {"dtype": "bfloat16"},
        {"algorithm": "implicit_gemm"},
        {"stride": 1},
    ):
        asked = {"dtype": "float32", "stride": 2, **options}
        plan = ic.plan_conv_transpose1d((1, 8, 20), (8, 4, 4), **asked)
        assert not is_fold(plan)
    last = ic.plan_conv_transpose1d((1, 20, 8), (8, 4, 4), stride=2, layout="NWC")
    assert not is_fold(last)


def test_memory_is_limited(folds):
    plan, x, w, y = plan_and_arrays()
    least = plan.peak_bytes - 4 * y.size
    limited, *_ = plan_and_arrays(max_workspace=least)
    np.testing.assert_array_equal(limited(x, w), y)
    assert len(folds) == 1
    with pytest.raises(ic.PlanError, match="needs at least"):
        plan_and_arrays(max_workspace=1)
    smaller, *_ = plan_and_arrays(max_workspace=least - 1)
    assert not is_fold(smaller)
    assert smaller.peak_bytes - 4 * y.size < least
    np.testing.assert_array_equal(smaller(x, w), y)


def test_copies_and_tuned_plans(folds):
    plan, x, w, y = plan_and_arrays()
    packed = pickle.loads(pickle.dumps(plan.pack(w)))
    for made in copy.deepcopy(plan), pickle.loads(pickle.dumps(plan)), plan.tune():
        np.testing.assert_array_equal(made(x, w), y)
    np.testing.assert_array_equal(plan(x, packed), y)


def test_nan_stays_where_windows_reach(folds):
    plan, x, w, _ = plan_and_arrays()
    x[1, 3, 10] = np.nan
    wrong = np.isnan(plan(x, w))
    assert wrong[1, :, 40:52].all()
    assert wrong.sum() == 3 * 12


@resampled
def test_blocks_write_each_element_once():
    for number in range(count(100, 1000, 300)):
        dice = Dice(number)
        pixels, taps, stride = dice.number(1, 90), dice.number(1, 9), dice.number(2, 6)
        pads = dice.number(-2, max(-2, (pixels * stride + taps - stride - 1) // 2))
        given = (1, 4, pixels), (4, 64, taps)
        plan = ic.plan_conv_transpose1d(*given, stride=stride, padding=pads)
        problem = spatial(plan.problem)
        blocks = fold_blocks.blocks_of(problem, cpu_arch())
        begins = [block.begin for block in blocks.all]
        ends = [block.end for block in blocks.all]
        assert [0, *ends] == [*begins, problem.size[2]]
        assert blocks.all[-1].first + blocks.extent <= problem.output[2]
