"""Tensor maps as the driver takes them: argument names, enumerations, arrays fastest-first.

`driver_arguments` converts a map to the arguments of the driver call; `describe_arguments` converts
such arguments, valid or not, to a description. Names and values are those of cuda.h,
cuTensorMapEncodeIm2col and cuTensorMapEncodeIm2colWide.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from implicit_conv.tma.limits import (
    DRIVER,
    Description,
    Finding,
    integer,
    integers,
    spatial_letters,
)
from implicit_conv.tma.maps import TensorMap
from implicit_conv.tma.rules import within

PREFIX = "CU_TENSOR_MAP_"
DATA_TYPES = {  # name: (value, bytes, floating)
    "UINT8": (0, 1, False),
    "UINT16": (1, 2, False),
    "UINT32": (2, 4, False),
    "INT32": (3, 4, False),
    "UINT64": (4, 8, False),
    "INT64": (5, 8, False),
    "FLOAT16": (6, 2, True),
    "FLOAT32": (7, 4, True),
    "FLOAT64": (8, 8, True),
    "BFLOAT16": (9, 2, True),
    "FLOAT32_FTZ": (10, 4, True),
    "TFLOAT32": (11, 4, True),
    "TFLOAT32_FTZ": (12, 4, True),
}
ENUMS = {  # argument: (infix in cuda.h, {our name: name in cuda.h}, in the order of the values)
    "interleave": ("INTERLEAVE_", {"none": "NONE", "16B": "16B", "32B": "32B"}),
    "swizzle": (
        "SWIZZLE_",
        {
            "none": "NONE",
            "32B": "32B",
            "64B": "64B",
            "128B": "128B",
            "128B_ATOM_32B": "128B_ATOM_32B",
            "128B_ATOM_32B_FLIP_8B": "128B_ATOM_32B_FLIP_8B",
            "128B_ATOM_64B": "128B_ATOM_64B",
        },
    ),
    "oobFill": ("FLOAT_OOB_FILL_", {"zero": "NONE", "nan": "NAN_REQUEST_ZERO_FMA"}),
    "l2Promotion": (
        "L2_PROMOTION_",
        {"none": "NONE", "64B": "L2_64B", "128B": "L2_128B", "256B": "L2_256B"},
    ),
    "mode": ("IM2COL_WIDE_MODE_", {"w": "W", "w128": "W128"}),
}
NEEDED = (
    "tensorDataType",
    "globalDim",
    "globalStrides",
    "channelsPerPixel",
    "pixelsPerColumn",
    "elementStrides",
)
CORNER_NAMES = ("pixelBoxLowerCorner", "pixelBoxUpperCorner")
ARGUMENTS = (
    *NEEDED,
    *CORNER_NAMES,
    *(f"{name}Width" for name in CORNER_NAMES),
    "tensorRank",
    "globalAddress",
    "tensorMap",
    *ENUMS,
)
ARRAYS = ("globalDim", "globalStrides", "elementStrides", *CORNER_NAMES)
NUMBERS = (
    "channelsPerPixel",
    "pixelsPerColumn",
    "tensorRank",
    *(f"{name}Width" for name in CORNER_NAMES),
)
ADDRESSES = ("globalAddress", "tensorMap")  # numbers, or None
Arguments = Mapping[str, Any]


def driver_arguments(map: TensorMap) -> dict[str, Any]:
    """The arguments of the driver call that encodes this map, by the names of cuda.h.

    Arrays are fastest-first. `function` is the name of the call; `globalAddress` is None if the map
    has no address.
    """
    m = map.description
    kind = _data_type(map)
    lower, upper = m.lower[::-1], m.upper[::-1]
    steps = (1, *m.step[::-1]) if not m.wide else (1, m.step[0])
    arguments = {
        "function": f"cuTensorMapEncodeIm2col{'Wide' if m.wide else ''}",
        "tensorDataType": f"{PREFIX}DATA_TYPE_{kind}",
        "tensorRank": m.rank,
        "globalAddress": m.address,
        "globalDim": m.shape[::-1],
        "globalStrides": m.byte_strides[::-1],
        "channelsPerPixel": m.channels,
        "pixelsPerColumn": m.pixels,
        "elementStrides": (*steps, *(1,) * (m.rank - len(steps))),
        "interleave": enum_name("interleave", m.interleave),
        "swizzle": enum_name("swizzle", m.swizzle),
        "l2Promotion": enum_name("l2Promotion", "none"),
        "oobFill": enum_name("oobFill", m.oob_fill),
    }
    if m.wide:
        arguments["mode"] = enum_name("mode", m.mode)
        arguments.update(pixelBoxLowerCornerWidth=lower[0], pixelBoxUpperCornerWidth=upper[0])
    else:
        arguments.update(pixelBoxLowerCorner=lower, pixelBoxUpperCorner=upper)
    return arguments


def _data_type(map: TensorMap) -> str:
    """The driver's type; a dtype that the driver lacks is copied as unsigned integers."""
    name = map.dtype.name.upper()
    return name if name in DATA_TYPES else f"UINT{8 * map.itemsize}"


