"""Tensor maps and copies in the terms of the PTX interpreter, and back in those of this package."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from implicit_conv import ptx
from implicit_conv.tma.maps.driver import (
    ENUMS,
    WIDTH_NAMES,
    data_type,
    data_type_name,
    kind_of,
    our_name,
)
from implicit_conv.tma.maps.limits import Finding, Start
from implicit_conv.tma.maps.maps import TensorMap
from implicit_conv.tma.maps.ptx import INFIXES
from implicit_conv.tma.maps.tiled import TiledMap
from implicit_conv.tma.show.image import SmemImage

SPANS = {"none": 0, "32B": 32, "64B": 64, "128B": 128}  # bytes; the swizzles that are interpreted
UNCHECKED = ("function", "globalAddress", "l2Promotion")  # of a driver's call
UNIT = 16  # bytes of a place of a TensorCopy
OPERAND_SOURCE = "PTX ISA 9.7.9.25.5 (cp.async.bulk.tensor)"


@dataclass(frozen=True)
class NumberedMap(ptx.TensorMap):
    """A map of the interpreter that knows which argument of the kernel it is."""

    argument: int | str = 0


def interpreted_map(arguments: Mapping[str, Any], number: int | str) -> NumberedMap:
    """The interpreter's map for arguments of a cuTensorMapEncode call, argument `number`.

    Raises
    ------
    ValueError
        The interpreter does not model the swizzle, the interleaving, the fill or the element.
    """
    swizzle, interleave, fill = (
        our_name(name, arguments.get(name, "none" if name != "oobFill" else "zero"))
        for name in ("swizzle", "interleave", "oobFill")
    )
    element = data_type(arguments["tensorDataType"])
    for name, value, modelled in (
        ("swizzle", swizzle, swizzle in SPANS),
        ("interleave", interleave, interleave == "none"),
        ("oobFill", fill, fill == "zero"),
        ("tensorDataType", arguments["tensorDataType"], element is not None and element[0] > 0),
    ):
        if not modelled:
            raise ValueError(
                f"argument {number}: the interpreter does not model {name} {value}, but swizzles "
                f"{', '.join(SPANS)}, no interleaving, zeros as fill and elements of whole bytes; "
                "check a variant of the kernel with these"
            )
    assert element is not None and swizzle is not None
    kind = kind_of(arguments)
    common: dict[str, Any] = {
        "itemsize": element[0],
        "element": data_type_name(arguments["tensorDataType"]),
        "address": 0,
        "dims": tuple(arguments["globalDim"]),
        "strides": tuple(arguments.get("globalStrides", ())),
        "steps": tuple(arguments["elementStrides"]),
        "span": SPANS[swizzle],
        "argument": number,
    }
    if kind == "tiled":
        return NumberedMap("tile", box=tuple(arguments["boxDim"]), **common)
    common |= {"channels": arguments["channelsPerPixel"], "pixels": arguments["pixelsPerColumn"]}
    if kind == "im2col":
        corners = (arguments[f"pixelBox{which}Corner"] for which in ("Lower", "Upper"))
        lower, upper = map(tuple, corners)
        return NumberedMap("im2col", lower=lower, upper=upper, **common)
    lower, upper = ((arguments[name],) for name in WIDTH_NAMES)
    mode = INFIXES[our_name("mode", arguments.get("mode", "w")) or "w"]
    return NumberedMap(mode, lower=lower, upper=upper, **common)


def made_map(made: ptx.TensorMap) -> TensorMap:
    """The map that a kernel has made by tensormap.replace.

    Raises
    ------
    TensorMapError
        It breaks rules.
    """
    return TiledMap(
        shape=made.dims[::-1],
        dtype=made.element.lower(),
        box=made.box[::-1],
        step=made.steps[::-1],
        swizzle=next(name for name, span in SPANS.items() if span == made.span),
        strides=made.strides[::-1],
        address=made.address,
    )


def call_findings(map: TensorMap, encoded: Mapping[str, Any]) -> Iterator[Finding]:
    """Arguments of the call that encodes a map which are unlike those of the map."""
    for name, meant in map.arguments.items():
        value = encoded.get(name, meant)
        if name not in UNCHECKED and _plain(name, value) != _plain(name, meant):
            allowed = f"must be {meant}, as in the map that is meant"
            yield Finding(name, value, allowed, map.description.driver)


def _plain(name: str, value: Any) -> Any:
    """An argument of the driver's call, in whichever form it is given."""
    if name == "tensorDataType":  # signed or not, the bytes are copied alike
        return (data_type(value) or (None,))[0]
    if name in ENUMS:
        return our_name(name, value)
    return tuple(value) if isinstance(value, (list, tuple)) else value


def start_of(map: TensorMap, copy: ptx.TensorCopy) -> tuple[Start, list[Finding]]:
    """(the operands of a copy, row-major, what in the instruction's form does not suit its map)."""
    start = Start(copy.coordinates[::-1], dst=copy.address)
    if copy.mode != INFIXES[map.mode]:
        allowed = f"must be {INFIXES[map.mode]}, the mode of its tensor map"
        return start, [Finding("mode", copy.mode, allowed, OPERAND_SOURCE)]
    if copy.direction == "store" or map.mode == "tiled":
        return start, []
    if map.mode == "im2col":
        return Start(start.coords, copy.operands[::-1], dst=copy.address), []
    if len(copy.operands) != 2:
        allowed = f"must be (w_halo, w_offset) in mode {copy.mode}"
        return start, [Finding("im2colInfo", copy.operands, allowed, OPERAND_SOURCE)]
    halo, offset = copy.operands
    return Start(start.coords, None, halo, offset, copy.address), []


def difference(image: SmemImage, copy: ptx.TensorCopy) -> str:
    """How shared memory after a copy differs from an image of it; empty if it does not."""
    assert copy.places is not None and copy.contents is not None
    at = copy.places[..., None] + np.arange(UNIT)
    written = np.zeros(max(image.written.size, int(at.max()) + 1), bool)
    written[at] = True
    expected = np.zeros(written.size, bool)
    expected[: image.written.size] = image.written
    if (written != expected).any():
        first = int(np.flatnonzero(written != expected)[0])
        which = "is written, but is a gap" if written[first] else "is not written"
        return (
            f"{int((written != expected).sum())} bytes are written or left alone unlike in "
            f"smem_image; byte {first} from its start {which}"
        )
    wrong = image.bytes[at] != copy.contents
    if not wrong.any():
        return ""
    place = int(at[wrong].min())
    row, _ = image.owner(copy.address + place) or (0, 0)
    return (
        f"{int(wrong.sum())} of {wrong.size} bytes differ from smem_image; the first is byte "
        f"{place} from its start, in row {row}"
    )
