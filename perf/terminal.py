"""Tables and progress in a terminal, by rich if it is installed, else as plain text."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

from perf.interrupts import interrupts

Rows = list[list[str]]
Show = Callable[[str, int, int], None]  # (layer, rows done, rows in all)
RICH = find_spec("rich") is not None
WIDTH = 180  # characters in a line if standard output is not a terminal


class Plain:
    """The part of rich's Console that is used here."""

    def print(self, *parts: object) -> None:
        """Print the parts on a line."""
        print(*parts)


def console() -> Any:
    """A console as wide as the terminal, or WIDTH without one."""
    if not RICH:
        return Plain()
    from rich.console import Console

    # Without markup, or brackets in a text such as ".[rivals]" would vanish.
    return Console(width=None if sys.stdout.isatty() else WIDTH, markup=False)


def table_of(columns: Sequence[str], lines: Rows, title: str = "") -> Any:
    """A table; all columns after the second are right-aligned."""
    if not RICH:
        return _plain_table(columns, lines, title)
    from rich.table import Table

    table = Table(title=title, header_style="bold")
    for number, heading in enumerate(columns):
        table.add_column(heading, justify="left" if number < 2 else "right")
    for line in lines:
        table.add_row(*line)
    return table


def _plain_table(columns: Sequence[str], lines: Rows, title: str) -> str:
    rows = [list(columns), *lines]
    widths = [max(len(row[at]) for row in rows) for at in range(len(columns))]
    text = [title] if title else []
    for row in rows:
        cells = (
            cell.ljust(width) if at < 2 else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        text.append("  ".join(cells).rstrip())
    return "\n".join(text)


def stack(*parts: Any) -> Any:
    """Tables and lines below each other."""
    if not RICH:
        return "\n".join(map(str, parts))
    from rich.console import Group

    return Group(*parts)


@contextmanager
def progress(console: Any) -> Iterator[Show]:
    """Yield a function that shows the progress; it raises KeyboardInterrupt after Ctrl-C."""
    with interrupts() as check, _bar(console) as show:

        def step(layer: str, done: int, total: int) -> None:
            check()
            show(layer, done, total)

        yield step


@contextmanager
def _bar(console: Any) -> Iterator[Show]:
    if not RICH:
        yield lambda layer, done, total: print(f"{done}/{total} {layer}", file=sys.stderr)
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
    from rich.progress import TimeRemainingColumn as Left

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), Left())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("")
        yield lambda layer, done, total: bar.update(
            task, description=layer, completed=done, total=total
        )
