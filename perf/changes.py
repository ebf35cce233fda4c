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
