"""``python -m perf COMMAND``."""

from __future__ import annotations

import argparse
import importlib
import subprocess
import sys
from collections.abc import Sequence

from implicit_conv.errors import DriverError

USER_ERRORS = (
    ValueError,
    OSError,
    ImportError,
    ArithmeticError,
    subprocess.SubprocessError,
    DriverError,
)
COMMANDS = (
    "run",
    "race",
    "regret",
    "fit",
    "cliffs",
    "compare",
    "gates",
    "report",
    "pack",
    "ndimage",
    "jax",
    "recipes",
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit status, 2 for an error that the user can correct."""
    parser = argparse.ArgumentParser(
        prog="python -m perf",
        description="Measure speed; `python -m perf COMMAND --help` says more of each command.",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    given = sys.argv[1:] if arguments is None else list(arguments)
    # Only the given command is imported, so that `run` on a GPU needs no model of an Arm core.
    for name in [name for name in COMMANDS if name in given[:1]] or COMMANDS:
        importlib.import_module(f"perf.{name}").register(commands)
    options = parser.parse_args(arguments)
    try:
        status: int = options.run(options)
    except USER_ERRORS as error:
        print(f"perf {options.command}: {error}", file=sys.stderr)
        return 2
    return status


if __name__ == "__main__":
    sys.exit(main())
