"""The command line: ``implicit-conv COMMAND``, also ``python -m implicit_conv COMMAND``."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from implicit_conv import __version__
from implicit_conv.errors import DriverError
from implicit_conv.ptx import commands as interpreter
from implicit_conv.ptx.errors import printable
from implicit_conv.tma import commands as laboratory
from implicit_conv.tma.commands import check_with_maps
from implicit_conv.tools import bench, demo, info, kernel_cache, plans

NEGATIVE_LIST = re.compile(r"-\d+(,-?\d+)+")
USER_ERRORS = (
    ValueError,
    TypeError,
    OSError,
    ImportError,
    argparse.ArgumentTypeError,
    DriverError,
)


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line, which names the way to more."""

    def error(self, message: str) -> NoReturn:
        """Print the line, and exit with 2."""
        self.exit(2, printable(f"{self.prog}: {message}; `{self.prog} --help` says more") + "\n")


def make_parser() -> argparse.ArgumentParser:
    """The parser of all commands; the reference prints its help."""
    parser = Parser(
        prog="implicit-conv",
        description="Convolution for numpy arrays; `implicit-conv COMMAND --help` says more.",
        epilog=f"Report bugs, with what `implicit-conv info` prints: {info.ISSUES}",
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands: Any = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    demo.register(commands)
    info.register(commands)
    kernel_cache.register(commands)
    bench.register(commands)
    laboratory.register(commands)
    interpreter.register(commands, check_with_maps)
    plans.register(commands)
    return parser


def _joined(arguments: Sequence[str]) -> list[str]:
    """The arguments with `--lower -1,-1` as `--lower=-1,-1`, which argparse needs: it takes a list
    that begins with a minus sign for an option.
    """
    joined: list[str] = []
    for word in arguments:
        if NEGATIVE_LIST.fullmatch(word) and joined and joined[-1].startswith("--"):
            joined[-1] += f"={word}"
        else:
            joined.append(word)
    return joined


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit status, 2 for an error that the user can correct."""
    parser = make_parser()
    options, unknown = parser.parse_known_args(
        _joined(sys.argv[1:] if arguments is None else arguments)
    )
    if unknown:
        parser.prog += f" {options.command}"  # whose help says more
        parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    try:
        return options.run(options) or 0
    except BrokenPipeError:  # the reader of the pipe, such as `head`, has ended
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except USER_ERRORS as error:
        print(printable(f"implicit-conv {options.command}: {error}"), file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
