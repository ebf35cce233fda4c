"""Runs against the fastest of all rivals on each layer: which rivals count, and what is told."""

import pytest

from perf import overviews, tables
from perf.overviews import FASTEST

TIMES = {  # layer: rival -> (its time over call, over plan, error in units)
    "a": {"torch": (1.5, 1.6, 1), "onnxruntime": (0.7, 0.9, 2), "ncnn": (0.3, 0.4, 17)},
    "b": {"torch": (0.8, 0.5, 1), "onnxruntime": (1.1, 1.2, 2)},
    "c": {"ncnn": (0.3, 0.4, 70)},
}


def made(times=TIMES, **settings):
    """A record with these ratios; a time stands for each that was measured."""
    shown = {"layout": "NCHW", "dtype": "float32", "batch": None, "threads": 1, "suite": "vgg"}
    rows = [
        {
            "layer": layer,
            "timings": dict.fromkeys(rivals),
            "errors": {name: error for name, (_, _, error) in rivals.items()},
            "ratios": {
                **{name: call for name, (call, _, _) in rivals.items()},
                **{f"{name}/plan": plan for name, (_, plan, _) in rivals.items()},
            },
        }
        for layer, rivals in times.items()
    ]
    return {"kind": "run", "settings": {**shown, **settings}, "complete": True, "rows": rows}


def test_torch_compares_with_call_and_an_engine_with_plan():
    assert overviews.fastest_of(made()) == [("a", 0.9, "onnxruntime"), ("b", 0.8, "torch")]


def test_the_error_of_a_fastest_rival_is_within_the_bound_of_the_precision():
    found = overviews.fastest_of(made(precision="fast"))
    assert found == [("a", 0.4, "ncnn"), ("b", 0.8, "torch"), ("c", 0.4, "ncnn")]


def test_a_fastest_rival_is_right_beside_an_outlier_too():
    """But for precision "fast", whose Winograd F6 is not."""
    times = {"a": {"ncnn": (1, 0.5, 9), "onednn": (1, 0.8, 9)}}
    for precision, rival in {"standard": "onednn", "fast": "ncnn"}.items():
        record = made(times, precision=precision)
        record["rows"][0]["outlier_errors"] = {"call": 3.0, "ncnn": 2e6, "onednn": 30.0}
        ((_, _, found),) = overviews.fastest_of(record)
        assert found == rival
        told = [line for line in tables.error_lines(record) if "outlier" in line]
        assert len(told) == (precision == "standard")
        assert all("ncnn: 2,000,000 units" in line and "above 64" in line for line in told)


def test_arrays_of_a_fastest_rival_are_plain_in_the_layout_of_the_run():
    times = {"a": {"onnxruntime": (1, 0.5, 0), "numpy": (0.6, 0.1, 0), "xnnpack": (2, 1.5, 0)}}
    assert overviews.fastest_of(made(times, layout="NHWC")) == [("a", 1.5, "xnnpack")]
    assert overviews.fastest_of(made(times)) == [("a", 0.5, "onnxruntime")]


def test_a_single_rival_is_no_fastest_of_several():
    times = {"a": {"torch": (2, 2, 0)}}
    assert overviews.fastest_of(made(times)) == []
    (found,) = overviews.overviews_of(made(times))
    assert found.rival == "torch"


def test_the_fastest_stands_first_and_in_a_line():
    found, *others = overviews.overviews_of(made())
    assert (found.rival, found.layers) == (FASTEST, 2)
    assert found.means == {"plan": pytest.approx((0.9 * 0.8) ** 0.5)}
    assert (found.worst, found.worst_layer) == (0.8, "b")
    assert [one.rival for one in others] == ["torch", "onnxruntime", "ncnn"]
    line, *more = tables.rival_lines(made())
    assert line == (
        "against the fastest of all rivals on each layer: 0.85, 0 of 2 won, worst 0.80 (b, torch)"
    )
    assert not any("fastest" in one for one in more)
    assert tables.rival_lines(made() | {"disturbed": "by others"}) == []


def test_a_table_has_a_row_for_each_rival_and_one_for_the_fastest():
    other = made({"a": {"torch": (2, 2, 0), "opencv": (3, 4, 0)}}, layout="NHWC")
    rows = tables.rivals_rows([made(), other])
    first, second = "VGG-16, float32, NCHW, 1 thread", "VGG-16, float32, NHWC, 1 thread"
    assert [row["rival"] for row in rows] == ["torch", "onnxruntime", "ncnn", "opencv", FASTEST]
    assert [row[first] for row in rows] == [
        "1.10 / 0.80 (2)",
        "1.04 / 0.90 (2)",
        "0.40 / 0.40 (2)",
        "",
        "0.85 / 0.80 (2)",
    ]
    assert [row[second] for row in rows if row[second]] == [
        "2.00 / 2.00 (1)",
        "4.00 / 4.00 (1)",
        "2.00 / 2.00 (1)",
    ]
