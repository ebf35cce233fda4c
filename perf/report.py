"""``perf report``: one self-contained page of records; PNGs and the README's tables from the same.

The page has no scripts and fetches nothing; wide tables scroll inside their own box, so that it
reads on a phone.
"""

from __future__ import annotations

import argparse
import base64
import io
import os
import re
from collections.abc import Sequence
from html import escape
from pathlib import Path

from matplotlib.figure import Figure

from perf import plots, tables
from perf.record import Record, read
from perf.terminal import Rows

BEGIN, END = "<!-- perf: made by `python -m perf report` -->", "<!-- /perf -->"
README_COLUMNS = ("layer", "call ms", "plan ms", "torch ms", "torch/call", "torch/plan", "of peak")

STYLE = """
:root { color-scheme: light }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 0 auto; padding: 1rem;
       color: #222; background: #fff }
h1 { font-size: 1.5rem } h2 { font-size: 1.2rem; margin-top: 2.5rem; overflow-wrap: anywhere }
.table { overflow-x: auto }
table { border-collapse: collapse; font-size: .85rem; font-variant-numeric: tabular-nums }
th, td { padding: .2rem .6rem; text-align: right; white-space: nowrap;
         border-bottom: 1px solid #ddd }
th:first-child, td:first-child { text-align: left; position: sticky; left: 0; background: #fff }
img { max-width: 100%; height: auto }
.slower { color: #b00020; font-weight: 600 } .inconclusive { color: #8a6100 }
"""


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the command line."""
    parser = commands.add_parser("report", help="a page, plots and README tables of records")
    parser.add_argument("records", nargs="+", type=Path)
    parser.add_argument("-o", "--output", type=Path, default=Path("report.html"))
    parser.add_argument("--png", type=Path, help="write the plots here as well")
    parser.add_argument("--readme", type=Path, help="renew the tables between its perf marks")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Write what was asked for; exit status 0."""
    named = sorted(
        ((path.stem, read(path)) for path in options.records), key=lambda pair: pair[1]["created"]
    )
    options.output.write_text(page(named), encoding="utf-8")
    if options.png:
        write_pngs(named, options.png)
    if options.readme:
        text = options.readme.read_text(encoding="utf-8")
        plots_at = options.png and Path(os.path.relpath(options.png, options.readme.parent))
        options.readme.write_text(with_tables(text, named, plots_at), encoding="utf-8")
    return 0


Named = Sequence[tuple[str, Record]]


def page(named: Named) -> str:
    """The HTML page."""
    sections = []
    for series in comparable([record for _, record in named]):
        what = escape(describe_settings(series[0]))
        sections.append(f"<h2>History: {what}</h2>" + image(plots.history(series), "history"))
    for name, record in named:
        section = run_section if record["kind"] == "run" else compare_section
        sections.append(f"<h2>{escape(name)}</h2>" + section(record))
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>implicit_conv: performance</title><style>{STYLE}</style></head><body>"
        "<h1>implicit_conv: performance</h1>" + "".join(sections) + "</body></html>\n"
    )


def run_section(record: Record) -> str:
    """Machine, summary, plots and table of one run."""
    shown = paragraphs([describe(record), *tables.summary_lines(record)])
    if record["rows"] and tables.rivals_of(record):
        shown += image(plots.ratio_bars(record), "ratios to rivals")
    if record["rows"]:
        shown += image(plots.roofline(record), "roofline")
    return shown + html_table(tables.run_columns(record), tables.run_cells(record))


def compare_section(record: Record) -> str:
    """Machine, verdict and table of one comparison."""
    shown = paragraphs([describe(record), *tables.compare_lines(record)])
    return shown + html_table(tables.COMPARE_COLUMNS, tables.compare_cells(record))


def describe(record: Record) -> str:
    """Where, when and with what a record was made."""
    commit = record["commit"]["hash"]
    at = f"commit {commit[:10]}" if commit else "no commit"
    versions = ", ".join(f"{name} {number}" for name, number in record["versions"].items())
    machine = record["machine"]
    where = machine["gpu"] or f"{machine['cpu']}, {machine['cores']} cores"
    return f"{record['created']}, {at}; {where}; {describe_settings(record)}; {versions}"


