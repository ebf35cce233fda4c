"""``perf report``: runs as pages with plots, in docs/speed, and as README's chart and table."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from html import escape
from itertools import chain
from pathlib import Path

from perf import bursts, changes, families, highlights, overviews, pages, plots, regret, tables
from perf.machines import machine_of
from perf.models import pages as models
from perf.models.catalogue import COMPILED, MODELS, TENSORS
from perf.record import Record, told
from perf.tables import Named
from perf.terminal import Rows

BEGIN, END = "<!-- perf {}: written by `python -m perf report` -->", "<!-- /perf -->"
COMMAND = "python -m perf report perf/records/*.json --docs docs --readme README.md"
FOLDER = "speed"  # inside the folder of documents
# Where README finds the pages: whole addresses, because it is read at the package index, too.
PUBLISHED = "https://github.com/implicit-conv/implicit_conv/blob/main/docs/speed"


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the command line."""
    parser = commands.add_parser(
        "report", help="write records as docs/speed and in README", description=__doc__
    )
    parser.add_argument("records", nargs="+", type=Path)
    parser.add_argument("--docs", type=Path, help="write pages and plots into its folder speed")
    parser.add_argument("--readme", type=Path, help="renew chart and table between their marks")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Write what was asked for; exit status 0."""
    if not (options.docs or options.readme):
        raise ValueError("nothing to write: give a folder as --docs, a README as --readme, or both")
    named = [(path.stem, told(path)) for path in options.records]
    runs, beside = in_order(named), others(named)
    if options.readme:
        text = options.readme.read_text(encoding="utf-8")
        options.readme.write_text(readme_text(text, all_of(runs, beside)), encoding="utf-8")
    if options.docs:
        write(contents(runs, beside, regrets(named)), options.docs / FOLDER)
    return 0


def in_order(named: Named) -> Named:
    """The runs that have rows, in the order of suites; of equal ones, the fastest machine first.

    Raises
    ------
    ValueError
        Two of them measured the same on the same machine: a reader could not tell them apart.
    """
    runs = [pair for pair in named if pair[1]["kind"] == "run" and pair[1]["rows"]]
    for title, times in Counter(pages.heading(record) for _, record in runs).items():
        if times > 1:
            equal = " and ".join(name for name, record in runs if pages.heading(record) == title)
            raise ValueError(f"{equal} are all {title!r}; give the report one of them")
    return sorted(runs, key=lambda pair: (tables.suite_order(pair[1]), pair[0]))


Page = tuple[Callable[[Record], Rows], Callable[[Record], list[str]], dict[str, object]]
# Suites of other things than layers: their rows, what these say together, and parts of the words.
PAGES: dict[str, Page] = {
    changes.PAGE: (changes.kinds_rows, changes.sum_lines, {}),
    bursts.SUITE: (
        bursts.burst_rows,
        bursts.sum_lines,
        {"calls": bursts.CALLS, "layer": bursts.LAYER},
    ),
    **dict.fromkeys((MODELS, COMPILED, TENSORS), (models.rows_of, models.lines_of, {})),
}


def others(named: Named) -> dict[str, Named]:
    """The runs of each suite of `PAGES` that have rows, in the order of their headings."""
    kinds = ("compare", regret.KIND)
    runs = [pair for pair in named if pair[1]["kind"] not in kinds and pair[1]["rows"]]
    runs.sort(key=lambda pair: (pages.heading(pair[1]), pair[0]))
    found = {suite: [pair for pair in runs if pages.suite_of(pair[1]) == suite] for suite in PAGES}
    return {suite: own for suite, own in found.items() if own}


def regrets(named: Named) -> list[Record]:
    """The records of `perf regret`."""
    return [record for _, record in named if record["kind"] == regret.KIND]


def all_of(runs: Named, beside: Mapping[str, Named]) -> list[Record]:
    """The records of layers, and of other suites."""
    return [record for _, record in chain(runs, *beside.values())]


def contents(
    runs: Named, beside: Mapping[str, Named], choices: Sequence[Record] = ()
) -> dict[str, str]:
    """All files of the folder, their names and texts: of runs of layers, of `beside`, those of
    other suites, and of what choices cost.
    """
    bars = highlights.chart([record for _, record in runs])
    files = {
        pages.CHART: str(plots.overview(bars)) if bars else "",
        families.PAGE: families.page(all_of(runs, beside), choices),
        pages.RIVALS: pages.rivals_page(runs),
    }
    files = {name: text for name, text in files.items() if text}
    more = [name.removesuffix(".md") for name in files if name.endswith(".md")] + [*beside]
    files |= {pages.INDEX: pages.index(runs, COMMAND, more)}
    files |= {f"{suite}.md": pages.page(suite, runs) for suite in pages.suites(runs)}
    files |= {
        f"{suite}.md": pages.other_page(suite, named, *PAGES[suite])
        for suite, named in beside.items()
    }
    rivals = [(name, record) for name, record in runs if overviews.rivals_of(record)]
    return files | {f"{name}.svg": str(plots.layers(record)) for name, record in rivals}


def write(files: dict[str, str], folder: Path) -> None:
    """Write files into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")


def readme_text(text: str, records: Sequence[Record]) -> str:
    """A README with the chart and the table between their marks.

    Raises
    ------
    ValueError
        The text does not hold each mark exactly once, or no record has a rival.
    """
    rows = [readme_row(row) for row in highlights.table(records)]
    if not rows:
        raise ValueError("no record has a rival, so README has nothing to show; measure one")
    parts = {"chart": readme_chart(records), "table": tables.markdown(rows, left=len(rows[0]))}
    for name, part in parts.items():
        begin = BEGIN.format(name)
        if text.count(begin) != 1 or END not in text.partition(begin)[2]:
            raise ValueError(f"the README must hold {begin!r} once, and {END!r} after it")
        before, _, rest = text.partition(begin)
        text = f"{before}{begin}\n{part}\n{END}{rest.partition(END)[2]}"
    return text


def readme_chart(records: Sequence[Record]) -> str:
    """README's picture, and what its bars are."""
    bars = highlights.chart(records)
    picture = f"{PUBLISHED.replace('/blob/', '/raw/')}/{pages.CHART}"
    return f"""\
<img alt="{escape(plots.overview_words(bars))}" width="800" src="{picture}">

{pages.bars_words(bars, f"{PUBLISHED}/")} [Every layer]({PUBLISHED}/{pages.INDEX})."""


def readme_row(row: highlights.Least) -> dict[str, str]:
    """One row of README's table: a kind of work, and where its mean and its layers are worst."""
    mean, worst = row.mean, row.worst
    return {
        "work": row.work,
        "least mean": f"{linked(mean, mean.ratio)} {mean.against}, {machine_of(mean.record)}",
        "worst layer": f"{linked(worst, worst.worst)} {row.elsewhere}".strip(),
    }


def linked(found: overviews.Overview, ratio: float) -> str:
    """A ratio that leads to the section of its run."""
    return f"[{ratio:.2f}]({PUBLISHED}/{pages.address(found.record)})"
