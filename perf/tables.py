"""Tables of records, for a terminal and for Markdown.

Cells are text; a caller chooses columns and markup.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from perf import upsampling
from perf.engines import RIVALS
from perf.layers import KINDS, OTHERS, SUITES
from perf.overviews import (
    FASTEST,
    Overview,
    error_limit,
    fastest_line,
    fastest_of,
    network_lines,
    ours_against,
    overviews_of,
    ratio_key,
    rivals_of,
    settings_of,
    window_limit,
)
from perf.record import Record
from perf.terminal import Rows, table_of
from perf.verdicts import threshold

NOISY = 0.05  # a run with a larger noise floor was disturbed, and its ratios tell nothing
INTEGERS = "uint8"  # dtype of the suite of integers, whose title tells it

Named = Sequence[tuple[str, Record]]  # records with the names of their files
TITLES = {name: title for name, (title, _) in SUITES.items()} | {
    "bursts": "bursts of calls",
    "changing": "sizes that change with every call",
    "models": "whole models of torch",
    "compiled": "whole models of torch, compiled",
    "tensors": "calls on tensors of torch",
}

OPERATORS = {  # what a run computed, in titles; a suite of its own names the others
    "fprop": "",
    "transposed": "",
    upsampling.MIXED: "",
    "dgrad": ", input gradients",
    "wgrad": ", weight gradients",
}


def is_network(record: Record) -> bool:
    """Whether a run is of conv2d with floats on a network, or on a suite that is not known here."""
    settings, layers = settings_of(record), record["kind"] == "run"
    return layers and settings["operator"] == "fprop" and settings["suite"] not in (*OTHERS, *KINDS)


def is_plain(record: Record) -> bool:
    """Whether a run is of float32, one image and one thread."""
    settings = settings_of(record)
    return (settings["dtype"], settings["batch"], settings["threads"]) == ("float32", 1, 1)


def suite_title(record: Record) -> str:
    """The network of a run, the operator where the network does not tell it, and the precision."""
    settings = settings_of(record)
    suite, precision = settings["suite"], settings["precision"]
    words = "" if precision == "standard" else f", {precision}"
    return f"{TITLES.get(suite, suite)}{OPERATORS[settings['operator']]}{words}"


def suite_order(record: Record) -> tuple[Any, ...]:
    """Sort key of runs: `task_of`; of equal runs that on the fastest machine comes first."""
    return *task_of(record), -fma_rate(record)


def task_of(record: Record) -> tuple[Any, ...]:
    """What a run measured, whatever the machine, as a sort key: operators, suites as in `layers`,
    dtype, precision, layout, batch, threads.
    """
    settings = settings_of(record)
    operator = [*OPERATORS].index(settings["operator"])
    suites = [*SUITES, settings["suite"]]
    wide_first = settings["dtype"] != "float32", settings["dtype"]
    runs = (settings[name] for name in ("layout", "batch", "threads"))
    standard_first = settings["precision"] != "standard"
    return operator, suites.index(settings["suite"]), wide_first, standard_first, *runs


def fma_rate(record: Record) -> float:
    """The rate of FMAs that a run measured on all its threads, in GFLOP/s; 0 if there is none."""
    ceilings = record.get("ceilings")
    return ceilings["fma"] / 1e9 if ceilings else 0.0


def settings_words(record: Record) -> list[str]:
    """How a run measured its suite: dtype, layout, batch (if several images), threads."""
    settings = settings_of(record)
    own = record["settings"]
    return [
        *(own[name] for name in ("dtype", "layout") if own.get(name, INTEGERS) != INTEGERS),
        *([f"batch {settings['batch']}"] if settings["batch"] > 1 else []),
        threads_text(settings["threads"]),
    ]


def unusual_words(record: Record) -> list[str]:
    """The settings of a run that are not float32, one image and one thread."""
    settings = settings_of(record)
    dtype = [settings["dtype"]] if settings["dtype"] not in ("float32", INTEGERS) else []
    batch = [f"batch {settings['batch']}"] if settings["batch"] > 1 else []
    return dtype + batch + ([threads_text(settings["threads"])] if settings["threads"] > 1 else [])


def threads_text(threads: int) -> str:
    """A number of threads in words."""
    return f"{threads} thread{'s' if threads > 1 else ''}"


def title_of(record: Record) -> str:
    """What a run measured, in one line."""
    return ", ".join([suite_title(record), *settings_words(record)])


OURS = ("call", "plan")


def not_timed(record: Record) -> dict[tuple[str, str], int]:
    """(Rival, why it was not timed) -> on how many layers."""
    return dict(
        Counter(pair for row in record["rows"] for pair in row.get("not_timed", {}).items())
    )


def opponents_of(record: Record) -> list[str]:
    """Rivals that were timed on at least one layer, or could not be."""
    absent = {name for name, _ in not_timed(record)}
    return [name for name in RIVALS if name in rivals_of(record) or name in absent]


def run_rows(record: Record) -> Rows:
    """One row a layer; GFLOP/s and GB/s follow from the median time of "plan". Runs with several
    rivals have a column against the fastest of them.
    """
    found = {each.layer: f"{each.ratio:.2f} {each.rival}" for each in fastest_of(record)}
    if "disturbed" in record or not found:
        return [_run_row(record, row, {}) for row in record["rows"]]
    return [
        _run_row(record, row, {"fastest/ours": found.get(row["layer"], "")})
        for row in record["rows"]
    ]


def _run_row(record: Record, row: dict[str, Any], fastest: dict[str, str]) -> dict[str, str]:
    rivals, absent = opponents_of(record), row.get("not_timed", {})
    times = {name: timing["median"] for name, timing in row["timings"].items()}
    best = times.get("plan", times["call"])
    flops, moved = row["flops"] / best, row["bytes"] / best
    disturbed = "disturbed" in record
    ceilings = None if disturbed else record.get("ceilings")
    shown = {name: "not timed" if name in absent else "" for name in (*OURS, *rivals)}
    shown |= {name: f"{1e3 * seconds:.3f}" for name, seconds in times.items() if name in shown}
    told = {} if disturbed else row["ratios"]
    ratios = {
        f"{name}/{ours}": told.get(ratio_key(name, ours))
        for name in rivals
        for ours in ours_against(name)
    }
    return {
        "layer": row["layer"],
        "algorithm": row["algorithm"],
        **{f"{name} ms": cell for name, cell in shown.items()},
        **{name: "" if ratio is None else f"{ratio:.2f}" for name, ratio in ratios.items()},
        **fastest,
        "GFLOP/s": f"{flops / 1e9:.0f}",
        "of peak": f"{flops / ceilings['fma']:.0%}" if ceilings else "",
        "GB/s": f"{moved / 1e9:.1f}",
        "of copy": f"{moved / ceilings['copy']:.0%}" if ceilings else "",
        "scratch KiB": f"{row['scratch_bytes'] / 1024:.0f}" if "scratch_bytes" in row else "",
        "spread": f"{row['timings']['call']['spread']:.1%}",
    }


def rivals_rows(records: Sequence[Record]) -> Rows:
    """One row a rival and one for the fastest on each layer, one column a run: the geometric mean
    of ratios, the worst, and the number of layers.
    """
    rows = {name: {"rival": name} for name in (*RIVALS, FASTEST)}
    for record in records:
        column = f"{suite_title(record)}, {', '.join(settings_words(record))}"
        cells = {
            found.rival: f"{found.ratio:.2f} / {found.worst:.2f} ({found.layers})"
            for found in overviews_of(record)
        }
        for name, row in rows.items():
            row[column] = cells.get(name, "")
    return [row for row in rows.values() if any([*row.values()][1:])]


def means_cells(found: Overview) -> dict[str, str]:
    """Cells of a table on one rival: its means, and the worst layer."""
    means = {ours: f"{found.means[ours]:.2f}" if ours in found.means else "" for ours in OURS}
    return {**means, "worst layer": f"{found.worst:.2f} ({found.worst_layer})"}


def summary_lines(record: Record) -> list[str]:
    """Short lines on a whole run, for a terminal: ratios, noise, and `run_lines`."""
    lines = rival_lines(record)
    if record["noise_floor"] is not None:
        lines.append(f"noise floor: {record['noise_floor']:.1%} (call against itself)")
        if record["noise_floor"] > NOISY and "disturbed" not in record:
            lines.append("too noisy: other work disturbs this machine, so do not use these ratios")
    if any(uses_winograd(row) for row in record["rows"]):
        lines.append("GFLOP/s count the direct sum; Winograd needs fewer and may exceed the peak")
    return lines + run_lines(record)


def run_lines(record: Record) -> list[str]:
    """Short lines on a whole run: large errors, ceilings, start-up, what is missing."""
    lines = error_lines(record)
    for (name, reason), layers in not_timed(record).items():
        of = f"{layers} of {len(record['rows'])} layers"
        lines.append(f"{name} was not timed on {of}: {reason}")
    if "ceilings" in record:
        peak, copy = record["ceilings"]["fma"], record["ceilings"]["copy"]
        lines.append(f"measured ceilings: {peak / 1e9:.0f} GFLOP/s, {copy / 1e9:.0f} GB/s of copy")
    if "startup" in record:
        start = record["startup"]
        lines.append(f"import: {start['import'] * 1e3:.1f} ms beyond numpy")
        lines.append(
            f"first call in a new process: {start['first_call_warm']:.2f} s, "
            f"{start['first_call_cold']:.2f} s with a cold cache"
        )
    for layer, reason in record["settings"].get("dropped", {}).items():
        lines.append(f"dropped {layer}: {reason}")
    if not record["complete"]:
        lines.append("incomplete: the run was interrupted")
    return lines


def rival_lines(record: Record) -> list[str]:
    """Short lines on the rivals of a run: ratios and worst layers."""
    if "disturbed" in record:
        return []
    lines = fastest_line(record)
    for found in overviews_of(record)[len(lines) :]:
        means = ", ".join(f"{ratio:.2f} ({ours})" for ours, ratio in found.means.items())
        lines.append(
            f"{found.rival}'s time over ours, geometric mean of {found.layers} layers: {means}"
        )
        lines.append(f"worst layer: {found.worst:.2f} ({found.worst_layer}, {found.worst_of})")
    return [*lines, *network_lines(record)]


def error_lines(record: Record) -> list[str]:
    """A line for each rival whose results are less accurate than ours may be, on normally
    distributed data or beside an outlier.
    """
    limits = {
        "errors": (error_limit(record), "units of eps * sum|x||w|"),
        "outlier_errors": (window_limit(record), "units of eps * sum max|x| max|w|, by an outlier"),
    }
    return [
        f"largest error of {name}: {error:,.0f} {units}; ours: {largest(record, key, 'call'):.1f}; "
        f"not the fastest where above {limit:.0f}"
        for key, (limit, units) in limits.items()
        for name in rivals_of(record)
        if (error := largest(record, key, name)) > limit
    ]


def largest(record: Record, key: str, name: str) -> float:
    """The largest of the "errors", or other `key` of rows, of a function over the layers."""
    return max(float(row.get(key, {}).get(name, 0)) for row in record["rows"])


def uses_winograd(row: dict[str, Any]) -> bool:
    """Whether a layer ran with fewer multiplications than its FLOP count says."""
    algorithm: str = row["algorithm"]
    return algorithm.startswith("winograd")


def run_table(record: Record) -> str:
    """A run for the terminal."""
    return "\n".join([*disturbed_lines(record), table_of(run_rows(record)), *summary_lines(record)])


def disturbed_lines(record: Record) -> list[str]:
    """Why there are no ratios, if there are none."""
    return [record["disturbed"]] if "disturbed" in record else []


def markdown(rows: Rows, left: int) -> str:
    """A Markdown table; all columns after the first `left` are right-aligned."""
    headings = list(rows[0]) if rows else []
    rule = ["---"] * left + ["--:"] * (len(headings) - left)
    lines = [headings, rule, *(row.values() for row in rows)]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def compare_table(record: Record) -> str:
    """A comparison for the terminal: its layers, the verdict and the threshold it rests on."""
    if "disturbed" in record or record["noise_floor"] is None:
        return "\n".join(disturbed_lines(record) or ["nothing was measured"])
    floor = record["noise_floor"]
    rows = [
        {
            "layer": row["layer"],
            "verdict": row["verdict"],
            "head/base": f"{row['ratio']:.3f}",
            "99 % interval": f"{row['low']:.3f} - {row['high']:.3f}",
            "base/base": f"{row['control']:.3f}",
            "rounds": str(row["rounds"]),
            "rivals/head": ", ".join(
                f"{name} {ratio:.2f}" for name, ratio in row["rivals"].items()
            ),
        }
        for row in record["rows"]
    ]
    lines = [
        table_of(rows),
        f"{record['head']} against {record['base']}: {record['verdict']}",
        f"noise floor {floor:.2%}: slower means above {1 + threshold(floor):.3f}",
        *([] if record["complete"] else ["incomplete: the run was interrupted"]),
    ]
    return "\n".join(lines)
