"""Draw what tensor copies load: planes, box, walk, fills, halo, and shared memory beside them."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from implicit_conv.tma.maps import TensorMap
from implicit_conv.tma.picture import Picture, picture
from implicit_conv.tma.text import render


def draw(
    map: TensorMap,
    coords: Sequence[int],
    offsets: Sequence[int] | None = None,
    w_halo: int = 0,
    w_offset: int = 0,
    *,
    buffers: Sequence[tuple[int, int]] | None = None,
    path: str | Path | None = None,
    title: str = "",
    color: bool | None = None,
) -> str:
    """Draw one copy, or several into buffers of their own.

    Parameters
    ----------
    map, coords, offsets, w_halo, w_offset
        The copy, as for `walk`.
    buffers : sequence of (w_halo, w_offset), optional
        Several copies from the same start, one buffer each, instead of the one pair.
    path : path-like, optional
        A file to draw into: .svg, .png or .pdf, through matplotlib (extra ``plot``).
    title : str
        Instead of the map's sizes.
    color : bool, optional
        ANSI colours in the text; by default where standard output is a terminal that wants them.

    Returns
    -------
    str
        The picture as text, or the file's name where one was drawn.

    Raises
    ------
    TensorMapError
        A ValueError that lists every broken rule.
    ImportError
        A file is named, but matplotlib is not installed.
    """
    copies = [(w_halo, w_offset)] if buffers is None else list(buffers)
    return show(picture(map, coords, offsets, copies, title), path, color)


def show(what: Picture, path: str | Path | None = None, color: bool | None = None) -> str:
    """Draw a picture into a file, or as text; returns the file's name or the text."""
    if path is None:
        return render(what, wants_color() if color is None else color)
    try:
        from implicit_conv.tma.figure import save
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
