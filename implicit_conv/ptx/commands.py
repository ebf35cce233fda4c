"""The command ``ptx check``; `register` adds it to the program's parser."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from implicit_conv.ptx.check import check_runs, check_text, entries
from implicit_conv.ptx.errors import PtxError, printable, shortened
from implicit_conv.ptx.limits import SECONDS, read_text

Subparsers = Any  # argparse names the type of add_subparsers() only privately
ARRAY = re.compile(r"(\w+)\[(\d+)\]")
MAP = object()  # stands for a tensor map among arguments
SMALL = 4  # arrays hold random integers below it, so that sums are exact
DESCRIPTION = """\
Check a PTX file: say which instructions the interpreter does not cover. With --arguments, also run
the kernel under several schedules, and report the first race, deadlock or other error, or a result
that depends on the schedule:

  implicit-conv ptx check scale.ptx --block 128 --seeds 20 --arguments 'float32[128]' 0.5

An argument is an array of random small integers, DTYPE[COUNT], an integer, a float, or null, a
null pointer. With --map FILE it may be map, the next tensor map of a JSON file as `lint` reads it,
over a tensor of random small integers; copies are then compared with the laboratory's simulator.
"""


def register(
    subparsers: Subparsers, check_with_maps: Callable[[str, argparse.Namespace], int]
) -> None:
    """Add the command `ptx`, whose one action is `check`.

    `check_with_maps` runs a text with tensor maps, and returns the exit status.
    """
    parser = subparsers.add_parser(
        "ptx",
        help="`ptx check`: check a PTX file, and run it without a GPU",
        description="Read PTX without a GPU; the only action is `check`.",
    )
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    style = argparse.RawDescriptionHelpFormatter
    check = actions.add_parser(
        "check",
        help="check a PTX file, and run it under several schedules",
        description=DESCRIPTION,
        formatter_class=style,
    )
    check.add_argument("file", type=Path, metavar="FILE")
    check.add_argument("--arguments", nargs="+", type=argument, metavar="ARGUMENT", default=[])
    check.add_argument("--map", metavar="FILE", help="tensor maps in JSON; - is standard input")
    check.add_argument("--entry", help="the kernel, where the file has several")
    check.add_argument("--grid", type=_sizes, default=(1,), metavar="X[,Y,Z]", help="default: 1")
    check.add_argument("--block", type=_sizes, default=(32,), metavar="X[,Y,Z]", help="default: 32")
    check.add_argument(
        "--cluster",
        type=_sizes,
        metavar="X[,Y,Z]",
        help="blocks of a cluster; default: those of .reqnctapercluster, or 1",
    )
    check.add_argument("--shared", type=int, default=0, help="bytes of dynamic shared memory")
    check.add_argument(
        "--shared-alignment",
        type=int,
        default=0,
        help="of dynamic shared memory, where it is more than the declared one; Triton needs 1024",
    )
    check.add_argument("--target", help="the GPU, such as sm_90a; default: that of the file")
    check.add_argument("--seeds", type=int, default=10, help="schedules to run; default: 10")
    check.add_argument(
        "--seconds",
        type=float,
        default=SECONDS,
        help="most of each run, and of the check of the text; default: 60",
    )
    check.add_argument(
        "--unfenced-barriers",
        action="store_true",
        help="accept copies that complete on an mbarrier with no fence since its init",
    )
    check.add_argument(
        "--strict",
        action="store_true",
        help="also refuse several writes of the same values that no barrier orders",
    )
    check.set_defaults(run=run_check, check_with_maps=check_with_maps)


def argument(text: str) -> Any:
    """An argument of a kernel: "float32[64]", "12", "0.5", "map" or "null"."""
    if text in ("map", "null"):
        return MAP if text == "map" else None
    match = ARRAY.fullmatch(text)
    try:
        if match:
            rng = np.random.default_rng(0)
            return rng.integers(0, SMALL, int(match[2])).astype(np.dtype(match[1]))
        return int(text, 0) if re.fullmatch(r"-?(0x)?[0-9a-fA-F]+", text) else float(text)
    except (TypeError, ValueError, MemoryError):
        raise argparse.ArgumentTypeError(
            f"{shortened(text)!r} is no array such as float32[64] that fits in memory, no "
            "integer, no float, and neither map nor null"
        ) from None


def _sizes(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{shortened(text)!r} must be one to three integers"
        ) from None


def run_check(options: argparse.Namespace) -> int:
    """Check a file; 1 if something is wrong with it."""
    with options.file.open(encoding="utf-8") as file:
        text = read_text(file, options.file)
    names = [options.entry] if options.entry else entries(text)
    if not names:
        raise PtxError(f"{options.file} has no kernel: no .entry")
    found = list(check_text(text, options.entry, options.seconds))
    for line in found:
        print(printable(line))
    if found:
        print(f"{len(found)} instructions or directives are wrong or not covered")
        return 1
    print(f"all instructions are covered: {shortened(', '.join(names))}")
    if options.map is not None:
        status: int = options.check_with_maps(text, options)
        return status
    if not options.arguments:
        return 0
    if any(given is MAP for given in options.arguments):
        raise PtxError("an argument is a tensor map: say by --map FILE which")
    wrong = check_runs(
        text,
        options.seeds,
        options.arguments,
        grid=options.grid,
        block=options.block,
        target=options.target,
        cluster=options.cluster,
        shared_bytes=options.shared,
        shared_alignment=options.shared_alignment,
        entry=options.entry,
        seconds=options.seconds,
        unfenced_barriers=options.unfenced_barriers,
        strict=options.strict,
    )
    message = next(wrong, None)
    print(
        printable(message)
        if message
        else f"{options.seeds} schedules: no error, and the same result in all"
    )
    return 0 if message is None else 1
