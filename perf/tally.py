"""``perf tally``: test `compare` by many comparisons whose outcome is known.

HEAD against itself must be "fine". HEAD against a tree whose calls take 10 % longer must be
"slower". Each outcome is written at once, and an interrupted tally
continues from there.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from perf import terminal
from perf.compare import add_options, compare
from perf.verdicts import FINE, MOST_FLOOR, SLOWER
from perf.workers import tree

EXPECTED = {"A/A": FINE, "planted": SLOWER}
LAYERS = ["1x1 128-512", "1x1 512-128"]
API = Path("implicit_conv") / "api.py"
# Written at the end of the API: conv2d spins for a share of the time that it took.
SLOWDOWN = """

_conv2d = conv2d


def conv2d(*arguments, **options):
    from time import perf_counter

    start = perf_counter()
    y = _conv2d(*arguments, **options)
    end = perf_counter()
    while perf_counter() < end + {share} * (end - start):
        pass
    return y
"""


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the command line."""
    parser = commands.add_parser(
        "tally", help="test `compare` on equal trees and on a planted slowdown"
    )
    add_options(parser)
    parser.set_defaults(run=run, layout="NHWC")
    parser.add_argument("--runs", type=int, default=20, help="comparisons of each kind")
    parser.add_argument("--share", type=float, default=0.1, help="of a call's time; 0.1 is 10 %%")
    parser.add_argument("-o", "--output", type=Path, default=Path("tally.json"))


def run(options: argparse.Namespace) -> int:
    """Exit status: 0 if at least 95 % of the outcomes of each kind are right, else 1."""
    options.layer = options.layer or LAYERS
    outcomes = json.loads(options.output.read_text()) if options.output.exists() else []
    console = terminal.console()
    with trees(options.share) as (head, planted), tempfile.TemporaryDirectory() as cache:
        options.cache = options.cache or Path(cache)
        pairs = {"A/A": (head, head), "planted": (head, planted)}
        for number in range(options.runs):
            for kind, (base, other) in pairs.items():
                if sum(outcome["kind"] == kind for outcome in outcomes) > number:
                    continue
                outcomes.append(outcome_of(kind, options, base, other))
                options.output.write_text(json.dumps(outcomes, indent=1) + "\n")
                console.print(outcome_line(outcomes[-1]))
    console.print(terminal.table_of(COLUMNS, summary(outcomes)))
    return 0 if all(share_right(outcomes, kind) >= 0.95 for kind in EXPECTED) else 1


@contextmanager
def trees(share: float) -> Iterator[tuple[Path, Path]]:
    """HEAD, and HEAD whose calls take longer by `share` of their time."""
    nowhere = Path()
    with tree("HEAD", nowhere) as head, tree("HEAD", nowhere) as planted:
        plant(planted.path, SLOWDOWN.format(share=share))
        yield head.path, planted.path


def plant(path: Path, code: str) -> None:
    """Write code at the end of the API of the tree at `path`."""
    with (path / API).open("a") as text:
        text.write(code)


def outcome_of(kind: str, options: argparse.Namespace, base: Path, head: Path) -> dict[str, Any]:
    """Run one comparison; return its verdict, noise floor and ratios."""
    start = time.monotonic()
    record = compare(options, str(base), str(head))
    if not record["complete"]:
        raise KeyboardInterrupt
    return {
        "kind": kind,
        "verdict": record["verdict"],
        "floor": record["noise_floor"],
        "ratios": {row["layer"]: row["ratio"] for row in record["rows"]},
        "rounds": max(row["rounds"] for row in record["rows"]),
        "load": record["load"],
        "seconds": round(time.monotonic() - start, 1),
    }


def outcome_line(outcome: dict[str, Any]) -> str:
    """One outcome as a line of text."""
    ratios = ", ".join(f"{ratio:.3f}" for ratio in outcome["ratios"].values())
    return (
        f"{outcome['kind']:8} {outcome['verdict']:13} floor {outcome['floor']:.2%}, ratios "
        f"{ratios}, {outcome['rounds']} rounds, {outcome['seconds']:.0f} s"
    )


def share_right(outcomes: list[dict[str, Any]], kind: str) -> float:
    """Share of right outcomes of `kind`, among runs with a low noise floor."""
    found = [o for o in outcomes if o["kind"] == kind and o["floor"] <= MOST_FLOOR]
    return sum(o["verdict"] == EXPECTED[kind] for o in found) / len(found) if found else 0.0


COLUMNS = ["kind", "expected", "runs", "right", "of them floor <= 3 %", "right", "floors"]


def summary(outcomes: list[dict[str, Any]]) -> list[list[str]]:
    """One line of text for each kind."""
    lines = []
    for kind, expected in EXPECTED.items():
        found = [outcome for outcome in outcomes if outcome["kind"] == kind]
        quiet = [outcome for outcome in found if outcome["floor"] <= MOST_FLOOR]
        right = [sum(o["verdict"] == expected for o in some) for some in (found, quiet)]
        floors = " ".join(f"{outcome['floor']:.1%}" for outcome in found)
        lines.append(
            [kind, expected, str(len(found)), str(right[0]), str(len(quiet)), str(right[1]), floors]
        )
    return lines
