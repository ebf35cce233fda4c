"""The course of a run: what disturbs it, its rows one by one, how it ends, and its exit status."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from implicit_conv.timing import UNTOLD, disturbance
from implicit_conv.tools.rivals import CONTROL
from perf import tables, terminal
from perf.record import Record, load, save
from perf.terminal import Show
from perf.verdicts import noise_floor

INTERRUPTED = 130  # exit status after Ctrl-C, as in a shell


@contextmanager
def session(record: Record, threads: int, output: Path | None) -> Iterator[Show]:
    """Complete a record by a block that adds its rows, on so many threads; yield the function that
    shows its progress. Ctrl-C ends the block, and keeps the finished rows.
    """
    disturbed = disturbance(threads)
    if disturbed:
        print(disturbed, file=sys.stderr, flush=True)
    try:
        with terminal.progress() as show:
            yield show
        record["complete"] = True
    except KeyboardInterrupt:
        print("interrupted: the finished rows are kept")
    finish(record, disturbed or disturbance(threads))
    if output:
        save(record, output)


def add(record: Record, row: dict[str, Any], output: Path | None) -> None:
    """Add a row, and write the record."""
    record["rows"].append(row)
    if output:
        save(record, output)


def finish(record: Record, disturbed: str) -> None:
    """Write load average and noise floor of the whole run, and what disturbed it."""
    ratios = [row["ratios"] for row in record["rows"] if "ratios" in row]
    controls = [each[CONTROL] for each in ratios if CONTROL in each]
    record["noise_floor"] = noise_floor(controls) if controls else None
    record["load"]["after"] = load()
    floor = record["noise_floor"] or 0
    if not disturbed and floor > tables.NOISY:
        disturbed = f"calls differ from themselves by {floor:.1%}: no ratio can be told"
    if disturbed:
        record["disturbed"] = disturbed


def status_of(record: Record) -> int:
    """130 after Ctrl-C, UNTOLD if other work disturbed the run, 1 if rows were dropped, else 0."""
    if not record["complete"]:
        return INTERRUPTED
    if "disturbed" in record:
        return UNTOLD
    return int(bool(record["settings"].get("dropped")))


def refuse(options: argparse.Namespace, words: str, **others: bool) -> None:
    """Raise ValueError where options ask for what a suite of other things than layers does not
    have: those of all such suites, and `others`, by their names. The message begins with `words`.
    """
    asked = {
        "operator": options.operator,
        "dtype": options.dtype,
        "batch": options.batch,
        "device": options.device != "cpu",
        "layout": options.layout != "NCHW",
        "precision": options.precision != "standard",
        **others,
    }
    wrong = [f"--{name}" for name, value in asked.items() if value]
    if wrong:
        raise ValueError(f"{words}; leave {' and '.join(wrong)} out")
