"""The commands draw, explore and lint, which `register` adds to the program's parser, and what
``ptx check --map FILE`` does with kernels that take tensor maps.

A command returns its exit status. Wrong options raise a UsageError.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from implicit_conv.errors import UsageError
from implicit_conv.ptx.commands import MAP, SMALL
from implicit_conv.ptx.errors import printable
from implicit_conv.tma.check.kernel_check import MapArgument, check_kernel
from implicit_conv.tma.check.linter import constructor_arguments, kind_of_map, lint
from implicit_conv.tma.copy_options import buffers, make_map, map_arguments, map_fields
from implicit_conv.tma.maps.driver import ARGUMENTS, describe_arguments, with_integers
from implicit_conv.tma.maps.json_maps import ADVICE, OPERANDS, read_objects
from implicit_conv.tma.maps.limits import Finding, TensorMapError
from implicit_conv.tma.maps.maps import TensorMap
from implicit_conv.tma.maps.ptx import DIRECTIONS, INFIXES, REDUCTIONS
from implicit_conv.tma.run.lowering_choice import parse_problem
from implicit_conv.tma.run.simulate import HALO_ORDER, HALO_ORDERS
from implicit_conv.tma.show.drawing import draw, show
from implicit_conv.tma.show.examples import EXAMPLES, FIRST, example

Subparsers = Any  # argparse names the type of add_subparsers() only privately
Run = Callable[[argparse.Namespace], int]

JSON_FORM = """\
FILE.json holds one object: the arguments of TiledMap, Im2colMap or Im2colWideMap, such as
  {"shape": [8, 9, 14, 64], "dtype": "float16", "lower_corner": [-1, -1],
   "upper_corner": [-1, -1], "pixels_per_column": 128, "channels_per_pixel": 64,
   "swizzle": "128B"}
or those of cuTensorMapEncodeTiled, -Im2col or -Im2colWide, by the names and in the order of cuda.h.
It may also hold a load (coords, offsets, w_halo, w_offset, dst), direction, arch, and the problem
that the map is for: {"x": [8, 9, 14, 64], "w": [64, 3, 3, 64], "padding": 1}. --schema prints all
members. A list of such objects, or one a line as tma.log_maps writes them, is checked in turn.
"""


def register(subparsers: Subparsers) -> None:
    """Add the commands; each sets `run`, which takes the parsed arguments and returns a status."""
    _add(subparsers, "draw", run_draw, _draw_arguments, "draw what a TMA tensor copy loads")
    _add(
        subparsers,
        "explore",
        run_explore,
        _explore_arguments,
        "write an interactive page of TMA copies",
    )
    _add(subparsers, "lint", run_lint, _lint_arguments, "check a TMA tensor map and a load")


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


def _draw_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--list", action="store_true", help="list the examples")
    words = ".svg (if it has no ending), .png or .pdf; without it, text"
    parser.add_argument("out", nargs="?", metavar="FILE", default=argparse.SUPPRESS, help=words)
    parser.add_argument("--out", metavar="FILE", help="the same FILE")
    parser.add_argument("--gallery", metavar="FOLDER", help="draw all examples, with a page")
    orders = "; ".join(f"{name}: {where}" for name, where in HALO_ORDERS.items())
    parser.add_argument(
        "--halo-order",
        choices=list(HALO_ORDERS),
        default=HALO_ORDER,
        help=f"of im2col::w::128: {orders}",
    )
    map_arguments(parser)


def run_draw(options: argparse.Namespace) -> int:
    """`implicit-conv draw`."""
    if options.list:
        for name, entry in EXAMPLES.items():
            print(f"{name:<14} {entry.title}")
        for mode, name in FIRST.items():
            if INFIXES[mode] != name:
                print(f"{INFIXES[mode]:<14} the example {name}")
        return 0
    if options.gallery:
        from implicit_conv.tma.show.gallery import write

        print(f"{len(write(options.gallery))} files in {options.gallery}")
        return 0
    if options.example:
        print(show(example(options.example).picture(), options.out))
        return 0
    map = make_map(map_fields(options))
    walks = buffers(options) if map.description.wide else None
    start = options.start or map.first
    order = options.halo_order
    text = draw(map, start, options.offsets, buffers=walks, halo_order=order, path=options.out)
    print(text)
    return 0


def _explore_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--out", metavar="FILE", default="im2col.html", help="the page; default: %(default)s"
    )


def run_explore(options: argparse.Namespace) -> int:
    """`implicit-conv explore`."""
    from implicit_conv.tma.page.explore import page

    Path(options.out).write_text(page(), encoding="utf-8")
    print(f"{options.out}: open it in a browser")
    return 0


def _lint_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = JSON_FORM
    parser.add_argument(
        "file", nargs="?", metavar="FILE.json", help="the map, see below; - reads standard input"
    )
    parser.add_argument("--schema", action="store_true", help="print the JSON schema of FILE.json")
    parser.add_argument("--direction", choices=DIRECTIONS, default="load")
    parser.add_argument("--reduction", choices=REDUCTIONS, default="add", help="of reduce")
    parser.add_argument("--arch", metavar="TARGET", help="such as sm_100a")
    map_arguments(parser)


def run_lint(options: argparse.Namespace) -> int:
    """`implicit-conv lint`: prints what is found; the status is 1 if a rule is broken."""
    if options.schema:
        from implicit_conv.tma.maps.json_maps import schema

        print(json.dumps(schema(), indent=2))
        return 0
    if options.file:
        reports = lint_file(options.file)
    elif options.example:
        reports = {"": lint_example(options.example)}
    else:
        operands = {n: getattr(options, n) for n in ("direction", "reduction", "arch")}
        if options.start is not None:
            operands |= {"coords": options.start, "offsets": options.offsets}
            operands |= dict(zip(("w_halo", "w_offset"), buffers(options)[0], strict=True))
        reports = {"": lint(**map_fields(options), **operands)}
    for name, findings in reports.items():
        for finding in findings:
            print(printable(f"{name}{finding.severity}: {finding}"))
            if finding.fix:
                fixes = ", ".join(f"{key} = {value}" for key, value in finding.fix.items())
                print(printable(f"  fix: {fixes}"))
    found = [finding for findings in reports.values() for finding in findings]
    errors = sum(finding.severity == "error" for finding in found)
    print(f"{counted(errors, 'error')}, {counted(len(found) - errors, 'warning')}")
    return 1 if errors else 0


def lint_file(name: str) -> dict[str, list[Finding]]:
    """Lint the maps in a JSON file, or on standard input if the name is "-".

    Returns the findings of each map by what is printed before them: "" for a single map.

    Raises
    ------
    ValueError
        The file is not JSON, holds no objects, or has members that no map has.
    """
    source, given = read_objects(name)
    reports = {}
    for number, arguments in enumerate(given, 1):
        where = f"{source}, map {number}" if len(given) > 1 else source
        try:
            findings = _lint_object(arguments)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{where}: {error}; {ADVICE}") from error
        function = arguments.get("function", "")
        before = f"map {number}{f' ({function})' if function else ''}: "
        reports[before if len(given) > 1 else ""] = findings
    return reports


def _lint_object(arguments: dict[str, Any]) -> list[Finding]:
    """Lint one object; its problem is given by shapes."""
    given, shapes = dict(arguments), arguments.get("problem")
    if shapes is not None:
        if not isinstance(shapes, dict) or not {"x", "w"} <= set(shapes):
            raise ValueError('problem must be an object with the shapes "x" and "w"')
        options = {name: value for name, value in shapes.items() if name not in ("x", "w")}
        given["problem"], _ = parse_problem((shapes["x"], shapes["w"]), None, options)
    return lint(**given)


def lint_example(name: str) -> list[Finding]:
    """Lint a documented example: its map and each of its copies."""
    entry = example(name)
    found: dict[Finding, None] = {}  # a set that keeps the order
    for w_halo, w_offset in entry.buffers:
        operands: dict[str, Any] = {
            "offsets": entry.offsets,
            "w_halo": w_halo,
            "w_offset": w_offset,
        }
        found |= dict.fromkeys(lint(coords=entry.coords, **operands, **entry.fields))
    return list(found)


def counted(count: int, noun: str) -> str:
    """A count with its noun: "1 error", "2 errors"."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