def enum_name(argument: str, ours: str) -> str:
    """The name in cuda.h of a value that we name `ours`."""
    infix, names = ENUMS[argument]
    return f"{PREFIX}{infix}{names[ours]}"


def our_name(argument: str, value: Any) -> str | None:
    """Our name of a value of an enumeration, given by its name in cuda.h, number or our name."""
    infix, names = ENUMS[argument]
    for number, (ours, theirs) in enumerate(names.items()):
        if value in (ours, theirs, f"{PREFIX}{infix}{theirs}") or (
            not isinstance(value, str) and value == number
        ):
            return ours
    return None


def data_type(value: Any) -> tuple[int, bool] | None:
    """(bytes, whether floating) of a CUtensorMapDataType, given by name or number."""
    for name, (number, size, floating) in DATA_TYPES.items():
        if value == number or str(value).removeprefix(f"{PREFIX}DATA_TYPE_") == name:
            return size, floating
    return None


def with_integers(arguments: Arguments) -> Arguments:
    """The arguments with ints for all numbers; raise TypeError if one is no integer."""
    given = dict(arguments)
    for name, value in arguments.items():
        if name in ARRAYS:
            given[name] = integers(name, value)
        elif name in NUMBERS or (name in ADDRESSES and value is not None):
            given[name] = integer(name, value)
    return given


def describe_arguments(arguments: Arguments) -> tuple[Description | None, list[Finding]]:
    """(the map that these arguments describe, errors in their form).

    The map is None if too little can be read. Its own rules are checked by `rules.map_findings`.
    """
    wide = "pixelBoxLowerCornerWidth" in arguments or "pixelBoxUpperCornerWidth" in arguments
    corner_names = [f"{name}Width" if wide else name for name in CORNER_NAMES]
    missing = [name for name in (*NEEDED, *corner_names) if name not in arguments]
    found = [Finding(name, None, "is missing", DRIVER) for name in missing]
    if missing:
        return None, found
    found += _lengths(arguments, wide)
    names, bad_enums = _enums(arguments)
    found += bad_enums
    kind = data_type(arguments["tensorDataType"])
    if kind is None:
        value = arguments["tensorDataType"]
        allowed = "must be a CUtensorMapDataType of 1, 2, 4 or 8 bytes"
        found.append(Finding("tensorDataType", value, allowed, DRIVER))
    address = arguments.get("tensorMap")
    if address is not None and address % 64:
        found.append(Finding("tensorMap", hex(address), "must be 64-byte aligned", DRIVER))
    dims = tuple(arguments["globalDim"])
    if not 3 <= len(dims) <= 5:
        return None, found
    lower, upper = (arguments[name] for name in corner_names)
    steps = tuple(arguments["elementStrides"])
    steps_ok = len(steps) == len(dims)
    size, floating = kind or (1, True)
    description = Description(
        mode=names["mode"] if wide else "im2col",
        shape=dims[::-1],
        itemsize=size,
        floating=floating,
        lower=(lower,) if wide else tuple(lower)[::-1],
        upper=(upper,) if wide else tuple(upper)[::-1],
        step=(steps[1:2] if wide else steps[-2:0:-1]) if steps_ok else (1,) * (len(dims) - 2),
        pixels=arguments["pixelsPerColumn"],
        channels=arguments["channelsPerPixel"],
        swizzle=names["swizzle"],
        oob_fill=names["oobFill"],
        interleave=names["interleave"],
        strides=tuple(arguments["globalStrides"])[::-1],
        address=arguments.get("globalAddress"),
        fastest_first=True,
    )
    return description, found


