"""Records of these suites as tables and as pages."""

from __future__ import annotations

from statistics import geometric_mean
from typing import Any, NamedTuple

from perf.model_names import ARRAYS, ENGINES, OURS, TORCH
from perf.models.catalogue import WHOLE
from perf.overviews import mean_lines
from perf.record import Record
from perf.tables import disturbed_lines
from perf.terminal import Rows, table_of


class Limit(NamedTuple):
    """What Amdahl's law allows a model."""

    share: float  # of torch's time, in convolutions
    ratio: float  # torch's time over ours, if nothing but convolutions changed


def limit_of(row: dict[str, Any]) -> Limit | None:
    """The limit of a row; None of a single call, and of a compiled model."""
    if "convolutions" not in row:
        return None
    layers, whole = row["convolutions"]["layers"], row["convolutions"]["whole"]
    ours, torch = (sum(each[name] for each in layers) for name in (OURS, TORCH))
    return Limit(torch / whole, whole / (whole - torch + ours))


def rows_of(record: Record) -> Rows:
    """One row a model, or a layer; without ratios if other work disturbed the run."""
    cells = _model_cells if record["settings"]["suite"] in WHOLE else _call_cells
    rows = [cells(row, record["settings"]["against"]) for row in record["rows"]]
    if "disturbed" not in record:
        return rows
    return [{name: cell for name, cell in row.items() if not _is_told(name)} for row in rows]


def _is_told(heading: str) -> bool:
    """Whether a column has what only an undisturbed run can tell."""
    return "/" in heading or heading in ("limit", "of limit")


def _model_cells(row: dict[str, Any], against: list[str]) -> dict[str, str]:
    limit, ratio = limit_of(row), row["ratios"][TORCH]
    cells = {"model": row["layer"], **_times(row, (TORCH, OURS), "ms")}
    cells["torch/ours"] = f"{ratio:.2f}"
    if limit is not None:
        cells |= {
            "in convolutions": f"{limit.share:.0%}",
            "limit": f"{limit.ratio:.2f}",
            "of limit": f"{ratio / limit.ratio:.0%}",
        }
    for name in [name for name in against if name in ENGINES]:
        cells |= _times(row, (name,), "ms")
        cells[f"{name}/ours"] = f"{row['ratios'][name]:.2f}" if name in row["ratios"] else ""
    return cells


def _call_cells(row: dict[str, Any], against: list[str]) -> dict[str, str]:
    cells = {"layer": row["layer"], **_times(row, (TORCH, OURS, ARRAYS), "us")}
    cells["torch/ours"] = f"{row['ratios'][TORCH]:.2f}"
    cells["ours/arrays"] = f"{1 / row['ratios'][ARRAYS]:.2f}"
    return cells


def _times(row: dict[str, Any], names: tuple[str, ...], unit: str) -> dict[str, str]:
    """Medians in milliseconds or microseconds; an empty cell for what was not timed."""
    scale = {"ms": 1e3, "us": 1e6}[unit]
    times = {name: timing["median"] * scale for name, timing in row["timings"].items()}
    return {f"{name} {unit}": f"{times[name]:.2f}" if name in times else "" for name in names}


def terminal_table(record: Record) -> str:
    """A run for the terminal."""
    return "\n".join([*disturbed_lines(record), table_of(rows_of(record)), *lines_of(record)])


def lines_of(record: Record) -> list[str]:
    """What all rows say together, their largest error, and what is missing."""
    rows, lines = record["rows"], []
    if "disturbed" not in record:
        lines = mean_lines(record)
        told = [(row["ratios"][TORCH], limit) for row in rows if (limit := limit_of(row))]
        if told:
            mean = geometric_mean([ratio / limit.ratio for ratio, limit in told])
            lines.append(f"of the limit by Amdahl's law, geometric mean: {mean:.0%}")
    if record["noise_floor"] is not None:
        lines.append(f"noise floor: {record['noise_floor']:.1%} (ours against itself)")
    for name in (OURS, TORCH, *ENGINES):
        errors = [row["errors"][name] for row in rows if name in row["errors"]]
        if errors:
            lines.append(f"largest error of {name}: {max(errors):.1e} of the norm, from float64")
    for row in rows:
        gaps = row["not_timed"].items()
        lines += [f"{name} not timed on {row['layer']}: {why}" for name, why in gaps]
    for name, reason in record["settings"]["left_out"].items():
        lines.append(f"left out {name}: {reason}")
    return lines if record["complete"] else [*lines, "incomplete: the run was interrupted"]
