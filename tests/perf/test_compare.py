"""Verdicts on synthetic noise, and comparisons of real trees."""

import argparse

import numpy as np
import pytest

from perf import compare, verdicts
from perf.__main__ import main
from perf.record import read
from perf.verdicts import Estimate
from perf.workers import tree


def rounds(rng, factor, count=24, noise=0.004):
    """Minima of rounds of 3 samples: drift, noise above the true time, rare interruptions."""
    drift = np.linspace(1, 1.4, count)[:, None]
    late = rng.exponential(noise, (count, 3)) + 0.5 * (rng.random((count, 3)) < 0.1)
    return (1e-3 * factor * drift * (1 + late)).min(axis=1)


def judged(seed, slowdown, noise=0.004):
    rng = np.random.default_rng(seed)
    base, control, head = (rounds(rng, f, noise=noise) for f in (1, 1, slowdown))
    floor = verdicts.noise_floor([verdicts.estimate(control, base).ratio])
    return verdicts.verdict(verdicts.estimate(head, base), floor)


@pytest.mark.parametrize(
    ("slowdown", "expected"), [(1.0, "fine"), (1.1, "slower"), (1.3, "slower"), (0.8, "faster")]
)
def test_verdicts_hold_on_synthetic_noise(slowdown, expected):
    found = [judged(seed, slowdown) for seed in range(40)]
    assert found.count(expected) >= 38


def test_no_verdict_without_enough_rounds():
    lone = verdicts.estimate([1.2], [1.0])
    assert verdicts.verdict(lone, 0.0) == "inconclusive"


@pytest.mark.parametrize(
    ("estimate", "floor", "expected"),
    [
        (Estimate(1.06, 1.01, 1.1), 0.0, "slower"),
        (Estimate(1.06, 0.99, 1.1), 0.0, "inconclusive"),  # the interval does not exclude 1
        (Estimate(1.06, 1.01, 1.1), 0.025, "inconclusive"),  # within three floors
        (Estimate(1.02, 1.01, 1.03), 0.0, "fine"),  # real, but too small to count
        (Estimate(1.0, 0.99, 1.06), 0.0, "inconclusive"),
        (Estimate(1.0, 0.99, 1.01), 0.04, "inconclusive"),  # too noisy to tell
        (Estimate(0.9, 0.89, 0.91), 0.0, "faster"),
    ],
)
def test_each_condition_of_a_verdict(estimate, floor, expected):
    assert verdicts.verdict(estimate, floor) == expected


def test_one_slower_case_decides():
    assert verdicts.overall(["fine", "inconclusive", "slower"]) == "slower"
    assert verdicts.overall(["fine", "inconclusive"]) == "inconclusive"
    assert verdicts.overall(["faster", "fine"]) == "fine"


def test_the_interval_covers_the_true_ratio():
    hits = 0
    for seed in range(60):
        ratios = np.random.default_rng(seed).normal(1.07, 0.02, 20)
        found = verdicts.estimate(ratios, np.ones(20))
        hits += found.low <= 1.07 <= found.high
    assert hits >= 55


def test_the_floor_is_what_controls_scatter():
    assert verdicts.noise_floor([1.01, 0.98, 1.0]) == pytest.approx(0.018)
    assert verdicts.threshold(0.01) == 0.05
    assert verdicts.threshold(0.03) == pytest.approx(0.09)


def test_usage_errors_exit_2(capsys):
    assert main(["compare", "no-such-revision", "HEAD"]) == 2
    assert "neither a folder nor a git revision" in capsys.readouterr().err
    assert main(["compare", "HEAD", "HEAD", "--layer", "no such"]) == 2


@pytest.mark.parametrize(("verdict", "status"), [("fine", 0), ("slower", 1), ("inconclusive", 3)])
def test_exit_status_tells_the_verdict(verdict, status, monkeypatch):
    record = dict.fromkeys(("base", "head"), "") | {"rows": [], "noise_floor": None}
    record |= {"complete": True, "verdict": verdict}
    monkeypatch.setattr(compare, "compare", lambda *_: record)
    options = argparse.Namespace(base="", head="", output=None)
    assert compare.run(options) == status


# Code for the end of a tree's API: calls of conv2d take half their time longer.
SLOWDOWN = """
_conv2d = conv2d


def conv2d(*arguments, **options):
    from time import perf_counter

    start = perf_counter()
    y = _conv2d(*arguments, **options)
    end = perf_counter()
    while perf_counter() < end + 0.5 * (end - start):
        pass
    return y
"""


def plant(tree, code):
    """Write code at the end of a tree's API."""
    with (tree.path / "implicit_conv" / "operators" / "conv.py").open("a") as text:
        text.write(code)


@pytest.mark.slow
def test_a_gross_slowdown_is_seen_end_to_end(tmp_path, quiet):
    """Calls that take 50 % longer, which no noise of a shared machine hides."""
    output = tmp_path / "compare.json"
    with tree("HEAD", tmp_path) as head, tree("HEAD", tmp_path) as planted:
        plant(planted, SLOWDOWN)
        options = ["--layer", "1x1 512-128", "--cache", str(tmp_path / "cache")]
        options += ["--layout", "NHWC", "--rounds", "4", "-o", str(output)]
        status = main(["compare", str(head.path), str(planted.path), *options])
    record = read(output)
    assert (status, record["verdict"]) in ((1, "slower"), (3, "inconclusive")), record["rows"]
    assert record["rows"][0]["ratio"] > 1.2


WRONG = """
_conv2d = conv2d
conv2d = lambda x, w, **options: _conv2d(x, 2 * w, **options)
"""


@pytest.mark.slow
def test_a_side_that_computes_something_else_is_refused(tmp_path, quiet, capsys):
    with tree("HEAD", tmp_path) as head, tree("HEAD", tmp_path) as wrong:
        plant(wrong, WRONG)
        options = ["--suite", "small", "--layer", "6-16", "--cache", str(tmp_path / "cache")]
        status = main(["compare", str(head.path), str(wrong.path), *options])
    assert status == 2
    assert "head computes a wrong result" in capsys.readouterr().err
