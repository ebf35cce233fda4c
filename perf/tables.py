"""Records as tables for a terminal, and as Markdown for the README."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from implicit_conv.tools.contenders import RIVALS
from perf.record import Record
from perf.terminal import Rows, stack, table_of
from perf.verdicts import geometric_mean, threshold


def rivals_of(record: Record) -> list[str]:
    """Rivals that at least one row has."""
    return [name for name in RIVALS if any(name in row["timings"] for row in record["rows"])]


def run_columns(record: Record) -> list[str]:
    """Headings of `run_cells`."""
    rivals = rivals_of(record)
    ratios = [f"{name}/{ours}" for name in rivals for ours in ("call", "plan")]
    return [
        "layer", "algorithm", "call ms", "plan ms", *(f"{name} ms" for name in rivals), *ratios,
        "GFLOP/s", "of peak", "GB/s", "of copy", "scratch KiB", "spread",
    ]  # fmt: skip


def run_cells(record: Record) -> Rows:
    """One line of text a row; GFLOP/s and GB/s are those of "plan", by medians."""
    return [_run_line(record, row) for row in record["rows"]]


def _run_line(record: Record, row: dict[str, Any]) -> list[str]:
    rivals = rivals_of(record)
    times = {name: timing["median"] for name, timing in row["timings"].items()}
    best = times.get("plan", times["call"])
    flops, moved = row["flops"] / best, row["bytes"] / best
    ceilings = record.get("ceilings")
    peak, copy = (
        (f"{flops / ceilings['fma']:.0%}", f"{moved / ceilings['copy']:.0%}")
        if ceilings
        else ("", "")
    )
    ratios = [row["ratios"].get(key) for name in rivals for key in (name, f"{name}/plan")]
    return [
        row["layer"], row["algorithm"],
        *(f"{1e3 * times[who]:.3f}" if who in times else "" for who in ("call", "plan", *rivals)),
        *("" if ratio is None else f"{ratio:.2f}" for ratio in ratios),
        f"{flops / 1e9:.0f}", peak, f"{moved / 1e9:.1f}", copy,
        f"{row['scratch_bytes'] / 1024:.0f}" if "scratch_bytes" in row else "",
        f"{row['timings']['call']['spread']:.1%}",
    ]  # fmt: skip


def mean_ratios(record: Record) -> dict[str, float]:
    """Geometric means over the rows of the ratios to each rival: "torch/call", "torch/plan"."""
    found = {}
    for name in rivals_of(record):
        for ours, key in (("call", name), ("plan", f"{name}/plan")):
            ratios = [row["ratios"][key] for row in record["rows"] if key in row["ratios"]]
            found[f"{name}/{ours}"] = geometric_mean(ratios)
    return found


def summary_lines(record: Record) -> list[str]:
    """What a table does not say: geometric means, ceilings, noise, start-up, completeness."""
    lines = []
    rows = len(record["rows"])
    for name, ratio in mean_ratios(record).items():
        lines.append(f"{name}: geometric mean {ratio:.2f} over {rows} layers (above 1: we win)")
    if "ceilings" in record:
        peak, copy = record["ceilings"]["fma"], record["ceilings"]["copy"]
        lines.append(f"ceilings of this run: {peak / 1e9:.0f} GFLOP/s, {copy / 1e9:.0f} GB/s copy")
    if any(row["algorithm"].startswith("winograd") for row in record["rows"]):
        lines.append("GFLOP/s count the direct sum's operations; Winograd needs fewer")
    if record["noise_floor"] is not None:
        lines.append(f"noise floor {record['noise_floor']:.1%} (the same call against itself)")
    if "startup" in record:
        start = record["startup"]
        lines.append(
            f"import {start['import'] * 1e3:.1f} ms beyond numpy; first call in a new process "
            f"{start['first_call_warm']:.2f} s, {start['first_call_cold']:.2f} s with a cold cache"
        )
    for layer, reason in record["settings"].get("dropped", {}).items():
        lines.append(f"dropped {layer}: {reason}")
    if not record["complete"]:
        lines.append("not complete: the run was interrupted")
    return lines


def run_table(record: Record) -> Any:
    """A run for the terminal."""
    table = table_of(run_columns(record), run_cells(record))
    return stack(table, *summary_lines(record))


def markdown(columns: Sequence[str], lines: Rows) -> str:
    """A Markdown table; all columns but the first are right-aligned."""
    rule = ["---", *["--:"] * (len(columns) - 1)]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (columns, rule, *lines))


COMPARE_COLUMNS = [
    "layer", "verdict", "head/base", "99 % interval", "base/base", "rounds", "rivals/head",
]  # fmt: skip


def compare_cells(record: Record) -> Rows:
    """One line of text a row."""
    return [
        [
            row["layer"], row["verdict"], f"{row['ratio']:.3f}",
            f"{row['low']:.3f} - {row['high']:.3f}", f"{row['control']:.3f}", str(row["rounds"]),
            ", ".join(f"{name} {ratio:.2f}" for name, ratio in row["rivals"].items()),
        ]
        for row in record["rows"]
    ]  # fmt: skip


def compare_lines(record: Record) -> list[str]:
    """The verdict, and the threshold that it rests on."""
    if record["noise_floor"] is None:
        return ["nothing was measured"]
    floor = record["noise_floor"]
    return [
        f"{record['head']} against {record['base']}: {record['verdict']}",
        f"noise floor {floor:.2%}: slower means above {1 + threshold(floor):.3f}",
        *([] if record["complete"] else ["not complete: the run was interrupted"]),
    ]


def compare_table(record: Record) -> Any:
    """A comparison for the terminal."""
    table = table_of(COMPARE_COLUMNS, compare_cells(record))
    return stack(table, *compare_lines(record))
