"""The gallery: a page that draws every documented example or says why it cannot."""

from __future__ import annotations

from pathlib import Path

from implicit_conv.tma.drawing import show
from implicit_conv.tma.examples import EXAMPLES, Example
from implicit_conv.tma.limits import TensorMapError

HEAD = """\
# Gallery of tensor copies

These pictures show what the examples of the PTX ISA (Figures 11 to 24) load. Do not edit this
page: `implicit-conv draw --gallery docs/gallery` writes it.

The number in a pixel is its position in the walk. A hatched pixel lies outside the tensor and is
filled. A thick frame marks the halo, a dashed frame the bounding box. Each buffer has its own
colour. The table next to the tensor lists the rows of shared memory.
"""


def write(folder: str | Path) -> list[Path]:
    """Write README.md and one SVG for each example that can be drawn; return the files."""
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
    """The text of the gallery, as Markdown."""
    return HEAD + "".join(_entry(name, example) for name, example in EXAMPLES.items())


def refusal(example: Example) -> str | None:
    """Why an example cannot be drawn; None if it can."""
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
