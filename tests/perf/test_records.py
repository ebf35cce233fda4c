"""Runs and their records: schema, interruption."""

import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from perf import run, tables
from perf.__main__ import main
from perf.record import ROOT, read, validate
from perf.terminal import interrupts


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
    assert record["rivals"]["numpy"]["threads"] == 1
    assert row["not_timed"] == {}
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


def test_a_run_has_the_precision_that_it_names(tmp_path, capsys, record):
    """Errors of F4 are not those of "standard"; other operators have no such functions."""
    path, made = tmp_path / "fast.json", {}
    options = ["run", "--suite", "resnet50", "--layer", "3x3 64-64 @56", *"--rounds 1".split()]
    options += ["--against", "nothing", "--threads", "1"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("perf.run.startup", lambda: record["startup"])
        patch.setattr("perf.session.disturbance", lambda threads: "")
        patch.setattr("perf.tables.NOISY", 1e9)
        for precision in "standard", "fast":
            assert main([*options, "--precision", precision, "-o", str(path)]) == 0
            made[precision] = read(path)
    algorithms = [made[precision]["rows"][0]["algorithm"] for precision in made]
    assert algorithms[0] not in ("winograd_f4", "winograd_f6")
    assert algorithms[1] in ("winograd_f4", "winograd_f6")
    titles = [tables.title_of(each) for each in made.values()]
    assert titles == [f"ResNet-50{word}, float32, NCHW, 1 thread" for word in ("", ", fast")]
    backwards = [made["fast"], made["standard"]]
    assert sorted(backwards, key=tables.suite_order) == [*made.values()]
    assert main([*options, "--precision", "fast", "--operator", "dgrad"]) == 2
    assert "--precision fast is measured for conv2d" in capsys.readouterr().err


def test_an_interrupt_inside_a_row_keeps_the_rows_before(tmp_path, monkeypatch, record):
    path = tmp_path / "partial.json"
    done = iter(record["rows"][:1])

    @contextmanager
    def row_maker(options, record):
        def make_row(name, case):
            try:
                return next(done)
            except StopIteration:
                raise KeyboardInterrupt from None

        yield make_row

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

    @contextmanager
    def row_maker(options, record):
        def make_row(name, case):
            Interrupted()
            return done[0]

        yield make_row

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
    """Only the main thread may set a signal handler, and only it receives signals."""

    def work():
        with interrupts() as check:
            check()
        return True

    with ThreadPoolExecutor(1) as thread:
        assert thread.submit(work).result()


# A background job of a shell ignores SIGINT, and so do its child processes.
INTERRUPTIBLE = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from perf.__main__ import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.slow
def test_ctrl_c_leaves_a_valid_partial_record(tmp_path):
    path = tmp_path / "partial.json"
    options = "run --suite resnet50 --threads 1 --rounds 9 --against nothing -o".split()
    command = [sys.executable, "-c", INTERRUPTIBLE, *options, str(path)]
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
