"""Reports of records: which files are written and which records are refused; their tables."""

import json

import pytest

from perf import overviews, pages, report, tables
from perf.__main__ import main
from perf.record import save

PARTS = ("chart", "table")  # of README


def comparison(record):
    """A comparison on the machine of `record`, with one case slower."""
    row = {
        "layer": "3x3 64-64 @8",
        "ratio": 1.12,
        "low": 1.1,
        "high": 1.14,
        "control": 1.002,
        "rounds": 24,
        "rivals": {"torch": 1.3},
        "verdict": "slower",
    }
    shared = {name: value for name, value in record.items() if name not in ("startup", "ceilings")}
    return {
        **shared,
        "kind": "compare",
        "base": "v1",
        "head": "v2",
        "verdict": "slower",
        "rows": [row],
    }


def written(record, folder):
    """Two runs and a comparison as files."""
    other = {**record, "settings": {**record["settings"], "dtype": "bfloat16"}}
    for name, content in (("a", record), ("b", other), ("c", comparison(record))):
        save(content, folder / f"{name}.json")
    return [str(folder / f"{name}.json") for name in "abc"]


def test_a_report_of_nothing_says_what_it_can_write(record, tmp_path, capsys):
    assert main(["report", *written(record, tmp_path)]) == 2
    assert "give a folder as --docs" in capsys.readouterr().err


def test_report_writes_pages_and_the_readme_table(record, tmp_path):
    readme = tmp_path / "README.md"
    blocks = [f"{report.BEGIN.format(name)}\nstale words\n{report.END}" for name in PARTS]
    readme.write_text("\n".join(["before", *blocks, "after\n"]))
    command = ["report", *written(record, tmp_path)]
    command += ["--docs", str(tmp_path / "docs"), "--readme", str(readme)]
    assert main(command) == 0
    table = readme.read_text()
    assert table.startswith("before")
    assert table.endswith("after\n")
    assert "stale words" not in table
    assert "/docs/speed/small.md#small-calls-" in table
    files = {path.name for path in (tmp_path / "docs" / "speed").iterdir()}
    assert files == {"index.md", "on-your-cpu.md", "small.md", "overview.svg", "a.svg", "b.svg"}
    page = (tmp_path / "docs" / "speed" / "small.md").read_text()
    assert "| 3x3 64-64 @8 |" in page
    assert main(command) == 0
    assert readme.read_text() == table


def test_a_readme_without_marks_is_left_alone(record, tmp_path):
    readme = tmp_path / "README.md"
    readme.write_text("mine\n")
    assert main(["report", *written(record, tmp_path), "--readme", str(readme)]) == 2
    assert readme.read_text() == "mine\n"


def test_a_readme_of_runs_without_rivals_is_left_alone(record, tmp_path, capsys):
    rows = [{**row, "timings": {"call": row["timings"]["call"]}} for row in record["rows"]]
    save({**record, "rows": rows}, tmp_path / "alone.json")
    readme = tmp_path / "README.md"
    readme.write_text("mine\n")
    assert main(["report", str(tmp_path / "alone.json"), "--readme", str(readme)]) == 2
    assert "no record has a rival" in capsys.readouterr().err
    assert readme.read_text() == "mine\n"


def test_a_run_without_rivals_has_its_layers_and_no_plot(record, tmp_path):
    rows = [{**row, "timings": {"call": row["timings"]["call"]}} for row in record["rows"]]
    save({**record, "rows": rows}, tmp_path / "alone.json")
    assert main(["report", str(tmp_path / "alone.json"), "--docs", str(tmp_path / "docs")]) == 0
    texts = {path.name: path.read_text() for path in (tmp_path / "docs" / "speed").iterdir()}
    assert set(texts) == {"index.md", "small.md"}  # nothing to compare
    assert "[no rival](small.md#" in texts["index.md"]
    assert "| 3x3 64-64 @8 |" in texts["small.md"]
    assert ".svg" not in texts["index.md"] + texts["small.md"]


def test_two_runs_of_the_same_work_are_refused(record, tmp_path, capsys):
    for name in "ab":
        save(record, tmp_path / f"{name}.json")
    paths = [str(tmp_path / f"{name}.json") for name in "ab"]
    assert main(["report", *paths, "--docs", str(tmp_path / "docs")]) == 2
    assert "a and b are all 'small calls, " in capsys.readouterr().err
    assert not (tmp_path / "docs").exists()


def test_the_overview_is_that_of_the_layers(record):
    rows = [
        {**row, "ratios": {**row["ratios"], "numpy": call, "numpy/plan": plan}}
        for row, call, plan in zip(record["rows"], (0.5, 8.0), (1.0, 16.0), strict=True)
    ]
    (found,) = overviews.overviews_of({**record, "rows": rows})
    assert (found.rival, found.layers) == ("numpy", 2)
    assert found.means == {"call": pytest.approx(2), "plan": pytest.approx(4)}
    assert (found.worst, found.worst_layer, found.worst_of) == (0.5, rows[0]["layer"], "call")


def with_engine(record):
    """The record with ncnn on its first layer, and the reason why it is not on its second."""
    first, second = json.loads(json.dumps(record))["rows"]
    first["timings"]["ncnn"] = first["timings"]["numpy"]
    first["ratios"] |= {"ncnn": 0.7, "ncnn/plan": 0.9}
    first["errors"]["ncnn"] = 70.0
    second["not_timed"] = {"ncnn": "ncnn: too small"}
    return {**record, "rows": [first, second], "rivals": {"ncnn": {"version": "1.0", "threads": 1}}}


def test_an_engine_is_compared_with_plan(record, tmp_path):
    """An engine has packed the filter, so a ratio to "call" would flatter it."""
    engine = with_engine(record)
    save(engine, tmp_path / "engine.json")
    _, found, _ = overviews.overviews_of(engine)
    assert (found.rival, found.layers, found.means) == ("ncnn", 1, {"plan": 0.9})
    assert (found.worst, found.worst_of) == (0.9, "plan")
    assert "ncnn/call" not in tables.run_rows(engine)[0]
    assert main(["report", str(tmp_path / "engine.json"), "--docs", str(tmp_path / "docs")]) == 0
    page = (tmp_path / "docs" / "speed" / "small.md").read_text()
    assert "\n| ncnn 1.0 | 1 |  | 0.90 | 0.90 (" in page
    assert "\n- ncnn was not timed on 1 of 2 layers: ncnn: too small\n" in page


def test_a_layer_without_its_rival_says_so(record):
    engine = with_engine(record)
    assert [row["ncnn ms"] == "not timed" for row in tables.run_rows(engine)] == [False, True]
    lines = tables.summary_lines(engine)
    assert "ncnn was not timed on 1 of 2 layers: ncnn: too small" in lines
    assert any(line.startswith("largest error of ncnn: 70 units") for line in lines)


def test_a_noisy_run_carries_a_warning(record):
    def warned(floor):
        lines = tables.summary_lines({**record, "noise_floor": floor})
        return any(line.startswith("too noisy") for line in lines)

    assert warned(0.2)
    assert not warned(0.01)


def test_lines_of_a_summary_are_short(record):
    for line in [*tables.summary_lines(record), *pages.where_lines(record)]:
        assert len(line) < 130 or line.startswith("versions: "), line  # of all that is installed


def test_runs_of_another_dtype_are_told_apart(record):
    narrow = {**record, "settings": {**record["settings"], "dtype": "bfloat16"}}
    assert tables.title_of(record) == "small calls, float32, NCHW, 1 thread"
    assert tables.title_of(narrow) == "small calls, bfloat16, NCHW, 1 thread"
