"""Examples that can be drawn: those of the PTX ISA, Figures 11 to 24, and some of our own.

The documentation gives no sizes for Figures 11, 12, 16 and 17; we chose them. The pictures are our
own drawings.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from implicit_conv.tma.maps.maps import Im2colMap, Im2colWideMap, TensorMap
from implicit_conv.tma.maps.ptx import INFIXES, mode_of
from implicit_conv.tma.maps.tiled import TiledMap
from implicit_conv.tma.show.picture import Picture, picture


@dataclass(frozen=True)
class Example:
    """A copy, or several copies from one start."""

    title: str
    note: str
    fields: dict[str, Any]  # arguments of the map
    coords: tuple[int, ...]
    offsets: tuple[int, ...] | None = None
    buffers: tuple[tuple[int, int], ...] = ((0, 0),)  # (w_halo, w_offset) of each

    @property
    def map(self) -> TensorMap:
        """The tensor map."""
        if "box" in self.fields:
            return TiledMap(**self.fields)
        kind = Im2colWideMap if "lower_corner_w" in self.fields else Im2colMap
        return kind(**self.fields)

    def picture(self) -> Picture:
        """What is drawn; raises TensorMapError if the example breaks a rule."""
        return picture(self.map, self.coords, self.offsets, self.buffers, self.title)


def _im2col(
    shape: tuple[int, ...], lower: int, upper: int, step: int, pixels: int, channels: int
) -> dict[str, Any]:
    spatial = len(shape) - 2
    corners = {"lower_corner": (lower,) * spatial, "upper_corner": (upper,) * spatial}
    return _walk(shape, step, pixels, channels) | corners


def _wide(
    shape: tuple[int, ...], lower: int, upper: int, step: int, mode: str = "w", pixels: int = 128
) -> dict[str, Any]:
    corners = {"lower_corner_w": lower, "upper_corner_w": upper, "mode": mode}
    return _walk(shape, step, pixels, 64) | corners


def _walk(shape: tuple[int, ...], step: int, pixels: int, channels: int) -> dict[str, Any]:
    counts = {"pixels_per_column": pixels, "channels_per_pixel": channels}
    return {"shape": shape, "dtype": "float16", "traversal_stride": step, **counts}


def _buffers(
    example: int, first: int, upper: int, stride: int, taps: tuple[str, ...], halos: tuple[int, ...]
) -> dict[str, Example]:
    """The figures of one of the two examples of im2col::w, a buffer each, and all buffers."""
    fields = _wide((128, 9, 67, 64) if example == 1 else (128, 7, 7, 64), -1, upper, stride)
    start, pairs = (7, 2, -1, 0), tuple((halo, number) for number, halo in enumerate(halos))
    convolution = f"3-tap, stride-{stride} convolution"
    figures = {
        f"ptx-{first + n}": Example(
            f"Figure {first + n}: Example {example}, buffer {n + 1}",
            f"{tap} of {'the same convolution' if n else f'a {convolution}'}.",
            fields,
            start,
            buffers=(pairs[n],),
        )
        for n, tap in enumerate(taps)
    }
    title = f"Example {example}: {'both' if len(taps) == 2 else 'all three'} buffers"
    both = Example(title, f"A {convolution} with padding 1.", fields, start, buffers=pairs)
    return {**figures, f"ptx-example-{example}": both}


ROW = (128, 9, 7, 64)
OUR_SIZES = "The documentation gives no sizes for this figure; we chose them."
MISPRINT = (
    "As (n, h, w, c) the starts of Figures 14 and 15 lie outside their own boxes, and the "
    "documentation lists W before H in the corners too; so all three may be meant as (n, w, h, c)."
)
LINE = _im2col((4, 12, 16), -1, -1, 2, 16, 8)
CUBE = _im2col((2, 3, 4, 6, 16), -1, -1, 1, 40, 8)

EXAMPLES = {
    "row": Example(
        "im2col::w of one row: six pixels and a halo of 2",
        "The three taps of a filter row read these rows from row 0, 1 and 2 on. The zero after the "
        "last pixel is the left padding of the next image.",
        _wide((2, 5, 6, 64), -1, 0, 1, pixels=6),
        (0, 2, -1, 0),
        buffers=((2, 0),),
    ),
    "ptx-11": Example(
        "Figure 11: a bounding box with padding",
        f"Corners (-1, -1) and (-1, -1); one pixel, at the lower corner. {OUR_SIZES}",
        _im2col((64, 9, 14, 64), -1, -1, 1, 1, 8),
        (7, -1, -1, 0),
    ),
    "ptx-12": Example(
        "Figure 12: a bounding box inside the image",
        f"Corners (0, 0) and (-2, -2); one pixel, at the lower corner. {OUR_SIZES}",
        _im2col((64, 9, 14, 64), 0, -2, 1, 1, 8),
        (7, 0, 0, 0),
    ),
    "ptx-13": Example(
        "Figure 13: im2col, offsets (0, 0)",
        "Example 1 of im2col mode: at the end of the box the walk goes on from image 7 to image 8. "
        f"The start is read as (n, h, w, c). {MISPRINT}",
        _im2col((64, 9, 14, 64), -1, -1, 1, 64, 8),
        (7, 7, 4, 0),
        (0, 0),
    ),
    "ptx-14": Example(
        "Figure 14: im2col, offsets (2, 2)",
        f"The start (7, 7, 4, 0) is read as (n, w, h, c). {MISPRINT}",
        _im2col((64, 9, 14, 64), 0, -2, 1, 64, 8),
        (7, 4, 7, 0),
        (2, 2),
    ),
    "ptx-15": Example(
        "Figure 15: im2col, traversal stride 2",
        f"The start (7, 7, 5, 0) is read as (n, w, h, c). {MISPRINT}",
        _im2col((64, 8, 14, 64), -1, -1, 2, 32, 16),
        (7, 5, 7, 0),
        (1, 1),
    ),
    "ptx-16": Example(
        "Figure 16: im2col::w walks one row of each image",
        OUR_SIZES,
        _wide((16, 6, 10, 64), -1, -1, 1, pixels=32),
        (3, 2, 4, 0),
    ),
    "ptx-17": Example(
        "Figure 17: the first pixel left of the box",
        f"Only the first run may begin there; later runs begin at the lower corner. {OUR_SIZES}",
        _wide((16, 6, 10, 64), 1, 0, 1, pixels=32),
        (3, 2, -2, 0),
    ),
    "ptx-18": Example(
        "Figure 18: im2col::w with a halo of 2",
        "128 pixels, then the two pixels that follow them in the walk.",
        _wide(ROW, 0, 0, 1),
        (7, 2, 3, 0),
        buffers=((2, 0),),
    ),
    "ptx-19": Example(
        "Figure 19: im2col::w::128 with a halo of 2",
        "Two halo pixels after each 32, in rows 128 to 135; their order is inferred.",
        _wide(ROW, 0, 0, 1, "w128"),
        (7, 2, 3, 0),
        buffers=((2, 0),),
    ),
    **_buffers(1, 20, 0, 2, ("Taps 0 and 2", "Tap 1"), (1, 0)),
    **_buffers(2, 22, -1, 3, ("Tap 0", "Tap 1", "Tap 2"), (0, 0, 0)),
    "line": Example(
        "A signal: im2col of (n, w, c), stride 2",
        "Tap 1 of a convolution of 3 taps with padding 1. Each image is a line of 12 samples.",
        LINE,
        (0, -1, 0),
        (1,),
    ),
    "volume": Example(
        "A volume: im2col of (n, d, h, w, c)",
        "W carries to H, H to D and D to N. Each plane is one depth of one image.",
        CUBE,
        (0, 1, 1, 2, 0),
        (0, 1, 1),
    ),
    "tile": Example(
        "A tile of a matrix",
        "A tiled map of (rows, columns): a box of 8 rows, of which the last two are outside.",
        {"shape": (14, 64), "dtype": "float16", "box": (8, 64), "swizzle": "128B"},
        (8, 0),
    ),
}

FIRST = {"im2col": "ptx-13", "w": "row", "w128": "ptx-19", "tiled": "tile"}  # mode: its example


def example(name: str) -> Example:
    """The example of that name, or of a mode; another name raises a ValueError that lists all."""
    name = FIRST.get(mode_of(name), name)
    if name not in EXAMPLES:
        modes = ", ".join(INFIXES[mode] for mode in FIRST)
        names = ", ".join(EXAMPLES)
        raise ValueError(f"there is no example {name!r}; name a mode ({modes}), or one of {names}")
    return EXAMPLES[name]
