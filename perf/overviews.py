"""A run against its rivals: means over the layers, of each rival and of the fastest on each layer.

A ratio is a rival's time over ours, so above 1 ours is faster. An engine has packed its filter, and
compares with "plan"; any other rival takes a plain filter at each call, and compares with "call".
"""

from __future__ import annotations

from collections import Counter
from math import inf
from statistics import geometric_mean
from typing import Any, NamedTuple

from implicit_conv.tools.rivals import FAST_UNITS, LIMIT_UNITS
from perf import model_names as names
from perf import outliers
from perf.engines import ENGINES, PLAIN
from perf.engines import RIVALS as LAYER_RIVALS
from perf.networks import all_resnet50
from perf.record import Record

RIVALS = tuple(dict.fromkeys((*LAYER_RIVALS, *names.ENGINES)))  # of layers and of whole models
FASTEST = "fastest of all"  # in place of a rival's name: the fastest on each layer
LAYOUTS = {**PLAIN, "torch": ("NCHW", "NHWC")}  # of arrays; results of scipy and numpy are NCHW


class Overview(NamedTuple):
    """One run against one rival, or against the fastest of several on each layer."""

    record: Record
    rival: str
    layers: int  # the layers on which the rival was timed
    means: dict[str, float]  # "call" and "plan", or one of them: geometric means over the layers
    worst: float  # the smallest ratio of all layers, to the first of `means`
    worst_layer: str

    @property
    def ratio(self) -> float:
        """The first of `means`."""
        return next(iter(self.means.values()))

    @property
    def rivals(self) -> list[str]:
        """The rival, or those of which the fastest on each layer counts."""
        known, rows = rivals_of(self.record), self.record["rows"]
        many = [one for one in known if any(counts(self.record, row, one) for row in rows)]
        return many if self.rival == FASTEST else [self.rival]

    @property
    def against(self) -> str:
        """The rival, or of how many it is the fastest, in words."""
        return f"fastest of {len(self.rivals)}" if self.rival == FASTEST else self.rival

    @property
    def worst_of(self) -> str:
        """Which of ours `worst` compares with: "call" or "plan"."""
        return next(iter(self.means))


class Fastest(NamedTuple):
    """The fastest rival on one layer: that with the smallest ratio among those that count."""

    layer: str
    ratio: float
    rival: str


def settings_of(record: Record) -> dict[str, Any]:
    """The settings of a run; older records and those of models tell only what is unusual."""
    usual = {"operator": "fprop", "precision": "standard", "dtype": "float32", "layout": "NCHW"}
    found = {**usual, **record["settings"]}
    return found | {"batch": found.get("batch") or 1}


def rivals_of(record: Record) -> list[str]:
    """Rivals that were timed on at least one layer."""
    return [name for name in RIVALS if any(name in row["timings"] for row in record["rows"])]


def ours_against(rival: str) -> tuple[str, ...]:
    """Which of ours a rival compares with: an engine has packed its filter, as "plan" has."""
    return ("plan",) if rival in ENGINES else ("call", "plan")


def ratio_key(rival: str, ours: str) -> str:
    """Key of a ratio in a row; see `record.ratios`."""
    return rival if ours == "call" else f"{rival}/{ours}"


def ratios_of(record: Record, row: dict[str, Any], rival: str) -> dict[str, float]:
    """The ratios of a rival on a row of any suite: to "call", "plan" or both. `enable()` of torch
    keeps packed filters, as "plan" does; of sizes that change the first calls are compared, in sum.
    """
    if record["kind"] == "changing":
        theirs, ours = (sum(row["timings"][name]["first"]) for name in (rival, names.OURS))
        return {"call": theirs / ours}
    if record["kind"] == names.KIND:
        return {"plan": row["ratios"][rival]}
    return {ours: row["ratios"][ratio_key(rival, ours)] for ours in ours_against(rival)}


def error_limit(record: Record) -> float:
    """The largest error of a right result in the precision of a run, in units of eps times the sum
    of absolute products.
    """
    return FAST_UNITS if settings_of(record)["precision"] == "fast" else LIMIT_UNITS


def window_limit(record: Record) -> float:
    """The same beside an outlier, in units of eps times the window's scale; "fast" has no limit."""
    return inf if settings_of(record)["precision"] == "fast" else outliers.LIMIT_UNITS


