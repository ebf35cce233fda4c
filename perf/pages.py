"""Pages of records as Markdown, which GitHub shows and MyST reads: an index and a page a suite."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from perf import highlights, overviews, plots, tables
from perf.layers import SUITES
from perf.machines import machine_line, machine_of
from perf.record import Record
from perf.tables import Named
from perf.terminal import Rows

WRITTEN = "<!-- `python -m perf report` writes this page; do not edit it. -->"
INDEX, CHART, RIVALS = "index.md", "overview.svg", "rivals.md"
LEFT_OUT = ("GFLOP/s", "GB/s", "scratch KiB", "spread")  # columns of layers that pages do not show

OPENING = """\
Bars show how many times as long the fastest rival takes as we do: right of 1, ours is faster. They
are networks in float32, one image and one thread; of more than eight, those that compare worst.
[On your CPU](on-your-cpu.md) has all kinds of work, by families of CPUs."""
BARS = """\
A bar is a network on the CPU where it compares worst; a diamond is its worst layer on any. Of
several rivals each layer takes the fastest within [our error bound]({}rivals.md)."""


def index(runs: Named, command: str, more: Sequence[str]) -> str:
    """The text of index.md; `command` writes the pages, and `more` names those beside suites'."""
    bars = highlights.chart([record for _, record in runs])
    picture = f"![{plots.overview_words(bars)}]({CHART})"
    chart = [OPENING, bars_words(bars, ""), picture, behind(runs)] if bars else []
    return words(
        INDEX,
        chart="".join(f"{part}\n\n" for part in chart),
        table=machines_table(runs),
        command=command,
        pages="\n".join([*suites(runs), *more]),
    )


def rivals_page(runs: Named) -> str:
    """The text of rivals.md: a table for each machine that has runs with several rivals; empty if
    none has.
    """
    several = [record for _, record in runs if overviews.fastest_of(record)]
    tabled = {
        machine: tables.rivals_rows([one for one in several if machine_of(one) == machine])
        for machine in dict.fromkeys(map(machine_of, several))
    }
    shown = [f"{machine}:\n\n{tables.markdown(rows, left=1)}" for machine, rows in tabled.items()]
    return words(RIVALS, tables="\n\n".join(shown)) if shown else ""


def bars_words(bars: Sequence[highlights.Least], folder: str) -> str:
    """What one or more bars show, and their rivals: most of them first; `folder` has rivals.md."""
    groups: dict[str, list[str]] = {}
    for bar in sorted(bars, key=lambda bar: -len(bar.mean.rivals)):
        rivals = bar.mean.rivals
        met = listed(rivals) if len(rivals) > 1 else f"{rivals[0]} alone"
        groups.setdefault(met, []).append(bar.work)
    *before, (met, rest) = groups.items()
    others = listed(rest) if len(rest) == 1 else "the others" if before else "all networks"
    told = [f"of {listed(networks)}: {several}" for several, networks in before]
    return f"{BARS.format(folder)} Rivals {'; '.join([*told, f'of {others}: {met}'])}."


def listed(words: Sequence[str]) -> str:
    """Words with commas, and "and" before the last of several."""
    return f"{', '.join(words[:-1])} and {words[-1]}" if len(words) > 1 else words[0]


def behind(runs: Named) -> str:
    """How often ours is slower, in a sentence."""
    ratios = [
        row["ratios"][overviews.ratio_key(rival, overviews.ours_against(rival)[0])]
        for _, record in runs
        for rival in overviews.rivals_of(record)
        for row in record["rows"]
        if rival in row["timings"]
    ]
    slower = sum(ratio < 1 for ratio in ratios)
    return (
        f"In all records, ours is slower than a rival in {slower} of {len(ratios):,} comparisons "
        "of a layer, with call or, for engines, with plan."
    )


def machines_table(runs: Named) -> str:
    """One row a record, which links to its section of a suite's page."""
    rows = []
    for _, record in runs:
        words = ", ".join([tables.suite_title(record), *tables.settings_words(record)])
        cell = ", ".join(
            f"{found.rival} {found.ratio:.2f} ({found.worst:.2f})"
            for found in overviews.overviews_of(record)
        )
        rivals = f"[{cell or 'no rival'}]({address(record)})"
        work = words.removesuffix(", 1 thread")
        rows.append({"work": work, "machine": machine_of(record), "rivals": rivals})
    return tables.markdown(rows, left=3)


def suites(runs: Named) -> list[str]:
    """The suites of runs, which name the pages."""
    return [*dict.fromkeys(suite_of(record) for _, record in runs)]


def suite_of(record: Record) -> str:
    """The suite of a run, as the name of a file."""
    return str(record["settings"]["suite"])


def heading(record: Record) -> str:
    """The heading of a run, different from that of any other run on its machine."""
    settings = tables.settings_words(record)
    return ", ".join([tables.suite_title(record), machine_of(record), *settings])


