"""The form of the JSON that `implicit-conv lint` reads, as a JSON schema."""

from __future__ import annotations

from dataclasses import MISSING, Field, fields
from typing import Any

from implicit_conv.tma.maps.driver import ADDRESSES, ARGUMENTS, ARRAYS, ENUMS, NEEDED, NUMBERS
from implicit_conv.tma.maps.limits import ALLOWED_SWIZZLES, FILLS, INTERLEAVES
from implicit_conv.tma.maps.maps import WIDE_MODES, Im2colMap, Im2colWideMap
from implicit_conv.tma.maps.ptx import DIRECTIONS, REDUCTIONS
from implicit_conv.tma.maps.tiled import TiledMap

INTEGER = {"type": "integer"}
INTEGERS = {"type": "array", "items": INTEGER}
EITHER = {"anyOf": [INTEGER, INTEGERS]}
NAME_OR_NUMBER = {"type": ["string", "integer"]}
OPERANDS = {
    "coords": {**INTEGERS, "description": "start of a load, (n, [d,] h, w, c)"},
    "offsets": {"anyOf": [INTEGERS, {"type": "null"}], "description": "of im2col, ([d,] h, w)"},
    "w_halo": INTEGER,
    "w_offset": INTEGER,
    "dst": {**INTEGER, "description": "shared address, bytes"},
    "direction": {"enum": list(DIRECTIONS)},
    "reduction": {"enum": list(REDUCTIONS)},
    "arch": {"type": "string", "description": 'the target, such as "sm_100a"'},
    "operator": {"enum": ["fprop", "dgrad", "wgrad"]},
    "problem": {
        "type": "object",
        "description": "the convolution: shapes of x and w, and options of conv2d",
        "required": ["x", "w"],
        "properties": {
            "x": INTEGERS,
            "w": INTEGERS,
            "stride": EITHER,
            "dilation": EITHER,
            "padding": {},
            "groups": INTEGER,
            "layout": {"type": "string"},
            "weight_layout": {"type": "string"},
        },
        "additionalProperties": False,
    },
}
OURS: dict[str, dict[str, Any]] = {
    "shape": INTEGERS,
    "dtype": {"type": "string"},
    "box": INTEGERS,
    "step": EITHER,
    "lower_corner": INTEGERS,
    "upper_corner": INTEGERS,
    "lower_corner_w": INTEGER,
    "upper_corner_w": INTEGER,
    "traversal_stride": EITHER,
    "pixels_per_column": INTEGER,
    "channels_per_pixel": INTEGER,
    "swizzle": {"enum": list(ALLOWED_SWIZZLES["tiled"])},
    "mode": {"enum": list(WIDE_MODES)},
    "oob_fill": {"enum": list(FILLS)},
    "strides": {"anyOf": [INTEGERS, {"type": "null"}], "description": "bytes; packed if left out"},
    "address": {"type": ["integer", "null"]},
    "interleave": {"enum": list(INTERLEAVES)},
}
FUNCTIONS = {"tiled": "", "im2col": "Im2col", "w": "Im2colWide"}


def schema() -> dict[str, Any]:
    """The JSON schema of one map with its load."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A tensor map, and a load with it",
        "anyOf": [
            *(_class(kind) for kind in (TiledMap, Im2colMap, Im2colWideMap)),
            *(_call(mode) for mode in NEEDED),
        ],
    }


def _class(kind: type[TiledMap | Im2colMap | Im2colWideMap]) -> dict[str, Any]:
    """The keyword arguments of one of our classes."""
    known = [entry for entry in fields(kind) if entry.init]
    return {
        "title": kind.__name__,
        "type": "object",
        "required": [entry.name for entry in known if entry.default is MISSING],
        "properties": {**{entry.name: _form(entry) for entry in known}, **OPERANDS},
        "additionalProperties": False,
    }


def _form(entry: Field[Any]) -> dict[str, Any]:
    """The form of one argument, with its default."""
    default = {} if entry.default is MISSING else {"default": entry.default}
    return {**OURS[entry.name], **default}


def _call(mode: str) -> dict[str, Any]:
    """The arguments of one of the driver's calls."""
    properties: dict[str, Any] = {"function": {"type": "string"}}
    for name in ARGUMENTS:
        if name in ARRAYS:
            properties[name] = {**INTEGERS, "description": "fastest-first"}
        elif name in NUMBERS:
            properties[name] = INTEGER
        elif name in ADDRESSES:
            properties[name] = {"type": ["integer", "null"]}
        else:
            assert name in ENUMS or name == "tensorDataType", name
            properties[name] = NAME_OR_NUMBER
    return {
        "title": f"the arguments of cuTensorMapEncode{FUNCTIONS[mode] or 'Tiled'}",
        "type": "object",
        "required": list(NEEDED[mode]),
        "properties": {**properties, **OPERANDS},
        "additionalProperties": False,
    }
