"""``perf regret``: how much time the planner's choices cost against the best candidates.

The candidates of each layer are those that `Plan.tune` measures. A layer's regret is the time of
the planner's choice over that of the fastest candidate, each the least of its samples; the filter
is packed before the clock starts. Candidates whose estimates are off by more than FAR are listed.
`perf report` shows records of it on the page "On your CPU".
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from statistics import geometric_mean
from typing import NamedTuple

from implicit_conv.cpu.candidates.candidate import Candidate
from implicit_conv.cpu.candidates.query import Request
from implicit_conv.cpu.engines.engine import plan
from implicit_conv.cpu.machine.arch import cpu_arch
from implicit_conv.cpu.plan import tuning
from implicit_conv.cpu.plan.facts import Clock
from implicit_conv.problem.options import FLOAT_DTYPES
from implicit_conv.testing import Case
from implicit_conv.timing import UNTOLD, Seconds, disturbance
from perf import terminal
from perf.cliffs import FAR, LEAST
from perf.layers import OTHERS, SUITES
from perf.record import Record, load, new_record, save
from perf.run import chosen_layers

KIND = "regret"  # of records
MEAN, WORST = 1.03, 1.15  # the regret that is accepted: geometric mean, any layer


class Regret(NamedTuple):
    """A layer: the planner's choice, the fastest candidate, and their times in seconds."""

    layer: str
    chosen: Candidate
    fastest: Candidate
    chosen_seconds: float
    fastest_seconds: float
    misjudged: tuple[str, ...]  # candidates, with their times over their estimates

    @property
    def ratio(self) -> float:
        """The time of the choice over that of the fastest candidate."""
        return self.chosen_seconds / self.fastest_seconds


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the command line."""
    parser = commands.add_parser(
        "regret", help="what the planner's choices cost", description=__doc__
    )
    suites = [name for name in SUITES if name not in OTHERS]
    parser.add_argument("--suite", default="all", choices=(*suites, "all"))
    parser.add_argument("--layer", action="append", help="only layers whose name contains this")
    parser.add_argument("--dtype", action="append", choices=FLOAT_DTYPES)
    parser.add_argument("--layout", default="NCHW", choices=("NCHW", "NHWC"))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("-o", "--output", type=Path, help="write the record here")
    parser.set_defaults(run=run, device="cpu", batch=None)


def run(options: argparse.Namespace) -> int:
    """Exit status: 0; 1 if the regret is larger than accepted; UNTOLD beside other work, where
    nothing is measured.
    """
    suite = chosen_layers(options)
    disturbed = disturbance(options.threads)
    if disturbed:
        print(disturbed)
        return UNTOLD
    found = []
    with terminal.progress() as show:
        for number, (name, case) in enumerate(suite.items()):
            show(name, number, len(suite))
            found.append(measured(name, case, options.threads))
    print(terminal.table_of([cells(one) for one in found]))
    for name, words in ((one.layer, words) for one in found for words in one.misjudged):
        print(f"{name}: {words}")
    mean, worst = summary(found)
    if options.output:
        save(record_of(options, found), options.output)
    print(
        f"regret of {len(found)} layers: {mean:.3f} as geometric mean (at most {MEAN}), worst "
        f"{worst.ratio:.3f} (at most {WORST}): {worst.layer}"
    )
    return int(mean > MEAN or worst.ratio > WORST)


def measured(name: str, case: Case, threads: int) -> Regret:
    """Time the candidates of a layer."""
    engine = plan(case.problem, cpu_arch(threads), Request())
    query = engine.choice.query
    make = tuning.run_of(query, engine.arrays, engine.formats, packs=True)
    candidates = tuning.few(query, packs=True)
    clock = Clock.of(query.arch)
    estimates = [clock.milliseconds(c, c.packed_cycles) / 1e3 for c in candidates]
    return regret(name, candidates, tuning.measure(candidates, make), estimates)


def regret(
    name: str,
    candidates: Sequence[Candidate],
    samples: Sequence[Seconds],
    estimates: Sequence[float],
) -> Regret:
    """The regret of the first of `candidates`, which the planner chooses; estimates in seconds."""
    times = [float(own.min()) for own in samples]
    best = times.index(min(times))
    ratios = [time / estimate for time, estimate in zip(times, estimates, strict=True)]
    misjudged = tuple(
        f"{words_of(c)} takes {ratio:.2f} times its estimate"
        for c, time, ratio in zip(candidates, times, ratios, strict=True)
        if time >= LEAST and not 1 / FAR <= ratio <= FAR
    )
    return Regret(name, candidates[0], candidates[best], times[0], times[best], misjudged)


def summary(found: Sequence[Regret]) -> tuple[float, Regret]:
    """The geometric mean of all ratios, and the layer with the largest."""
    mean = geometric_mean([one.ratio for one in found])
    return mean, max(found, key=lambda one: one.ratio)


def record_of(options: argparse.Namespace, found: Sequence[Regret]) -> Record:
    """The record of a run."""
    names = ("suite", "layer", "dtype", "layout", "threads")
    record = new_record(KIND, {name: getattr(options, name) for name in names})
    record["rows"] = [
        {
            "layer": one.layer,
            "chosen": words_of(one.chosen),
            "fastest": words_of(one.fastest),
            "chosen_seconds": one.chosen_seconds,
            "fastest_seconds": one.fastest_seconds,
        }
        for one in found
    ]
    record["complete"], record["load"]["after"] = True, load()
    return record


def words(records: Sequence[Record]) -> str:
    """The geometric mean of the regrets of records, and the largest; empty without records."""
    rows = [row for record in records for row in record["rows"]]
    ratios = [row["chosen_seconds"] / row["fastest_seconds"] for row in rows]
    return f"{geometric_mean(ratios):.2f} ({max(ratios):.2f})" if ratios else ""


def cells(one: Regret) -> dict[str, str]:
    """A row of the table."""
    return {
        "layer": one.layer,
        "chosen": words_of(one.chosen),
        "fastest": words_of(one.fastest),
        "chosen ms": f"{1e3 * one.chosen_seconds:.3f}",
        "fastest ms": f"{1e3 * one.fastest_seconds:.3f}",
        "regret": f"{one.ratio:.3f}",
    }


def words_of(c: Candidate) -> str:
    """A candidate in short: its method, algorithm, and tile of images x rows x columns."""
    g = c.geometry
    return f"{type(c.method).__name__} {c.algorithm}, {g.tile_n}x{g.tile_p}x{g.tile_q}"
