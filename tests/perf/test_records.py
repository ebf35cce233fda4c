"""Runs and their records: schema, interruption, exporters, and the page made of them."""

import html
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from perf import report, run
from perf.__main__ import main
from perf.interrupts import interrupts
from perf.record import ROOT, read, save, validate

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
STARTUP = {"import": 0.01, "first_call_cold": 4.0, "first_call_warm": 0.5}
PHONE = """<iframe id="page" width="390" height="800" src="report.html"></iframe>
<pre id="found"></pre>
<script>
onload = () => {
  const page = document.getElementById("page").contentDocument
  const images = [...page.images]
  document.getElementById("found").textContent = JSON.stringify({
    width: page.documentElement.scrollWidth,
    rows: page.querySelectorAll("tbody tr").length,
    images: images.length,
    drawn: images.filter(image => image.complete && image.naturalWidth > 100).length,
    slower: page.querySelectorAll("td.slower").length,
  })
}
</script>"""


@pytest.fixture(scope="module")
def record(tmp_path_factory):
    """A short run of two layers, read back from its file."""
    path = tmp_path_factory.mktemp("records") / "first.json"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("perf.startup.startup", lambda: STARTUP)
        status = main(
            ["run", "--suite", "small", "--layer", "@8", "--layer", "5x5 6", "--threads", "1",
             "--rounds", "3", "--against", "numpy", "-o", str(path)]
        )  # fmt: skip
    assert status == 0
    return read(path)


def comparison(record):
    """A comparison on the machine of `record`, with one case slower."""
    row = {
        "layer": "3x3 64-64 @8", "ratio": 1.12, "low": 1.1, "high": 1.14, "control": 1.002,
        "rounds": 24, "rivals": {"torch": 1.3}, "verdict": "slower",
    }  # fmt: skip
    shared = {name: value for name, value in record.items() if name not in ("startup", "ceilings")}
    return {**shared, "kind": "compare", "base": "v1", "head": "v2", "verdict": "slower",
            "rows": [row]}  # fmt: skip


def test_a_row_holds_what_was_measured(record):
    rows = {row["layer"]: row for row in record["rows"]}
    row = rows["3x3 64-64 @8"]
    assert row["flops"] == 2 * 64 * 64 * 9 * 64
    assert set(row["timings"]) == {"call", "plan", "control", "numpy"}
    assert set(row["ratios"]) == {"control", "numpy", "control/plan", "numpy/plan"}
    assert all(len(timing["samples"]) == 3 for timing in row["timings"].values())
    assert max(row["errors"].values()) < 16
    assert row["peak_bytes"] >= row["scratch_bytes"] > 0
    assert record["complete"]
    assert record["noise_floor"] >= 0
    assert record["machine"]["flags"]
    assert record["load"]["before"] is not None


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"version": 2}, "version"),
        ({"rows": [{"layer": "x"}]}, "rows / 0"),
        ({"kind": "compare"}, "the record"),  # without base, head and verdict
        ({"noise_floor": -1}, "noise_floor"),
    ],
)
def test_the_schema_refuses(record, change, where):
    with pytest.raises(ValueError, match=f"^{where}"):
        validate({**record, **change})


def test_a_negative_time_is_refused(record):
    broken = json.loads(json.dumps(record))
    broken["rows"][0]["timings"]["call"]["median"] = -1.0
    with pytest.raises(ValueError, match="median"):
        validate(broken)


def test_what_is_no_record_is_named(tmp_path):
    path = tmp_path / "other.json"
    path.write_text("{}")
    with pytest.raises(ValueError, match=r"other\.json is not a record"):
        read(path)


def test_an_unknown_layer_or_device_exits_2(capsys):
    assert main(["run", "--layer", "no such"]) == 2
    assert "no such" in capsys.readouterr().err
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        assert main(["run", "--device", "cuda"]) == 2
        assert "no CUDA device" in capsys.readouterr().err


def test_an_interrupt_inside_a_row_keeps_the_rows_before(tmp_path, monkeypatch, record):
    path = tmp_path / "partial.json"
    done = iter(record["rows"][:1])

    def row_maker(options, record):
        def make_row(name, case):
            try:
                return next(done)
            except StopIteration:
                raise KeyboardInterrupt from None

        return make_row

    monkeypatch.setattr(run, "cpu_row_maker", row_maker)
    assert main(["run", "--suite", "small", "--against", "nothing", "-o", str(path)]) == 130
    partial = read(path)
    assert not partial["complete"]
    assert partial["rows"] == record["rows"][:1]


def test_an_interrupt_that_a_destructor_drops_ends_the_run_at_the_next_row(
    tmp_path, monkeypatch, record, capsys
):
    class Interrupted:
        def __del__(self):
            signal.raise_signal(signal.SIGINT)

    def row_maker(options, record):
        def make_row(name, case):
            Interrupted()
            return done[0]

        return make_row

    done = record["rows"]
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    monkeypatch.setattr(run, "cpu_row_maker", row_maker)
    monkeypatch.setattr(sys, "unraisablehook", lambda dropped: print(dropped.exc_type.__name__))
    path = tmp_path / "partial.json"
    try:
        assert main(["run", "--suite", "small", "--against", "nothing", "-o", str(path)]) == 130
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, handler)
    assert "KeyboardInterrupt" in capsys.readouterr().out
    assert len(read(path)["rows"]) == 1