def _lengths(arguments: Arguments, wide: bool) -> list[Finding]:
    """Arrays whose length does not match the rank, and steps of C and N outside their range.

    No walk uses the steps of C and N.
    """
    dims = arguments["globalDim"]
    strides, steps = arguments["globalStrides"], arguments["elementStrides"]
    rank = arguments.get("tensorRank", len(dims))
    implied = [len(dims), len(strides) + 1, len(steps)]
    if not wide:
        implied += [len(arguments[name]) + 2 for name in CORNER_NAMES]
    if not 3 <= rank <= 5 or (rank != len(dims) and all(count == len(dims) for count in implied)):
        agreed = f"must be the tensor's rank, {len(dims)}, and in [3, 5]"
        return [Finding("tensorRank", rank, agreed, DRIVER)]
    found = []
    for name, values, length in (
        ("globalDim", dims, rank),
        ("globalStrides", strides, rank - 1),
        ("elementStrides", steps, rank),
    ):
        if len(values) != length:
            allowed = f"must have {length} entries for rank {rank}"
            found.append(Finding(name, tuple(values), allowed, DRIVER))
    if len(steps) == rank:
        others = [0, rank - 1, *(range(2, rank - 1) if wide else ())]
        for axis in others:
            if not 1 <= steps[axis] <= 8:
                name = f"elementStrides[{axis}]"
                found.append(Finding(name, steps[axis], within(1, 8), DRIVER))
    return found


def _enums(arguments: Arguments) -> tuple[dict[str, str], list[Finding]]:
    """Our names of the enumerations, with defaults for invalid values, and the invalid values."""
    names, found = {}, []
    for argument, (infix, values) in ENUMS.items():
        default = next(iter(values))
        given = arguments.get(argument, default)
        name = our_name(argument, given)
        if name is None:
            allowed = f"must be {PREFIX}{infix}* ({', '.join(values)})"
            found.append(Finding(argument, given, allowed, DRIVER))
        names[argument] = name or default
    return names, found


def argument_name(m: Description) -> Callable[[str], str]:
    """A function from our name of a field to the driver's, as lower_corner[w] to
    pixelBoxLowerCorner[0].
    """
    order = f"c{spatial_letters(m.rank)[::-1]}n"
    first = {
        "shape": ("globalDim", 0),
        "strides": ("globalStrides", 1),
        "lower_corner": ("pixelBoxLowerCorner", 1),
        "upper_corner": ("pixelBoxUpperCorner", 1),
        "traversal_stride": ("elementStrides", 0),
    }
    plain = {
        "dtype": "tensorDataType",
        "pixels_per_column": "pixelsPerColumn",
        "channels_per_pixel": "channelsPerPixel",
        "oob_fill": "oobFill",
        "address": "globalAddress",
    }

    def rename(field: str) -> str:
        name, letter = [*re.split(r"[\[\]]", field), ""][:2]
        if name not in first:
            return plain.get(field, field)
        theirs, skip = first[name]
        if m.wide and "corner" in name:
            return f"{theirs}Width"
        return f"{theirs}[{order.index(letter) - skip}]" if letter else theirs

    return rename
