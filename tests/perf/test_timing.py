"""The timing core and rivals: samples are long enough and paired, results are right."""

import os
import re
import subprocess
import sys
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


def bench_of_two(monkeypatch, *more):
    """The exit status of bench on two tiny layers."""
    monkeypatch.setattr(bench, "TYPICAL", {"tiny": (4, 8, 10, 3, 1), "dot": (8, 8, 6, 1, 1)})
    monkeypatch.setattr(ceilings, "COPY_BYTES", 1 << 20)
    command = ["bench", "--threads", "1", "--rounds", "2", "--layout", "NHWC"]
    return main([*command, *more])


AGAINST = ["--against", "scipy"] if find_spec("scipy") else []


def test_bench_prints_a_row_a_layer(monkeypatch, capsys):
    monkeypatch.setattr(bench, "disturbance", lambda threads: "")
    monkeypatch.setattr(bench, "NOISY", 1e9)
    assert bench_of_two(monkeypatch, *AGAINST) == 0
    out = capsys.readouterr().out
    assert ("scipy/call" in out) == bool(AGAINST)
    assert "tiny" in out
    assert "dot" in out
    assert "FMA peak" in out
    assert len(re.findall(r"\d\.\d\dx", out)) == len(AGAINST)


@pytest.mark.parametrize("reason", ["others", "control"])
def test_bench_prints_no_ratio_where_other_work_disturbs(monkeypatch, capsys, reason):
    monkeypatch.setattr(
        bench, "disturbance", lambda threads: "others" if reason == "others" else ""
    )
    monkeypatch.setattr(bench, "NOISY", 1e9 if reason == "others" else -1)
    assert bench_of_two(monkeypatch, *AGAINST) == 3
    out = capsys.readouterr().out
    assert out.startswith("others\n") == (reason == "others"), "before the first figure"
    assert out.count("too noisy") == len(AGAINST)
    assert not re.findall(r"\d\.\d\dx", out)


def test_others_are_seen_while_this_process_sleeps(monkeypatch):
    """Of 4 CPUs, over 100 ticks each: all time, and that in which they were idle."""
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    for idle, threads, said in (
        (400, 4, ""),
        (380, 4, ""),
        (300, 4, "other programs use 1.0 of 4 CPUs, and this is measured on 4"),
        (300, 2, ""),
        (0, 1, "other programs use 4.0 of 4 CPUs, and this is measured on 1"),
    ):
        times = iter([(1000, 500), (1400, 500 + idle)])
        monkeypatch.setattr(timing, "_cpu_times", lambda times=times: next(times))
        found = timing.disturbance(threads)
        assert found.startswith(said)
        assert bool(found) == bool(said)


def test_threads_of_this_process_are_no_others(monkeypatch):
    """Of 4 CPUs, one is taken by a thread of ours that spins after a call."""
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    monkeypatch.setattr("os.sysconf", lambda name: 100)
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    own = iter([2.0, 3.0])
    monkeypatch.setattr(time, "process_time", lambda: next(own))
    times = iter([(1000, 500), (1400, 800)])
    monkeypatch.setattr(timing, "_cpu_times", lambda: next(times))
    assert timing.disturbance(4) == ""


@pytest.mark.skipif(sys.platform != "linux", reason="Linux says what its CPUs do")
def test_busy_loops_on_all_cpus_are_seen():
    command = [sys.executable, "-c", "while True: pass"]
    loops = [subprocess.Popen(command) for _ in range(os.cpu_count())]
    try:
        time.sleep(0.3)  # they start
        assert "other programs use" in timing.disturbance(1)
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()
