"""Which of many records the chart and README's table show."""

import pytest

from perf import highlights, machines, plots
from perf.overviews import FASTEST

ZEN4, ZEN5 = "AMD EPYC (family 25, model 17)", "AMD EPYC (family 26, model 2)"


def made(suite="resnet50", cpu=ZEN5, bits=512, rivals=(), **settings):
    """A record of one layer; `rivals` are pairs of a name and its time over ours."""
    shown = {"layout": "NCHW", "dtype": "float32", "batch": None, "threads": 1, "suite": suite}
    ratios = {f"{name}{which}": ratio for name, ratio in rivals for which in ("", "/plan")}
    row = {"layer": "1x1 1-1 @1", "timings": {**dict(rivals)}, "ratios": ratios}
    return {
        "machine": {"cpu": cpu, "gpu": None, "flags": ["avx512f"], "vector_bits": bits},
        "settings": {**shown, **settings},
        "complete": True,
        "rows": [row],
    }


def bars(*records):
    """The bars of the chart, each as the number of its record and its rival."""
    return [(records.index(found.record), found.rival) for found in highlights.chart(records)]


def test_the_bar_of_several_rivals_is_the_fastest_of_them():
    rivals = ("torch", 2.0), ("onnxruntime", 1.2), ("ncnn", 1.1), ("opencv", 3.0)
    (found,) = highlights.chart([made(rivals=rivals)])
    assert (found.rival, found.means) == (FASTEST, {"plan": pytest.approx(1.1)})


def test_networks_of_several_machines_come_first_and_all_end_at_eight():
    torch = [("torch", 1.5)]
    few = [made(suite, rivals=torch) for suite in ("vgg", "unet", "xception")]
    both = [made("ssd", cpu, rivals=torch) for cpu in (ZEN5, ZEN4)]
    assert bars(*few, *both) == [(name, "torch") for name in (3, 4, 0, 1, 2)]
    several = made("densenet", rivals=[("torch", 1.5), ("numpy", 3.0)])
    assert bars(*few, *both, several)[0] == (5, FASTEST)
    many = [made(suite, cpu, rivals=torch) for suite in ("a", "b", "c", "d", "e") for cpu in "xy"]
    assert len(bars(*many)) == 8


def test_of_several_records_of_a_network_and_machine_the_one_with_most_rivals_counts():
    alone = made(rivals=[("torch", 3.0)], layout="NHWC")
    beside = made(rivals=[("torch", 1.3), ("onnxruntime", 0.9)])
    assert bars(alone, beside) == [(1, FASTEST)]


def test_the_chart_leaves_out_what_its_title_does_not_say():
    torch = [("torch", 1.5)]
    others = [
        made(rivals=torch, batch=16),
        made(rivals=torch, threads=2),
        made(rivals=torch, dtype="bfloat16"),
        made(rivals=torch, precision="fast"),
        made(rivals=torch, operator="dgrad"),
        made("small", rivals=torch),
        made(rivals=torch, cpu="AMD EPYC"),
        {**made(rivals=torch), "complete": False},
    ]
    assert bars(*others, made("vgg", rivals=torch)) == [(8, "torch")]


def test_the_table_shows_the_least_favourable_record_of_what_the_chart_leaves_out():
    records = (
        made(rivals=[("torch", 1.1)]),  # in the chart
        made(rivals=[("torch", 1.9)], batch=16),
        made("vgg", rivals=[("torch", 1.2), ("ncnn", 1.3)], batch=16),
        made(rivals=[("torch", 0.9)], operator="dgrad"),
        made(rivals=[("torch", 0.8)], operator="wgrad"),
        made("depthwise", rivals=[("torch", 0.7)]),  # layers of one kind
    )
    rows = [(found.record, found.rival) for found in highlights.table(records)]
    assert rows == [(records[2], FASTEST), (records[4], "torch")]


def test_machines_are_named_by_what_the_record_says():
    names = {cpu: machines.machine_of(made(cpu=cpu)) for cpu in (ZEN4, ZEN5, "AMD EPYC")}
    assert names == {ZEN4: "Zen 4", ZEN5: "Zen 5", "AMD EPYC": "AMD EPYC"}
    other = "A CPU (family 25, model 17)"
    assert machines.machine_of(made(cpu=other)) == other
    assert machines.machine_of(made(cpu="Intel(R) Xeon(R) Processor (family 6)")) == "Intel Xeon"
    assert machines.machine_of(made(bits=256)) == "Zen 5, AVX2"


def test_bars_name_what_is_unusual():
    record = made(rivals=[], batch=16, threads=2, dtype="bfloat16")
    assert plots.chart_label(record) == "ResNet-50, Zen 5, bfloat16, batch 16, 2 threads"
    assert plots.chart_label(made()) == "ResNet-50, Zen 5"
