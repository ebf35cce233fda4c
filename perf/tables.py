"""Tables of records: for a terminal, an HTML page and Markdown.

All functions return text cells; a caller chooses the columns and the markup.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from implicit_conv.tools.rivals import LIMIT_UNITS
from perf.engines import ENGINES, RIVALS
from perf.layers import KINDS, OTHERS, SUITES, TITLES
from perf.record import Record
from perf.terminal import Rows, stack, table_of
from perf.verdicts import geometric_mean, threshold

NOISY = 0.05  # a run with a larger noise floor carries a warning


class Overview(NamedTuple):
    """One run against one rival; the ratios are the rival's time over ours, so above 1 ours is
    faster.
    """

    record: Record
    rival: str
    layers: int  # the layers on which the rival was timed
    means: dict[str, float]  # "call" and "plan", or "plan" alone: geometric means over the layers
    worst: float  # the smallest ratio of all layers, to the first of `means`
    worst_layer: str

    @property
    def worst_of(self) -> str:
        """Which of ours `worst` compares with: "call" or "plan"."""
        return next(iter(self.means))


def ours_against(rival: str) -> tuple[str, ...]:
    """Which of ours a rival compares with: an engine has packed its filter, as "plan" has."""
    return ("plan",) if rival in ENGINES else ("call", "plan")


def ratio_key(rival: str, ours: str) -> str:
    """Key of a ratio in a row; see `record.ratios`."""
    return rival if ours == "call" else f"{rival}/{ours}"


def overviews_of(record: Record) -> list[Overview]:
    """A run against each of its rivals that was timed."""
    return [_overview(record, rival) for rival in rivals_of(record)]


def _overview(record: Record, rival: str) -> Overview:
    rows = [row for row in record["rows"] if rival in row["timings"]]
    means = {
        ours: geometric_mean([row["ratios"][ratio_key(rival, ours)] for row in rows])
        for ours in ours_against(rival)
    }
    first = ratio_key(rival, next(iter(means)))
    worst, layer = min((row["ratios"][first], row["layer"]) for row in rows)
    return Overview(record, rival, len(rows), means, worst, layer)


OPERATORS = {  # what a run computed, in titles; a suite of its own names the others
    "fprop": "",
    "transposed": "",
    "dgrad": ", input gradients",
    "wgrad": ", weight gradients",
}


def operator_of(record: Record) -> str:
    """The operator of a run; older records are all of fprop."""
    return str(record["settings"].get("operator", "fprop"))


def is_network(record: Record) -> bool:
    """Whether a run is of conv2d with floats on a network, or on a suite that is not known here."""
    return operator_of(record) == "fprop" and record["settings"]["suite"] not in (*OTHERS, *KINDS)


def is_plain(record: Record) -> bool:
    """Whether a run is of float32, one image and one thread."""
    settings = record["settings"]
    found = settings["dtype"], settings.get("batch") or 1, settings["threads"]
    return found == ("float32", 1, 1)


def precision_of(record: Record) -> str:
    """The precision of a run; older records are all of precision "standard"."""
    return str(record["settings"].get("precision", "standard"))


def suite_title(record: Record) -> str:
    """The network of a run, the operator where the network does not tell it, and the precision."""
    suite, precision = record["settings"]["suite"], precision_of(record)
    words = "" if precision == "standard" else f", {precision}"
    return f"{TITLES.get(suite, suite)}{OPERATORS[operator_of(record)]}{words}"


def suite_order(record: Record) -> tuple[Any, ...]:
    """Sort key of runs: `task_of`; of equal runs that on the fastest machine comes first."""
    return *task_of(record), -fma_rate(record)


def task_of(record: Record) -> tuple[Any, ...]:
    """What a run measured, whatever the machine, as a sort key: operators, suites as in `layers`,
    dtype, precision, layout, batch, threads.
    """
    settings = record["settings"]
    operator = [*OPERATORS].index(operator_of(record))
    suites = [*SUITES]
    place = suites.index(settings["suite"]) if settings["suite"] in suites else len(suites)
    wide_first = settings["dtype"] != "float32", settings["dtype"]
    batch = settings.get("batch") or 1
    runs = precision_of(record) != "standard", settings["layout"], batch, settings["threads"]
    return operator, place, wide_first, *runs


def fma_rate(record: Record) -> float:
    """The rate of FMAs that a run measured on all its threads, in GFLOP/s; 0 if there is none."""
    ceilings = record.get("ceilings")
    return ceilings["fma"] / 1e9 if ceilings else 0.0


def words_of(record: Record) -> list[str]:
    """What a run measured: network, dtype, layout, batch (if several images), threads."""
    settings = record["settings"]
    batch = settings.get("batch") or 1
    return [
        suite_title(record),
        settings["dtype"],
        settings["layout"],
        *([f"batch {batch}"] if batch > 1 else []),
        threads_text(settings["threads"]),
    ]


def threads_text(threads: int) -> str:
    """A number of threads in words."""
    return f"{threads} thread{'s' if threads > 1 else ''}"


def title_of(record: Record) -> str:
    """What a run measured, in one line."""
    return ", ".join(words_of(record))


OVERVIEW_COLUMNS = (
    "suite",
    "rival",
    "dtype",
    "layout",
    "images",
    "threads",
    "FMA peak",
    "call",
    "plan",
    "worst layer",
)
OURS = ("call", "plan")


def overview_cells(overviews: Sequence[Overview], links: Sequence[str]) -> Rows:
    """One line a run under `OVERVIEW_COLUMNS`; the suite's name links to `links`."""
    lines = []
    for found, link in zip(overviews, links, strict=True):
        settings = found.record["settings"]
        name, rate = suite_title(found.record), fma_rate(found.record)
        lines.append(
            [
                f"[{name}]({link})",
                found.rival,
                settings["dtype"],
                settings["layout"],
                str(settings.get("batch") or 1),
                str(settings["threads"]),
                f"{rate:.0f} GFLOP/s" if rate else "",
                *(f"{found.means[ours]:.2f}" if ours in found.means else "" for ours in OURS),
                f"{found.worst:.2f} ({found.worst_layer})",
            ]
        )
    return lines


