"""Tables of records: for a terminal, an HTML page and Markdown.

All functions return text cells; a caller chooses the columns and the markup.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from implicit_conv.tools.contenders import RIVALS
from perf.layers import OTHERS, SUITES, TITLES
from perf.record import Record
from perf.terminal import Rows, stack, table_of
from perf.verdicts import geometric_mean, threshold

NOISY = 0.05  # a run with a larger noise floor carries a warning


class Overview(NamedTuple):
    """One run in one line; the ratios are a rival's time over ours, so above 1 ours is faster."""

    record: Record
    rival: str
    call: float  # geometric mean over the layers; the filter is packed in every call
    plan: float  # geometric mean over the layers; the filter is packed once, before timing
    worst: float  # the smallest ratio to "call" of all layers
    worst_layer: str


def overview_of(record: Record) -> Overview | None:
    """A run against the first of its rivals; None if no rival was timed."""
    if record["kind"] != "run" or not rivals_of(record):
        return None
    rival = rivals_of(record)[0]
    means = mean_ratios(record)
    worst, layer = min(
        (row["ratios"][rival], row["layer"]) for row in record["rows"] if rival in row["ratios"]
    )
    return Overview(record, rival, means[f"{rival}/call"], means[f"{rival}/plan"], worst, layer)


OPERATORS = {  # what a run computed, in titles; a suite of its own names the others
    "fprop": "",
    "transposed": "",
    "dgrad": ", input gradients",
    "wgrad": ", weight gradients",
}


def operator_of(record: Record) -> str:
    """The operator of a run; older records are all of fprop."""
    return str(record["settings"].get("operator", "fprop"))


def is_conv2d(record: Record) -> bool:
    """Whether a run is of conv2d with floats, or of a suite that is not known here."""
    return operator_of(record) == "fprop" and record["settings"]["suite"] not in OTHERS


def suite_title(record: Record) -> str:
    """The network of a run, and the operator where the network does not tell it."""
    suite = record["settings"]["suite"]
    return f"{TITLES.get(suite, suite)}{OPERATORS[operator_of(record)]}"


def suite_order(record: Record) -> tuple[Any, ...]:
    """Sort key of runs: operators, suites as in `layers`, then dtype, layout, batch and threads."""
    settings = record["settings"]
    operator = [*OPERATORS].index(operator_of(record))
    suites = [*SUITES]
    place = suites.index(settings["suite"]) if settings["suite"] in suites else len(suites)
    wide_first = settings["dtype"] != "float32", settings["dtype"]
    batch = settings.get("batch") or 1
    return operator, place, wide_first, settings["layout"], batch, settings["threads"]


def words_of(record: Record) -> list[str]:
    """What a run measured: network, dtype, layout, batch (if several images), threads."""
    settings = record["settings"]
    threads = settings["threads"]
    batch = settings.get("batch") or 1
    return [
        suite_title(record),
        settings["dtype"],
        settings["layout"],
        *([f"batch {batch}"] if batch > 1 else []),
        f"{threads} thread{'s' if threads > 1 else ''}",
    ]


def title_of(record: Record) -> str:
    """What a run measured, in one line."""
    return ", ".join(words_of(record))


OVERVIEW_COLUMNS = ("suite", "dtype", "layout", "threads", "call", "plan", "worst layer (call)")


def overview_cells(overviews: Sequence[Overview], links: Sequence[str]) -> Rows:
    """One line a run under `OVERVIEW_COLUMNS`; the suite's name links to `links`."""
    lines = []
    for found, link in zip(overviews, links, strict=True):
        settings = found.record["settings"]
        name = suite_title(found.record)
        lines.append(
            [
                f"[{name}]({link})",
                settings["dtype"],
                settings["layout"],
                str(settings["threads"]),
                f"{found.call:.2f}",
                f"{found.plan:.2f}",
                f"{found.worst:.2f} ({found.worst_layer})",
            ]
        )
    return lines


def rivals_of(record: Record) -> list[str]:
    """Rivals that were timed on at least one layer."""
    return [name for name in RIVALS if any(name in row["timings"] for row in record["rows"])]


def run_columns(record: Record) -> list[str]:
    """Headings of `run_cells`."""
    rivals = rivals_of(record)
    times = [f"{name} ms" for name in ("call", "plan", *rivals)]
    ratios = [f"{name}/{ours}" for name in rivals for ours in ("call", "plan")]
    rates = ["GFLOP/s", "of peak", "GB/s", "of copy"]
    return ["layer", "algorithm", *times, *ratios, *rates, "scratch KiB", "spread"]


def run_cells(record: Record) -> Rows:
    """One line of text a layer; GFLOP/s and GB/s follow from the median time of "plan"."""
    return [_run_line(record, row) for row in record["rows"]]


