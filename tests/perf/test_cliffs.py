"""perf cliffs: sizes from which a tap takes longer. Nothing is timed."""

from itertools import pairwise

import numpy as np
import pytest

from implicit_conv.kernels.cpu.planar_depthwise.layout import TAPS_TOGETHER
from perf import cliffs
from perf.__main__ import main

SERIES = cliffs.Series("filter rows", "float32", "strict", 8)


def calls(*seconds, estimate=1e-3):
    return [cliffs.Call(2**i, "Method", time, estimate) for i, time in enumerate(seconds)]


def test_the_grid_has_both_neighbours_of_a_threshold():
    grid = cliffs.sizes(512)
    assert (grid[0], grid[-1]) == (1, 512)
    assert {TAPS_TOGETHER, TAPS_TOGETHER + 1} <= set(grid)
    assert max(b / a for a, b in pairwise(grid[1:])) <= 1.5


def test_images_have_the_outputs_of_the_axis():
    assert cliffs.AXES["filter rows"].shapes(101) == ((300, 100), (101, 1))
    assert cliffs.AXES["taps of a signal"].shapes(8192) == ((1, 16191), (1, 8192))


def test_a_cliff_is_a_longer_time_a_tap_of_calls_that_are_long_enough():
    rows = [*cliffs.cliffs(SERIES, calls(1e-6, 30e-6, 61e-6, 200e-6, 410e-6))]
    assert [row["size"] for row in rows] == ["8"]
    assert rows[0]["what"] == "1.64 times as long a tap as with 4 by Method"


def test_an_estimate_may_be_too_low_and_too_high():
    rows = [*cliffs.misjudged(SERIES, calls(1e-6, 0.3e-3, 1e-3, 2.9e-3, 3.1e-3))]
    assert [row["size"] for row in rows] == ["2", "16"]


@pytest.mark.parametrize(("slow", "status"), [(1.2, 0), (1.4, 1)])
def test_the_command_fails_beside_a_cliff(monkeypatch, capsys, slow, status):
    def samples(functions, rounds, seconds):
        assert all(timed.result().shape[2:] == (200, 100) for timed in functions.values())
        return {size: np.full(rounds, time(int(size))) for size in functions}

    def time(size):
        return 1e-3 * size * (slow if size > 2 else 1.0)

    monkeypatch.setattr(cliffs, "VARIANTS", (["float32"], ["strict"], [8]))
    monkeypatch.setattr(cliffs, "sizes", lambda most: [1, 2, 3])
    monkeypatch.setattr(cliffs, "FAR", 1e9)
    monkeypatch.setattr(cliffs, "interleave", samples)
    monkeypatch.setattr(cliffs, "disturbance", lambda threads: "")
    assert main(["cliffs", "--axis", "filter rows"]) == status
    assert ("1.40 times as long" in capsys.readouterr().out) == bool(status)
