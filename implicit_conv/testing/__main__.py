"""``python -m implicit_conv.testing``: check this machine with random problems, or all of it."""

from __future__ import annotations

import argparse
import secrets
import sys
from collections.abc import Sequence

from implicit_conv.cpu.machine.arch import cpu_arch
from implicit_conv.errors import UsageError
from implicit_conv.settings import MOST_THREADS, config, current
from implicit_conv.testing.doors import fuzz as doors
from implicit_conv.testing.doors.fuzz import DOORS
from implicit_conv.testing.draw import Deck
from implicit_conv.testing.fuzz import fuzz
from implicit_conv.testing.machine import check_machine
from implicit_conv.testing.methods import NAMES
from implicit_conv.testing.trial import SIDES


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status."""
    parser = argparse.ArgumentParser(prog="python -m implicit_conv.testing", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    command = commands.add_parser(
        "fuzz",
        help="compare random problems of every operator with a reference in float64",
        description="Compare random problems of every operator with a reference in float64. A "
        "program that repeats it is printed for each wrong result, error or crash, and the exit "
        "status is 1. The table at the end counts what was computed.",
    )
    command.add_argument("--seconds", type=_seconds, default=60.0, help="how long; default: 60")
    _add_common(command)
    command.add_argument(
        "--guard",
        action="store_true",
        help="put all arrays, packed filters and scratch memory against inaccessible pages",
    )
    command.add_argument(
        "--method",
        type=_methods,
        default=(),
        metavar="NAME[,NAME]",
        help=f"only problems that these methods compute, of {', '.join(NAMES)}",
    )
    command.add_argument(
        "--door",
        choices=DOORS,
        help="random programs of this door, against the library that it is for, instead",
    )
    command.set_defaults(run=_fuzz)
    command = commands.add_parser(
        "check",
        help="check this machine in about two minutes: problems, guard pages, forks, cache, limits",
        description="Check this machine in about two minutes. The last line is the one to report.",
    )
    _add_common(command)
    command.set_defaults(run=lambda options, seed, threads: check_machine(seed, threads))
    options = parser.parse_args(arguments)
    seed = secrets.randbelow(1 << 32) if options.seed is None else options.seed
    threads = options.threads or cpu_arch(current().num_threads).threads
    try:
        status: int = options.run(options, seed, threads)
    except UsageError as error:
        parser.error(str(error))
    return status


def _add_common(command: argparse.ArgumentParser) -> None:
    command.add_argument("--seed", type=_natural, help="a seed gives the same problems every time")
    command.add_argument("--threads", type=_threads, help="threads at most; default: all")


def _fuzz(options: argparse.Namespace, seed: int, threads: int) -> int:
    if options.door:
        if options.guard or options.method:
            raise UsageError("--door takes neither --guard nor --method: they are of operators")
        if options.threads:
            # For the process: in a block, compiled code leaves calls of torch to Python.
            config(num_threads=threads)
        return doors.fuzz(options.door, seed, options.seconds)
    guards = SIDES if options.guard else ("",)
    return fuzz(Deck(seed, threads, guards, options.method), options.seconds)


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 <= seconds < float("inf"):
        raise ValueError
    return seconds


def _methods(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    for name in names:
        if name not in NAMES:
            known = ", ".join(NAMES)
            raise argparse.ArgumentTypeError(f"{name!r} is no method; the methods are {known}")
    return names


def _natural(text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} must be an integer of at least 0")
    return int(text)


def _threads(text: str) -> int:
    threads = _natural(text)
    if not 1 <= threads <= MOST_THREADS:
        raise argparse.ArgumentTypeError(f"{text!r} must be an integer from 1 to {MOST_THREADS}")
    return threads


if __name__ == "__main__":
    sys.exit(main())