def _run_line(record: Record, row: dict[str, Any]) -> list[str]:
    rivals = rivals_of(record)
    times = {name: timing["median"] for name, timing in row["timings"].items()}
    best = times.get("plan", times["call"])
    flops, moved = row["flops"] / best, row["bytes"] / best
    ceilings = record.get("ceilings")
    peak = f"{flops / ceilings['fma']:.0%}" if ceilings else ""
    copy = f"{moved / ceilings['copy']:.0%}" if ceilings else ""
    ratios = [row["ratios"].get(key) for name in rivals for key in (name, f"{name}/plan")]
    return [
        row["layer"],
        row["algorithm"],
        *(f"{1e3 * times[who]:.3f}" if who in times else "" for who in ("call", "plan", *rivals)),
        *("" if ratio is None else f"{ratio:.2f}" for ratio in ratios),
        f"{flops / 1e9:.0f}",
        peak,
        f"{moved / 1e9:.1f}",
        copy,
        f"{row['scratch_bytes'] / 1024:.0f}" if "scratch_bytes" in row else "",
        f"{row['timings']['call']['spread']:.1%}",
    ]


def mean_ratios(record: Record) -> dict[str, float]:
    """Geometric means over the layers of the ratios to each rival: "torch/call", "torch/plan"."""
    found = {}
    for name in rivals_of(record):
        for ours, key in (("call", name), ("plan", f"{name}/plan")):
            ratios = [row["ratios"][key] for row in record["rows"] if key in row["ratios"]]
            found[f"{name}/{ours}"] = geometric_mean(ratios)
    return found


def summary_lines(record: Record) -> list[str]:
    """Short lines on a whole run: ratios, ceilings, noise, start-up, what is missing."""
    lines = []
    found = overview_of(record)
    if found:
        lines.append(
            f"{found.rival}'s time over ours, geometric mean of {len(record['rows'])} layers: "
            f"{found.call:.2f} (call), {found.plan:.2f} (plan)"
        )
        lines.append(f"worst layer: {found.worst:.2f} ({found.worst_layer}, call)")
    for name, ratio in mean_ratios(record).items():
        if found and not name.startswith(f"{found.rival}/"):
            lines.append(f"{name}: geometric mean {ratio:.2f}")
    if record["noise_floor"] is not None:
        lines.append(f"noise floor: {record['noise_floor']:.1%} (call against itself)")
        if record["noise_floor"] > NOISY:
            lines.append("too noisy: other work disturbs this machine, so do not use these ratios")
    if "ceilings" in record:
        peak, copy = record["ceilings"]["fma"], record["ceilings"]["copy"]
        lines.append(f"measured ceilings: {peak / 1e9:.0f} GFLOP/s, {copy / 1e9:.0f} GB/s of copy")
    if any(uses_winograd(row) for row in record["rows"]):
        lines.append("GFLOP/s count the direct sum; Winograd needs fewer and may exceed the peak")
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


def uses_winograd(row: dict[str, Any]) -> bool:
    """Whether a layer ran with fewer multiplications than its FLOP count says."""
    algorithm: str = row["algorithm"]
    return algorithm.startswith("winograd")


def run_table(record: Record) -> Any:
    """A run for the terminal."""
    table = table_of(run_columns(record), run_cells(record))
    return stack(table, *summary_lines(record))


def markdown(columns: Sequence[str], lines: Rows, left: int = 1) -> str:
    """A Markdown table; all columns after the first `left` are right-aligned."""
    rule = ["---"] * left + ["--:"] * (len(columns) - left)
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (columns, rule, *lines))


COMPARE_COLUMNS = (
    "layer",
    "verdict",
    "head/base",
    "99 % interval",
    "base/base",
    "rounds",
    "rivals/head",
)


def compare_cells(record: Record) -> Rows:
    """One line of text a layer."""
    return [
        [
            row["layer"],
            row["verdict"],
            f"{row['ratio']:.3f}",
            f"{row['low']:.3f} - {row['high']:.3f}",
            f"{row['control']:.3f}",
            str(row["rounds"]),
            ", ".join(f"{name} {ratio:.2f}" for name, ratio in row["rivals"].items()),
        ]
        for row in record["rows"]
    ]


def compare_lines(record: Record) -> list[str]:
    """The verdict and the threshold that it rests on."""
    if record["noise_floor"] is None:
        return ["nothing was measured"]
    floor = record["noise_floor"]
    return [
        f"{record['head']} against {record['base']}: {record['verdict']}",
        f"noise floor {floor:.2%}: slower means above {1 + threshold(floor):.3f}",
        *([] if record["complete"] else ["incomplete: the run was interrupted"]),
    ]


def compare_table(record: Record) -> Any:
    """A comparison for the terminal."""
    table = table_of(COMPARE_COLUMNS, compare_cells(record))
    return stack(table, *compare_lines(record))
