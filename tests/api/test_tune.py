"""Plan.tune: the fastest candidate runs from then on, in other processes too.

Measured times are replaced by chosen ones, so that no test depends on the machine.
"""

import gc

import numpy as np
import pytest

import implicit_conv as ic
from implicit_conv.cpu.candidates.query import Query
from implicit_conv.cpu.plan import tuning, tuning_cache
from implicit_conv.process.cache import clear
from implicit_conv.process.disk import Store

X, W = (1, 16, 12, 12), (16, 16, 3, 3)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A folder of its own for choices, and no plans that other tests made or leave behind."""
    store = Store(tmp_path)
    monkeypatch.setattr(tuning_cache, "store", lambda: store)
    monkeypatch.setattr(tuning_cache, "_MEMORY", {})
    clear()
    yield tmp_path
    clear()


@pytest.fixture
def last_is_fastest(monkeypatch):
    """The last candidate is twice as fast as all others; none of them runs."""

    def samples(candidates, run):
        return [np.full(3, 2e-3)] * (len(candidates) - 1) + [np.full(3, 1e-3)]

    monkeypatch.setattr(tuning, "measure", samples)


def restart():
    """Forget what a new process would not know."""
    tuning_cache._MEMORY.clear()
    clear()


def test_the_fastest_candidate_runs_until_it_is_forgotten(last_is_fastest, folder):
    plan = ic.plan_conv2d(X, W, padding=1)
    tuned = plan.tune()
    query = Query(plan.engine.best.problem, plan.arch, plan.engine.request)
    fastest = tuning.few(query, packs=True)[-1]
    assert plan.engine.best != fastest
    assert "tuned" not in plan.explain()
    assert "where the one with the lowest estimate took 2.000 ms" in " ".join(
        tuned.explain().split()
    )
    restart()
    for made in (tuned, ic.plan_conv2d(X, W, padding=1)):
        assert made.engine.best == fastest
        assert "tuned" in made.explain()
    assert "tuned" not in ic.plan_conv2d((2, *X[1:]), W, padding=1).explain()
    with ic.config(num_threads=7):
        assert "tuned" not in ic.plan_conv2d(X, W, padding=1).explain()
    assert tuning_cache.forget() == len(list(folder.iterdir())) + 1 == 1
    clear()
    assert ic.plan_conv2d(X, W, padding=1).engine.best == plan.engine.best


def test_the_first_candidate_stays_unless_another_is_clearly_faster():
    first = np.array([1.0, 1.0, 1.1])
    assert tuning.fastest([first, first * 0.99]) == 0
    assert tuning.fastest([first, first * 1.2, first * 0.9]) == 2
    assert tuning.fastest([first, np.array([0.5, 1.1, 1.2])]) == 0  # one lucky sample
    assert tuning.fastest([first, np.array([0.9, 0.9, 9.0])]) == 1


@pytest.mark.parametrize("filters", ["packed", "plain"])
def test_what_is_measured_is_the_right_call(monkeypatch, filters):
    """Every function writes the result; with a packed filter that is still alive."""
    written = []

    def run_all(candidates, run):
        functions = [run(c) for c in candidates]
        gc.collect()
        np.full(1 << 20, np.nan)  # in the memory that was freed
        for function in functions:
            written.append(function())
        return [np.ones(3)] * len(candidates)

    monkeypatch.setattr(tuning, "measure", run_all)
    engine = ic.plan_conv2d(X, W, padding=1).engine
    x, w = (tuning.filled(a, "float32", seed) for seed, a in enumerate(engine.arrays[:2]))
    ic.plan_conv2d(X, W, padding=1).tune(filters)
    expected = ic.conv2d(x, w, padding=1, algorithm="gemm_im2col")
    assert len(written) > 2
    for y in written:
        np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-4)


def operators():
    """(plan, arrays) of every kind of engine, each called as ``plan(*arrays)``."""
    random = np.random.default_rng(0)

    def numbers(*shape):
        return random.integers(-3, 4, shape).astype(np.float32)

    x, w = numbers(1, 16, 9, 9), numbers(32, 16, 3, 3)
    yield lambda: ic.plan_conv2d(x.shape, w.shape), (x, w)
    z, v = x + 1j * x[:, ::-1], w - 1j * w[::-1]
    z, v = z.astype(np.complex64), v.astype(np.complex64)
    yield lambda: ic.plan_conv2d(z.shape, v.shape, np.complex64), (z, v)
    dy = numbers(1, 32, 4, 4)
    options = {"stride": 2, "padding": ((0, 1), (0, 1))}
    yield lambda: ic.plan_conv2d_input_grad(dy.shape, w.shape, x.shape, **options), (dy, w)
    reflect = {"stride": 2, "padding": 1, "padding_mode": "reflect"}
    dz = numbers(1, 32, 5, 5)
    yield lambda: ic.plan_conv2d_input_grad(dz.shape, w.shape, x.shape, **reflect), (dz, w)
    yield (
        lambda: ic.plan_conv2d_weight_grad(x.shape, dz.shape, w.shape, stride=2, padding=1),
        (x, dz),
    )
    yield lambda: ic.plan_conv_transpose2d(dy.shape, w.shape, stride=2), (dy, w)
    last = {"stride": 2, "layout": "NHWC", "weight_layout": "KRSC", "precision": "strict"}
    of_last = numbers(1, 4, 4, 32), numbers(32, 3, 3, 16)  # in whose w no filters are rows
    shapes = of_last[0].shape, of_last[1].shape, (1, 9, 9, 16)
    yield lambda: ic.plan_conv2d_input_grad(*shapes, **last), of_last
    none = numbers(1, 0, 8, 8), numbers(0, 4, 3, 3)
    yield lambda: ic.plan_conv_transpose2d(none[0].shape, none[1].shape, stride=2), none


@pytest.mark.parametrize("number", range(8))
def test_every_operator_can_be_tuned(last_is_fastest, number):
    make, arrays = list(operators())[number]
    expected = make()(*arrays)
    tuned = make().tune("plain" if number == 6 else "packed")
    restart()
    again = make()
    for plan in (tuned, again):
        assert "tuned" in plan.explain()
        np.testing.assert_array_equal(plan(*arrays), expected)  # small integers: exact


@pytest.mark.parametrize(
    ("x", "w", "options"),
    [
        (X, W, {"padding": 1}),
        ((2, 14, 14, 32), (48, 32, 1, 1), {"layout": "NHWC"}),
        ((1, 24, 15, 15), (24, 1, 3, 3), {"groups": 24, "stride": 2}),
        ((1, 3, 33, 33), (8, 3, 5, 5), {"stride": 2}),
    ],
)
def test_strict_results_keep_their_bits(last_is_fastest, x, w, options):
    random = np.random.default_rng(0)
    x, w = (random.standard_normal(shape, np.float32) for shape in (x, w))
    expected = ic.conv2d(x, w, precision="strict", **options)
    plan = ic.plan_conv2d(x.shape, w.shape, precision="strict", **options)
    query = Query(plan.engine.best.problem, plan.arch, plan.engine.request)
    assert plan.tune().engine.best == tuning.few(query, packs=True)[-1]
    np.testing.assert_array_equal(ic.conv2d(x, w, precision="strict", **options), expected)


def test_a_folder_that_cannot_be_written_changes_only_later_processes(
    last_is_fastest, folder, monkeypatch, caplog
):
    file = folder / "file"
    file.touch()
    store = Store(file)
    monkeypatch.setattr(tuning_cache, "store", lambda: store)
    assert "tuned" in ic.plan_conv2d(X, W, padding=1).tune().explain()
    assert "tuned" in ic.plan_conv2d(X, W, padding=1).explain()
    assert "is not a folder" in caplog.text
    restart()
    assert "tuned" not in ic.plan_conv2d(X, W, padding=1).explain()


def test_a_candidate_that_is_no_longer_proposed_is_ignored(last_is_fastest):
    plan = ic.plan_conv2d(X, W, padding=1)
    entry = tuning_cache.entry_of(Query(plan.engine.best.problem, plan.arch, plan.engine.request))
    tuning_cache.save(entry, tuning_cache.Kept("another", "words"))
    clear()
    assert ic.plan_conv2d(X, W, padding=1).engine.best == plan.engine.best


def test_empty_results_need_no_tuning():
    plan = ic.plan_conv2d((0, 16, 12, 12), W, padding=1).tune()
    assert "tuned" not in plan.explain()


def test_unknown_filters_and_gpus_are_refused():
    plan = ic.plan_conv2d(X, W, padding=1)
    with pytest.raises(ic.PlanError, match="filters"):
        plan.tune("packd")
    with pytest.raises(ic.PlanError, match="measured on CPUs only"):
        ic.plan_conv2d(X, W, "float16", device="sm_90a").tune()
