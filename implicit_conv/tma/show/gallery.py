"""The gallery: a page that draws every example."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from implicit_conv.tma.maps.tiled import TiledMap
from implicit_conv.tma.show.drawing import show
from implicit_conv.tma.show.examples import EXAMPLES, Example
from implicit_conv.tma.show.image import SmemImage, smem_image

HEAD = """\
# Gallery of tensor copies

<!-- `implicit-conv draw --gallery docs/gallery` writes this page; do not edit it. -->

These pictures show what the examples of the PTX ISA (Figures 11 to 24) load, and some of our own.

The number in a pixel is its position in the walk. A hatched pixel lies outside the tensor and is
filled. A thick frame marks the halo, a dashed frame the bounding box; where im2col has offsets, a
faint frame is the box shifted by them, which the pixels fill. Each buffer has its own
colour; in im2col::w::128 each group of 32 pixels has, with its halo. The table lists the rows of
shared memory. Dots stand for rows and columns that are left out; `implicit-conv draw` without
`--out` prints them all.
"""


MEMORY = {  # name: (swizzle, bytes of a row, title, note)
    "memory-none": (
        *("none", 128, "Rows of 128 bytes without a swizzle"),
        "The 8 rows that a phase of ldmatrix reads lie in the same four banks.",
    ),
    "memory-128B": (
        *("128B", 128, "Rows of 128 bytes, swizzle 128B"),
        "The 8 rows that a phase of ldmatrix reads lie in all banks.",
    ),
    "memory-64B": (
        *("64B", 64, "Rows of 64 bytes, swizzle 64B"),
        "A line has two rows; the pattern repeats after four lines.",
    ),
    "memory-atoms": (
        *("128B_ATOM_32B", 128, "Rows of 128 bytes, swizzle 128B_ATOM_32B"),
        "Atoms of 32 bytes are exchanged, as tcgen05 reads MN-major elements of 4 bytes.",
    ),
}


def memory(name: str) -> SmemImage:
    """Shared memory after the copy of a picture of `MEMORY`."""
    swizzle, row_bytes, *_ = MEMORY[name]
    map = TiledMap(
        shape=(64, row_bytes // 2), dtype="uint16", box=(64, row_bytes // 2), swizzle=swizzle
    )
    return smem_image(map, np.zeros(map.shape, map.dtype), (0, 0))


def write(folder: str | Path) -> list[Path]:
    """Write README.md and one SVG for each example that can be drawn; return the files."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    written = [folder / "README.md"]
    written[0].write_text(page(), encoding="utf-8")
    for name, example in EXAMPLES.items():
        written.append(folder / f"{name}.svg")
        show(example.picture(), written[-1])
    for name in MEMORY:
        written.append(folder / f"{name}.svg")
        memory(name).draw(written[-1], "ldmatrix")
    return written


def page() -> str:
    """The text of the gallery, as Markdown."""
    examples = "".join(_entry(name, example) for name, example in EXAMPLES.items())
    memory = "".join(
        f"\n## {title}\n\n{note} `SmemImage.draw` makes such pictures.\n\n![{title}]({name}.svg)\n"
        for name, (_, _, title, note) in MEMORY.items()
    )
    return HEAD + examples + memory


def _entry(name: str, example: Example) -> str:
    command = f"`implicit-conv draw --example {name}`"
    return f"\n## {example.title}\n\n{example.note} {command}\n\n![{example.title}]({name}.svg)\n"
