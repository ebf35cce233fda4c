"""``perf report``: runs as pages with plots, in docs/speed, and as the README's table."""

from __future__ import annotations

import argparse
import re
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

from perf import bursts, changes, highlights, overviews, pages, plots, tables
from perf.machines import machine_of
from perf.models import pages as models
from perf.record import Record, told
from perf.tables import Named

BEGIN, END = "<!-- perf: written by `python -m perf report` -->", "<!-- /perf -->"
COMMAND = "python -m perf report perf/records/*.json --docs docs --readme README.md"
FOLDER = "speed"  # inside the folder of documents
# Where README finds the pages: whole addresses, because it is read at the package index, too.
PUBLISHED = "https://github.com/implicit-conv/implicit_conv/blob/main/docs/speed"


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the command line."""
    parser = commands.add_parser(
        "report", help="write records as docs/speed and README's table", description=__doc__
    )
    parser.add_argument("records", nargs="+", type=Path)
    parser.add_argument("--docs", type=Path, help="write pages and plots into its folder speed")
    parser.add_argument("--readme", type=Path, help="renew the table between its perf marks")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Write what was asked for; exit status 0."""
    if not (options.docs or options.readme):
        raise ValueError("nothing to write: give a folder as --docs, a README as --readme, or both")
    named = [(path.stem, told(path)) for path in options.records]
    runs = in_order(named)
    if options.readme:
        text = options.readme.read_text(encoding="utf-8")
        options.readme.write_text(readme_text(text, runs), encoding="utf-8")
    if options.docs:
        write(contents(runs, others(named)), options.docs / FOLDER)
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


class Page(NamedTuple):
    """How the records of a suite of other things than layers become a page."""

    text: Callable[[Named], str]
    heading: Callable[[Record], str]


PAGES = {
    changes.PAGE: Page(changes.page, changes.heading),
    bursts.SUITE: Page(bursts.page, bursts.heading),
    **{suite: Page(partial(models.page, suite), models.heading) for suite in models.TITLES},
}


def others(named: Named) -> dict[str, Named]:
    """The runs of each suite of `PAGES` that have rows, in the order of their headings."""
    found: dict[str, Named] = {}
    for suite, page in PAGES.items():
        runs = [
            (name, one)
            for name, one in named
            if one["kind"] != "compare" and one["rows"] and one["settings"]["suite"] == suite
        ]
        if runs:
            found[suite] = sorted(runs, key=lambda pair: (page.heading(pair[1]), pair[0]))
    return found


def contents(runs: Named, beside: Mapping[str, Named]) -> dict[str, str]:
    """All files of the folder, their names and texts: of runs of layers, and of `beside`, those of
    other suites.
    """
    bars = highlights.chart([record for _, record in runs])
    files = {pages.CHART: str(plots.overview(bars))} if bars else {}
    rivals_page = pages.rivals_page(runs)
    files |= {pages.RIVALS: rivals_page} if rivals_page else {}
    more = [*(["rivals"] if rivals_page else []), *beside]
    files |= {pages.INDEX: pages.index(runs, COMMAND, more)}
    files |= {f"{suite}.md": pages.page(suite, runs) for suite in pages.suites(runs)}
    files |= {f"{suite}.md": PAGES[suite].text(named) for suite, named in beside.items()}
    rivals = [(name, record) for name, record in runs if overviews.rivals_of(record)]
    return files | {f"{name}.svg": str(plots.layers(record)) for name, record in rivals}


def write(files: dict[str, str], folder: Path) -> None:
    """Write files into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")


def readme_text(text: str, runs: Named) -> str:
    """A README with a table between its marks.

    Raises
    ------
    ValueError
        The text does not hold each mark exactly once.
    """
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        raise ValueError(f"the README must hold the lines {BEGIN!r} and {END!r} once each")
    rows = [readme_row(found) for found in highlights.table([one for _, one in runs])]
    table = "\n".join([BEGIN, tables.markdown(rows, left=3), END])
    return re.sub(re.escape(BEGIN) + ".*" + re.escape(END), lambda _: table, text, flags=re.DOTALL)


def readme_row(found: overviews.Overview) -> dict[str, str]:
    """One row of README's table: what a run measured, where, against whom, and how it compares."""
    record = found.record
    words = ", ".join([tables.suite_title(record), *tables.unusual_words(record)])
    return {
        "network": f"[{words}]({PUBLISHED}/{pages.address(record)})",
        "machine": machine_of(record),
        "rival": found.rival,
        **tables.means_cells(found),
    }