def rivals_of(record: Record) -> list[str]:
    """Rivals that were timed on at least one layer."""
    return [name for name in RIVALS if any(name in row["timings"] for row in record["rows"])]


def not_timed(record: Record) -> dict[tuple[str, str], int]:
    """(Rival, why it was not timed) -> on how many layers."""
    return dict(
        Counter(pair for row in record["rows"] for pair in row.get("not_timed", {}).items())
    )


def opponents_of(record: Record) -> list[str]:
    """Rivals that were timed on at least one layer, or could not be."""
    absent = {name for name, _ in not_timed(record)}
    return [name for name in RIVALS if name in rivals_of(record) or name in absent]


def run_columns(record: Record) -> list[str]:
    """Headings of `run_cells`."""
    rivals = opponents_of(record)
    times = [f"{name} ms" for name in (*OURS, *rivals)]
    ratios = [f"{name}/{ours}" for name in rivals for ours in ours_against(name)]
    rates = ["GFLOP/s", "of peak", "GB/s", "of copy"]
    return ["layer", "algorithm", *times, *ratios, *rates, "scratch KiB", "spread"]


def run_cells(record: Record) -> Rows:
    """One line of text a layer; GFLOP/s and GB/s follow from the median time of "plan"."""
    return [_run_line(record, row) for row in record["rows"]]


def _run_line(record: Record, row: dict[str, Any]) -> list[str]:
    rivals = opponents_of(record)
    times = {name: timing["median"] for name, timing in row["timings"].items()}
    best = times.get("plan", times["call"])
    flops, moved = row["flops"] / best, row["bytes"] / best
    ceilings = record.get("ceilings")
    peak = f"{flops / ceilings['fma']:.0%}" if ceilings else ""
    copy = f"{moved / ceilings['copy']:.0%}" if ceilings else ""
    ratios = [
        row["ratios"].get(ratio_key(name, ours)) for name in rivals for ours in ours_against(name)
    ]
    absent = row.get("not_timed", {})
    shown = {name: "not timed" if name in absent else "" for name in (*OURS, *rivals)}
    shown |= {name: f"{1e3 * seconds:.3f}" for name, seconds in times.items() if name in shown}
    return [
        row["layer"],
        row["algorithm"],
        *shown.values(),
        *("" if ratio is None else f"{ratio:.2f}" for ratio in ratios),
        f"{flops / 1e9:.0f}",
        peak,
        f"{moved / 1e9:.1f}",
        copy,
        f"{row['scratch_bytes'] / 1024:.0f}" if "scratch_bytes" in row else "",
        f"{row['timings']['call']['spread']:.1%}",
    ]


def summary_lines(record: Record) -> list[str]:
    """Short lines on a whole run: ratios, ceilings, noise, start-up, what is missing."""
    lines = rival_lines(record)
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


def rival_lines(record: Record) -> list[str]:
    """Short lines on the rivals of a run: ratios, worst layers, large errors, who is missing."""
    lines = []
    for found in overviews_of(record):
        means = ", ".join(f"{ratio:.2f} ({ours})" for ours, ratio in found.means.items())
        lines.append(
            f"{found.rival}'s time over ours, geometric mean of {found.layers} layers: {means}"
        )
        lines.append(f"worst layer: {found.worst:.2f} ({found.worst_layer}, {found.worst_of})")
        error = largest_error(record, found.rival)
        if error > LIMIT_UNITS:
            lines.append(
                f"largest error of {found.rival}: {error:.0f} units of eps * sum|x||w|; "
                f"ours: {largest_error(record, 'call'):.1f}"
            )
    for (name, reason), layers in not_timed(record).items():
        of = f"{layers} of {len(record['rows'])} layers"
        lines.append(f"{name} was not timed on {of}: {reason}")
    return lines


def largest_error(record: Record, name: str) -> float:
    """The largest error of a function over the layers, in units of eps * sum|x||w|."""
    return max(float(row["errors"].get(name, 0)) for row in record["rows"])


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
