"""Pages of the committed records: they are what the command writes, and their links lead on."""

import re
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest

from perf import pages, report, tables
from perf.engines import ENGINES, RIVALS
from perf.record import ROOT, told

FOLDER = ROOT / "docs" / "speed"
PAGES = sorted(path.name for path in FOLDER.glob("*.md"))
MOST_BYTES = 11_000  # of a picture, in the mean: they are renewed with every record
MOST_WORDS = 850  # of the index, outside its table and the words of its picture
LINK = re.compile(r"\]\(([^)#]*)(?:#([^)]*))?\)")


@pytest.fixture(scope="module")
def named():
    """The committed records."""
    paths = sorted((ROOT / "perf" / "records").glob("*.json"))
    return [(path.stem, told(path)) for path in paths]


@pytest.fixture(scope="module")
def runs(named):
    """Those of layers."""
    return report.in_order(named)


def all_of(named):
    """The records of layers and of other suites, as the report has them."""
    return report.all_of(report.in_order(named), report.others(named))


def headings(name):
    """(Level, title) of the headings of a page, outside blocks of code."""
    text = re.sub(r"```.*?```", "", (FOLDER / name).read_text(), flags=re.DOTALL)
    return [(len(marks), title) for marks, title in re.findall(r"^(#+) (.*)$", text, re.MULTILINE)]


def anchors(name):
    """The anchors that GitHub gives to headings: letters, digits and hyphens in place of spaces."""
    kept = ("".join(c for c in title if c.isalnum() or c in " -_") for _, title in headings(name))
    return {title.lower().replace(" ", "-") for title in kept}


def test_the_committed_pages_are_those_of_the_committed_records(named, runs):
    again = f"stale: run {report.COMMAND}"
    made = report.contents(runs, report.others(named), report.regrets(named))
    there = {path.name for path in FOLDER.iterdir()}
    assert there == set(made), "files that the command does not write, or has not written"
    for name, text in made.items():
        assert (FOLDER / name).read_text(encoding="utf-8") == text, f"{name} is {again}"
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert report.readme_text(readme, all_of(named)) == readme, again


def test_nothing_disturbed_the_committed_records(runs):
    """Records before the field `disturbed` have their noise floor alone."""
    assert {name for name, record in runs if record["noise_floor"] > tables.NOISY} == set()


def test_the_index_has_the_ratios_of_the_samples(runs):
    """Medians of ratios within rounds, geometric mean over layers, from the raw samples."""
    text, slower, pairs = (FOLDER / "index.md").read_text(), 0, 0
    for _, record in runs:
        found = {}
        for row in record["rows"]:
            times = {name: np.array(one["samples"]) for name, one in row["timings"].items()}
            for rival in set(RIVALS) & set(times):
                ours = times["plan" if rival in ENGINES else "call"]
                found.setdefault(rival, []).append(np.median(times[rival] / ours))
        for rival, ratios in found.items():
            mean = np.exp(np.mean(np.log(ratios)))
            cell = (
                rf"\b{rival} {mean:.2f} \({min(ratios):.2f}\)[^|\[]*\]\({pages.address(record)}\)"
            )
            assert re.search(cell, text), (rival, pages.heading(record))
            slower, pairs = slower + sum(ratio < 1 for ratio in ratios), pairs + len(ratios)
    assert f"ours is slower than a rival in {slower} of {pairs:,} comparisons" in text


def test_sentences_on_machines_are_true_of_the_records(named):
    """Arm was never timed, and vectors of AVX2 are those of CPUs with AVX-512."""
    machines = [record["machine"] for _, record in named]
    assert not [one["system"] for one in machines if re.search("aarch64|arm64", one["system"])]
    narrow = [one for one in machines if one["vector_bits"] < 512]
    assert narrow and all("avx512f" in one["flags"] for one in narrow)


def test_every_record_has_a_section_of_its_own(named, runs):
    found = Counter(title for name in PAGES for _, title in headings(name))
    sections = len(runs) + sum(map(len, report.others(named).values()))
    assert max(found.values()) == 1, found.most_common(1)
    assert sum(len(headings(name)) - 1 for name in PAGES if name != "index.md") == sections
    for name in PAGES:
        levels = [level for level, _ in headings(name)]
        assert levels[0] == 1
        assert levels.count(1) == 1
        assert all(after <= before + 1 for before, after in pairwise(levels))


@pytest.mark.parametrize("name", PAGES)
def test_links_lead_to_files_and_headings(name):
    links = LINK.findall((FOLDER / name).read_text())
    assert links
    for path, anchor in links:
        assert (FOLDER / path).is_file(), path
        assert not anchor or anchor in anchors(path), (path, anchor)


def test_readme_links_lead_to_headings():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    links = re.findall(r"/docs/speed/([a-z0-9]+\.md)#([^)]*)\)", readme)
    assert links
    for path, anchor in links:
        assert anchor in anchors(path), (path, anchor)


def test_each_plot_is_shown_and_all_are_small():
    shown = {path for name in PAGES for path, _ in LINK.findall((FOLDER / name).read_text())}
    plots = {path.name for path in FOLDER.glob("*.svg")}
    assert plots == {path for path in shown if path.endswith(".svg")}
    assert sum((FOLDER / name).stat().st_size for name in plots) < MOST_BYTES * len(plots)


def test_the_index_is_short_and_lists_all_pages():
    text = re.sub(r"!\[[^]]*\]", "", (FOLDER / "index.md").read_text())
    prose = [line for line in text.splitlines() if not line.startswith("|")]
    assert len(" ".join(prose).split()) <= MOST_WORDS
    tree = text.partition("```{toctree}\n:hidden:\n\n")[2].partition("\n```")[0]
    assert sorted([*(f"{name}.md" for name in tree.split()), "index.md"]) == PAGES
