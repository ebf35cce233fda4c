"""Plots of records, as SVG that needs no library and follows the reader's light or dark theme."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape

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

Point = tuple[float, float]
WIDTH = 480  # pixels; the text stays legible if a phone shrinks the plot
LETTER = 0.62  # mean width of a letter, in sizes of the font
SIZE = 11  # of text, in pixels
BAR, GAP = 12, 8  # height of a bar, and space between layers
MARK = 4  # half the size of a mark
RIVAL_NAMES = {"torch": "PyTorch (oneDNN)", "opencv": "OpenCV", "scipy": "SciPy"}
# Colours by what they mean; bars of rivals have the last five in turn.
LIGHT = {"page": "#fff", "text": "#1f2328", "faint": "#d1d9e0", "call": "#1f6f8b"}
LIGHT |= {"plan": "#a9d0dc", "worst": "#d55e00", "inside": "#fff", "bar0": "#1f6f8b"}
LIGHT |= {"bar1": "#7fb8a4", "bar2": "#d98c3f", "bar3": "#8a6fb0", "bar4": "#8b949e"}
DARK = {"page": "#0d1117", "text": "#e6edf3", "faint": "#3d444d", "call": "#2f8fb0"}
DARK |= {"plan": "#1d4757", "worst": "#ffa657", "bar0": "#2f8fb0", "bar3": "#a58bd0"}


class Picture:
    """An SVG picture: each method draws one thing on top of those before; y grows downwards."""

    def __init__(self, width: float, height: float) -> None:
        rules = "text,rect,circle,path{fill:currentColor}polyline{fill:none;stroke:currentColor}"
        dark = f"@media(prefers-color-scheme:dark){{{_colors(DARK)}}}"
        size = f'width="{width:g}" height="{height:g}" viewBox="0 0 {width:g} {height:g}"'
        self.parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="system-ui,sans-serif">'
            f"<style>{rules}{_colors(LIGHT)}{dark}</style>"
        ]
        self.rect(0, 0, width, height, "page")

    def rect(self, x: float, y: float, width: float, height: float, color: str) -> None:
        """A filled rectangle; (x, y) is its upper left corner."""
        where = f'x="{x:.4g}" y="{y:.5g}" width="{width:.4g}" height="{height:.5g}"'
        self.parts.append(f'<rect class="{color}" {where}/>')

    def line(self, points: Iterable[Point], color: str, width: float = 1) -> None:
        """A line through points."""
        where = " ".join(f"{x:.4g},{y:.5g}" for x, y in points)
        self.parts.append(f'<polyline class="{color}" stroke-width="{width}" points="{where}"/>')

    def mark(self, x: float, y: float, color: str, shape: str = "circle") -> None:
        """A circle, a "triangle" or a "diamond"."""
        if shape == "circle":
            self.parts.append(f'<circle class="{color}" cx="{x:.4g}" cy="{y:.5g}" r="{MARK}"/>')
            return
        steps = {"triangle": "l5,9h-10z", "diamond": "l5,5l-5,5l-5,-5z"}[shape]
        self.parts.append(f'<path class="{color}" d="M{x:.4g},{y - 5:.5g}{steps}"/>')

    def text(
        self,
        x: float,
        y: float,
        words: str,
        anchor: str = "start",
        color: str = "text",
        size: float = SIZE,
    ) -> None:
        """Words whose middle line is y; at x they start, end, or have their middle."""
        where = f'x="{x:.4g}" y="{y + 0.35 * size:.5g}" text-anchor="{anchor}" font-size="{size:g}"'
        self.parts.append(f'<text class="{color}" {where}>{escape(words)}</text>')

    def legend(self, x: float, y: float, entries: Mapping[str, str]) -> None:
        """Squares of colours with words, from left to right: {words: colour}."""
        for words, color in entries.items():
            self.rect(x, y - 5, 10, 10, color)
            self.text(x + 14, y, words)
            x += 30 + width_of(words)

    def __str__(self) -> str:
        return "".join([*self.parts, "</svg>\n"])


def _colors(theme: Mapping[str, str]) -> str:
    return "".join(f".{name}{{color:{color}}}" for name, color in theme.items())


def width_of(words: str, size: float = SIZE) -> float:
    """About how wide words are, in pixels."""
    return LETTER * size * len(words)


def overview(overviews: Sequence[Overview]) -> Picture:
    """One bar a run: the rival's time over ours, with the worst layer marked."""
    rivals = sorted({found.rival for found in overviews})
    several = len(rivals) > 1
    labels = [
        ", ".join([*words_of(found.record), *peak_of(found.record), *[found.rival] * several])
        for found in overviews
    ]
    left, top, step = 10 + max(map(width_of, labels)), 50, 26
    width, bottom = left + 420, top + step * len(overviews)
    most = max([1.0, *(mean for found in overviews for mean in found.means.values())])
    scale = (width - left - 70) / most
    picture = Picture(width, bottom + 45)
    rival = RIVAL_NAMES.get(rivals[0], rivals[0]) if not several else "a rival"
    title = f"Time of {rival} / time of implicit_conv, geometric mean over a network's layers"
    picture.text(width / 2, 16, title, "middle", size=13)
    keys = {"call: packs the filter": "call", "plan: packed once": "plan", "worst layer": "worst"}
    picture.legend(left, 36, keys)
    for number, (found, label) in enumerate(zip(overviews, labels, strict=True)):
        y = top + step * (number + 0.5)
        picture.text(left - 6, y, label, "end")
        for name in ("plan", "call"):
            if name in found.means:
                picture.rect(left, y - 9, scale * found.means[name], 18, name)
        end = left + scale * max(found.means.values())
        picture.text(end + 6, y, " / ".join(f"{mean:.2f}" for mean in found.means.values()))
        inside = "inside" if "call" in found.means else "text"
        at = left + scale * min(found.worst, 1) - 8
        picture.text(at, y, f"{found.worst:.2f}", "end", inside)
    picture.line([(left + scale, top), (left + scale, bottom)], "text")
    for number, found in enumerate(overviews):
        picture.mark(left + scale * found.worst, top + step * (number + 0.5), "worst", "diamond")
    for tick in range(int(most) + 1):
        words = {1: "1: as fast", 2: "2: twice as fast"}.get(tick, str(tick))
        picture.text(left + scale * tick, bottom + 14, words, "middle", size=10)
    return picture


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


