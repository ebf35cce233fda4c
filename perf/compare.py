"""``perf compare BASE HEAD``: does HEAD run slower than BASE?

Both are alive at once, BASE twice: BASE against itself tells the noise floor of this very run. A
round takes a few samples of every side in random order; the ratio of the least of each is free of
drift and of interruptions. Processes are started anew several times, since where memory happens to
lie moves a process by a few per cent for all its life. Verdicts: see `verdicts`.
"""

from __future__ import annotations

import argparse
import random
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from implicit_conv.testing import Case
from implicit_conv.tools.contenders import oracle
from perf import tables, terminal
from perf.layers import SUITES, Suite
from perf.record import ROOT, Record, load, new_record, save
from perf.run import INTERRUPTED, chosen_layers
from perf.side import inputs
from perf.terminal import Show
from perf.verdicts import (
    INCONCLUSIVE,
    SLOWER,
    Estimate,
    Rounds,
    estimate,
    noise_floor,
    overall,
    paired_minima,
    verdict,
)
from perf.workers import Tree, Worker, tree, workers

SAMPLES = 3  # of a side in a round
EPOCHS = 3  # times that all processes are started, before the first verdict
MOST_EPOCHS = 9  # with those that ambiguous cases get on top
AGREE = 1e-5  # of sum|y|: how far sums over results of two sides may differ
STATUS = {SLOWER: 1, INCONCLUSIVE: 3}


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the command line."""
    parser = commands.add_parser(
        "compare",
        help="is HEAD slower than BASE?",
        description="Exit status 0: not slower; 1: slower; 3: inconclusive; 2: usage or error.",
    )
    parser.add_argument("base", help="git revision, or folder that holds implicit_conv")
    parser.add_argument("head", help="likewise")
    add_options(parser)
    parser.add_argument("-o", "--output", type=Path, help="write the record here")
    parser.set_defaults(run=run)


def add_options(parser: argparse.ArgumentParser) -> None:
    """What `compare` and `tally` share."""
    parser.add_argument("--suite", default="resnet50", choices=(*SUITES, "all"))
    parser.add_argument("--layer", action="append", help="only layers whose name contains this")
    parser.add_argument("--layout", default="NCHW", choices=("NCHW", "NHWC"))
    parser.add_argument("--batch", type=int, help="images; the suite's own number by default")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=8, help="rounds of an epoch")
    parser.add_argument(
        "--against", choices=("torch",), help="a rival, reported beside, never gated"
    )
    parser.add_argument("--cache", type=Path, help="keep compiled kernels here between runs")
    parser.set_defaults(device="cpu", dtype=None)


def run(options: argparse.Namespace) -> int:
    """Exit status: 0 fine, 1 slower, 3 inconclusive, 130 after Ctrl-C."""
    record = compare(options, options.base, options.head)
    if options.output:
        save(record, options.output)
    terminal.console().print(tables.compare_table(record))
    if not record["complete"]:
        return INTERRUPTED
    return STATUS.get(record["verdict"], 0)


def compare(options: argparse.Namespace, base: str, head: str) -> Record:
    """Measure until every case is decided or MOST_EPOCHS are spent; the record of it."""
    suite = chosen_layers(options)
    names = ("suite", "layer", "layout", "batch", "threads", "rounds")
    record = new_record("compare", {name: getattr(options, name) for name in names})
    record |= {"base": base, "head": head, "verdict": INCONCLUSIVE}
    samples: Samples = {name: defaultdict(list) for name in suite}
    try:
        with (
            sides(base, head, options) as trees,
            terminal.progress(terminal.console()) as show,
        ):
            record |= {"base": trees["base"].name, "head": trees["head"].name}
            measure(suite, trees, options, samples, show)
        record["complete"] = True
    except KeyboardInterrupt:
        pass
    judge(record, samples)
    record["load"]["after"] = load()
    return record


# layer -> side -> rounds, each of SAMPLES seconds a call
Samples = dict[str, dict[str, list[list[float]]]]


@contextmanager
def sides(base: str, head: str, options: argparse.Namespace) -> Iterator[dict[str, Tree]]:
    """The trees of all sides: base, the control (base again), head, and the rival if any."""
    with ExitStack() as stack:
        cache = options.cache or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        first = stack.enter_context(tree(base, cache.resolve() / "base"))
        second = stack.enter_context(tree(head, cache.resolve() / "head"))
        found = {"base": first, "control": first, "head": second}
        if options.against:
            if not find_spec(options.against):
                raise ImportError(f"{options.against} is not installed")
            found[options.against] = Tree(ROOT, cache.resolve() / "rival", options.against)
        yield found


def measure(
    suite: Suite,
    trees: dict[str, Tree],
    options: argparse.Namespace,
    samples: Samples,
    show: Show,
) -> None:
    """Fill in samples: EPOCHS for every case, then more for those that stay ambiguous."""
    order = random.Random(0)
    ambiguous = dict(suite)
    for epoch in range(MOST_EPOCHS):
        if epoch >= EPOCHS:
            _, found = verdicts(samples)
            ambiguous = {name: suite[name] for name in suite if found[name][1] == INCONCLUSIVE}
            if not ambiguous:
                return
        with workers(trees, options.threads) as alive:
            calls = prepare(alive, ambiguous)
            for number in range(options.rounds):
                show(f"epoch {epoch + 1}", epoch * options.rounds + number, EPOCHS * options.rounds)
                for which in order.sample(range(len(ambiguous)), len(ambiguous)):
                    one_round(alive, which, calls[which], order, samples[list(ambiguous)[which]])


def prepare(alive: dict[str, Worker], cases: Suite) -> list[int]:
    """Make every case on every side, compare their results, and calibrate; calls of a sample."""
    calls = []
    for which, case in enumerate(cases.values()):
        expected = expected_sum(case)
        x, w = case.arrange(*case.inputs(0))
        for name, worker in alive.items():
            answer = worker.ask("prepare", case=asdict(case), shapes=[x.shape, w.shape])
            if abs(answer["sum"] - expected) > AGREE * answer["size"]:
                raise ValueError(f"{name} computes something else than a convolution on {case}")
        calls.append(alive["base"].ask("calibrate", which=which)["calls"])
    return calls


def expected_sum(case: Case) -> float:
    """Sum over the oracle's result for the arrays that the sides convolve."""
    x, w = case.arrange(*case.inputs(0))
    x, w = inputs(list(x.shape), list(w.shape))
    images = x.transpose(0, 3, 1, 2) if case.layout == "NHWC" else x
    return float(oracle(replace(case, layout="NCHW"), images, w).sum())


