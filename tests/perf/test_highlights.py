"""Which of many records the chart and README's table show."""

import pytest

from perf import families, highlights, machines, pages, plots
from perf.overviews import FASTEST

ZEN4, ZEN5 = "AMD EPYC (family 25, model 17)", "AMD EPYC (family 26, model 2)"
XEON = "Intel(R) Xeon(R) Processor (family 6, model 167)"


def made(suite="resnet50", cpu=ZEN5, bits=512, rivals=(("torch", 1.5),), kind="run", **settings):
    """A record of one layer; `rivals` are pairs of a name and its time over ours."""
    shown = {"layout": "NCHW", "dtype": "float32", "batch": None, "threads": 1, "suite": suite}
    ratios = {f"{name}{which}": ratio for name, ratio in rivals for which in ("", "/plan")}
    row = {"layer": "1x1 1-1 @1", "timings": {**dict(rivals)}, "ratios": ratios}
    return {
        "kind": kind,
        "machine": {"cpu": cpu, "gpu": None, "flags": ["avx512f"], "vector_bits": bits},
        "settings": {**shown, **settings},
        "complete": True,
        "rows": [row],
    }


def changing(ratio):
    """A record of sizes that change."""
    record = made("changing", kind="changing")
    timings = {"ours": {"first": [1.0, 3.0]}, "torch": {"first": [ratio, 3 * ratio]}}
    return {**record, "rows": [{"layer": "a kind", "timings": timings}]}


def places(rows, records):
    """Rows as their kinds of work and the numbers of the records of mean and worst layer."""
    return [(row.work, *(records.index(one.record) for one in row[1:])) for row in rows]


def test_the_bar_of_several_rivals_is_the_fastest_of_them():
    rivals = ("torch", 2.0), ("onnxruntime", 1.2), ("ncnn", 1.1), ("opencv", 3.0)
    (bar,) = highlights.chart([made(rivals=rivals)])
    assert (bar.mean.rival, bar.mean.means) == (FASTEST, {"plan": pytest.approx(1.1)})
    assert bar.mean.against == "fastest of 4"


def test_a_network_has_the_bar_of_the_machine_where_it_compares_worst():
    records = [made(cpu=cpu, rivals=[("torch", n)]) for cpu, n in ((ZEN5, 1.4), (XEON, 0.9))]
    records += [made("vgg", ZEN4, rivals=[("torch", 0.8)]), made("vgg", "AMD EPYC")]
    shown = highlights.chart(records)
    assert places(shown, records) == [("VGG-16", 2, 2), ("ResNet-50", 1, 1)]
    assert plots.chart_label(shown[1].mean.record) == "ResNet-50, Intel Xeon"


def test_mean_and_worst_layer_may_be_of_two_machines():
    even, uneven = made(cpu=ZEN4, rivals=[("torch", 1.1)]), made(cpu=XEON)
    slow = {"layer": "slow", "timings": {"torch": 1}, "ratios": {"torch": 0.9, "torch/plan": 0.9}}
    uneven["rows"] += [slow]
    uneven["rows"][0]["ratios"] = {"torch": 2.0, "torch/plan": 2.0}
    assert places(highlights.chart([even, uneven]), [even, uneven]) == [("ResNet-50", 0, 1)]
    assert "worst layer 0.90 on Intel Xeon." in plots.overview_words(
        highlights.chart([even, uneven])
    )


def test_of_many_networks_the_chart_shows_those_that_compare_worst():
    many = [made(f"net{n}", rivals=[("torch", 2 - n / 10)]) for n in range(10)]
    shown = highlights.chart(many)
    assert [bar.work for bar in shown] == [f"net{n}" for n in range(9, 1, -1)]


def test_the_chart_leaves_out_what_its_title_does_not_say():
    others = [
        made(batch=16),
        made(threads=2),
        made(dtype="bfloat16"),
        made(precision="fast"),
        made(operator="dgrad"),
        made("small"),
        changing(0.5),
        {**made(), "complete": False},
    ]
    records = [*others, made("vgg")]
    assert places(highlights.chart(records), records) == [("VGG-16", 8, 8)]