MOST_BYTES = 1 << 30  # of a tensor


def check_with_maps(text: str, options: argparse.Namespace) -> int:
    """Run a kernel under several schedules by check_kernel; 1 if one of them finds something."""
    source, objects = read_objects(options.map)
    wanted = sum(argument is MAP for argument in options.arguments)
    if wanted != len(objects):
        noun = "map" if len(objects) == 1 else "maps"
        raise ValueError(
            f"{source} has {len(objects)} {noun}, but {wanted} of the arguments are 'map'; name "
            "each map once, in the order of the kernel's parameters"
        )
    maps = [_map(given, f"{source}, map {n}") for n, given in enumerate(objects, 1)]
    first: list[bytes] = []
    for seed in range(options.seeds):
        left = iter(maps)
        given = [
            MapArgument(map := next(left), _tensor(map)) if a is MAP else _copied(a)
            for a in options.arguments
        ]
        report = check_kernel(
            text,
            options.grid,
            options.block,
            given,
            options.target,
            seed=seed,
            cluster=options.cluster,
            shared_bytes=options.shared,
            shared_alignment=options.shared_alignment,
            entry=options.entry,
            seconds=options.seconds,
            unfenced_barriers=options.unfenced_barriers,
            strict=options.strict,
        )
        arrays = [a.array if isinstance(a, MapArgument) else a for a in given]
        held = [a.tobytes() for a in arrays if isinstance(a, np.ndarray)]
        first = first or held
        if report.problems or held != first:
            print(printable(f"seed {seed}:\n{report}"))
            if held != first:
                print("the result depends on the schedule: it differs from that of seed 0")
            return 1
        if seed == 0:
            print(printable(str(report)))
    print(f"{options.seeds} schedules: no error, and the same result in all")
    return 0


def _map(given: Mapping[str, Any], where: str) -> TensorMap:
    """The map of an object; a ValueError lists the rules that it breaks."""
    named = {key: value for key, value in given.items() if key not in (*OPERANDS, "function")}
    try:
        if "globalDim" in named and not set(named) - set(ARGUMENTS):
            description, found = describe_arguments(with_integers(named))
            if description is None or found:
                raise TensorMapError("it", found)
            named = constructor_arguments(description)
            named |= {"dtype": description.element.lower(), "address": None}
        return kind_of_map(named)(**named)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{where}: {error}") from error


def _tensor(map: TensorMap) -> np.ndarray:
    """Small random integers in the type of the map, so that sums are exact."""
    size = math.prod(map.shape) * map.itemsize
    if size > MOST_BYTES:
        raise ValueError(f"the tensor {map.shape} has {size} bytes; at most {MOST_BYTES} are run")
    numbers = np.random.default_rng(0).integers(0, SMALL, map.shape)
    if map.description.element == "BFLOAT16":
        return (numbers.astype(np.float32).view(np.uint32) >> 16).astype(map.dtype)
    return numbers.astype(map.dtype)


def _copied(argument: Any) -> Any:
    return argument.copy() if isinstance(argument, np.ndarray) else argument
