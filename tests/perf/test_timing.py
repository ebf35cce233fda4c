"""The timing core and rivals: samples are long enough and paired, results are right."""

import time
from dataclasses import replace
from importlib.util import find_spec

import numpy as np
import pytest

from implicit_conv import timing
from implicit_conv.testing import Case, error_units
from implicit_conv.tools import bench, ceilings, rivals
from implicit_conv.tools.cli import main
from perf import engines

CASE = Case(C=8, K=16, size=(12, 14), padding=((1, 1), (1, 1)))


@pytest.fixture
def clock(monkeypatch):
    """A clock of our own in place of the machine's: ``clock(seconds)`` lets time pass."""
    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])

    def let_pass(seconds):
        now[0] += seconds

    return let_pass


def test_samples_last_as_long_as_asked(clock):
    assert timing.calls_per_sample(lambda: clock(0.001), 0.0205) == 32


def test_an_interrupted_call_does_not_shorten_samples(clock):
    calls = iter([0.001, 0.5])
    assert timing.calls_per_sample(lambda: clock(next(calls, 0.001)), 0.0205) == 32


def test_samples_are_seconds_a_call(clock):
    assert timing.sample(lambda: clock(0.002), 3) == pytest.approx(0.002)


def test_interleaving_orders_rounds_at_random_and_keeps_all():
    order = []
    functions = {name: lambda name=name: order.append(name) for name in "ab"}
    samples = timing.interleave(rivals.local(functions), rounds=5, seconds=1e-7)
    assert {name: len(values) for name, values in samples.items()} == {"a": 5, "b": 5}
    assert all((values > 0).all() for values in samples.values())
    runs = [name for i, name in enumerate(order) if i == 0 or order[i - 1] != name]
    assert runs != ["a", "b"] * (len(runs) // 2), "one always ran before the other"


def test_summary_is_numpys():
    samples = np.array([1.0, 2, 3, 4, 10])
    assert timing.summarise(samples) == (3.0, 1.0, pytest.approx(2 / 3))


def test_drift_that_both_sides_see_cancels():
    rng = np.random.default_rng(0)
    drift = np.linspace(1, 3, 40)
    ours = drift * rng.normal(1, 0.01, 40)
    theirs = 1.25 * drift * rng.normal(1, 0.01, 40)
    assert timing.paired_ratio(theirs, ours) == pytest.approx(1.25, rel=0.01)


def test_ratios_are_taken_within_rounds():
    assert timing.paired_ratio(np.array([1.0, 10, 3]), np.array([1.0, 5, 6])) == 1.0


def test_the_ceilings_are_above_what_one_core_of_any_kind_does():
    for work, (function, amount) in ceilings.ceilings(1).items():
        function()
        assert amount > 1e6, work


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("name", ["torch", "scipy", "numpy"])
def test_rivals_compute_the_convolution(name, layout):
    pytest.importorskip(name)
    case = replace(CASE, N=2, layout=layout, stride=(2, 1), kernel=(3, 2))
    x, w = case.inputs(0)
    y = rivals.result_of(case, name, engines.rival(name, case, *case.arrange(x, w), 1)())
    units = error_units(y, case.reference(x, w), case.reference(x, w, True), "float32")
    assert units < rivals.LIMIT_UNITS


def test_a_wrong_result_is_not_timed():
    x, w = CASE.inputs(0)
    wrong = CASE.reference(x, w).astype("float32")
    wrong[0, 3, 2, 1] += 1e-3
    with pytest.raises(rivals.WrongResultError, match=r"call is .* units"):
        rivals.check(CASE, {"call": timing.Local(lambda: wrong)})


def test_a_missing_output_is_a_wrong_result():
    x, w = CASE.inputs(0)
    wrong = CASE.reference(x, w).astype("float32")
    wrong[0, 0, 0, 0] = np.nan
    with pytest.raises(rivals.WrongResultError):
        rivals.check(CASE, {"call": timing.Local(lambda: wrong)})


def test_bench_prints_a_row_a_layer(monkeypatch, capsys):
    monkeypatch.setattr(bench, "TYPICAL", {"tiny": (4, 8, 10, 3, 1), "dot": (8, 8, 6, 1, 1)})
    monkeypatch.setattr(ceilings, "COPY_BYTES", 1 << 20)
    command = ["bench", "--threads", "1", "--rounds", "2", "--layout", "NHWC"]
    against = ["--against", "scipy"] if find_spec("scipy") else []
    assert main([*command, *against]) == 0
    out = capsys.readouterr().out
    assert ("scipy/call" in out) == bool(against)
    assert "tiny" in out
    assert "dot" in out
    assert "FMA peak" in out
