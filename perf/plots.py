"""Plots of records, as matplotlib figures."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from perf.record import Record
from perf.tables import rivals_of

OURS, ROOF = "#1f6f8b", "#555555"
WIDTH = 5.0  # inches: letters stay legible when a phone shrinks the plot


def best_flops(record: Record) -> list[float]:
    """Floating-point operations a second of each row: "plan" where it is timed, else "call"."""
    return [
        row["flops"] / row["timings"].get("plan", row["timings"]["call"])["median"]
        for row in record["rows"]
    ]


def ratio_bars(record: Record) -> Figure:
    """Time of each rival over ours, a bar a layer; right of 1 we are faster."""
    rows, rivals = record["rows"], rivals_of(record)
    figure = Figure(
        figsize=(WIDTH, 1.2 + 0.32 * len(rows) * max(1, len(rivals))), layout="constrained"
    )
    axes = figure.subplots()
    places = np.arange(len(rows), dtype=float)
    height = 0.8 / max(1, len(rivals))
    for number, rival in enumerate(rivals):
        ratios = [row["ratios"].get(rival, math.nan) for row in rows]
        bars = axes.barh(
            places + (number - (len(rivals) - 1) / 2) * height, ratios, height, label=rival,
            color=OURS if number == 0 else None,
        )  # fmt: skip
        axes.bar_label(bars, fmt="%.2f", padding=3, fontsize=8)
    axes.axvline(1, color=ROOF, linewidth=1)
    axes.set_yticks(places, [row["layer"] for row in rows], fontsize=8)
    axes.invert_yaxis()
    axes.set_xlim(0, 1.15 * max(1.0, axes.get_xlim()[1]))
    axes.set_xlabel("rival's time / ours, packing counted\n(right of 1: ours is faster)")
    figure.legend(loc="outside upper right")
    return figure


def roofline(record: Record) -> Figure:
    """GFLOP/s over FLOPs a byte of x, w and y, below the ceilings that the same run measured."""
    figure = Figure(figsize=(WIDTH, 3.6), layout="constrained")
    axes = figure.subplots()
    intensity = [row["flops"] / row["bytes"] for row in record["rows"]]
    flops = np.array(best_flops(record)) / 1e9
    axes.loglog(intensity, flops, "o", base=2, color=OURS, label="layers")
    for axis in (axes.xaxis, axes.yaxis):  # 64, not 6.4e1: records span less than a decade or two
        axis.set_major_formatter("{x:g}")
    if "ceilings" in record and intensity:
        peak, copy = record["ceilings"]["fma"], record["ceilings"]["copy"]
        x = np.geomspace(min(intensity) / 2, max(intensity) * 2, 100)
        axes.plot(
            x, np.minimum(peak, copy * x) / 1e9, color=ROOF,
            label=f"{peak / 1e9:.0f} GFLOP/s of FMAs, {copy / 1e9:.0f} GB/s of copying",
        )  # fmt: skip
    axes.set_xlabel("FLOP a byte of x, w and y")
    axes.set_ylabel("GFLOP/s, packed filter")
    axes.grid(visible=True, which="both", alpha=0.2)
    figure.legend(loc="outside upper center", fontsize=8)
    return figure


def history(records: Sequence[Record]) -> Figure:
    """Share of the FMA peak of the same run, over the records in order of time; a panel a layer."""
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
