"""A picture of shared memory as lines of 128 bytes: which chunk of which row stands where.

A chunk is 16 bytes, four banks. The chunks that an access reads in its first phase are marked.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from implicit_conv.tma.maps.swizzles import RowLayout
from implicit_conv.tma.run.banks import BankReport

CHUNK, LINE_BYTES = 16, 128
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
    first = layout.dst // LINE_BYTES * LINE_BYTES
    per_row = max(1, layout.row_bytes // CHUNK)
    rows = np.arange(layout.rows).reshape(-1, 1)
    at = layout.addresses(rows, np.arange(per_row) * CHUNK) // CHUNK * CHUNK
    owners = {
        int(address): (row, chunk)
        for row, places in enumerate(at.tolist())
        for chunk, address in enumerate(places)
    }
    end = min(first + LINES_MAX * LINE_BYTES, layout.dst + layout.rows * layout.pitch)
    chunks = tuple(
        tuple(owners.get(line + chunk) for chunk in range(0, LINE_BYTES, CHUNK))
        for line in range(first, end, LINE_BYTES)
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
        address = picture.first + i * LINE_BYTES
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

    from implicit_conv.tma.show import figure
    from implicit_conv.tma.show.figure import DIGITS, FAINT, INK, LINE, PIXEL

    width, height, left, top = 0.86, 0.3, 0.95, 1.25
    bottom = top + len(picture.chunks) * height
    with matplotlib.rc_context(figure.STYLE):
        canvas = figure.Canvas()
        canvas.resize(left + 8 * width + 0.25, bottom + 0.75)
        canvas.text(0.2, 0.3, picture.title, 13, weight="bold")
        canvas.text(0.2, 0.6, picture.subtitle, 9, color=FAINT)
        canvas.text(left - 0.12, top - 0.17, "address", ha="right", color=FAINT)
        for j in range(8):
            place = left + (j + 0.5) * width, top - 0.17
            words = f"banks {4 * j}-{4 * j + 3}"
            canvas.text(*place, words, DIGITS - 1, ha="center", color=FAINT)
        for i, chunks in enumerate(picture.chunks):
            address, y = picture.first + i * LINE_BYTES, top + i * height
            canvas.text(left - 0.12, y + height / 2, str(address), ha="right", color=FAINT)
            for j, owner in enumerate(chunks):
                x, color, words = left + j * width, PIXEL, ""
                if owner is not None:
                    color = figure.tint(figure.COLORS[owner[0] % len(figure.COLORS)])
                    words = f"{owner[0]}:{owner[1]}"
                cell = (x + 0.01, y + 0.01, width - 0.02, height - 0.02)
                canvas.rectangle(*cell, facecolor=color, edgecolor=LINE, linewidth=0.5)
                if address + j * CHUNK in picture.read:
                    inner = (x + 0.04, y + 0.04, width - 0.08, height - 0.08)
                    canvas.rectangle(*inner, facecolor="none", edgecolor=INK, linewidth=2)
                canvas.text(x + width / 2, y + height / 2, words, ha="center")
        words = "row:chunk of 16 bytes; a colour for each row"
        words += "; framed: what the first phase reads" if picture.read else ""
        canvas.text(0.2, bottom + 0.2, words)
        canvas.text(0.2, bottom + 0.45, picture.verdict, weight="bold")
        figure.write(canvas.figure, path, figure.digest(picture, __file__))
