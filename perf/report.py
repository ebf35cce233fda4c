"""``perf report``: records as an HTML page, as docs/speed.md, and as the README's table.

The HTML page is one file without scripts that fetches nothing; wide tables scroll inside their own
box, so that it reads on a phone.
"""

from __future__ import annotations

import argparse
import base64
import os
from collections.abc import Sequence
from html import escape
from pathlib import Path

from perf import plots, speed, tables
from perf.plots import Picture
from perf.record import Record, read
from perf.speed import Named
from perf.terminal import Rows

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
    parser = commands.add_parser(
        "report", help="write records as an HTML page, as docs/speed.md, as the README's table"
    )
    parser.add_argument("records", nargs="+", type=Path)
    parser.add_argument(
        "-o", "--output", type=Path, help="the HTML page; report.html if nothing else is asked for"
    )
    parser.add_argument("--docs", type=Path, help="write speed.md and its plots into this folder")
    parser.add_argument("--readme", type=Path, help="renew the table between its perf marks")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Write what was asked for; exit status 0."""
    named = sorted(
        ((path.stem, read(path)) for path in options.records), key=lambda pair: pair[1]["created"]
    )
    if options.readme:
        text = options.readme.read_text(encoding="utf-8")
        folder = options.docs or options.readme.parent / "docs"
        page_at = os.path.relpath(folder / speed.PAGE, options.readme.parent)
        options.readme.write_text(
            speed.readme_text(text, named, Path(page_at).as_posix()), encoding="utf-8"
        )
    if options.docs:
        speed.write_pages(named, options.docs)
    if options.output or not (options.docs or options.readme):
        (options.output or Path("report.html")).write_text(page(named), encoding="utf-8")
    return 0


def page(named: Named) -> str:
    """The HTML page."""
    sections = []
    for series in comparable([record for _, record in named]):
        title = escape(tables.title_of(series[0]))
        sections.append(f"<h2>History: {title}</h2>" + image(plots.history(series), "history"))
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
    shown = facts(record, tables.summary_lines(record))
    if record["rows"] and tables.rivals_of(record):
        shown += image(plots.ratio_bars(record), "ratios to rivals")
    if record["rows"]:
        shown += image(plots.roofline(record), "roofline")
    return shown + html_table(tables.run_columns(record), tables.run_cells(record))


def compare_section(record: Record) -> str:
    """Machine, verdict and table of one comparison."""
    shown = facts(record, tables.compare_lines(record))
    return shown + html_table(tables.COMPARE_COLUMNS, tables.compare_cells(record))


def facts(record: Record, lines: Sequence[str]) -> str:
    """What a record measured, where and when, and what follows from it, as a list."""
    items = [tables.title_of(record), *speed.where_lines(record), *lines]
    return "<ul>" + "".join(f"<li>{escape(item)}</li>" for item in items) + "</ul>"


def comparable(records: Sequence[Record]) -> list[list[Record]]:
    """Series of two or more runs that measured the same on the same CPU, in the given order."""
    series: dict[str, list[Record]] = {}
    for record in records:
        if record["kind"] == "run" and record["rows"] and "ceilings" in record:
            key = f"{record['machine']['cpu']} {tables.title_of(record)}"
            series.setdefault(key, []).append(record)
    return [found for found in series.values() if len(found) > 1]


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


def image(picture: Picture, title: str) -> str:
    """A picture as an image in the page: its style would apply to the whole page."""
    encoded = base64.b64encode(str(picture).encode()).decode()
    return f'<img alt="{escape(title)}" src="data:image/svg+xml;base64,{encoded}">'
