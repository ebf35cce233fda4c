"""The commands draw, explore and lint; `register` adds them to the program's parser.

A command returns its exit status; what its options do wrong is a UsageError.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from implicit_conv.errors import UsageError
from implicit_conv.tma.drawing import draw, show
from implicit_conv.tma.examples import EXAMPLES, example
from implicit_conv.tma.linter import lint
from implicit_conv.tma.maps import Im2colMap, Im2colWideMap, TensorMap

Subparsers = Any  # argparse names the type of add_subparsers() only privately
Run = Callable[[argparse.Namespace], int]


def register(subparsers: Subparsers) -> None:
    """Add the commands; each sets `run`, which takes the parsed arguments and returns a status."""
    _add(subparsers, "draw", run_draw, _draw_arguments, "draw what a tensor copy loads")
    _add(subparsers, "explore", run_explore, _explore_arguments, "write an interactive page")
    _add(subparsers, "lint", run_lint, _lint_arguments, "check a tensor map and a load")


def _add(
    subparsers: Subparsers,
    name: str,
    run: Run,
    arguments: Callable[[argparse.ArgumentParser], None],
    text: str,
) -> None:
    parser = subparsers.add_parser(name, help=text, description=text)
    arguments(parser)
    parser.set_defaults(run=_telling(run))


def _telling(run: Run) -> Run:
    """The command with what its options do wrong told as such."""

    def told(options: argparse.Namespace) -> int:
        try:
            return run(options)
        except (ValueError, TypeError) as error:
            raise UsageError(str(error)) from error

    return told


def integers(text: str) -> tuple[int, ...]:
    """Integers between commas: "7,2,-1,0"."""
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no list of integers like 7,2,-1,0") from None


def _map_arguments(parser: argparse.ArgumentParser) -> None:
    """Options that describe one copy, row-major as in Python."""
    group = parser.add_argument_group("a tensor copy (write lists that begin with - as --x=-1,-1)")
    group.add_argument("--mode", choices=["im2col", "w", "w128"], default="im2col")
    group.add_argument("--shape", type=integers, metavar="N,[D,]H,W,C")
    group.add_argument("--dtype", default="float16")
    group.add_argument("--lower", type=integers, metavar="[D,]H,W", help="one number for w, w128")
    group.add_argument("--upper", type=integers, metavar="[D,]H,W")
    group.add_argument("--step", type=integers, default=(1,), help="one number, or one an axis")
    group.add_argument("--pixels", type=int, default=128)
    group.add_argument("--channels", type=int, default=64)
    group.add_argument("--swizzle", default="128B")
    group.add_argument("--start", type=integers, metavar="N,[D,]H,W,C")
    group.add_argument("--offsets", type=integers, metavar="[D,]H,W")
    group.add_argument("--halo", type=integers, default=(0,), help="w_halo, one a buffer")
    group.add_argument("--offset", type=integers, default=(0,), help="w_offset, one a buffer")


def map_fields(options: argparse.Namespace) -> dict[str, Any]:
    """The constructor's arguments for the map that the options describe."""
    missing = [n for n in ("shape", "lower", "upper") if getattr(options, n) is None]
    if missing:
        raise ValueError(f"say --{', --'.join(missing)}, or name an --example")
    wide = options.mode != "im2col"
    step = options.step[0] if wide or len(options.step) == 1 else options.step
    fields = {
        "shape": options.shape, "dtype": options.dtype, "traversal_stride": step,
        "pixels_per_column": options.pixels, "channels_per_pixel": options.channels,
        "swizzle": options.swizzle,
    }  # fmt: skip
    if wide:
        corners = {"lower_corner_w": options.lower[-1], "upper_corner_w": options.upper[-1]}
        return {**fields, **corners, "mode": options.mode}
    return {**fields, "lower_corner": options.lower, "upper_corner": options.upper}


def make_map(fields: dict[str, Any]) -> TensorMap:
    """The map of `map_fields`."""
    return (Im2colWideMap if "mode" in fields else Im2colMap)(**fields)


def _draw_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--example", metavar="NAME", help="a documented example, ptx-11 to ptx-24")
    parser.add_argument("--list", action="store_true", help="list the examples")
    parser.add_argument("--out", metavar="FILE", help=".svg, .png or .pdf; text without it")
    parser.add_argument("--gallery", metavar="FOLDER", help="draw all examples, with a page")
    _map_arguments(parser)


def run_draw(options: argparse.Namespace) -> int:
    """`implicit-conv draw`."""
    if options.list:
        for name, entry in EXAMPLES.items():
            print(f"{name:<14} {entry.title}")
        return 0
    if options.gallery:
        from implicit_conv.tma.gallery import write

        print(f"{len(write(options.gallery))} files in {options.gallery}")
        return 0
    if options.example:
        print(show(example(options.example).picture(), options.out))
        return 0
    if options.start is None:
        raise ValueError("say --start N,[D,]H,W,C")
    map = make_map(map_fields(options))
    buffers = None if options.mode == "im2col" else _buffers(options)
    print(draw(map, options.start, options.offsets, buffers=buffers, path=options.out))
    return 0


def _buffers(options: argparse.Namespace) -> list[tuple[int, int]]:
    """(w_halo, w_offset) of each buffer; a single value holds for all."""
    count = max(len(options.halo), len(options.offset))
    halos, offsets = (v * count if len(v) == 1 else v for v in (options.halo, options.offset))
    if len(halos) != len(offsets):
        raise ValueError(f"--halo names {len(halos)} buffers, --offset {len(offsets)}")
    return list(zip(halos, offsets, strict=True))


def _explore_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", metavar="FILE", default="im2col.html", help="%(default)s")


def run_explore(options: argparse.Namespace) -> int:
    """`implicit-conv explore`."""
    from implicit_conv.tma.explore import page

    Path(options.out).write_text(page(), encoding="utf-8")
    print(f"{options.out}: open it in a browser")
    return 0


def _lint_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "file", nargs="?", metavar="FILE.json",
        help="arguments of a map or of the driver's call, coords and offsets beside them; - reads "
        "standard input",
    )  # fmt: skip
    _map_arguments(parser)


def run_lint(options: argparse.Namespace) -> int:
    """`implicit-conv lint`: prints what is found; the status is 1 if a rule is broken."""
    if options.file:
        text = sys.stdin.read() if options.file == "-" else Path(options.file).read_text("utf-8")
        arguments = json.loads(text)
        findings = lint(**arguments)
    else:
        arguments = map_fields(options)
        operands: dict[str, Any] = {}
        if options.start is not None:
            operands = {"coords": options.start, "offsets": options.offsets}
            operands |= {"w_halo": options.halo[0], "w_offset": options.offset[0]}
        findings = lint(**arguments, **operands)
    for finding in findings:
        print(f"{finding.severity}: {finding}")
    errors = sum(finding.severity == "error" for finding in findings)
    print(f"{errors} errors, {len(findings) - errors} warnings")
    return 1 if errors else 0
