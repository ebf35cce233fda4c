"""The explorer: one self-contained HTML page that steps through copies and convolutions.

What a copy may be and how its loads are scheduled is Python's own, printed as JavaScript. walk.js
repeats the walks of simulate.py and the tiles of lowering.py; tests in a browser compare them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib import resources
from typing import Any

from implicit_conv.kernels import schedule, walk
from implicit_conv.problem.schedule import remainder_count, slots_per_row
from implicit_conv.tma.check.suspicions import corner_suspicions, map_suspicions
from implicit_conv.tma.maps.driver import argument_name, describe_arguments
from implicit_conv.tma.maps.elements import STORED_AS
from implicit_conv.tma.maps.json_maps import schema
from implicit_conv.tma.maps.limits import W_OFFSET_END, Description, Finding, Start, with_rows
from implicit_conv.tma.maps.ptx import instruction, mode_of
from implicit_conv.tma.maps.rules import map_findings, start_findings
from implicit_conv.tma.maps.tiled import TiledMap
from implicit_conv.tma.page.javascript import script
from implicit_conv.tma.show.examples import EXAMPLES, Example

SHARED = (  # what the page has of Python
    *(Description, Finding, Start, with_rows),
    *(map_findings, start_findings, corner_suspicions, map_suspicions),
    *(describe_arguments, argument_name, instruction, mode_of),
    *(schedule.buffer_offset, schedule.buffer_halo, schedule.tap_shift, walk.w128_halo_row),
    *(remainder_count, slots_per_row),
)
TYPES = (
    *("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"),
    *("float16", "float32", "float64", "complex64"),
    *STORED_AS,
)


def page() -> str:
    """The page as HTML; it loads no other file."""
    folder = resources.files("implicit_conv.tma.page")

    def read(name: str) -> str:
        return (folder / name).read_text(encoding="utf-8")

    html = read("index.html")
    data = {"kinds": schema()["anyOf"], "types": {name: _element(name) for name in TYPES}}
    data |= {name: getattr(walk, name) for name in ("W128_PIXELS", "W128_GROUP")}
    parts = {
        "/*STYLE*/": read("style.css"),
        "/*EXAMPLES*/[]": json.dumps([_form(example) for example in EXAMPLES.values()]),
        "/*DATA*/{}": json.dumps({**data, "OFFSET_MAX": W_OFFSET_END - 1}),
        "/*RULES*/": script(*SHARED),
        **{
            f"/*{n.upper()}*/": read(f"{n}.js") for n in ("python", "walk", "lint", "scene", "view")
        },
    }
    for mark, text in parts.items():
        html = html.replace(mark, text, 1)
    return html


def _element(name: str) -> dict[str, Any]:
    """What a description says of a type."""
    m = TiledMap(shape=(16,), dtype=name, box=(16,)).description
    return {"itemsize": m.itemsize, "floating": m.floating, "element": m.element}


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
