"""``python -m perf COMMAND``."""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence

from perf import compare, export, gates, report, run, tally


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit status, 2 for what the user can mend."""
    parser = argparse.ArgumentParser(prog="python -m perf", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for module in (run, compare, tally, gates, report, export):
        module.register(commands)
    options = parser.parse_args(arguments)
    try:
        status: int = options.run(options)
    except (ValueError, OSError, ImportError, ArithmeticError, subprocess.SubprocessError) as error:
        print(f"perf {options.command}: {error}", file=sys.stderr)
        return 2
    return status


if __name__ == "__main__":
    sys.exit(main())
