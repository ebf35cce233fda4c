"""Suite bursts: which calls are timed, what a row keeps, its table and its page."""

import json

import pytest

from perf import bursts, report
from perf.__main__ import main
from perf.record import read, validate


def test_each_burst_follows_its_pause_and_threads_take_turns(monkeypatch):
    events = []
    monkeypatch.setattr(bursts.time, "sleep", events.append)
    calls = {number: lambda number=number: events.append(f"on {number}") for number in (1, 2)}
    row = bursts.row(0.05, calls, rounds=2)
    turn = [0.05, *["on 1"] * 5, 0.05, *["on 2"] * 5]
    assert events == 2 * turn
    assert [len(row["timings"][number]["calls"]) for number in ("1", "2")] == [2, 2]
    events.clear()
    bursts.row(0.0, calls, rounds=1)
    assert events == [*["on 1"] * 5, *["on 2"] * 5], "no pause is no sleep"


def test_a_call_is_timed_alone():
    clock = iter(range(0, 100, 3))
    assert bursts.burst(lambda: next(clock), lambda: next(clock)) == [6] * 5


def test_a_speedup_is_that_of_the_same_place_by_medians():
    one = [[4.0, 8.0], [5.0, 9.0], [100.0, 10.0]]
    several = [[2.5, 6.0], [2.5, 6.0], [1.0, 100.0]]
    timings = {"16": {"calls": several}, "1": {"calls": one}}
    assert bursts.speedups({"timings": timings}) == [2.0, 1.5]


@pytest.fixture
def made(tmp_path, monkeypatch, quiet):
    """The record of a run without its longest pauses."""
    monkeypatch.setattr(bursts, "PAUSES", (0.0, 0.001))
    path = tmp_path / "bursts.json"
    options = ["run", "--suite", "bursts", "--threads", "2", "--rounds", "2", "-o", str(path)]
    assert main(options) == 0
    return read(path)


def test_a_record_of_bursts_has_a_page(made):
    assert [row["layer"] for row in made["rows"]] == ["0 ms", "1 ms"]
    assert made["complete"]
    named = [("bursts", made)]
    assert report.in_order(named) == []
    files = report.contents([], report.others(named))
    assert "\n| pause | 1 thread | call 1 | call 2 |" in files["bursts.md"]
    assert "\nbursts\n" in files["index.md"]
    disturbed = bursts.burst_rows({**made, "disturbed": "yes"})
    assert {row["call 1"] for row in disturbed} == {""}


def test_the_schema_refuses_a_row_without_calls(made):
    broken = json.loads(json.dumps(made))
    broken["rows"][0]["timings"]["2"]["calls"] = []
    with pytest.raises(ValueError, match="rows / 0"):
        validate(broken)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--threads", "1"], "needs at least 2 threads and 1 round, not 1 and 21"),
        (["--threads", "2", "--layout", "NHWC"], "leave --layout out"),
        (["--threads", "2", "--against", "torch"], "leave --against out"),
    ],
)
def test_what_bursts_do_not_have_is_refused(options, message, capsys):
    assert main(["run", "--suite", "bursts", *options]) == 2
    assert message in capsys.readouterr().err
