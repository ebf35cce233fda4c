"""Draw what tensor copies load: planes, box, walk, fills, halo and shared memory."""

from __future__ import annotations

import operator
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from implicit_conv.tma.maps.maps import TensorMap
from implicit_conv.tma.run.simulate import HALO_ORDER
from implicit_conv.tma.show.picture import Picture, picture
from implicit_conv.tma.show.text import render


def draw(
    map: TensorMap,
    coords: Sequence[int],
    offsets: Sequence[int] | None = None,
    w_halo: int = 0,
    w_offset: int = 0,
    *,
    buffers: Sequence[tuple[int, int]] | None = None,
    halo_order: str = HALO_ORDER,
    path: str | Path | None = None,
    title: str = "",
    color: bool | None = None,
) -> str:
    """Draw one copy, or several copies that fill one buffer each.

    Parameters
    ----------
    map, coords, offsets, w_halo, w_offset
        As in `walk`.
    buffers : sequence of (w_halo, w_offset), optional
        One copy from the same start for each pair; replaces `w_halo` and `w_offset`.
    halo_order : {"interleaved", "grouped", "inline"}
        As in `walk`.
    path : path-like, optional
        A file to write: .svg, .png or .pdf, by matplotlib (extra ``plot``).
    title : str
        Replaces the sizes of the map.
    color : bool, optional
        Whether the text has ANSI colours; by default, if standard output is a terminal and
        neither NO_COLOR nor TERM=dumb forbids them.

    Returns
    -------
    str
        The picture as text, or the name of the file that was written.

    Raises
    ------
    TensorMapError
        The map or the load breaks rules; the message lists all (a ValueError).
    ValueError
        There are no buffers, or too many pixels to draw.
    TypeError
        A coordinate, an offset, or an entry of `buffers` is not an integer.
    ImportError
        `path` is given, but matplotlib is not installed.
    """
    copies = [(w_halo, w_offset)] if buffers is None else _pairs(buffers)
    return show(picture(map, coords, offsets, copies, title, halo_order), path, color)


def _pairs(buffers: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """`buffers` as pairs of ints."""
    try:
        return [(operator.index(halo), operator.index(offset)) for halo, offset in buffers]
    except (TypeError, ValueError):
        raise TypeError(
            f"buffers = {buffers!r} must be a sequence of integer pairs (w_halo, w_offset)"
        ) from None


def show(what: Picture, path: str | Path | None = None, color: bool | None = None) -> str:
    """Write a picture to a file and return its name, or return the picture as text."""
    if path is None:
        return render(what, wants_color() if color is None else color)
    try:
        from implicit_conv.tma.show.figure import save
    except ImportError as missing:
        raise ImportError(
            "drawing into a file needs matplotlib; in a checkout: pip install '.[plot]'"
        ) from missing
    save(what, path)
    return str(path)


def wants_color() -> bool:
    """Whether standard output is a terminal, and neither NO_COLOR nor TERM=dumb forbids colour."""
    plain = "NO_COLOR" in os.environ or os.environ.get("TERM") == "dumb"
    return sys.stdout.isatty() and not plain
