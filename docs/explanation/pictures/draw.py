"""Draw the pictures of "How it works": ``python docs/explanation/pictures/draw.py``."""

from pathlib import Path

import matplotlib as mpl
import numpy as np

mpl.use("svg")
mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "implicit_conv", "font.size": 11})
import matplotlib.pyplot as plt  # noqa: E402
from matplotlib.patches import Rectangle  # noqa: E402

FOLDER = Path(__file__).parent
INK, FAINT, PIXEL, HALO, PADDING, FILTER, OUTPUT = (
    *("#222222", "#bbbbbb", "#cfe3f7", "#8fbfe8", "#f2f2f2", "#ffd9a8", "#c9e8c5"),
)


def grid(axes, left, top, rows, columns, color=PIXEL, label=None, size=1.0):
    """A grid of unit cells; `color` is one, or a function of row and column; so is `label`."""
    for row, column in np.ndindex(rows, columns):
        face = color(row, column) if callable(color) else color
        corner = (left + column * size, top + row * size)
        axes.add_patch(Rectangle(corner, size, size, facecolor=face, edgecolor=INK, linewidth=0.6))
        if label:
            middle = (corner[0] + size / 2, corner[1] + size / 2)
            axes.text(*middle, label(row, column), ha="center", va="center", fontsize=9)


def picture(name, width, height, draw, limits):
    """Save what `draw` makes of an empty figure; `limits` are its width and height in cells."""
    figure, axes = plt.subplots(figsize=(width, height))
    axes.set(xlim=(0, limits[0]), ylim=(limits[1], 0), aspect="equal")
    axes.axis("off")
    draw(axes)
    metadata = {"Date": None, "Creator": None}
    figure.savefig(
        FOLDER / f"{name}.svg", bbox_inches="tight", facecolor="white", metadata=metadata
    )
    plt.close(figure)


def implicit_gemm(axes):
    """The matrix of windows, which GEMM would read, beside the image that holds the same pixels."""
    grid(axes, 0.2, 1, 4, 5, lambda r, c: HALO if r < 3 and 1 <= c < 4 else PIXEL,
         lambda r, c: "abcdefghijklmnopqrst"[r * 5 + c])  # fmt: skip
    axes.text(2.7, 0.6, "image: 20 pixels", ha="center")
    windows = [[(p + r) * 5 + q + s for r in range(3) for s in range(3)]
               for p in range(2) for q in range(3)]  # fmt: skip
    grid(axes, 7, 0.9, 6, 9, lambda r, _: HALO if r == 1 else PIXEL,
         lambda r, c: "abcdefghijklmnopqrst"[windows[r][c]], 0.75)  # fmt: skip
    axes.text(10.4, 0.6, "matrix of windows: 54 elements", ha="center")
    axes.text(14.15, 3.1, "x", fontsize=14)
    grid(axes, 14.8, 0.9, 9, 1, FILTER, lambda r, _: f"w{r}", 0.5)
    axes.text(15.05, 0.6, "filter", ha="center")
    axes.text(15.7, 3.1, "=", fontsize=14)
    grid(axes, 16.4, 0.9, 6, 1, OUTPUT, lambda r, _: f"y{r}", 0.75)
    axes.text(16.8, 0.6, "output", ha="center")


def shifted_view(axes):
    """A row with its halo in a buffer, and the three views of the taps of a filter row."""
    names = ["0", *"abcdef", "0"]
    color = lambda _, c: PADDING if c in (0, 7) else HALO if c == 6 else PIXEL  # noqa: E731
    axes.text(0, 0.6, "one load: 6 pixels and a halo of 2, zeros where the row leaves the image")
    grid(axes, 0, 1, 1, 8, color, lambda _, c: names[c])
    for tap in range(3):
        top = 2.8 + 1.3 * tap
        grid(axes, tap, top, 1, 6, lambda _, c, tap=tap: color(0, c + tap),
             lambda _, c, tap=tap: names[c + tap])  # fmt: skip
        axes.text(9.2, top + 0.65, f"tap s = {tap} reads the buffer from row {tap} on")


def winograd(axes):
    """The counts of products of a tile of 2 x 2 outputs."""
    grid(axes, 0, 1, 4, 4)
    axes.text(2, 0.6, "4 x 4 pixels", ha="center")
    axes.annotate("", (6.2, 3), (4.4, 3), arrowprops={"arrowstyle": "->"})
    axes.text(5.3, 2.6, "add", ha="center")
    grid(axes, 6.6, 1, 4, 4, HALO)
    axes.text(8.6, 0.6, "16 sums of pixels", ha="center")
    axes.text(11.1, 3.2, "x", fontsize=14, ha="center")
    grid(axes, 11.6, 1, 4, 4, FILTER)
    axes.text(13.6, 0.6, "16 of the filter, once", ha="center")
    axes.annotate("", (17.8, 3), (16, 3), arrowprops={"arrowstyle": "->"})
    axes.text(16.9, 2.6, "add", ha="center")
    grid(axes, 18.2, 2, 2, 2, OUTPUT)
    axes.text(19.2, 1.6, "2 x 2 outputs", ha="center")
    axes.text(10.2, 6, "16 products for 4 outputs; the direct sum takes 4 x 9 = 36", ha="center")


def strict_sums(axes):
    """Chains of products, whose sums are added level by level."""
    for chain in range(4):
        left = 0.3 + chain * 5
        grid(axes, left, 1, 1, 4, PIXEL, lambda _, c: "..." if c == 2 else "", 1)
        axes.text(left + 2, 0.6, "128 products", ha="center", fontsize=9)
        axes.annotate("", (left + 2, 3), (left + 2, 2.1), arrowprops={"arrowstyle": "->"})
        axes.add_patch(
            Rectangle((left + 1.4, 3), 1.2, 0.9, facecolor=OUTPUT, edgecolor=INK, linewidth=0.6)
        )
        axes.annotate(
            "", (10.3, 5.4), (left + 2, 4), arrowprops={"arrowstyle": "->", "color": FAINT}
        )
    axes.add_patch(Rectangle((9.7, 5.4), 1.2, 0.9, facecolor=OUTPUT, edgecolor=INK, linewidth=0.6))
    axes.text(11.2, 6, "levels of 64 sums, in the order of the channels and taps")


if __name__ == "__main__":
    picture("implicit-gemm", 9, 3.2, implicit_gemm, (17.6, 5.9))
    picture("shifted-view", 8, 3.2, shifted_view, (17.6, 6.6))
    picture("winograd", 8.5, 2.8, winograd, (20.6, 6.4))
    picture("strict-sums", 8.5, 2.8, strict_sums, (20.6, 6.6))
