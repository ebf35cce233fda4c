"""Tensor maps as the driver takes them: argument names, enumerations, arrays fastest-first.

`map_arguments` converts a description to the arguments of the driver call; `describe_arguments`
converts such arguments, valid or not, to a description. Names and values are those of cuda.h,
cuTensorMapEncodeIm2col and cuTensorMapEncodeIm2colWide.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from implicit_conv.tma.maps import limits
from implicit_conv.tma.maps.limits import Description, Finding, integer, integers, with_rows
from implicit_conv.tma.maps.ptx import mode_of
from implicit_conv.tma.maps.rules import within

PREFIX = "CU_TENSOR_MAP_"
DATA_TYPES = {  # name: (value, bytes, floating); elements of 4 and 6 bits have 0 bytes
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
    "16U4_ALIGN8B": (13, 0, False),
    "16U4_ALIGN16B": (14, 0, False),
    "16U6_ALIGN16B": (15, 0, False),
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
CORNER_NAMES = ("pixelBoxLowerCorner", "pixelBoxUpperCorner")
WIDTH_NAMES = tuple(f"{name}Width" for name in CORNER_NAMES)
COLUMN_NAMES = ("globalStrides", "channelsPerPixel", "pixelsPerColumn")
NEEDED = {  # mode: arguments without which nothing can be said
    "tiled": ("tensorDataType", "globalDim", "boxDim", "elementStrides"),
    "im2col": ("tensorDataType", "globalDim", "elementStrides", *COLUMN_NAMES, *CORNER_NAMES),
    "w": ("tensorDataType", "globalDim", "elementStrides", *COLUMN_NAMES, *WIDTH_NAMES),
}
FOREIGN = {  # mode: arguments that belong to calls of other modes
    "tiled": (*CORNER_NAMES, *WIDTH_NAMES, *COLUMN_NAMES[1:], "mode"),
    "im2col": ("mode",),
    "w": CORNER_NAMES,
}
ARGUMENTS = (
    *dict.fromkeys(name for names in NEEDED.values() for name in names),
    *("tensorRank", "globalAddress", "tensorMap"),
    *ENUMS,
)
ARRAYS = ("globalDim", "globalStrides", "boxDim", "elementStrides", *CORNER_NAMES)
PRINTED = {"format": "tensorDataType", "dim": "tensorRank", "gmem_address": "globalAddress"}
NUMBERS = (
    "channelsPerPixel",
    "pixelsPerColumn",
    "tensorRank",
    *WIDTH_NAMES,
)
ADDRESSES = ("globalAddress", "tensorMap")  # numbers, or None
UNWALKED = (  # steps of channels, of images, and of H and D in im2col::w
    "is ignored: without interleave this dimension has no step",
    "steps over images where the walk carries to the next one, as hardware of compute capability "
    "10 was seen to do in im2col::w; it is not modelled",
    "is not used: im2col::w does not move along this dimension",
)
NAMES = {  # our name of a field: the argument, and which of (c, w, ...) is its first entry
    "shape": ("globalDim", 0),
    "strides": ("globalStrides", 1),
    "lower_corner": ("pixelBoxLowerCorner", 1),
    "upper_corner": ("pixelBoxUpperCorner", 1),
    "traversal_stride": ("elementStrides", 0),
    "step": ("elementStrides", 0),
    "box": ("boxDim", 0),
    "dtype": ("tensorDataType", 0),
    "pixels_per_column": ("pixelsPerColumn", 0),
    "channels_per_pixel": ("channelsPerPixel", 0),
    "oob_fill": ("oobFill", 0),
    "address": ("globalAddress", 0),
}
Arguments = Mapping[str, Any]


def map_arguments(m: Description) -> dict[str, Any]:
    """The arguments of the driver call that encodes this map, by the names of cuda.h.

    Arrays are fastest-first. `function` is the name of the call; `globalAddress` is None if the map
    has no address.
    """
    lower, upper = m.lower[::-1], m.upper[::-1]
    steps = m.step[::-1] if m.tiled else (1, *m.step[::-1])
    arguments = {
        "function": m.function,
        "tensorDataType": f"{PREFIX}DATA_TYPE_{m.element}",
        "tensorRank": m.rank,
        "globalAddress": m.address,
        "globalDim": m.shape[::-1],
        "globalStrides": m.byte_strides[::-1],
        "elementStrides": (*steps, *(1,) * (m.rank - len(steps))),
        "interleave": enum_name("interleave", m.interleave),
        "swizzle": enum_name("swizzle", m.swizzle),
        "l2Promotion": enum_name("l2Promotion", "none"),
        "oobFill": enum_name("oobFill", m.oob_fill),
    }
    if m.tiled:
        return {**arguments, "boxDim": m.box[::-1]}
    arguments.update(channelsPerPixel=m.channels, pixelsPerColumn=m.pixels)
    if m.wide:
        arguments["mode"] = enum_name("mode", m.mode)
        arguments.update(pixelBoxLowerCornerWidth=lower[0], pixelBoxUpperCornerWidth=upper[0])
    else:
        arguments.update(pixelBoxLowerCorner=lower, pixelBoxUpperCorner=upper)
    return arguments


def enum_name(argument: str, ours: str) -> str:
    """The name in cuda.h of a value that we name `ours`."""
    infix, names = ENUMS[argument]
    return f"{PREFIX}{infix}{names[ours]}"


def our_name(argument: str, value: Any) -> str | None:
    """Our name of a value of an enumeration, given by its name in cuda.h, number or our name;
    that of a mode by PTX's, too.
    """
    infix, names = ENUMS[argument]
    if argument == "mode" and isinstance(value, str):
        value = mode_of(value)
    for number, (ours, theirs) in enumerate(names.items()):
        if value in (ours, theirs, f"{PREFIX}{infix}{theirs}") or (
            not isinstance(value, str) and value == number
        ):
            return ours
    return None


def data_type(value: Any) -> tuple[int, bool] | None:
    """(bytes, whether floating) of a CUtensorMapDataType, given by name or number."""
    name = data_type_name(value)
    return DATA_TYPES[name][1:] if name else None


def data_type_name(value: Any) -> str:
    """The name of a CUtensorMapDataType without its prefix; empty if it is none."""
    plain = str(value).removeprefix(f"{PREFIX}DATA_TYPE_")
    names = (name for name, (number, *_) in DATA_TYPES.items() if value == number or plain == name)
    return next(names, "")


def kind_of(arguments: Arguments) -> str:
    """The mode of map that such arguments encode: "tiled", "im2col" or "w"."""
    if "boxDim" in arguments:
        return "tiled"
    return "w" if any(name in arguments for name in WIDTH_NAMES) else "im2col"


def of_dump(arguments: Arguments) -> Arguments:
    """The arguments as the driver takes them, of what CUTLASS prints of a map that failed.

    It calls three of them otherwise, all arrays have five entries, and the first stride is the size
    of an element.
    """
    given = {PRINTED.get(name, name): value for name, value in arguments.items()}
    rank, axes = given.get("tensorRank"), [name for name in ARRAYS[:4] if name in given]
    most = max(limits.TILED_RANKS)
    ranks = [n for n in limits.TILED_RANKS if n < most or given.keys() != arguments.keys()]
    if rank in ranks and all(_count(given[name]) == most for name in axes):
        for name in axes:
            given[name] = tuple(given[name])[name == "globalStrides" : rank]
    return given


def _count(values: Any) -> int:
    return len(values) if isinstance(values, (tuple, list)) else 0


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
    kind = kind_of(arguments)
    source = f"CUDA driver API, {limits.FUNCTIONS[kind]}"
    missing = [name for name in NEEDED[kind] if name not in arguments]
    found = [Finding(name, None, "is missing", source) for name in missing]
    foreign = [name for name in FOREIGN[kind] if name in arguments]
    allowed = f"is of another call than {limits.FUNCTIONS[kind]}; give the arguments of one"
    found += [Finding(name, arguments[name], allowed, source) for name in foreign]
    if missing:
        return None, found
    arguments = {"globalStrides": (), **arguments}  # a tensor of one dimension has none
    lengths = _lengths(arguments, kind, source)
    found += lengths
    names, bad_enums = _enums(arguments, source)
    found += bad_enums
    element = data_type(arguments["tensorDataType"])
    if element is None:
        value = arguments["tensorDataType"]
        allowed = "must be a CUtensorMapDataType, 0 to 15"
        found.append(Finding("tensorDataType", value, allowed, source))
    elif not element[0]:
        value = arguments["tensorDataType"]
        allowed = "elements of 4 or 6 bits are not modelled: rules that count bytes are not checked"
        found.append(Finding("tensorDataType", value, allowed, source, severity="warning"))
    address = arguments.get("tensorMap")
    if address is not None and address % 64:
        found.append(Finding("tensorMap", hex(address), "must be 64-byte aligned", source))
    dims = tuple(arguments["globalDim"])
    if any(finding.field == "globalDim" for finding in lengths):
        return None, found
    steps = tuple(arguments["elementStrides"])
    if len(steps) != len(dims):
        steps = (1,) * len(dims)
    step = steps[::-1]
    lower: tuple[int, ...] = ()
    upper: tuple[int, ...] = ()
    if kind == "im2col":
        lower, upper = (tuple(arguments[name])[::-1] for name in CORNER_NAMES)
        step = steps[-2:0:-1]
    elif kind == "w":
        lower, upper = ((arguments[name],) for name in WIDTH_NAMES)
        step = steps[1:2]
    size, floating = element or (1, True)
    described = Description(
        mode=names["mode"] if kind == "w" else kind,
        shape=dims[::-1],
        itemsize=size,
        floating=floating,
        element=data_type_name(arguments["tensorDataType"]),
        lower=lower,
        upper=upper,
        step=step,
        box=tuple(arguments.get("boxDim", ()))[::-1],
        pixels=arguments.get("pixelsPerColumn", 1),
        channels=arguments.get("channelsPerPixel", 1),
        swizzle=names["swizzle"],
        oob_fill=names["oobFill"],
        interleave=names["interleave"],
        strides=tuple(arguments["globalStrides"])[::-1],
        address=arguments.get("globalAddress"),
        fastest_first=True,
    )
    return with_rows(described) if kind == "tiled" else described, found


def _lengths(arguments: Arguments, kind: str, source: str) -> list[Finding]:
    """Arrays whose length does not match the rank, and steps of dimensions that do not step."""
    dims = arguments["globalDim"]
    strides, steps = arguments["globalStrides"], arguments["elementStrides"]
    rank = arguments.get("tensorRank", len(dims))
    implied = [len(dims), len(strides) + 1, len(steps)]
    if kind == "im2col":
        implied += [len(arguments[name]) + 2 for name in CORNER_NAMES]
    agreed = all(count == len(dims) for count in implied)
    ranks: tuple[int, ...] = limits.TILED_RANKS if kind == "tiled" else limits.RANKS
    if agreed and len(dims) not in ranks:
        allowed = f"rank {len(dims)} must be in [{ranks[0]}, {ranks[-1]}]"
        hint = "" if kind == "tiled" else "(c, w, [h, [d,]] n); a matrix needs a tiled map"
        return [Finding("globalDim", tuple(dims), allowed, source, hint)]
    found = []
    if agreed and rank != len(dims):
        fix, allowed = {"tensorRank": len(dims)}, f"must be {len(dims)}, the length of globalDim"
        found.append(Finding("tensorRank", rank, allowed, source, f"pass {len(dims)}", fix=fix))
        rank = len(dims)
    elif rank not in ranks:
        found.append(Finding("tensorRank", rank, within(ranks[0], ranks[-1]), source))
    for name, values in (("globalDim", dims), ("elementStrides", steps)):
        if len(values) != rank:
            allowed = f"must have {rank} entries for rank {rank}"
            found.append(Finding(name, tuple(values), allowed, source))
    if len(steps) == rank:
        found += _unwalked_steps(steps, rank, kind, source)
    return found


def _unwalked_steps(steps: tuple[int, ...], rank: int, kind: str, source: str) -> Iterator[Finding]:
    """Steps other than 1 of dimensions that the walk does not step along: C, N, and in im2col::w
    also H and D.
    """
    first = {"tiled": rank, "im2col": rank - 1, "w": 2}[kind]
    for axis in (0, *range(first, rank)):
        name, hint = f"elementStrides[{axis}]", "pass 1; entries are for c, w, h, d, n"
        if not 1 <= steps[axis] <= limits.STEP_MAX and kind != "tiled":
            yield Finding(name, steps[axis], within(1, limits.STEP_MAX), source, hint)
        elif 1 < steps[axis] <= limits.STEP_MAX:
            allowed = UNWALKED[0 if axis == 0 else 1 if axis == rank - 1 else 2]
            yield Finding(name, steps[axis], allowed, source, hint, "warning")


def _enums(arguments: Arguments, source: str) -> tuple[dict[str, str], list[Finding]]:
    """Our names of the enumerations, with defaults for invalid values, and the invalid values."""
    names, found = {}, []
    for argument, (infix, values) in ENUMS.items():
        usual = next(iter(values))
        given = arguments.get(argument, usual)
        name = our_name(argument, given)
        if name is None:
            allowed = f"must be {PREFIX}{infix}* ({', '.join(values)})"
            found.append(Finding(argument, given, allowed, source))
        names[argument] = name or usual
    return names, found


def argument_name(m: Description) -> Callable[[str], str]:
    """A function from our name of a field to the driver's, as lower_corner[w] to
    pixelBoxLowerCorner[0].
    """
    order = m.dims[::-1]

    def rename(field: str) -> str:
        name, _, letter = field.rstrip("]").partition("[")
        if name not in NAMES:
            return field
        theirs, skip = NAMES[name]
        if m.wide and "corner" in name:
            return f"{theirs}Width"
        return f"{theirs}[{order.index(letter) - skip}]" if letter else theirs

    return rename
