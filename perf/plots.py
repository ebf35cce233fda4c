"""Plots of records: the chart of networks, and the layers of one run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from perf.highlights import Least
from perf.machines import machine_of
from perf.overviews import FASTEST, fastest_of, ours_against, ratio_key, rivals_of
from perf.picture import SHAPES, SIZE, Picture, width_of
from perf.record import Record
from perf.tables import suite_title, unusual_words, uses_winograd

Rows = Sequence[dict[str, Any]]  # layers of a record

CHART = 800  # pixels, the width of the chart of networks
LARGE, MEDIUM = 18, 17  # text of the chart, which a phone shows at half its size
STEP = 34  # height of a bar of the chart, with its space

LAYERS = 440  # pixels, the width of a plot of layers, so that a phone shrinks its text little
MOST_HEIGHT = 900  # pixels, of a plot of layers whose rows are higher than the least
MOST_STEP, LEAST_STEP = 17, 9  # height of a row where there are few, and where there are many
SHARES = 84  # width of the panel of shares
LEAST = 100  # pixels that ratios need: beside long names there is no panel of shares


def overview(bars: Sequence[Least]) -> Picture:
    """One or more bars: the rival's time over ours, with the worst layer marked."""
    labels = [chart_label(bar.mean.record) for bar in bars]
    ends = [f"{bar.mean.ratio:.2f} {bar.mean.against}" for bar in bars]
    left = 20 + max(width_of(label, LARGE) for label in labels)
    top, bottom = 92, 92 + STEP * len(bars)
    scale = min(
        (CHART - left - 16 - width_of(end, LARGE)) / max(1, bar.mean.ratio)
        for bar, end in zip(bars, ends, strict=True)
    )
    picture = Picture(CHART, bottom + 44, overview_words(bars))
    picture.text(12, 20, "Time of the fastest rival over ours, where we compare worst", size=LARGE)
    words = "mean of a network's layers; float32, one image, one thread unless said"
    picture.text(12, 46, words, size=MEDIUM)
    picture.rect(12, 65, 16, 16, "call")
    picture.text(34, 73, "filter rearranged in each call", size=MEDIUM)
    picture.rect(308, 65, 16, 16, "plan")
    picture.text(330, 73, "filter packed once", size=MEDIUM)
    picture.mark(519, 73, "worst", "diamond", 9)
    picture.text(534, 73, "worst layer on any CPU", size=MEDIUM)
    for number, (bar, label, end) in enumerate(zip(bars, labels, ends, strict=True)):
        y = top + STEP * (number + 0.5)
        picture.text(left - 8, y, label, "end", size=LARGE)
        picture.rect(left, y - 12, scale * bar.mean.ratio, 24, bar.mean.worst_of)
        past = max(bar.mean.ratio, bar.worst.worst + 9 / scale)
        picture.text(left + scale * past + 8, y, end, size=LARGE)
    picture.line([(left + scale, top - 4), (left + scale, bottom + 4)], "text", 2)
    for number, bar in enumerate(bars):
        at = left + scale * bar.worst.worst, top + STEP * (number + 0.5)
        picture.mark(*at, "rim", "diamond", 11)
        picture.mark(*at, "worst", "diamond", 9)
    for tick, words in {0: "0", 1: "1: as fast", 2: "2: twice as fast"}.items():
        if tick <= max([1, *(bar.mean.ratio for bar in bars)]):
            picture.text(left + scale * tick, bottom + 22, words, "middle", size=MEDIUM)
    return picture


def chart_label(record: Record) -> str:
    """Network, machine, and what is unusual of a run."""
    return ", ".join([suite_title(record), machine_of(record), *unusual_words(record)])


def overview_words(bars: Sequence[Least]) -> str:
    """What the chart shows, in words."""
    told = (
        f"{chart_label(bar.mean.record)}: {bar.mean.ratio:.2f} {bar.mean.against}, worst layer "
        f"{bar.worst.worst:.2f}{' on ' * bool(bar.elsewhere)}{bar.elsewhere}"
        for bar in bars
    )
    return f"Time of the fastest rival over ours, above 1 ours is faster. {'; '.join(told)}."