def test_the_table_has_all_other_work_in_which_a_rival_is_faster():
    records = (
        made(rivals=[("torch", 0.9)]),  # in the chart
        made(rivals=[("torch", 1.9)], batch=16),
        made("vgg", rivals=[("torch", 0.95), ("ncnn", 0.99)], batch=16),
        made(rivals=[("torch", 0.8)], operator="wgrad"),
        made(rivals=[("torch", 0.9)], operator="dgrad"),
        made("audio", rivals=[("torch", 0.7)]),
        made("conv1d", rivals=[("torch", 0.75)]),
        changing(0.5),
        made("models", kind="models", rivals=[("torch", 1.2), ("torch.compile", 0.6)]),
        made("small"),  # never slower
    )
    assert places(highlights.table(records), records) == [
        ("sizes that change", 7, 7),
        ("whole models", 8, 8),
        ("signals and audio", 5, 5),
        ("gradients", 3, 3),
        ("networks, batch 16", 2, 2),
    ]


def test_a_sentence_tells_the_rivals_of_each_bar():
    """Those of which no result counts are left out: here ncnn, whose arrays are NCHW alone."""
    torch = [made(suite) for suite in ("vgg", "unet")]
    several = made(rivals=[("torch", 1.5), ("xnnpack", 1.3), ("ncnn", 1.1)], layout="NHWC")

    def told(*records):
        words = pages.bars_words(highlights.chart(records), "")
        return words.partition("rivals.md). ")[2]

    both = "Rivals of ResNet-50: torch and xnnpack"
    assert told(several, *torch) == f"{both}; of the others: torch alone."
    assert told(several, torch[0]) == f"{both}; of VGG-16: torch alone."
    assert told(*torch) == "Rivals of all networks: torch alone."
    assert told(torch[0]) == "Rivals of VGG-16: torch alone."
    assert told(several) == f"{both}."


def test_families_of_cpus_have_the_worst_of_their_records_and_the_costs_of_the_planner():
    records = [made(rivals=[("torch", ratio)], layout=str(ratio)) for ratio in (1.2, 1.1)]
    records += [made(cpu=XEON), made(bits=256, rivals=[("torch", 0.7)]), changing(0.5)]
    lines = families.page(records).splitlines()
    assert [line for line in lines if line.startswith("| ")] == [
        "| work | Zen 5 | Intel Xeon | AVX2 |",
        "| --- | --: | --: | --: |",
        "| sizes that change | 0.50 (0.50) |  |  |",
        "| networks | 1.10 (1.10) | 1.50 (1.50) | 0.70 (0.70) |",
        "| costs | AMD EPYC with AVX-512 | Intel Xeon with AVX-512 | AVX2 |",
    ]
    assert families.page([]) == ""
    rows = [{"chosen_seconds": 1.2, "fastest_seconds": 1.0}] * 2
    regret = {**made(cpu=XEON), "kind": "regret", "rows": rows}
    assert "| choices |  | 1.20 (1.20) |  |" in families.page(records, [regret])


def test_machines_are_named_by_what_the_record_says():
    names = {cpu: machines.machine_of(made(cpu=cpu)) for cpu in (ZEN4, ZEN5, "AMD EPYC")}
    assert names == {ZEN4: "Zen 4", ZEN5: "Zen 5", "AMD EPYC": "AMD EPYC"}
    other = "A CPU (family 25, model 17)"
    assert machines.machine_of(made(cpu=other)) == other
    assert machines.machine_of(made(cpu="Intel(R) Xeon(R) Processor (family 6)")) == "Intel Xeon"
    assert machines.machine_of(made(bits=256)) == "Zen 5, AVX2"
    assert machines.machine_of(made(cpu=XEON, bits=256)) == "Intel Xeon, AVX2"


def test_bars_name_what_is_unusual():
    record = made(rivals=[], batch=16, threads=2, dtype="bfloat16")
    assert plots.chart_label(record) == "ResNet-50, Zen 5, bfloat16, batch 16, 2 threads"
    assert plots.chart_label(made()) == "ResNet-50, Zen 5"
