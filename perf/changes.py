"""Records of suite "changing" as tables and as a page."""

from __future__ import annotations

from statistics import median
from typing import Any

from perf.kinds import OURS, TORCH
from perf.overviews import mean_lines, ratios_of
from perf.record import Record
from perf.tables import disturbed_lines
from perf.terminal import Rows, table_of

PAGE = "changing"  # its name
LATE = 5e-3  # seconds beyond the kept calls
READING = """\
A process calls convolutions that differ in their size alone, each size first once and then three
times more. After two sizes the kind is known, and the figures are of all that follow. How calls
are answered whose size is new: [the planner](../explanation/planner.md#sizes-that-change).

- **new** is the median over sizes of the time of the first call beyond that of the later ones of
  its size, in milliseconds: what a size costs that was never seen.
- **kept** is the median of the later calls.
- **torch/ours** is the sum of torch's first calls over the sum of ours: below 1, ours is slower.
- **late** is the number of sizes whose first call took over 5 ms more than the later ones. Those
  of torch say what the machine adds.
- **largest** is the slowest first call of ours.
- **kernels** is the number of kernels that were compiled for these calls. Every kind has processes
  of its own, ours with an empty cache of kernels; before 2026-11-29 one process had all kinds."""


def kinds_rows(record: Record) -> Rows:
    """One row a kind."""
    return [_cells(record, row) for row in record["rows"]]


def _cells(record: Record, row: dict[str, Any]) -> dict[str, str]:
    cells = {"kind": row["layer"]}
    for name, timing in row["timings"].items():
        cells[f"{name} new ms"] = f"{1e3 * median(beyond(timing)):.2f}"
        cells[f"{name} kept ms"] = f"{1e3 * median(timing['kept']):.2f}"
        cells[f"{name} late"] = str(sum(more > LATE for more in beyond(timing)))
    if TORCH in row["timings"]:
        ratio = ratios_of(record, row, TORCH)["call"]
        cells["torch/ours"] = "" if "disturbed" in record else f"{ratio:.2f}"
    largest = max(row["timings"][OURS]["first"])
    return {**cells, "largest ms": f"{1e3 * largest:.1f}", "kernels": str(row["kernels"])}


def beyond(timing: dict[str, list[float]]) -> list[float]:
    """What each first call took beyond the kept calls of its size, in seconds."""
    return [first - kept for first, kept in zip(timing["first"], timing["kept"], strict=True)]


def terminal_table(record: Record) -> str:
    """A run for the terminal."""
    return "\n".join([*disturbed_lines(record), table_of(kinds_rows(record)), *sum_lines(record)])


def sum_lines(record: Record) -> list[str]:
    """What all kinds took together, and whether rows are missing."""
    lines = [f"{record['settings']['sizes']} new sizes of each kind"]
    lines += [] if "disturbed" in record else mean_lines(record)
    for name, reason in record["settings"]["left_out"].items():
        lines.append(f"left out {name}: {reason}")
    return lines if record["complete"] else [*lines, "incomplete: the run was interrupted"]