def ratio_bars(record: Record) -> Picture:
    """Time of each rival over ours, one bar a layer; right of 1 ours is faster."""
    rows, rivals = record["rows"], rivals_of(record)
    keys = [ratio_key(rival, ours_against(rival)[0]) for rival in rivals]
    left = 10 + max(width_of(row["layer"]) for row in rows)
    most = max([1.0, *(row["ratios"].get(key, 0.0) for row in rows for key in keys)])
    scale, top = (WIDTH - left - 40) / most, 30
    step = BAR * len(rivals) + GAP
    bottom = top + step * len(rows)
    picture = Picture(WIDTH, bottom + 44)
    colors = [f"bar{number % 5}" for number in range(len(rivals))]
    picture.legend(left, 14, dict(zip(rivals, colors, strict=True)))
    for number, row in enumerate(rows):
        y = top + step * number
        picture.text(left - 6, y + (step - GAP) / 2, row["layer"], "end")
        for key, color in zip(keys, colors, strict=True):
            if key in row["ratios"]:
                ratio = row["ratios"][key]
                picture.rect(left, y, scale * ratio, BAR - 1, color)
                picture.text(left + scale * ratio + 4, y + BAR / 2, f"{ratio:.2f}", size=10)
            y += BAR
    picture.line([(left + scale, top - 4), (left + scale, bottom)], "text")
    for tick in range(0, int(most) + 1, 1 + int(most) // 8):
        picture.text(left + scale * tick, bottom + 6, str(tick), "middle", size=10)
    compared = " or ".join(sorted({ours_against(rival)[0] for rival in rivals}))
    words = f"time of the rival / ours ({compared}); right of 1 ours is faster"
    picture.text(WIDTH - 10, bottom + 28, words, "end")
    return picture


def roofline(record: Record) -> Picture:
    """GFLOP/s over FLOP per byte of x, w and y, with the ceilings that the same run measured."""
    rows = record["rows"]
    points = [
        (row["flops"] / row["bytes"], flops / 1e9)
        for row, flops in zip(rows, best_flops(record), strict=True)
    ]
    low, high = min(x for x, _ in points) / 2, max(x for x, _ in points) * 2
    roof, names = [], {"layers": "call"}
    if any(map(uses_winograd, rows)):
        names["layers by Winograd, counted as direct sums"] = "worst"
    if "ceilings" in record:
        peak, copy = record["ceilings"]["fma"] / 1e9, record["ceilings"]["copy"] / 1e9
        corners = sorted({low, min(max(low, peak / copy), high), high})
        roof = [(x, min(peak, copy * x)) for x in corners]
    bottom = min(y for _, y in points + roof) / 1.3
    top = max(y for _, y in points + roof) * 1.3
    left, right, upper, lower = 60, WIDTH - 15, 70, 340

    def at(x: float, y: float) -> Point:
        across, up = math.log(x / low) / math.log(high / low), math.log(y / bottom)
        return left + across * (right - left), lower - up / math.log(top / bottom) * (lower - upper)

    picture = Picture(WIDTH, lower + 45)
    picture.legend(left, 14, names)
    if roof:
        words = f"measured: {peak:.0f} GFLOP/s of FMA, {copy:.0f} GB/s of copy"
        picture.text(left + 14, 34, words)
        picture.line([(left, 34), (left + 10, 34)], "text", 2)
    for x in _powers(low, high):
        picture.line([at(x, bottom), at(x, top)], "faint")
        picture.text(at(x, bottom)[0], lower + 12, f"{x:g}", "middle", size=10)
    for y in _powers(bottom, top):
        picture.line([at(low, y), at(high, y)], "faint")
        picture.text(left - 6, at(low, y)[1], f"{y:g}", "end", size=10)
    picture.line(map(at, *zip(*roof, strict=True)) if roof else [], "text", 2)
    for row, point in zip(rows, points, strict=True):
        fewer = uses_winograd(row)
        picture.mark(*at(*point), "worst" if fewer else "call", "triangle" if fewer else "circle")
    picture.text((left + right) / 2, lower + 32, "FLOP per byte of x, w and y", "middle")
    picture.text(8, upper - 12, "GFLOP/s (plan)")
    return picture


def _powers(low: float, high: float) -> list[float]:
    """Powers of two between two numbers."""
    return [2.0**n for n in range(math.ceil(math.log2(low)), math.floor(math.log2(high)) + 1)]
