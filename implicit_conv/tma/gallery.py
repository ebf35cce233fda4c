"""The gallery: a page of all documented examples, each drawn, or refused with the reason."""

from __future__ import annotations

from pathlib import Path

from implicit_conv.tma.drawing import show
from implicit_conv.tma.examples import EXAMPLES, Example
from implicit_conv.tma.limits import TensorMapError

HEAD = """\
# Gallery of tensor copies

What the examples of the PTX ISA (Figures 11 to 24) load, drawn by `implicit-conv draw`. Written by
`implicit-conv draw --gallery docs/gallery`; do not edit.

A number in a pixel is its place in the walk. Hatched: outside the tensor, so filled. Thick frame:
halo. Dashed: bounding box. Each buffer has a colour of its own; the table beside or below the
tensor is shared memory, row by row.
"""


def write(folder: str | Path) -> list[Path]:
    """Write README.md and one SVG for each example; returns what was written."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    written = [folder / "README.md"]
    written[0].write_text(page(), encoding="utf-8")
    for name, example in EXAMPLES.items():
        if refusal(example) is None:
            written.append(folder / f"{name}.svg")
            show(example.picture(), written[-1])
    return written


def page() -> str:
    """The gallery's text, Markdown."""
    return HEAD + "".join(_entry(name, example) for name, example in EXAMPLES.items())


def refusal(example: Example) -> str | None:
    """Why an example cannot be drawn, or None."""
    try:
        example.picture()
    except TensorMapError as refused:
        return "; ".join(map(str, refused.findings))
    return None


def _entry(name: str, example: Example) -> str:
    reason = refusal(example)
    text = f"\n## {example.title}\n\n{example.note} `implicit-conv draw --example {name}`\n\n"
    if reason is None:
        return f"{text}![{example.title}]({name}.svg)\n"
    return f"{text}Not drawn: {reason}.\n"
