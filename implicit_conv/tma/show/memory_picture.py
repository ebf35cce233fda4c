"""A picture of shared memory as lines of 128 bytes: which chunk of which row stands where.

A chunk is 16 bytes, four banks. The chunks that an access reads in its first phase are marked.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from implicit_conv.tma.maps.swizzles import RowLayout
from implicit_conv.tma.run.banks import BankReport

CHUNK, LINE = 16, 128
LINES_MAX = 16  # lines that are drawn


@dataclass(frozen=True)
class MemoryPicture:
    """The chunks of some lines: (row, chunk of the row) or None, and whether they are read."""

    title: str
    subtitle: str
    first: int  # address of the first line
    chunks: tuple[tuple[tuple[int, int] | None, ...], ...]
    read: frozenset[int]  # addresses of chunks that the access reads in its first phase
    verdict: str


def memory_picture(layout: RowLayout, report: BankReport | None) -> MemoryPicture:
    """The picture of the first lines of a copy, and of an access to it."""
    first = layout.dst // LINE * LINE
    per_row = max(1, layout.row_bytes // CHUNK)
    rows = np.arange(layout.rows).reshape(-1, 1)
    at = layout.addresses(rows, np.arange(per_row) * CHUNK) // CHUNK * CHUNK
    owners = {
        int(address): (row, chunk)
        for row, places in enumerate(at.tolist())
        for chunk, address in enumerate(places)
    }
    end = min(first + LINES_MAX * LINE, layout.dst + layout.rows * layout.pitch)
    chunks = tuple(
        tuple(owners.get(line + chunk) for chunk in range(0, LINE, CHUNK))
        for line in range(first, end, LINE)
    )
    read: npt.NDArray[np.int64] = np.array(report.phases[0].addresses if report else [], np.int64)
    return MemoryPicture(
        title=f"shared memory, swizzle {layout.swizzle}",
        subtitle=f"{layout.rows} rows of {layout.row_bytes} bytes, {layout.pitch} bytes apart, "
        f"from address {layout.dst}",
        first=first,
        chunks=chunks,
        read=frozenset((read // CHUNK * CHUNK).tolist()),
        verdict=str(report).splitlines()[0] if report else "",
    )


def memory_text(picture: MemoryPicture) -> str:
    """The picture as lines of text: row:chunk, in brackets where the access reads."""
    banks = "".join(f"{f'banks {b}-{b + 3}':>13}" for b in range(0, 32, 4))
    lines = [picture.title, picture.subtitle, "", f"{'address':>8}{banks}"]
    for i, chunks in enumerate(picture.chunks):
        address = picture.first + i * LINE
        cells = []
        for j, owner in enumerate(chunks):
            label = "." if owner is None else f"{owner[0]}:{owner[1]}"
            read = address + j * CHUNK in picture.read
            cells.append(f"{f'[{label}]' if read else label:>13}")
        lines.append(f"{address:>8}{''.join(cells)}")
    return "\n".join([*lines, *([picture.verdict] if picture.verdict else [])])


def save_memory(picture: MemoryPicture, path: Path) -> None:
    """Draw the picture into a file, by matplotlib."""
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

    from implicit_conv.tma.show import figure as drawing

    cell, height, left, top = 0.86, 0.3, 0.95, 1.25
    size = (left + 8 * cell + 0.25, top + len(picture.chunks) * height + 0.75)
    with matplotlib.rc_context(drawing.STYLE):
        figure = Figure(layout=None, facecolor=drawing.PAPER, figsize=size)
        axes = figure.add_axes((0, 0, 1, 1))
        axes.set_axis_off()
        axes.set_xlim(0, size[0])
        axes.set_ylim(size[1], 0)

        def text(x: float, y: float, words: str, points: float, **more: Any) -> None:
            style = {"fontsize": points, "va": "center", "color": drawing.INK, **more}
            axes.text(x, y, words, **style)

        text(0.2, 0.3, picture.title, 13, weight="bold")
        text(0.2, 0.6, picture.subtitle, 9, color=drawing.FAINT)
        text(left - 0.12, top - 0.17, "address", drawing.DIGITS, ha="right", color=drawing.FAINT)
        for j in range(8):
            words = f"banks {4 * j}-{4 * j + 3}"
            x = left + (j + 0.5) * cell
            text(x, top - 0.17, words, drawing.DIGITS - 1, ha="center", color=drawing.FAINT)
        for i, chunks in enumerate(picture.chunks):
            address, y = picture.first + i * LINE, top + i * height
            style = {"ha": "right", "color": drawing.FAINT}
            text(left - 0.12, y + height / 2, str(address), drawing.DIGITS, **style)
            for j, owner in enumerate(chunks):
                x, color = left + j * cell, drawing.PIXEL
                if owner is not None:
                    color = drawing.tint(drawing.COLORS[owner[0] % len(drawing.COLORS)])
                box = (x + 0.01, y + 0.01), cell - 0.02, height - 0.02
                axes.add_patch(Rectangle(*box, facecolor=color, edgecolor=drawing.LINE, lw=0.5))
                if address + j * CHUNK in picture.read:
                    inner = (x + 0.04, y + 0.04), cell - 0.08, height - 0.08
                    axes.add_patch(
                        Rectangle(*inner, facecolor="none", edgecolor=drawing.INK, linewidth=2)
                    )
                if owner is not None:
                    words = f"{owner[0]}:{owner[1]}"
                    text(x + cell / 2, y + height / 2, words, drawing.DIGITS, ha="center")
        bottom = top + len(picture.chunks) * height
        words = "row:chunk of 16 bytes; a colour for each row"
        if picture.read:
            words += "; framed: what the first phase reads"
        text(0.2, bottom + 0.2, words, drawing.DIGITS)
        text(0.2, bottom + 0.45, picture.verdict, drawing.DIGITS, weight="bold")
        drawing.write(figure, path, digest(picture))


def digest(picture: MemoryPicture) -> str:
    """A hash of the picture and of the files that draw it."""
    from implicit_conv.tma.show import figure as drawing

    sources = (Path(file).read_bytes() for file in (__file__, drawing.__file__))
    return hashlib.sha256(b"".join([*sources, repr(picture).encode()])).hexdigest()[:16]
