"""Tensor maps in JSON: their schema, and files of one, a list, or one a line as of `log_maps`."""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import Any

from implicit_conv.ptx.errors import shortened
from implicit_conv.ptx.limits import read_text
from implicit_conv.tma.maps.driver import ADDRESSES, ARGUMENTS, ARRAYS, ENUMS, NEEDED, NUMBERS
from implicit_conv.tma.maps.limits import ALLOWED_SWIZZLES, FILLS, INTERLEAVES
from implicit_conv.tma.maps.maps import WIDE_MODES, Im2colMap, Im2colWideMap
from implicit_conv.tma.maps.ptx import DIRECTIONS, INFIXES, REDUCTIONS
from implicit_conv.tma.maps.tiled import TiledMap

DIGITS = 40  # of an integer in JSON: those of a tensor map have at most 64 bits
ADVICE = "`implicit-conv lint --help` shows the form"


def read_objects(name: str) -> tuple[str, list[dict[str, Any]]]:
    """(the file's name for messages, its objects); "-" is standard input.

    Raises
    ------
    ValueError
        The file is not JSON, or holds no objects.
    """
    source = "standard input" if name == "-" else name
    opened = nullcontext(sys.stdin) if name == "-" else Path(name).open(encoding="utf-8")
    with opened as file:
        return source, _objects(source, read_text(file, source))


def _objects(source: str, text: str) -> list[dict[str, Any]]:
    """The objects of a JSON text: one, a list, or one a line."""
    try:
        found = _parsed(text)
    except ValueError as error:
        lines = [line for line in text.splitlines() if line.strip()]
        try:
            found = [_parsed(line) for line in lines]
        except ValueError:
            found = None
        if not found or len(lines) < 2:
            raise ValueError(f"{source} is not JSON: {error}; {ADVICE}") from None
    objects = found if isinstance(found, list) else [found]
    if not objects or not all(isinstance(entry, dict) for entry in objects):
        raise ValueError(f"{source} must hold one JSON object, or a list of them; {ADVICE}")
    return objects


def _parsed(text: str) -> Any:
    """The value of a JSON text without NaN and infinities, whose names stand once in an object."""

    def members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for name in names if names.count(name) > 1)
            raise ValueError(f"an object has {shortened(twice)!r} twice")
        return found

    def constant(name: str) -> Any:
        raise ValueError(f"{name} is no number of JSON")

    try:
        return json.loads(
            text, object_pairs_hook=members, parse_constant=constant, parse_int=_integer
        )
    except RecursionError:
        raise ValueError("its brackets are too deep inside each other") from None


def _integer(digits: str) -> int:
    if len(digits) > DIGITS:
        raise ValueError(f"the integer {shortened(digits)} has more than {DIGITS} digits")
    return int(digits)


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
    "mode": {"enum": [*WIDE_MODES, *(INFIXES[mode] for mode in WIDE_MODES)]},
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
