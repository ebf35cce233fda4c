"""README's chart, sentences and table, held to the samples of the committed records.

What is compared is computed here once more: ratios of samples, means, and which record is the
worst of its kind.
"""

import copy
import re
from statistics import geometric_mean

import numpy as np
import pytest

from perf import highlights, overviews, pages, report, tables
from perf.engines import ENGINES, RIVALS
from perf.machines import machine_of
from perf.record import ROOT, told

README = (ROOT / "README.md").read_text(encoding="utf-8")
INDEX = (ROOT / "docs" / "speed" / "index.md").read_text(encoding="utf-8")
ROW = re.compile(
    r"^\| (?P<work>[^|]+) \| \[(?P<mean>[\d.]+)\]\(\S+/speed/(?P<of>\S+)\) (?P<against>[^,|]+), "
    r"(?P<machine>[^|]+) \| \[(?P<worst>[\d.]+)\]\(\S+/speed/(?P<worst_of>\S+)\)"
    r"(?P<other> [^|]+)? \|$",
    re.MULTILINE,
)
BAR = re.compile(
    r"(?P<label>[^;:]+): (?P<mean>[\d.]+) (?P<against>[^;,]+), worst layer (?P<worst>[\d.]+)"
    r"(?: on (?P<machine>[^;]+))?"
)


@pytest.fixture(scope="module")
def records():
    """The committed records of CPUs with rivals."""
    named = [(path.stem, told(path)) for path in sorted((ROOT / "perf" / "records").glob("*.json"))]
    found = report.all_of(report.in_order(named), report.others(named))
    return [record for record in found if not record["machine"]["gpu"] and ratios(record)]


def ratios(record):
    """Of each row (name of a rival -> its time over ours), from the samples, for rivals whose
    results count.
    """
    return list(filter(None, (row_ratios(record, row) for row in record["rows"])))


def row_ratios(record, row):
    if record["kind"] == "changing":
        return {
            "torch": sum(row["timings"]["torch"]["first"]) / sum(row["timings"]["ours"]["first"])
        }
    if record["kind"] == "bursts":
        return {}
    times = {name: np.array(one["samples"]) for name, one in row["timings"].items()}
    if record["kind"] == "models":
        rivals = dict.fromkeys(set(times) - {"ours", "control", "arrays"}, "ours")
    else:
        rivals = {name: "plan" if name in ENGINES else "call" for name in RIVALS if name in times}
    single = len(overviews.rivals_of(record)) == 1
    return {
        name: float(np.median(times[name] / times[ours]))
        for name, ours in rivals.items()
        if single or overviews.counts(record, row, name)
    }


def mean(record):
    """Of the fastest rival on each row."""
    return geometric_mean([min(row.values()) for row in ratios(record)])


def worst(record):
    """The smallest ratio of all rows."""
    return min(min(row.values()) for row in ratios(record))


def words(record):
    """The only rival of a record, or how many there are."""
    names = rivals(record)
    return f"fastest of {len(names)}" if len(names) > 1 else names[0]


def rivals(record):
    names = {name for row in ratios(record) for name in row}
    return [name for name in overviews.RIVALS if name in names]


def is_in_chart(record):
    """Networks in float32, one image and one thread, by precision "standard"."""
    settings = overviews.settings_of(record)
    usual = {"dtype": "float32", "batch": 1, "threads": 1, "precision": "standard"}
    return usual.items() <= settings.items() and tables.is_network(record)


def test_each_row_of_the_table_is_the_worst_record_of_its_kind(records):
    rows = [found.groupdict() for found in ROW.finditer(README)]
    kinds = {}
    for record in records:
        if not is_in_chart(record):
            kinds.setdefault(highlights.work_of(record), []).append(record)
    slower = {name for name, found in kinds.items() if min(map(worst, found)) < 1}
    assert {row["work"] for row in rows} == slower
    assert [row["mean"] for row in rows] == sorted((row["mean"] for row in rows), key=float)
    for row in rows:
        least = min(kinds[row["work"]], key=mean)
        assert row["mean"] == f"{mean(least):.2f}"
        assert (row["machine"], row["against"]) == (machine_of(least), words(least))
        assert row["of"] == pages.address(least)
        least = min(kinds[row["work"]], key=worst)
        assert row["worst"] == f"{worst(least):.2f}"
        assert (row["other"] or row["machine"]).strip() == machine_of(least)
        assert row["worst_of"] == pages.address(least)


def bars_of(records):
    """Network -> its records; the worst network first, at most as many as the chart has bars."""
    networks = {}
    for record in filter(is_in_chart, records):
        networks.setdefault(tables.suite_title(record), []).append(record)
    order = sorted(networks, key=lambda name: min(map(mean, networks[name])))
    return {name: networks[name] for name in order[: highlights.MOST]}


def test_the_words_of_the_chart_are_those_of_the_worst_records(records):
    text = re.search(r'<img alt="Time of [^.]+\. (.*)\." width', README)[1]
    assert text in INDEX
    shown = [found.groupdict() for found in BAR.finditer(text)]
    bars = bars_of(records)
    assert len(shown) == len(bars)
    for bar, (network, own) in zip(shown, bars.items(), strict=True):
        low, slow = min(own, key=mean), min(own, key=worst)
        assert bar["label"].strip() == f"{network}, {machine_of(low)}"
        assert (bar["mean"], bar["against"]) == (f"{mean(low):.2f}", words(low))
        assert bar["worst"] == f"{worst(slow):.2f}"
        assert (bar["machine"] or machine_of(low)) == machine_of(slow)


def test_the_sentences_below_the_chart_are_true_of_every_bar(records):
    bars = bars_of(records)
    least = {network: min(own, key=mean) for network, own in bars.items()}
    (sentence,) = re.findall(r"rivals\.md\)\. (Rivals of .*?)\. \[Every layer\]", README)
    assert f"{sentence}." in INDEX
    claims = dict.fromkeys(least)
    for part in sentence.removeprefix("Rivals ").split("; "):
        whose, _, text = part.removeprefix("of ").partition(": ")
        met = text.removesuffix(" alone").replace(" and ", ", ").split(", ")
        assert text.endswith(" alone") == (len(met) == 1)
        rest = [name for name, claim in claims.items() if claim is None]
        named = [name for name in rest if name in whose]
        left = "the others" if len(rest) < len(claims) else "all networks"
        claims |= dict.fromkeys(rest if whose == left else named, met)
    assert claims == {network: rivals(record) for network, record in least.items()}


def test_readme_changes_with_each_record_that_it_shows(records):
    """A record of half the ratios, of any machine, is worse than what stands there."""
    assert report.readme_text(README, records) == README
    bars, rows = highlights.chart(records), highlights.table(records)
    for row in [*bars, *rows]:
        for found in (row.mean, row.worst):
            other = slower(found.record)
            replaced = [other if record is found.record else record for record in records]
            assert report.readme_text(README, replaced) != README, row.work
            stranger = {**other, "machine": {**other["machine"], "cpu": "A CPU of tomorrow"}}
            text = report.readme_text(README, [*records, stranger])
            assert "A CPU of tomorrow" in text or row in bars
            assert text != README, row.work


def slower(record):
    """A record whose rivals take half the time."""
    found = copy.deepcopy(record)
    for row in found["rows"]:
        if record["kind"] == "changing":
            row["timings"]["torch"]["first"] = [
                each / 2 for each in row["timings"]["torch"]["first"]
            ]
        else:
            row["ratios"] = {name: ratio / 2 for name, ratio in row["ratios"].items()}
    return found
