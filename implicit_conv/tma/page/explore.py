"""The explorer: one self-contained HTML page that steps through copies and convolutions.

page/walk.js repeats the arithmetic of kernels/walk.py and lowering_choice.py, page/rules.js the
rules of rules.py and driver.py, page/suspicions.js the warnings of suspicions.py that need no guess
of a mistake; tests in a browser compare their results.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib import resources
from typing import Any

from implicit_conv.tma.page.page_limits import page_limits
from implicit_conv.tma.show.examples import EXAMPLES, Example


def page() -> str:
    """The page as HTML; it loads no other file."""
    folder = resources.files("implicit_conv.tma.page")
    html = (folder / "index.html").read_text(encoding="utf-8")
    examples = [_form(example) for example in EXAMPLES.values()]
    parts = {
        "/*STYLE*/": (folder / "style.css").read_text(encoding="utf-8"),
        "/*EXAMPLES*/[]": json.dumps(examples),
        "/*LIMITS*/{}": json.dumps(page_limits()),
        "/*RULES*/": (folder / "rules.js").read_text(encoding="utf-8"),
        "/*SUSPICIONS*/": (folder / "suspicions.js").read_text(encoding="utf-8"),
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
    values: dict[str, Sequence[int]] = {
        "shape": m.shape[:-1],
        "step": m.step[:-1] if m.tiled else m.step,
        "start": example.coords[:-1],
    }
    if m.tiled:
        values["box"] = m.box[:-1]
    else:
        values |= {"lower": m.lower, "upper": m.upper, "pixels": (m.pixels,)}
        values["offsets"] = example.offsets or (0,) * (m.rank - 2)
        values["halo"] = tuple(halo for halo, _ in example.buffers)
        values["offset"] = tuple(offset for _, offset in example.buffers)
    fields = {name: ", ".join(map(str, entries)) for name, entries in values.items()}
    return {"title": example.title, "mode": m.mode, "fields": fields}
