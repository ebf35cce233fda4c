"""The options of draw and lint that describe a map and one copy, row-major as in Python."""

from __future__ import annotations

import argparse
from typing import Any

from implicit_conv.ptx.errors import shortened
from implicit_conv.tma.check.linter import kind_of_map
from implicit_conv.tma.maps.maps import TensorMap
from implicit_conv.tma.maps.ptx import INFIXES, mode_of, mode_words


def integers(text: str) -> tuple[int, ...]:
    """Integers separated by commas, such as "7,2,-1,0"."""
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{shortened(text)!r} must be integers separated by commas, such as 7,2,-1,0"
        ) from None


def mode(text: str) -> str:
    """The mode that `text` names."""
    found = mode_of(text)
    if found not in INFIXES:
        words = f"{shortened(text)!r} is none of {mode_words(INFIXES)}"
        raise argparse.ArgumentTypeError(words)
    return found


# Options that a map of a mode, or a copy of it, does not have.
WITHOUT = {
    "tiled": ("lower", "upper", "pixels", "channels", "offsets", "halo", "offset"),
    "im2col": ("box", "halo", "offset"),
    "w": ("box",),
    "w128": ("box",),
}
START_HELP = "by default, draw starts at the lower corner and lint checks the map alone"


def map_arguments(parser: argparse.ArgumentParser) -> None:
    """Options that describe one copy, row-major as in Python."""
    parser.add_argument("--example", metavar="NAME", help="one of `draw --list`, such as im2col::w")
    group = parser.add_argument_group("a tensor copy")
    words = f"{mode_words(INFIXES)}; default: im2col"
    group.add_argument("--mode", type=mode, default="im2col", help=words)
    group.add_argument("--shape", type=integers, metavar="N,[D,]H,W,C")
    group.add_argument("--box", type=integers, metavar="...,C", help="of a tiled map")
    group.add_argument("--dtype", default="float16", help="default: %(default)s")
    for name in ("lower", "upper"):
        words = f"{name} corner of the pixels, zeros by default; for im2col::w only W"
        group.add_argument(f"--{name}", type=integers, metavar="[D,]H,W", help=words)
    group.add_argument(
        "--step",
        type=integers,
        default=(1,),
        help="the stride: one for all axes, or [D,]H,W; default: 1",
    )
    group.add_argument("--pixels", type=int, help="that a copy loads; default: 128")
    group.add_argument("--channels", type=int, help="that a copy loads; default: at most 64")
    group.add_argument("--swizzle", default="128B", help="of shared memory; default: %(default)s")
    group.add_argument("--start", type=integers, metavar="N,[D,]H,W,C", help=START_HELP)
    words = "of im2col: the filter tap, as offsets of each pixel"
    group.add_argument("--offsets", type=integers, metavar="[D,]H,W", help=words)
    words = "of im2col::w: w_{} of each buffer; default: 0"
    group.add_argument("--halo", type=integers, help=words.format("halo"))
    group.add_argument("--offset", type=integers, help=words.format("offset"))


def map_fields(options: argparse.Namespace) -> dict[str, Any]:
    """The constructor's arguments for the map that the options describe."""
    if options.shape is None:
        other = "name a FILE.json" if options.command == "lint" else "choose one from --list"
        raise ValueError(f"no tensor: give --shape N,[D,]H,W,C or --example NAME, or {other}")
    word = INFIXES[options.mode]
    for name in WITHOUT[options.mode]:
        if getattr(options, name) is not None:
            raise ValueError(f"a copy of mode {word} has no --{name}; leave it out")
    if options.mode == "tiled":
        if options.box is None:
            raise ValueError("a tiled map needs --box, with as many entries as --shape")
        step = options.step[0] if len(options.step) == 1 else options.step
        names = {"shape": options.shape, "dtype": options.dtype, "swizzle": options.swizzle}
        return {**names, "box": options.box, "step": step}
    wide = options.mode != "im2col"
    zeros = (0,) * (1 if wide else max(1, len(options.shape) - 2))
    lower, upper = options.lower or zeros, options.upper or zeros
    if wide:
        named = {"lower corner": lower, "upper corner": upper, "step": options.step}
        for name, values in named.items():
            if len(values) != 1:
                raise ValueError(f"a map of mode {word} has the {name} of W alone, not {values}")
    step = options.step[0] if len(options.step) == 1 else options.step
    channels = min(64, options.shape[-1]) if options.channels is None else options.channels
    fields = {
        "shape": options.shape,
        "dtype": options.dtype,
        "traversal_stride": step,
        "pixels_per_column": 128 if options.pixels is None else options.pixels,
        "channels_per_pixel": channels,
        "swizzle": options.swizzle,
    }
    if wide:
        corners = {"lower_corner_w": lower[0], "upper_corner_w": upper[0]}
        return {**fields, **corners, "mode": options.mode}
    return {**fields, "lower_corner": lower, "upper_corner": upper}


def make_map(fields: dict[str, Any]) -> TensorMap:
    """The map of `map_fields`."""
    return kind_of_map(fields)(**fields)


def buffers(options: argparse.Namespace) -> list[tuple[int, int]]:
    """(w_halo, w_offset) of each buffer; a single value holds for all buffers."""
    given = options.halo or (0,), options.offset or (0,)
    count = max(map(len, given))
    halos, offsets = (v * count if len(v) == 1 else v for v in given)
    if len(halos) != len(offsets):
        raise ValueError(
            f"--halo has {len(halos)} values and --offset {len(offsets)}; "
            "give one for all buffers, or one for each"
        )
    return list(zip(halos, offsets, strict=True))
