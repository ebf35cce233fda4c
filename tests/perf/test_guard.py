"""Beside other work, commands say so before the first figure, tell no ratio and exit with 3."""

import re
from contextlib import contextmanager

import pytest

from perf import compare, ndimage, regret, run, session, tables
from perf.__main__ import main
from perf.record import read, save

OTHERS = "other programs use 2.0 of 2 CPUs"


def disturbances(monkeypatch, module, *texts):
    """Let `module` be disturbed so when it looks; returns the threads that it asks for."""
    threads, said = [], iter(texts)
    monkeypatch.setattr(module, "disturbance", lambda count: threads.append(count) or next(said))
    return threads


@pytest.fixture
def rerun(tmp_path, monkeypatch, record):
    """A function that repeats the run of `record` with its samples: (exit status, record)."""

    def repeat():
        @contextmanager
        def row_maker(options, new):
            rows = iter(record["rows"])
            new |= {"startup": record["startup"], "ceilings": record["ceilings"]}
            yield lambda name, case: next(rows, None)

        monkeypatch.setattr(run, "cpu_row_maker", row_maker)
        path = tmp_path / "run.json"
        options = "--suite small --threads 2 --against numpy -o".split()
        return main(["run", *options, str(path)]), read(path)

    return repeat


@pytest.mark.parametrize("texts", [(OTHERS,), ("", OTHERS)])
def test_a_disturbed_run_has_no_ratio_and_is_not_reported(
    texts, rerun, record, monkeypatch, capsys, tmp_path
):
    monkeypatch.setattr(tables, "NOISY", 1e9)
    threads = disturbances(monkeypatch, session, *texts)
    status, made = rerun()
    printed = capsys.readouterr()
    assert (status, made["disturbed"]) == (3, OTHERS)
    assert threads == [2] * len(texts), "of the threads that are measured"
    assert printed.out.startswith(f"{OTHERS}\n"), "before the first figure"
    assert (OTHERS in printed.err) == (len(texts) == 1), "before minutes of work"
    assert "numpy ms" in printed.out and "geometric mean" not in printed.out
    assert not re.search(r" \d+% ", printed.out), "nor a share of a ceiling"
    for row in record["rows"]:
        for name in "numpy", "numpy/plan":
            assert f" {row['ratios'][name]:.2f} " not in printed.out
    assert main(["report", str(tmp_path / "run.json"), "--docs", str(tmp_path / "docs")]) == 2
    assert f"run.json has no ratio that can be told: {OTHERS}" in capsys.readouterr().err
    assert not (tmp_path / "docs").exists()


def test_a_run_whose_calls_differ_from_themselves_has_no_ratio(rerun, monkeypatch, capsys):
    disturbances(monkeypatch, session, "", "")
    monkeypatch.setattr(tables, "NOISY", -1)
    status, made = rerun()
    assert status == 3 and made["disturbed"].startswith("calls differ from themselves by ")
    assert "geometric mean" not in capsys.readouterr().out


def test_a_quiet_run_has_ratios(rerun, record, monkeypatch, capsys, tmp_path):
    disturbances(monkeypatch, session, "", "")
    monkeypatch.setattr(tables, "NOISY", 1e9)
    status, made = rerun()
    assert status == 0 and "disturbed" not in made
    out = capsys.readouterr().out
    assert "geometric mean" in out and f"{record['rows'][0]['ratios']['numpy']:.2f}" in out
    assert main(["report", str(tmp_path / "run.json"), "--docs", str(tmp_path / "docs")]) == 0


@contextmanager
def sides(*_):
    """In place of two revisions."""
    yield {"base": type("Base", (), {"name": "a"}), "head": type("Head", (), {"name": "b"})}


def test_a_comparison_beside_other_work_measures_nothing(monkeypatch, capsys, tmp_path):
    disturbances(monkeypatch, compare, OTHERS)
    monkeypatch.setattr(compare, "sides", sides)
    monkeypatch.setattr(compare, "measure", None)  # a call would be a TypeError
    path = tmp_path / "compare.json"
    assert main(["compare", "a", "b", "--suite", "small", "-o", str(path)]) == 3
    assert capsys.readouterr().out == f"{OTHERS}\n"
    assert read(path)["verdict"] == "inconclusive"


def test_a_comparison_that_other_work_joins_tells_no_ratio(monkeypatch, capsys):
    def measure(suite, trees, options, samples, show):
        for name in suite:
            samples[name] |= {"base": [1.0] * 9, "control": [1.0] * 9, "head": [2.0] * 9}

    monkeypatch.setattr(compare, "sides", sides)
    monkeypatch.setattr(compare, "measure", measure)
    disturbances(monkeypatch, compare, "", OTHERS)
    assert main(["compare", "a", "b", "--suite", "small"]) == 3
    out = capsys.readouterr().out
    assert OTHERS in out and not re.search(r"\d\.\d\d\d", out)
    disturbances(monkeypatch, compare, "", "")
    assert main(["compare", "a", "b", "--suite", "small"]) == 1
    assert "2.000" in capsys.readouterr().out


def test_regret_and_filters_of_images_measure_nothing_beside_other_work(monkeypatch, capsys):
    asked = disturbances(monkeypatch, regret, OTHERS)
    monkeypatch.setattr(regret, "measured", None)  # a call would be a TypeError
    assert main(["regret", "--suite", "small", "--threads", "2"]) == 3
    assert (asked, capsys.readouterr().out) == ([2], f"{OTHERS}\n")
    asked = disturbances(monkeypatch, ndimage, OTHERS)
    monkeypatch.setattr(ndimage, "contenders", None)
    assert main(["ndimage"]) == 3
    assert (asked, capsys.readouterr().out) == ([1], f"{OTHERS}\n")


def test_a_disturbed_record_passes_the_schema(record, tmp_path):
    save(record | {"disturbed": OTHERS}, tmp_path / "record.json")
    with pytest.raises(ValueError, match="not of type 'string'"):
        save(record | {"disturbed": 1}, tmp_path / "record.json")