def address(record: Record) -> str:
    """The link to a run's section, from the index; anchors are those of GitHub and MyST."""
    anchor = re.sub(r"[^\w\- ]", "", heading(record).lower()).replace(" ", "-")
    return f"{suite_of(record)}.md#{anchor}"


def page(suite: str, runs: Named) -> str:
    """The text of a suite's page: a section a run."""
    title = SUITES[suite][0] if suite in SUITES else suite
    opening = "Rivals' times over ours. [How to read it](index.md#how-to-read-it)."
    found = [section(name, record) for name, record in runs if suite_of(record) == suite]
    return "\n\n".join([f"# Speed: {title}\n\n{WRITTEN}", opening, *found]) + "\n"


def section(name: str, record: Record) -> str:
    """One run: where and when, its rivals, the plot, and its layers, which open on a click."""
    rows = [
        {title: cell for title, cell in row.items() if title not in LEFT_OUT}
        for row in tables.run_rows(record)
    ]
    rivals = overviews.overviews_of(record)
    picture = f"![{plots.layers_words(record)}]({name}.svg)" if rivals else ""
    facts = [*where_lines(record), *tables.run_lines(record)]
    parts = [
        f"## {heading(record)}",
        measured(record),
        "".join(f"**{line[0].upper()}{line[1:]}.**" for line in overviews.fastest_line(record)),
        "\n".join(f"- {line[0].upper()}{line[1:]}" for line in overviews.network_lines(record)),
        tables.markdown(rivals_table(record), left=1) if rivals else "",
        picture,
        "<details>\n<summary>Each layer, versions and machine</summary>",
        tables.markdown(rows, left=2),
        "\n".join(f"- {fact}" for fact in facts),
        "</details>",
    ]
    return "\n\n".join(part for part in parts if part)


def other_page(
    suite: str,
    runs: Named,
    rows: Callable[[Record], Rows],
    facts: Callable[[Record], list[str]],
    parts: Mapping[str, object],
) -> str:
    """The text of the page of a suite of other things than layers: a section a run; `parts` are
    what its words name.
    """
    sections = []
    for _, record in runs:
        versions = [
            f"{name} {found['version']}" for name, found in record.get("rivals", {}).items()
        ]
        rivals = [f"rivals: {', '.join(versions)}"] if versions else []
        told = "\n".join(f"- {fact}" for fact in [*facts(record), *rivals, *where_lines(record)])
        table = tables.markdown(rows(record), left=1)
        sections += [f"## {heading(record)}", measured(record), table, told]
    title, text = tables.TITLES[suite], "\n\n".join(sections)
    return words(f"{suite}.md", title=title, runs=text, **parts)


def words(page: str, **parts: object) -> str:
    """The text of a page, from its file in the folder of words: in place of the names in braces it
    has these parts, and the line that says what writes it.
    """
    text = Path(__file__).with_name("words").joinpath(page).read_text(encoding="utf-8")
    return text.format(written=WRITTEN, **parts)


def measured(record: Record) -> str:
    """When, at which commit and on which machine, in one sentence."""
    machine, commit = record["machine"], record["commit"]
    changed = " with uncommitted changes" if commit["changed"] else ""
    at = f"at commit {commit['hash'][:10]}{changed}" if commit["hash"] else "outside a git checkout"
    peak = tables.fma_rate(record)
    facts = [
        f"Measured on {record['created'][:10]} {at}, on {machine['gpu'] or machine['cpu']}",
        *([f"FMA peak {peak:.0f} GFLOP/s"] if peak else []),
        *([] if record["noise_floor"] is None else [f"noise floor {record['noise_floor']:.1%}"]),
    ]
    return "; ".join(facts) + ("." if record["complete"] else "; **interrupted before its end**.")


def rivals_table(record: Record) -> Rows:
    """One row a rival: its version, if it had a process of its own, and how it compares."""
    versions = {name: f" {found['version']}" for name, found in record.get("rivals", {}).items()}
    return [
        {
            "rival": f"{found.rival}{versions.get(found.rival, '')}",
            "layers": str(found.layers),
            **tables.means_cells(found),
        }
        for found in overviews.overviews_of(record)
    ]


def where_lines(record: Record) -> list[str]:
    """Short lines on machine, versions, time and load of a run."""
    load = {when: average for when, average in record["load"].items() if average is not None}
    averages = ", ".join(f"{average:.1f} {when}" for when, average in load.items())
    return [
        f"machine: {machine_line(record)}",
        f"versions: {', '.join(f'{name} {one}' for name, one in record['versions'].items())}",
        f"begun: {record['created'].replace('T', ' ')}",
        *([f"load average, with that of the run: {averages}"] if load else []),
    ]
