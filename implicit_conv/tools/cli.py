"""The command line: ``implicit-conv COMMAND``, also ``python -m implicit_conv COMMAND``."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from implicit_conv import __version__
from implicit_conv.errors import DriverError
from implicit_conv.ptx import commands as interpreter
from implicit_conv.ptx.errors import printable
from implicit_conv.tma import commands as laboratory
from implicit_conv.tma.commands import check_with_maps
from implicit_conv.tools import bench, demo, info, kernel_cache, plans

USER_ERRORS = (
    ValueError,
    TypeError,
    OSError,
    ImportError,
    argparse.ArgumentTypeError,
    DriverError,
)


def make_parser() -> argparse.ArgumentParser:
    """The parser of all commands; the reference prints its help."""
    parser = argparse.ArgumentParser(
        prog="implicit-conv", description="Convolution by implicit GEMM for numpy arrays."
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    demo.register(commands)
    info.register(commands)
    kernel_cache.register(commands)
    bench.register(commands)
    laboratory.register(commands)
    interpreter.register(commands, check_with_maps)
    plans.register(commands)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit status, 2 for an error that the user can correct."""
    options = make_parser().parse_args(arguments)
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
