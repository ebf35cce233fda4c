"""``perf race``: this engine against every rival, suite by suite in both layouts, and one table of
the means and worst layers, of each rival and of the fastest on each layer.

Records are written into a folder. One that is there and complete is kept, so that a run that was
interrupted goes on, and a run of all that is there prints the table alone.
"""

from __future__ import annotations

import argparse
from itertools import product
from pathlib import Path

from perf import run as runs
from perf import tables
from perf.engines import ENGINES
from perf.layers import SUITES
from perf.record import Record, read

CHOSEN = ("resnet50", "depthwise", "corpus")


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the command line."""
    parser = commands.add_parser("race", help="time suites against all rivals", description=__doc__)
    parser.add_argument(
        "--suite",
        action="append",
        choices=[*SUITES],
        help=f"several are allowed; default: {', '.join(CHOSEN)}",
    )
    parser.add_argument("--layer", action="append", help="only layers whose name contains this")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=21, help="samples of each function")
    parser.add_argument("-o", "--output", type=Path, required=True, help="folder of the records")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Exit status: the first of `perf run` that is not 0, after which nothing more is timed."""
    options.output.mkdir(parents=True, exist_ok=True)
    records = []
    status = 0
    for suite, layout in product(options.suite or CHOSEN, ("NCHW", "NHWC")):
        path = options.output / f"{suite}-{layout.lower()}-{options.threads}thread.json"
        if not is_complete(path):
            status = runs.run(options_of(options, suite, layout, path))
        if is_complete(path):
            records.append(read(path))
        if status:
            break
    if records:
        print(table(records))
    return status


def is_complete(path: Path) -> bool:
    """Whether there is a record of a run that came to its end undisturbed."""
    if not path.exists():
        return False
    record = read(path)
    return bool(record["complete"]) and "disturbed" not in record


def options_of(
    options: argparse.Namespace, suite: str, layout: str, path: Path
) -> argparse.Namespace:
    """The options of `perf run` for one suite in one layout."""
    return argparse.Namespace(
        suite=suite,
        layout=layout,
        layer=options.layer,
        threads=options.threads,
        rounds=options.rounds,
        against=["torch", *ENGINES],
        output=path,
        operator=None,
        device="cpu",
        dtype=None,
        precision="standard",
        batch=None,
    )


def table(records: list[Record]) -> str:
    """The records as one table."""
    return tables.markdown(tables.rivals_rows(records), left=1)