def layers(record: Record) -> Picture:
    """A row a layer: time of each rival over ours, the worst first, and our share of the limit."""
    rivals = ratios_by_rival(record)

    def worst(row: dict[str, Any]) -> float:
        return min(ratios.get(row["layer"], math.inf) for ratios in rivals.values())

    rows = sorted(record["rows"], key=worst)
    top, foot = 52, 46
    step = min(MOST_STEP, max(LEAST_STEP, (MOST_HEIGHT - top - foot) / len(rows)))
    size = min(SIZE, 0.84 * step)
    left = 8 + max(width_of(row["layer"], size) for row in rows)
    right = LAYERS - 12
    shared = "ceilings" in record and right - SHARES - left >= LEAST
    right -= SHARES * shared
    found = [ratio for ratios in rivals.values() for ratio in ratios.values()]
    low, high = min(0.9, *found) / 1.06, max(2.0, *found) * 1.06

    def at(ratio: float) -> float:
        return left + 4 + math.log(ratio / low) / math.log(high / low) * (right - left - 8)

    bottom = top + step * len(rows)
    picture = Picture(LAYERS, bottom + foot, layers_words(record))
    _legend(picture, [*rivals])
    title = "rival's time over ours"
    half = width_of(title) / 2
    picture.text(min(max(at(1), left + half), right - half), 38, title, "middle")
    for tick in _ticks(low, high):
        color, width = ("text", 1.5) if tick == 1 else ("faint", 1)
        picture.line([(at(tick), top - 3), (at(tick), bottom)], color, width)
        picture.text(at(tick), bottom + 10, f"{tick:g}", "middle")
    picture.text(at(1) + 6, bottom + 30, "ours is faster \u2192")
    picture.text(at(1) - 6, bottom + 30, "\u2190 slower", "end")
    heights = [top + step * (number + 0.5) for number in range(len(rows))]
    names = [row["layer"] for row in rows]
    picture.rules(left, right, heights)
    picture.labels(left - 4, zip(heights, names, strict=True), size)
    for y, row in zip(heights, rows, strict=True):
        for mark, ratios in enumerate(rivals.values()):
            if row["layer"] in ratios:
                x = at(ratios[row["layer"]])
                picture.mark(x, y, "rim", SHAPES[mark], 0.24 * step + 1)
                picture.mark(x, y, f"mark{mark}", SHAPES[mark], 0.24 * step)
    if shared:
        _shares(picture, record, rows, top, step)
    return picture


def ratios_by_rival(record: Record) -> dict[str, dict[str, float]]:
    """Time over ours of each rival by layer; where there are more rivals than marks, of the fastest
    on each layer alone.
    """
    rivals = rivals_of(record)
    if len(rivals) > len(SHAPES):
        return {FASTEST: {found.layer: found.ratio for found in fastest_of(record)}}
    keys = {name: ratio_key(name, ours_against(name)[0]) for name in rivals}
    return {
        name: {row["layer"]: row["ratios"][key] for row in record["rows"] if key in row["ratios"]}
        for name, key in keys.items()
    }


def _legend(picture: Picture, rivals: Sequence[str]) -> None:
    """Marks of rivals with their names, from left to right."""
    x = 8.0
    for number, name in enumerate(rivals):
        picture.mark(x + 5, 14, f"mark{number}", SHAPES[number])
        picture.text(x + 14, 14, name)
        x += 28 + width_of(name)


def _shares(picture: Picture, record: Record, rows: Rows, top: float, step: float) -> None:
    """The panel of shares: a bar a layer, and a line at the limit."""
    left, bottom = LAYERS - SHARES, top + step * len(rows)
    shares = [share(record["ceilings"], row) for row in rows]
    scale = (SHARES - 8) / max(1.0, *shares)
    picture.text(LAYERS - 8, 38, "of the limit", "end")
    for number, (row, part) in enumerate(zip(rows, shares, strict=True)):
        y = top + step * (number + 0.16)
        picture.rect(left, y, scale * part, 0.68 * step, "worst" if uses_winograd(row) else "call")
    picture.line([(left + scale, top - 3), (left + scale, bottom)], "text", 1.5)
    picture.text(left, bottom + 10, "0", "middle")
    picture.text(left + scale, bottom + 10, "1", "middle")
    if any(map(uses_winograd, rows)):
        picture.rect(left, bottom + 25, 10, 10, "worst")
        picture.text(left + 14, bottom + 30, "Winograd")


def share(limits: dict[str, float], row: dict[str, Any]) -> float:
    """Of a layer: the share of the rate of FMAs or of the copy bandwidth, whichever is larger."""
    seconds = row["timings"].get("plan", row["timings"]["call"])["median"]
    return float(max(row["flops"] / limits["fma"], row["bytes"] / limits["copy"]) / seconds)


def layers_words(record: Record) -> str:
    """What a plot of layers shows, in words."""
    names, rows = ", ".join(ratios_by_rival(record)), len(record["rows"])
    return f"{chart_label(record)}: time of {names} over ours, for each of {rows} layers"


def _ticks(low: float, high: float) -> list[float]:
    """Powers of two between two ratios, every second one where there are many."""
    first, last = math.ceil(math.log2(low)), math.floor(math.log2(high))
    return [2.0**n for n in range(first, last + 1) if last - first < 7 or n % 2 == 0]