def one_round(
    alive: dict[str, Worker],
    which: int,
    calls: int,
    order: random.Random,
    samples: dict[str, list[list[float]]],
) -> None:
    """SAMPLES of every side, in random order each time."""
    taken: dict[str, list[float]] = {name: [] for name in alive}
    for _ in range(SAMPLES):
        for name in order.sample(list(alive), len(alive)):
            taken[name].append(alive[name].ask("sample", which=which, calls=calls)["seconds"])
    for name, seconds in taken.items():
        samples[name].append(seconds)


def verdicts(samples: Samples) -> tuple[float, dict[str, tuple[Estimate, str]]]:
    """The noise floor of all cases, and each one's ratio head / base with its verdict."""
    floor = noise_floor([control_ratio(sides) for sides in samples.values()])
    found = {}
    for name, sides in samples.items():
        ratio = estimate(paired_minima(array(sides["head"]), array(sides["base"])))
        found[name] = ratio, verdict(ratio, floor)
    return floor, found


def control_ratio(sides: dict[str, list[list[float]]]) -> float:
    """Base over itself."""
    return estimate(paired_minima(array(sides["control"]), array(sides["base"]))).ratio


def array(rounds: list[list[float]]) -> Rounds:
    """Rounds as an array (rounds, samples)."""
    return np.array(rounds)


def judge(record: Record, samples: Samples) -> None:
    """Write rows, floor and verdict of what was measured until now."""
    whole = {name: sides for name, sides in samples.items() if sides}
    if not whole:
        return
    floor, found = verdicts(whole)
    record["noise_floor"] = floor
    for name, (ratio, said) in found.items():
        sides = whole[name]
        rivals = {
            rival: estimate(paired_minima(array(sides[rival]), array(sides["head"]))).ratio
            for rival in sides
            if rival not in ("base", "control", "head")
        }
        record["rows"].append(
            row(name, ratio, said, len(sides["head"]), control_ratio(sides), rivals)
        )
    if record["complete"]:
        record["verdict"] = overall([said for _, said in found.values()])


def row(
    name: str, ratio: Estimate, said: str, rounds: int, control: float, rivals: dict[str, float]
) -> dict[str, Any]:
    """One case of a comparison as a record keeps it."""
    return {
        "layer": name,
        "ratio": ratio.ratio,
        "low": ratio.low,
        "high": ratio.high,
        "control": control,
        "rounds": rounds,
        "rivals": rivals,
        "verdict": said,
    }
