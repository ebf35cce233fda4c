"""perf race: which runs are made and which records are kept."""

import argparse
import json

import pytest

from perf import race
from perf.__main__ import main
from perf.engines import ENGINES


@pytest.fixture
def races(record, tmp_path, monkeypatch):
    """`perf race` where a run writes `record`, and where `status` is its exit status."""
    asked, state = [], {"status": 0, "record": record}

    def run(options):
        asked.append((options.suite, options.layout, options.against, options.rounds))
        settings = {**record["settings"], "suite": options.suite, "layout": options.layout}
        options.output.write_text(json.dumps({**state["record"], "settings": settings}))
        return state["status"]

    monkeypatch.setattr(race.runs, "run", run)
    command = ["race", "-o", str(tmp_path / "races"), "--rounds", "3"]

    def start(*more):
        asked.clear()
        return main([*command, *more]), list(asked)

    return start, state


def test_each_suite_is_run_in_both_layouts_against_all(races, capsys):
    start, _ = races
    status, asked = start("--suite", "vgg", "--suite", "pixel")
    assert status == 0
    assert [one[:2] for one in asked] == [
        ("vgg", "NCHW"),
        ("vgg", "NHWC"),
        ("pixel", "NCHW"),
        ("pixel", "NHWC"),
    ]
    assert all(one[2:] == (["torch", *ENGINES], 3) for one in asked)
    table = capsys.readouterr().out
    assert table.startswith("| rival | VGG-16, float32, NCHW, 1 thread | VGG-16, float32, NHWC")
    assert "\n| numpy | " in table


def test_a_complete_record_is_kept_and_another_is_made_again(races):
    start, state = races
    assert len(start("--suite", "vgg")[1]) == 2
    assert start("--suite", "vgg") == (0, [])
    state["record"] = {**state["record"], "disturbed": "by others"}
    state["status"] = 3
    assert start("--suite", "pixel") == (3, [("pixel", "NCHW", ["torch", *ENGINES], 3)])
    assert start("--suite", "pixel")[1][0][:2] == ("pixel", "NCHW")


def test_a_run_takes_the_options_that_race_makes(tmp_path):
    """Every option that `perf run` has, but those of suites that are no layers."""
    parsed = {}

    class Commands:
        def add_parser(self, *arguments, **options):
            parsed["parser"] = argparse.ArgumentParser()
            return parsed["parser"]

    race.runs.register(Commands())
    wanted = vars(parsed["parser"].parse_args([]))
    given = argparse.Namespace(layer=None, threads=1, rounds=3)
    made = vars(race.options_of(given, "vgg", "NCHW", tmp_path / "a.json"))
    assert {*wanted} - {*made} == {"sizes", "run"}
