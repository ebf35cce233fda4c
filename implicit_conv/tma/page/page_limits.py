"""The numbers and names that the explorer's page checks a map by, from `limits` and `driver`."""

from __future__ import annotations

from dataclasses import MISSING, fields
from typing import Any

from implicit_conv.tma.check import suspicions
from implicit_conv.tma.maps import driver, limits
from implicit_conv.tma.maps.elements import STORED_AS, element_type, is_floating
from implicit_conv.tma.maps.maps import Im2colMap, Im2colWideMap
from implicit_conv.tma.maps.schema import OPERANDS, OURS
from implicit_conv.tma.maps.swizzles import SWIZZLES
from implicit_conv.tma.maps.tiled import TiledMap

TYPES = (
    *("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"),
    *("float16", "float32", "float64", "complex64"),
    *STORED_AS,
)
SOURCES = ("CORNERS", "WIDE", "OFFSETS", "HALO", "COORDS", "SMEM")


def page_limits() -> dict[str, Any]:
    """What page/rules.js knows as LIMITS."""
    described: dict[str, Any] = {**OURS, **OPERANDS}
    kinds = {name: _kind(form) for name, form in described.items()}
    kinds |= dict.fromkeys(driver.ARRAYS, "array") | {"coords": "array", "offsets": "array"}
    words = ("dtype", "swizzle", "mode", "oob_fill", "interleave", "tensorDataType", *driver.ENUMS)
    return {
        "functions": limits.FUNCTIONS,
        "ranks": limits.RANKS,
        "tiledRanks": limits.TILED_RANKS,
        "sizeMax": limits.SIZE_MAX,
        "sizeMaxNew": limits.SIZE_MAX_NEW,
        "smemBytes": suspicions.SMEM_BYTES,
        "endMin": suspicions.END_MIN,
        "itemsizes": limits.ITEMSIZES,
        "cornerBits": limits.CORNER_BITS,
        "offsetBits": limits.OFFSET_BITS,
        "stepMax": limits.STEP_MAX,
        "pixelsMax": limits.PIXELS_MAX,
        "channelsMax": limits.CHANNELS_MAX,
        "boxMax": limits.BOX_MAX,
        "fills": limits.FILLS,
        "interleaves": limits.INTERLEAVES,
        "swizzles": limits.ALLOWED_SWIZZLES,
        "spans": {name: swizzle.span for name, swizzle in SWIZZLES.items()},
        "sources": {name: getattr(limits, name) for name in SOURCES},
        "prefix": driver.PREFIX,
        "enums": {n: {"infix": i, "names": names} for n, (i, names) in driver.ENUMS.items()},
        "dataTypes": driver.DATA_TYPES,
        "needed": driver.NEEDED,
        "foreign": driver.FOREIGN,
        "cornerNames": driver.CORNER_NAMES,
        "widthNames": driver.WIDTH_NAMES,
        "unwalked": driver.UNWALKED,
        "classes": {k.__name__: _arguments(k) for k in (TiledMap, Im2colMap, Im2colWideMap)},
        "wideFields": limits.WIDE_FIELDS,
        "types": {name: (element_type(name).itemsize, _floats(name)) for name in TYPES},
        "arrays": [name for name, kind in kinds.items() if kind == "array"],
        "either": [name for name, kind in kinds.items() if kind == "either"],
        "words": words,
    }


def _floats(name: str) -> bool:
    return is_floating(element_type(name))


def _arguments(kind: type[Any]) -> dict[str, Any]:
    """The arguments of a class with their defaults; "needed" where there is none."""
    return {f.name: "needed" if f.default is MISSING else f.default for f in fields(kind) if f.init}


def _kind(form: dict[str, Any]) -> str:
    """Whether a form of the JSON schema is an "array", "either" a number or one, or neither."""
    kinds = [part.get("type") for part in form.get("anyOf", [form])]
    return (
        "array"
        if "array" in kinds and "integer" not in kinds
        else ("either" if "array" in kinds else "")
    )
