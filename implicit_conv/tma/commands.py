"""The commands draw, explore and lint; `register` adds them to the program's parser.

A command returns its exit status. Wrong options raise a UsageError.
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
from implicit_conv.tma.limits import Finding
from implicit_conv.tma.linter import lint
from implicit_conv.tma.maps import Im2colMap, Im2colWideMap, TensorMap

Subparsers = Any  # argparse names the type of add_subparsers() only privately
Run = Callable[[argparse.Namespace], int]

JSON_FORM = """\
FILE.json holds one object: the arguments of Im2colMap or Im2colWideMap, such as
  {"shape": [8, 9, 14, 64], "dtype": "float16", "lower_corner": [-1, -1],
   "upper_corner": [-1, -1], "traversal_stride": 1, "pixels_per_column": 128,
   "channels_per_pixel": 64, "swizzle": "128B"}
or those of cuTensorMapEncodeIm2col, by the names and in the order of cuda.h. It may also hold the
operands of a load: coords, offsets, w_halo, w_offset, dst.
"""


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
    style = argparse.RawDescriptionHelpFormatter
    parser = subparsers.add_parser(name, help=text, description=text, formatter_class=style)
    arguments(parser)
    parser.set_defaults(run=_with_usage_errors(run))


def _with_usage_errors(run: Run) -> Run:
    """The command, with a UsageError in place of a ValueError or TypeError."""

    def checked(options: argparse.Namespace) -> int:
        try:
            return run(options)
        except (ValueError, TypeError) as error:
            raise UsageError(str(error)) from error

    return checked


def integers(text: str) -> tuple[int, ...]:
    """Integers separated by commas, such as "7,2,-1,0"."""
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} must be integers separated by commas, such as 7,2,-1,0"
        ) from None


START_HELP = "by default, draw starts at the lower corner and lint checks the map alone"


def _map_arguments(parser: argparse.ArgumentParser) -> None:
    """Options that describe one copy, row-major as in Python."""
    parser.add_argument("--example", metavar="NAME", help="a documented example, ptx-11 to ptx-24")
    group = parser.add_argument_group(
        "a tensor copy", "Write a list that begins with a minus sign as in --lower=-1,-1."
    )
    group.add_argument("--mode", choices=["im2col", "w", "w128"], default="im2col")
    group.add_argument("--shape", type=integers, metavar="N,[D,]H,W,C")
    group.add_argument("--dtype", default="float16")
    group.add_argument(
        "--lower", type=integers, metavar="[D,]H,W", help="zeros by default; for w and w128 only W"
    )
    group.add_argument(
        "--upper", type=integers, metavar="[D,]H,W", help="zeros by default; for w and w128 only W"
    )
    group.add_argument("--step", type=integers, default=(1,), help="one for all axes, or [D,]H,W")
    group.add_argument("--pixels", type=int, default=128)
    group.add_argument("--channels", type=int, default=64)
    group.add_argument("--swizzle", default="128B")
    group.add_argument("--start", type=integers, metavar="N,[D,]H,W,C", help=START_HELP)
    group.add_argument("--offsets", type=integers, metavar="[D,]H,W")
    group.add_argument("--halo", type=integers, default=(0,), help="w_halo of each buffer")
    group.add_argument("--offset", type=integers, default=(0,), help="w_offset of each buffer")


def map_fields(options: argparse.Namespace) -> dict[str, Any]:
    """The constructor's arguments for the map that the options describe."""
    if options.shape is None:
        other = "name a FILE.json" if options.command == "lint" else "choose one from --list"
        raise ValueError(f"no tensor: give --shape N,[D,]H,W,C or --example NAME, or {other}")
    wide = options.mode != "im2col"
    zeros = (0,) * (1 if wide else max(1, len(options.shape) - 2))
    lower, upper = options.lower or zeros, options.upper or zeros
    step = options.step[0] if wide or len(options.step) == 1 else options.step
    fields = {
        "shape": options.shape,
        "dtype": options.dtype,
        "traversal_stride": step,
        "pixels_per_column": options.pixels,
        "channels_per_pixel": options.channels,
        "swizzle": options.swizzle,
    }
    if wide:
        corners = {"lower_corner_w": lower[-1], "upper_corner_w": upper[-1]}
        return {**fields, **corners, "mode": options.mode}
    return {**fields, "lower_corner": lower, "upper_corner": upper}


def make_map(fields: dict[str, Any]) -> TensorMap:
    """The map of `map_fields`."""
    return (Im2colWideMap if "mode" in fields else Im2colMap)(**fields)


def _draw_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--list", action="store_true", help="list the examples")
    parser.add_argument("--out", metavar="FILE", help=".svg, .png or .pdf; without it, text")
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
    map = make_map(map_fields(options))
    buffers = None if options.mode == "im2col" else _buffers(options)
    start = options.start or _first_start(map)
    print(draw(map, start, options.offsets, buffers=buffers, path=options.out))
    return 0


def _first_start(map: TensorMap) -> tuple[int, ...]:
    """The lower corner of the box in image 0, channel 0."""
    lower = map.description.lower
    return (*(0,) * (map.rank - 1 - len(lower)), *lower, 0)


def _buffers(options: argparse.Namespace) -> list[tuple[int, int]]:
    """(w_halo, w_offset) of each buffer; a single value holds for all buffers."""
    count = max(len(options.halo), len(options.offset))
    halos, offsets = (v * count if len(v) == 1 else v for v in (options.halo, options.offset))
    if len(halos) != len(offsets):
        raise ValueError(
            f"--halo has {len(halos)} values and --offset {len(offsets)}; "
            "give one for all buffers, or one for each"
        )
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
    parser.epilog = JSON_FORM
    parser.add_argument(
        "file", nargs="?", metavar="FILE.json", help="the map, see below; - reads standard input"
    )
    _map_arguments(parser)


def run_lint(options: argparse.Namespace) -> int:
    """`implicit-conv lint`: prints what is found; the status is 1 if a rule is broken."""
    if options.file:
        findings = lint_file(options.file)
    elif options.example:
        findings = lint_example(options.example)
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
    print(f"{counted(errors, 'error')}, {counted(len(findings) - errors, 'warning')}")
    return 1 if errors else 0


def lint_file(name: str) -> list[Finding]:
    """Lint the map in a JSON file, or on standard input if the name is "-".

    Raises
    ------
    ValueError
        The file is not JSON, not an object, or has members that no map has.
    """
    source = "standard input" if name == "-" else name
    text = sys.stdin.read() if name == "-" else Path(name).read_text("utf-8")
    advice = "`implicit-conv lint --help` shows the form"
    try:
        arguments = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"{source} is not JSON: {error}; {advice}") from None
    if not isinstance(arguments, dict):
        raise ValueError(f"{source} must hold one JSON object; {advice}")
    try:
        return lint(**arguments)
    except TypeError as error:
        raise ValueError(f"{source}: {error}; {advice}") from error


def lint_example(name: str) -> list[Finding]:
    """Lint a documented example: its map and each of its copies."""
    entry = example(name)
    found: dict[Finding, None] = {}  # a set that keeps the order
    for w_halo, w_offset in entry.buffers:
        findings = lint(
            coords=entry.coords,
            offsets=entry.offsets,
            w_halo=w_halo,
            w_offset=w_offset,
            **entry.fields,
        )
        found |= dict.fromkeys(findings)
    return list(found)


def counted(count: int, noun: str) -> str:
    """A count with its noun: "1 error", "2 errors"."""
    return f"{count} {noun}{'' if count == 1 else 's'}"
