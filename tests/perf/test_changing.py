"""Suite changing: sizes, what a row keeps, its tables and its page."""

import json
from contextlib import contextmanager

import numpy as np
import pytest

from perf import changes, changing, kinds, opponents, report
from perf.__main__ import main
from perf.operators import inputs_of, torch_operator
from perf.record import read, validate

PLACES = range(len(kinds.KINDS))


def test_sizes_are_different_and_equal_in_every_process():
    for kind in kinds.KINDS:
        sizes = kinds.drawn(kind.least, 103)
        assert len(set(sizes)) == 103
        assert sizes == kinds.drawn(kind.least, 103)
        assert kind.least in sizes and all(np.subtract(one, kind.least).min() >= 0 for one in sizes)
        assert all(kind.case(one).is_valid for one in sizes)


@pytest.mark.parametrize("place", PLACES, ids=[kind.name for kind in kinds.KINDS])
def test_ours_and_torch_compute_a_kind(place):
    """Each in turn in one process: the first call differs from the kept ones, and the sums are
    those of torch in float64.
    """
    pytest.importorskip("torch")
    kind = kinds.KINDS[place]
    if kind.door == "dask":
        pytest.importorskip("dask.array")
    case = kind.case(kinds.drawn(kind.least, 2)[1])
    first, second = inputs_of(kind.operator, case)
    if kind.operator != "wgrad":
        _, second = inputs_of("fprop", kind.case(kinds.drawn(kind.least, 2)[0]))
    wide = first.astype(float), second.astype(float)
    exact = np.asarray(torch_operator(kind.operator, case, *wide, 1)())
    for name in (kinds.OURS, kinds.TORCH):
        caller = kinds.Caller(name, 1)
        with caller.settings, caller.door:
            caller.prepare(place, 2)
            answer = caller.call(1)
            assert answer["sum"] == pytest.approx(exact.sum(), abs=1e-5 * abs(exact).sum())
            assert answer["size"] == pytest.approx(abs(exact).sum(), rel=1e-5)
            assert min(answer["first"], answer["kept"]) > 0


@pytest.mark.parametrize("threads", [1, 2])
def test_threads_that_spin_are_waited_for(threads, monkeypatch):
    settled = []
    monkeypatch.setattr(kinds, "settle", lambda: settled.append(True))
    caller = kinds.Caller(kinds.OURS, threads)
    with caller.settings:
        caller.prepare(0, 1)
        caller.call(0)
    assert len(settled) == threads - 1


class Answers:
    """A process whose call of size n takes n + 2 seconds at first, `slower` times as long in
    `torch`; some sizes need new kernels.
    """

    def __init__(self, slower=1.0, total=1.0):
        self.slower, self.total, self.asked = slower, total, []

    def ask(self, request, **arguments):
        self.asked.append((request, arguments))
        if request != "call":
            return {"version": "1", "threads": 1}
        which = arguments["which"]
        kernels = 7 + (which > 0) + (which > 1) + 2 * (which > 3)
        sums = {"sum": self.total, "size": 1000.0}
        return {"first": self.slower * (which + 2), "kept": 0.5, "kernels": kernels, **sums}


def test_a_row_leaves_out_the_sizes_that_make_a_kind_known():
    alive = {"ours": Answers(), "torch": Answers(slower=3.0)}
    row = changing.row("a kind", alive, 4)
    assert row["timings"]["ours"] == {"first": [4, 5, 6, 7], "kept": [0.5] * 4}
    assert row["timings"]["torch"]["first"] == [12, 15, 18, 21]
    assert row["kernels"] == 3, "those after the second size"
    record = {"kind": "changing", "rows": [row]}
    cells = changes.kinds_rows(record)[0]
    assert cells["ours new ms"] == "5000.00" and cells["largest ms"] == "7000.0"
    assert cells["torch/ours"] == "3.00"
    row["timings"]["torch"]["first"] = [0.506, 0.504, 0.4, 0.506]
    assert changes.kinds_rows(record)[0]["torch late"] == "2", "0.5 s are kept calls"
    disturbed = changes.kinds_rows({**record, "disturbed": "yes"})[0]
    assert disturbed["torch/ours"] == ""


def test_a_wrong_result_is_named():
    alive = {"ours": Answers(total=1.0), "torch": Answers(total=1.1)}
    with pytest.raises(
        ArithmeticError, match=r"a kind: our result sums up to 1 and torch's to 1\.1"
    ):
        changing.row("a kind", alive, 1)


@pytest.fixture
def changed(tmp_path, monkeypatch, quiet):
    """The record of a run with processes that only answer."""

    @contextmanager
    def callers(names, threads):
        yield {name: Answers(slower=2.0 if name == "torch" else 1.0) for name in names}

    monkeypatch.setattr(changing, "callers", callers)
    monkeypatch.setattr(changing, "find_spec", lambda name: name != "dask")
    monkeypatch.setattr(opponents, "find_spec", lambda name: True)
    path = tmp_path / "changing.json"
    options = ["run", "--suite", "changing", "--sizes", "5", "--threads", "1"]
    assert main([*options, "-o", str(path)]) == 0
    return read(path)


def test_a_run_has_a_row_for_each_kind(changed, capsys):
    dask = [kind.name for kind in kinds.KINDS if kind.door == "dask"]
    assert [row["layer"] for row in changed["rows"]] + dask == [kind.name for kind in kinds.KINDS]
    assert changed["settings"]["left_out"] == dict.fromkeys(dask, "dask is not installed")
    assert changed["complete"]
    shown = changes.terminal_table(changed)
    timed = len(changed["rows"])
    assert f"torch: time over ours, geometric mean of {timed}: 2.00; least 2.00" in shown
    assert f"left out {dask[0]}: dask is not installed" in shown


def test_a_record_of_changing_sizes_has_a_page(changed):
    named = [("changing", changed)]
    assert report.in_order(named) == []
    files = report.contents([], report.others(named))
    assert "| 3x3 64-64 | 5500.00 | 500.00 | 5 |" in files["changing.md"]
    assert "\nchanging\n" in files["index.md"]
    assert "changing.md" not in report.contents([], {})


def test_the_schema_refuses_a_row_without_first_calls(changed):
    broken = json.loads(json.dumps(changed))
    broken["rows"][0]["timings"]["ours"]["first"] = []
    with pytest.raises(ValueError, match="rows / 0"):
        validate(broken)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--layout", "NHWC", "--batch", "2"], "leave --batch and --layout out"),
        (["--against", "ncnn"], "leave --against out"),
        (["--layer", "no such"], "no kind of changing has 'no such'"),
        (["--sizes", "0"], "at least 1 new size"),
    ],
)
def test_what_kinds_do_not_have_is_refused(options, message, capsys):
    assert main(["run", "--suite", "changing", *options]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.slow
def test_processes_call_new_sizes(tmp_path, quiet):
    """With real processes: the door of torch is open in ours alone."""
    pytest.importorskip("torch")
    path = tmp_path / "changing.json"
    options = "run --suite changing --sizes 2 --threads 1 --layer enable --layer".split()
    assert main([*options, "5 80-256", "-o", str(path)]) == 0
    made = read(path)
    assert [len(row["timings"]["torch"]["kept"]) for row in made["rows"]] == [2, 2]
    assert made["rivals"]["torch"]["threads"] == 1