def describe_settings(record: Record) -> str:
    """What was asked for, in words."""
    chosen = record["settings"]
    batch = "" if chosen.get("batch") is None else f", batch {chosen['batch']}"
    arrays = f"{chosen['dtype']}, {chosen['layout']}{batch}"
    return f"{chosen['suite']}, {arrays}, {chosen['threads']} thread(s)"


def comparable(records: Sequence[Record]) -> list[list[Record]]:
    """Runs that measured the same on the same machine, two or more, in order of time."""
    series: dict[str, list[Record]] = {}
    for record in records:
        if record["kind"] == "run" and record["rows"] and "ceilings" in record:
            key = f"{record['machine']['cpu']} {describe_settings(record)}"
            series.setdefault(key, []).append(record)
    return [found for found in series.values() if len(found) > 1]


def paragraphs(lines: Sequence[str]) -> str:
    """Lines of text as one paragraph."""
    return "<p>" + "<br>".join(map(escape, lines)) + "</p>"


def html_table(columns: Sequence[str], lines: Rows) -> str:
    """A table in a box that scrolls."""

    def cells(tag: str, values: Sequence[str]) -> str:
        return "".join(
            f'<{tag} class="{escape(value)}">{escape(value)}</{tag}>'
            if value in ("slower", "inconclusive")
            else f"<{tag}>{escape(value)}</{tag}>"
            for value in values
        )

    rows = "".join(f"<tr>{cells('td', line)}</tr>" for line in lines)
    head = f"<thead><tr>{cells('th', columns)}</tr></thead>"
    return f'<div class="table"><table>{head}<tbody>{rows}</tbody></table></div>'


def image(figure: Figure, title: str) -> str:
    """A figure inside the page; as an image, so that no two figures share names."""
    data = io.BytesIO()
    figure.savefig(data, format="svg")
    encoded = base64.b64encode(data.getvalue()).decode()
    return f'<img alt="{escape(title)}" src="data:image/svg+xml;base64,{encoded}">'


def write_pngs(named: Named, folder: Path) -> None:
    """The plots of each run as PNG files: NAME-ratios.png, NAME-roofline.png."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, record in named:
        if record["kind"] == "run" and record["rows"]:
            plots.roofline(record).savefig(folder / f"{name}-roofline.png", dpi=150)
            plots.ratio_bars(record).savefig(folder / f"{name}-ratios.png", dpi=150)


def with_tables(text: str, named: Named, plots_at: Path | None = None) -> str:
    """A README's text with the tables of all runs between its marks, and the plots in `plots_at`.

    Raises
    ------
    ValueError
        The marks are not there, once each.
    """
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        raise ValueError(f"the README must have the lines {BEGIN!r} and {END!r} once each")
    parts = [
        readme_table(record, plots_at and plots_at / f"{name}-ratios.png")
        for name, record in named
        if record["kind"] == "run"
    ]
    made = "\n\n".join([BEGIN, *parts, END])
    return re.sub(re.escape(BEGIN) + ".*" + re.escape(END), lambda _: made, text, flags=re.DOTALL)


def readme_table(record: Record, plot: Path | None) -> str:
    """A run as Markdown: machine and summary; unfolded, the columns that matter and the plot."""
    columns = tables.run_columns(record)
    kept = [number for number, name in enumerate(columns) if name in README_COLUMNS]
    lines = [[cells[number] for number in kept] for cells in tables.run_cells(record)]
    table = tables.markdown([columns[number] for number in kept], lines)
    summary = f"{describe(record)}: " + "; ".join(tables.summary_lines(record))
    drawn = [f'<img alt="ratios to rivals" width="400" src="{plot.as_posix()}">'] if plot else []
    return "\n\n".join(
        [summary, "<details><summary>Each layer</summary>", table, *drawn, "</details>"]
    )
