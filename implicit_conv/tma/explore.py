"""The explorer: one self-contained HTML page that steps through copies and convolutions.

page/walk.js repeats the arithmetic of kernels/walk.py and tma/lower.py; a test in a browser
compares their results.
"""

from __future__ import annotations

import json
from importlib import resources
from typing import Any

from implicit_conv.tma.examples import EXAMPLES, Example


def page() -> str:
    """The page as HTML; it loads no other file."""
    folder = resources.files("implicit_conv.tma") / "page"
    html = (folder / "index.html").read_text(encoding="utf-8")
    examples = [_form(example) for example in EXAMPLES.values() if "box" not in example.fields]
    parts = {
        "/*STYLE*/": (folder / "style.css").read_text(encoding="utf-8"),
        "/*EXAMPLES*/[]": json.dumps(examples),
        "/*WALK*/": (folder / "walk.js").read_text(encoding="utf-8"),
        "/*SCENE*/": (folder / "scene.js").read_text(encoding="utf-8"),
        "/*VIEW*/": (folder / "view.js").read_text(encoding="utf-8"),
    }
    for mark, text in parts.items():
        html = html.replace(mark, text, 1)
    return html


def _form(example: Example) -> dict[str, Any]:
    """An example as values of the page's form, which leaves out channels."""
    m = example.map.description
    values = {
        "shape": m.shape[:-1],
        "lower": m.lower,
        "upper": m.upper,
        "step": m.step,
        "pixels": (m.pixels,),
        "start": example.coords[:-1],
        "offsets": example.offsets or (0,) * (m.rank - 2),
        "halo": tuple(halo for halo, _ in example.buffers),
        "offset": tuple(offset for _, offset in example.buffers),
    }
    fields = {name: ", ".join(map(str, entries)) for name, entries in values.items()}
    return {"title": example.title, "mode": m.mode, "fields": fields}
