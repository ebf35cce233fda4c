"""Plots of records, as matplotlib figures."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure

from perf.record import Record
from perf.tables import (
    Overview,
    fma_rate,
    ours_against,
    ratio_key,
    rivals_of,
    uses_winograd,
    words_of,
)

OURS, WINOGRAD, ROOF = "#1f6f8b", "#d55e00", "#555555"
WIDTH = 5.0  # inches; the text stays legible if a phone shrinks the plot


RIVAL_NAMES = {"torch": "PyTorch (oneDNN)", "opencv": "OpenCV", "scipy": "SciPy"}


class Theme(NamedTuple):
    """Colours of a picture on a light or a dark page."""

    text: str
    call: str
    plan: str
    worst: str


THEMES = {
    "light": Theme(text="#1f2328", call="#1f6f8b", plan="#a9d0dc", worst="#d55e00"),
    "dark": Theme(text="#e6edf3", call="#2f8fb0", plan="#1d4757", worst="#ffa657"),
}


def overview(overviews: Sequence[Overview], theme: Theme) -> Figure:
    """One bar a run: the rival's time over ours, with the worst layer marked.

    The background is transparent, so that the picture suits a page of the theme's kind.
    """
    figure = Figure(figsize=(8, 1.2 + 0.36 * len(overviews)), layout="constrained")
    figure.patch.set_alpha(0)
    axes = figure.subplots()
    axes.patch.set_alpha(0)
    places = np.arange(len(overviews), dtype=float)
    call = [found.means.get("call", 0) for found in overviews]
    plan = [found.means["plan"] for found in overviews]
    worst = [found.worst for found in overviews]
    axes.barh(places, call, 0.7, color=theme.call, label="call: packs the filter", zorder=2)
    axes.barh(places, plan, 0.7, color=theme.plan, label="plan: filter packed once", zorder=1)
    axes.plot(
        worst,
        places,
        "D",
        color=theme.worst,
        markeredgecolor="white",
        markersize=7,
        zorder=4,
        label="worst layer",
    )
    text: dict[str, Any] = {"va": "center", "zorder": 5}
    for place, found in zip(places, overviews, strict=True):
        left, inside = min(found.worst, 1) - 0.04, "white" if "call" in found.means else theme.text
        axes.text(left, place, f"{found.worst:.2f}", color=inside, size=9, ha="right", **text)
        means = " / ".join(f"{mean:.2f}" for mean in found.means.values())
        end = max(found.means.values()) + 0.02
        axes.text(end, place, means, color=theme.text, size=10, **text)
    axes.axvline(1, color=theme.text, linewidth=1.2, zorder=3)
    rivals = sorted({found.rival for found in overviews})
    several = len(rivals) > 1
    labels = [
        "  ".join([*words_of(found.record), *peak_of(found.record), *[found.rival] * several])
        for found in overviews
    ]
    axes.set_yticks(places, labels, fontsize=10, color=theme.text)
    axes.invert_yaxis()
    limit = 0.35 + max([1.0, *plan, *call])
    axes.set_xlim(0, limit)
    names = {1: "1: as fast", 2: "2: twice as fast"}
    axes.set_xticks(range(int(limit) + 1), [names.get(x, str(x)) for x in range(int(limit) + 1)])
    axes.tick_params(axis="x", colors=theme.text, labelsize=9)
    axes.tick_params(axis="y", length=0)
    axes.spines[:].set_visible(False)
    rival = RIVAL_NAMES.get(rivals[0], rivals[0]) if len(rivals) == 1 else "a rival"
    figure.suptitle(
        f"Time of {rival} / time of implicit_conv, geometric mean over the layers of a network",
        color=theme.text,
        fontsize=11,
    )
    figure.legend(
        loc="outside lower center", ncols=3, frameon=False, labelcolor=theme.text, fontsize=10
    )
    return figure


def peak_of(record: Record) -> list[str]:
    """The measured FMA rate, as a label; it tells machines apart."""
    rate = fma_rate(record)
    return [f"{rate:.0f} GFLOP/s"] if rate else []


def best_flops(record: Record) -> list[float]:
    """FLOP per second of each layer: of "plan" if it was timed, else of "call"."""
    return [
        row["flops"] / row["timings"].get("plan", row["timings"]["call"])["median"]
        for row in record["rows"]
    ]


def ratio_bars(record: Record) -> Figure:
    """Time of each rival over ours, one bar a layer; right of 1 ours is faster."""
    rows, rivals = record["rows"], rivals_of(record)
    bars = len(rows) * max(1, len(rivals))
    figure = Figure(figsize=(WIDTH, 1.2 + 0.32 * bars), layout="constrained")
    axes = figure.subplots()
    places = np.arange(len(rows), dtype=float)
    height = 0.8 / max(1, len(rivals))
    for number, rival in enumerate(rivals):
        key = ratio_key(rival, ours_against(rival)[0])
        ratios = [row["ratios"].get(key, math.nan) for row in rows]
        shifted = places + (number - (len(rivals) - 1) / 2) * height
        color = OURS if number == 0 else None
        drawn = axes.barh(shifted, ratios, height, label=rival, color=color)
        axes.bar_label(drawn, fmt="%.2f", padding=3, fontsize=8)
    axes.axvline(1, color=ROOF, linewidth=1)
    axes.set_yticks(places, [row["layer"] for row in rows], fontsize=8)
    axes.invert_yaxis()
    axes.set_xlim(0, 1.15 * max(1.0, axes.get_xlim()[1]))
    compared = " or ".join(sorted({ours_against(rival)[0] for rival in rivals}))
    axes.set_xlabel(f"time of the rival / ours ({compared})\nright of 1: ours is faster")
    figure.legend(loc="outside upper right")
    return figure


def roofline(record: Record) -> Figure:
    """GFLOP/s over FLOP per byte of x, w and y, with the ceilings that the same run measured."""
    figure = Figure(figsize=(WIDTH, 3.9), layout="constrained")
    axes = figure.subplots()
    intensity = np.array([row["flops"] / row["bytes"] for row in record["rows"]])
    flops = np.array(best_flops(record)) / 1e9
    fewer = np.array([uses_winograd(row) for row in record["rows"]], bool)
    axes.loglog(intensity[~fewer], flops[~fewer], "o", base=2, color=OURS, label="layers")
    if fewer.any():
        label = "layers by Winograd, counted as direct sums"
        axes.loglog(intensity[fewer], flops[fewer], "^", base=2, color=WINOGRAD, label=label)
    for axis in (axes.xaxis, axes.yaxis):  # 64, not 6.4e1: a record spans two decades at most
        axis.set_major_formatter("{x:g}")
    if "ceilings" in record and len(intensity):
        peak, copy = record["ceilings"]["fma"], record["ceilings"]["copy"]
        x = np.geomspace(intensity.min() / 2, intensity.max() * 2, 100)
        label = f"measured: {peak / 1e9:.0f} GFLOP/s of FMA, {copy / 1e9:.0f} GB/s of copy"
        axes.plot(x, np.minimum(peak, copy * x) / 1e9, color=ROOF, label=label)
    axes.set_xlabel("FLOP per byte of x, w and y")
    axes.set_ylabel("GFLOP/s (plan)")
    axes.grid(visible=True, which="both", alpha=0.2)
    figure.legend(loc="outside upper center", fontsize=8)
    return figure


def history(records: Sequence[Record]) -> Figure:
    """Share of the FMA peak over records in order of time; one panel a layer.

    The peak is the one that the same run measured.
    """
    shares: dict[str, list[tuple[int, float]]] = {}
    for number, record in enumerate(records):
        for row, flops in zip(record["rows"], best_flops(record), strict=True):
            share = flops / record["ceilings"]["fma"]
            shares.setdefault(row["layer"], []).append((number, share))
    columns = min(3, len(shares))
    lines = math.ceil(len(shares) / columns)
    figure = Figure(figsize=(WIDTH, 0.8 + 1.1 * lines), layout="constrained")
    grid = figure.subplots(lines, columns, sharex=True, sharey=True, squeeze=False)
    for axes, (layer, points) in zip(grid.flat, shares.items(), strict=False):
        axes.plot(*zip(*points, strict=True), "o-", color=OURS, markersize=3)
        axes.set_title(layer, fontsize=7)
        axes.tick_params(labelsize=6)
    for axes in grid.flat[len(shares) :]:
        axes.set_axis_off()
    grid[0, 0].set_xticks(range(len(records)))
    grid[0, 0].set_ylim(bottom=0)
    figure.supylabel("share of the FMA peak", fontsize=8)
    figure.supxlabel("record", fontsize=8)
    return figure