def test_threads_are_not_interrupted():
    """Python hands signals to the main thread, which alone may have a handler set."""

    def work():
        with interrupts() as check:
            check()
        return True

    with ThreadPoolExecutor(1) as thread:
        assert thread.submit(work).result()


# Background jobs of a shell start with SIGINT ignored, and so would what they start.
INTERRUPTIBLE = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from perf.__main__ import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.slow
def test_ctrl_c_leaves_a_valid_partial_record(tmp_path):
    path = tmp_path / "partial.json"
    command = [
        sys.executable, "-c", INTERRUPTIBLE, "run", "--suite", "resnet50", "--threads", "1",
        "--rounds", "9", "--against", "nothing", "-o", str(path),
    ]  # fmt: skip
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 120
        while not (path.exists() and read(path)["rows"]) and time.monotonic() < deadline:
            time.sleep(0.1)
        os.kill(process.pid, signal.SIGINT)
        status = process.wait(timeout=60)
    finally:
        process.kill()
    partial = read(path)
    assert status == 130
    assert not partial["complete"]
    assert 1 <= len(partial["rows"]) < 23


def test_pyperf_reads_the_export(record, tmp_path):
    pyperf = pytest.importorskip("pyperf")
    path, out = tmp_path / "run.json", tmp_path / "pyperf.json"
    save(record, path)
    assert main(["export", str(path), "--format", "pyperf", "-o", str(out)]) == 0
    suite = pyperf.BenchmarkSuite.load(str(out))
    benchmark = suite.get_benchmark("3x3 64-64 @8 call")
    timing = next(row for row in record["rows"] if "@8" in row["layer"])["timings"]["call"]
    assert list(benchmark.get_values()) == timing["samples"]


def test_pytest_benchmark_statistics_are_those_of_the_samples(record, tmp_path):
    path, out = tmp_path / "run.json", tmp_path / "benchmark.json"
    save(record, path)
    assert main(["export", str(path), "--format", "pytest-benchmark", "-o", str(out)]) == 0
    benchmarks = json.loads(out.read_text())["benchmarks"]
    assert len(benchmarks) == 8
    timing = record["rows"][0]["timings"]["call"]
    assert benchmarks[0]["stats"]["median"] == pytest.approx(timing["median"])
    assert benchmarks[0]["stats"]["min"] == timing["minimum"]


def written(record, folder):
    """Two runs and a comparison as files."""
    later = {**record, "created": "2099-01-01T00:00:00+00:00"}
    for name, content in (("a", record), ("b", later), ("c", comparison(record))):
        save(content, folder / f"{name}.json")
    return [str(folder / f"{name}.json") for name in "abc"]


def test_report_writes_page_plots_and_readme_tables(record, tmp_path):
    readme = tmp_path / "README.md"
    readme.write_text(f"before\n{report.BEGIN}\nstale words\n{report.END}\nafter\n")
    page, plots = tmp_path / "report.html", tmp_path / "plots"
    paths = written(record, tmp_path)
    options = ["-o", str(page), "--png", str(plots), "--readme", str(readme)]
    assert main(["report", *paths, *options]) == 0
    text = page.read_text()
    assert not re.search(r"(src|href)=\"(?!data:)", text), "the page fetches something"
    assert sorted(path.name for path in plots.iterdir()) == [
        "a-ratios.png", "a-roofline.png", "b-ratios.png", "b-roofline.png",
    ]  # fmt: skip
    tables = readme.read_text()
    assert tables.startswith("before")
    assert tables.endswith("after\n")
    assert "stale words" not in tables
    assert "| 3x3 64-64 @8 |" in tables
    assert 'src="plots/a-ratios.png"' in tables
    assert main(["report", *paths, *options]) == 0
    assert readme.read_text() == tables


def test_a_readme_without_marks_is_left_alone(record, tmp_path):
    readme = tmp_path / "README.md"
    readme.write_text("mine\n")
    paths = written(record, tmp_path)
    options = ["-o", str(tmp_path / "r.html"), "--readme", str(readme)]
    assert main(["report", *paths, *options]) == 2
    assert readme.read_text() == "mine\n"


def test_runs_of_another_dtype_are_told_apart(record):
    narrow = {**record, "settings": {**record["settings"], "dtype": "bfloat16"}}
    assert "float32, NCHW" in report.describe(record)
    assert "bfloat16, NCHW" in report.describe(narrow)
    assert report.comparable([record, record]) == [[record, record]]
    assert report.comparable([record, narrow]) == []


def test_text_of_a_record_is_escaped(record):
    machine = {**record["machine"], "cpu": "<script>alert(1)</script>"}
    assert "<script>" not in report.page([("a", {**record, "machine": machine})])


@pytest.mark.browser
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium")
def test_the_page_reads_on_a_phone(record, tmp_path):
    """390 pixels wide: all plots drawn, all rows there, nothing wider than the screen."""
    assert main(["report", *written(record, tmp_path), "-o", str(tmp_path / "report.html")]) == 0
    (tmp_path / "phone.html").write_text(PHONE)
    result = subprocess.run(
        [CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
         "--allow-file-access-from-files", "--dump-dom", f"--user-data-dir={tmp_path / 'profile'}",
         (tmp_path / "phone.html").as_uri()],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    found = json.loads(html.unescape(re.search(r'<pre id="found">(.*?)</pre>', result.stdout)[1]))
    assert found["width"] <= 390
    assert found["rows"] == 2 + 2 + 1
    assert found["images"] == found["drawn"] == 1 + 2 + 2
    assert found["slower"] == 1