def is_right(record: Record, row: dict[str, Any], rival: str) -> bool:
    """Whether a rival's error on a layer is within the bounds of our precision; older records do
    not tell that beside an outlier.
    """
    within = float(row.get("errors", {}).get(rival, 0)) <= error_limit(record)
    return within and float(row.get("outlier_errors", {}).get(rival, 0)) <= window_limit(record)


def counts(record: Record, row: dict[str, Any], rival: str) -> bool:
    """Whether a rival may be the fastest of a layer: it was timed, its arrays are plain in the
    layout of the run, and its error is within the bound of our precision.
    """
    plain = settings_of(record)["layout"] in LAYOUTS.get(rival, ("NCHW",))
    return rival in row["timings"] and plain and is_right(record, row, rival)


def fastest_of(record: Record) -> list[Fastest]:
    """The fastest rival of each layer that has one; none for a run with fewer than two rivals."""
    rivals = rivals_of(record)
    found = []
    for row in record["rows"] if len(rivals) > 1 else []:
        ratios = [
            (next(iter(ratios_of(record, row, rival).values())), rival)
            for rival in rivals
            if counts(record, row, rival)
        ]
        if ratios:
            found.append(Fastest(row["layer"], *min(ratios)))
    return found


def overviews_of(record: Record) -> list[Overview]:
    """A run against each of its rivals that was timed, after the fastest of several."""
    rivals = rivals_of(record)
    fastest = fastest_of(record)
    first = [_of_fastest(record, fastest)] if fastest else []
    return first + [_of_rival(record, rival) for rival in rivals]


def _of_fastest(record: Record, fastest: list[Fastest]) -> Overview:
    """A bar or a row needs one name for ours: it is "plan" where an engine is fastest anywhere."""
    packed = record["kind"] == names.KIND or any(found.rival in ENGINES for found in fastest)
    ours = "plan" if packed else "call"
    mean = geometric_mean([found.ratio for found in fastest])
    worst = min(fastest, key=lambda found: found.ratio)
    return Overview(record, FASTEST, len(fastest), {ours: mean}, worst.ratio, worst.layer)


def _of_rival(record: Record, rival: str) -> Overview:
    rows = [row for row in record["rows"] if rival in row["timings"]]
    ratios = [ratios_of(record, row, rival) for row in rows]
    means = {ours: geometric_mean([each[ours] for each in ratios]) for ours in ratios[0]}
    firsts = [next(iter(each.values())) for each in ratios]
    worst, layer = min(zip(firsts, (row["layer"] for row in rows), strict=True))
    return Overview(record, rival, len(rows), means, worst, layer)


def network_lines(record: Record) -> list[str]:
    """For each rival, the time of a whole network, in which a layer stands as often as it does.

    A mean of ratios hides where a slow layer takes most of the time. Only ResNet-50 says how often;
    rivals that lack a layer are left out.
    """
    if record["settings"]["suite"] != "resnet50":
        return []
    often = Counter(name for name, _ in all_resnet50())
    found = {
        next(n for n in often if f"{row['layer']} ".startswith(f"{n} ")): row
        for row in record["rows"]
    }
    if set(found) != set(often):
        return []
    lines = []
    for rival in rivals_of(record):
        if all(rival in row["timings"] for row in found.values()):
            ours, theirs = (
                1e3
                * sum(often[name] * row["timings"][who]["median"] for name, row in found.items())
                for who in (ours_against(rival)[0], rival)
            )
            lines.append(
                f"the {often.total()} layers of the network: {ours:.3g} ms, {rival} {theirs:.3g}, "
                f"{theirs / ours:.2f} times as long"
            )
    return lines


def mean_lines(record: Record) -> list[str]:
    """Short lines on the means over the rows: against the fastest of several rivals, and each."""
    return [
        f"{found.against}: time over ours, geometric mean of {found.layers}: {found.ratio:.2f}; "
        f"least {found.worst:.2f} ({found.worst_layer})"
        for found in overviews_of(record)
    ]


def fastest_line(record: Record) -> list[str]:
    """A short line against the fastest rival of each layer, where there are several rivals."""
    fastest = fastest_of(record)
    if not fastest:
        return []
    mean = geometric_mean([found.ratio for found in fastest])
    wins = sum(found.ratio >= 1 for found in fastest)
    worst = min(fastest, key=lambda found: found.ratio)
    return [
        f"against the fastest of all rivals on each layer: {mean:.2f}, {wins} of {len(fastest)} "
        f"won, worst {worst.ratio:.2f} ({worst.layer}, {worst.rival})"
    ]
