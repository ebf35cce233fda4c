"""Pictures as SVG that needs no library and follows the reader's light or dark theme."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from html import escape

Point = tuple[float, float]
LETTER = 0.62  # mean width of a letter of the fonts below, in sizes of the font
SIZE = 11  # of text, in pixels
FONTS = "system-ui,Segoe UI,Helvetica,Arial,sans-serif"
# Colours by what they mean; marks of rivals have the last four in turn. The page has a colour, so
# that text is read on any background that stands around the picture.
LIGHT = {"page": "#fff", "text": "#1f2328", "faint": "#d1d9e0", "call": "#1f6f8b"}
LIGHT |= {"plan": "#5f9fb5", "worst": "#d55e00", "rim": "#fff"}
LIGHT |= {"mark0": "#1f6f8b", "mark1": "#c2410c", "mark2": "#6d4fa3", "mark3": "#57606a"}
DARK = {"page": "#0d1117", "text": "#e6edf3", "faint": "#3d444d", "call": "#4fb3d4"}
DARK |= {"plan": "#2a7591", "worst": "#ffa657", "rim": "#0d1117"}
DARK |= {"mark0": "#4fb3d4", "mark1": "#ffa657", "mark2": "#b79ae8", "mark3": "#9198a1"}
SHAPES = ("circle", "diamond", "triangle", "square")  # of marks, in turn
PATHS = {
    "diamond": "m0,{up}l{half},{half}l-{half},{half}l-{half},-{half}z",
    "triangle": "m0,{up}l{half},{wide}h-{wide}z",
    "square": "m-{half},{up}h{wide}v{wide}h-{wide}z",
}


class Picture:
    """An SVG picture: each method draws one thing on top of those before; y grows downwards."""

    def __init__(self, width: float, height: float, words: str) -> None:
        """`words` say what the picture shows, to those who cannot see it."""
        rules = "text,rect,circle,path{fill:currentColor}polyline{fill:none;stroke:currentColor}"
        dark = f"@media(prefers-color-scheme:dark){{{_colors(DARK)}}}"
        size = f'width="{width:g}" height="{height:g}" viewBox="0 0 {width:g} {height:g}"'
        self.width, self.height = width, height
        self.parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" font-family="{FONTS}">'
            f"<title>{escape(words)}</title><style>{rules}{_colors(LIGHT)}{dark}</style>"
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

    def rules(self, left: float, right: float, heights: Iterable[float]) -> None:
        """Faint level lines at these heights, which take less room than one by one."""
        where = "".join(f"M{left:.4g},{y:.5g}H{right:.4g}" for y in heights)
        self.parts.append(
            f'<path class="faint" stroke="currentColor" stroke-width=".5" d="{where}"/>'
        )

    def labels(self, x: float, rows: Iterable[tuple[float, str]], size: float) -> None:
        """(Middle line, words) of texts that end at x, which take less room than one by one."""
        given = (f'<text x="{x:.4g}" y="{y + 0.35 * size:.5g}">{escape(w)}</text>' for y, w in rows)
        around = f'<g class="text" text-anchor="end" font-size="{size:g}">'
        self.parts.append(f"{around}{''.join(given)}</g>")

    def mark(self, x: float, y: float, color: str, shape: str = "circle", half: float = 4) -> None:
        """A mark of one of SHAPES around a point; `half` is half its size."""
        if shape == "circle":
            where = f'cx="{x:.4g}" cy="{y:.5g}" r="{half:.3g}"'
            self.parts.append(f'<circle class="{color}" {where}/>')
            return
        steps = PATHS[shape].format(up=f"{-half:.3g}", half=f"{half:.3g}", wide=f"{2 * half:.3g}")
        self.parts.append(f'<path class="{color}" d="M{x:.4g},{y:.5g}{steps}"/>')

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

    def __str__(self) -> str:
        return "".join([*self.parts, "</svg>\n"])


def _colors(theme: Mapping[str, str]) -> str:
    return "".join(f".{name}{{color:{color}}}" for name, color in theme.items())


def width_of(words: str, size: float = SIZE) -> float:
    """About how wide words are, in pixels."""
    return LETTER * size * len(words)
