"""``perf compare BASE HEAD``: does HEAD run slower than BASE?

Processes of both sides run at the same time, with two of BASE: the ratio of BASE to itself gives
the noise floor of this run. A round takes a few samples of every side in random order; the ratio of
their minima is free of drift and of interruptions. All processes are restarted several times,
because memory addresses change the speed of a process by a few per cent for its lifetime. Verdicts
are defined in `verdicts`.
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

from implicit_conv.testing import Case
from implicit_conv.timing import UNTOLD, disturbance
from implicit_conv.tools.rivals import oracle
from perf import tables, terminal, upsampling
from perf.layers import SUITES
from perf.record import ROOT, Record, load, new_record, save
from perf.run import chosen_layers
from perf.session import INTERRUPTED
from perf.shapes import Suite
from perf.side import inputs
from perf.terminal import Show
from perf.verdicts import (
    INCONCLUSIVE,
    SLOWER,
    Estimate,
    estimate,
    noise_floor,
    overall,
    verdict,
)
from perf.workers import Process, Tree, tree, workers

SAMPLES = 3  # samples of each side in a round
EPOCHS = 3  # process restarts before the first verdict
MOST_EPOCHS = 9  # process restarts at most, for cases that are still ambiguous
AGREE = 1e-5  # largest difference between the sums over y of two sides, relative to sum|y|
STATUS = {SLOWER: 1, INCONCLUSIVE: UNTOLD}  # exit status of a verdict


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the command line."""
    parser = commands.add_parser(
        "compare",
        help="is HEAD slower than BASE?",
        description="Exit status 0: not slower; 1: slower; 3: inconclusive; 2: usage or error.",
    )
    parser.add_argument("base", help="git revision, or folder that holds implicit_conv")
    parser.add_argument("head", help="git revision, or folder that holds implicit_conv")
    parser.add_argument("-o", "--output", type=Path, help="write the record here")
    suites = [name for name in SUITES if name not in upsampling.SUITES]
    parser.add_argument("--suite", default="resnet50", choices=(*suites, "all"))
    parser.add_argument("--layer", action="append", help="only layers whose name contains this")
    parser.add_argument("--layout", default="NCHW", choices=("NCHW", "NHWC"))
    parser.add_argument("--batch", type=int, help="images; default: that of the suite")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=8, help="rounds between two restarts")
    parser.add_argument(
        "--against",
        choices=("torch",),
        help="also report the ratio to a rival; it does not affect the verdict",
    )
    parser.add_argument("--cache", type=Path, help="keep compiled kernels here between runs")
    parser.set_defaults(run=run, device="cpu", dtype=None)


def run(options: argparse.Namespace) -> int:
    """Exit status: 0 fine, 1 slower, 3 inconclusive, 130 after Ctrl-C."""
    record = compare(options, options.base, options.head)
    if options.output:
        save(record, options.output)
    print(tables.compare_table(record))
    if not record["complete"]:
        return INTERRUPTED
    return STATUS.get(record["verdict"], 0)


def compare(options: argparse.Namespace, base: str, head: str) -> Record:
    """Measure until every case is decided or MOST_EPOCHS is reached; return the record.

    Nothing is measured beside other work, of which minutes could tell nothing.
    """
    suite = chosen_layers(options)
    names = ("suite", "layer", "layout", "batch", "threads", "rounds")
    record = new_record("compare", {name: getattr(options, name) for name in names})
    record |= {"base": base, "head": head, "verdict": INCONCLUSIVE}
    samples: Samples = {name: defaultdict(list) for name in suite}
    try:
        with sides(base, head, options) as trees, terminal.progress() as show:
            record |= {"base": trees["base"].name, "head": trees["head"].name}
            disturbed = disturbance(options.threads)
            if disturbed:
                return record | {"complete": True, "disturbed": disturbed}
            measure(suite, trees, options, samples, show)
        record["complete"] = True
    except KeyboardInterrupt:
        pass
    judge(record, samples)
    disturbed = disturbance(options.threads)
    if disturbed:
        record |= {"verdict": INCONCLUSIVE, "disturbed": disturbed}
    record["load"]["after"] = load()
    return record


# layer -> side -> the least of each round's samples, in seconds per call
Samples = dict[str, dict[str, list[float]]]


@contextmanager
def sides(base: str, head: str, options: argparse.Namespace) -> Iterator[dict[str, Tree]]:
    """The trees of all sides: base, control (also base), head, and the rival if there is one."""
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
    """Fill in samples: EPOCHS for every case, then more for ambiguous cases."""
    order = random.Random(0)
    ambiguous = dict(suite)
    for epoch in range(MOST_EPOCHS):
        if epoch >= EPOCHS:
            _, found = verdicts(samples)
            ambiguous = {name: suite[name] for name in suite if found[name][1] == INCONCLUSIVE}
            if not ambiguous:
                return
        epochs = max(EPOCHS, epoch + 1)
        show(f"epoch {epoch + 1}: start, compile", epoch * options.rounds, epochs * options.rounds)
        with workers(trees, options.threads) as alive:
            calls = prepare(alive, ambiguous)
            for number in range(options.rounds):
                done = epoch * options.rounds + number
                show(f"epoch {epoch + 1}", done, epochs * options.rounds)
                for which in order.sample(range(len(ambiguous)), len(ambiguous)):
                    one_round(alive, which, calls[which], order, samples[list(ambiguous)[which]])


def prepare(alive: dict[str, Process], cases: Suite) -> list[int]:
    """Prepare every case on every side, compare the results, and return the calls per sample."""
    calls = []
    for which, case in enumerate(cases.values()):
        expected = expected_sum(case)
        x, w = case.arrange(*case.inputs(0))
        for name, worker in alive.items():
            answer = worker.ask("prepare", case=asdict(case), shapes=[x.shape, w.shape])
            if abs(answer["sum"] - expected) > AGREE * answer["size"]:
                raise ValueError(f"{name} computes a wrong result on {case}")
        calls.append(alive["base"].ask("calibrate", which=which)["calls"])
    return calls


def expected_sum(case: Case) -> float:
    """Sum over the float64 reference of the arrays that the sides convolve."""
    x, w = case.arrange(*case.inputs(0))
    x, w = inputs(list(x.shape), list(w.shape))
    images = x.transpose(0, 3, 1, 2) if case.layout == "NHWC" else x
    return float(oracle(replace(case, layout="NCHW"), images, w).sum())


def one_round(
    alive: dict[str, Process],
    which: int,
    calls: int,
    order: random.Random,
    samples: dict[str, list[float]],
) -> None:
    """Take SAMPLES samples of every side, each time in random order; keep the least."""
    taken: dict[str, list[float]] = {name: [] for name in alive}
    for _ in range(SAMPLES):
        for name in order.sample(list(alive), len(alive)):
            taken[name].append(alive[name].ask("sample", which=which, calls=calls)["seconds"])
    for name, seconds in taken.items():
        samples[name].append(min(seconds))


def verdicts(samples: Samples) -> tuple[float, dict[str, tuple[Estimate, str]]]:
    """(noise floor of all cases, ratio head / base and verdict of each case)."""
    floor = noise_floor([control_ratio(sides) for sides in samples.values()])
    ratios = {name: estimate(sides["head"], sides["base"]) for name, sides in samples.items()}
    return floor, {name: (ratio, verdict(ratio, floor)) for name, ratio in ratios.items()}


def control_ratio(sides: dict[str, list[float]]) -> float:
    """Ratio of base to itself."""
    return estimate(sides["control"], sides["base"]).ratio


def judge(record: Record, samples: Samples) -> None:
    """Write rows, noise floor and verdict of the samples so far."""
    whole = {name: sides for name, sides in samples.items() if sides}
    if not whole:
        return
    floor, found = verdicts(whole)
    record["noise_floor"] = floor
    for name, (ratio, said) in found.items():
        sides = whole[name]
        rivals = {
            rival: estimate(seconds, sides["head"]).ratio
            for rival, seconds in sides.items()
            if rival not in ("base", "control", "head")
        }
        row = {"layer": name, **ratio._asdict(), "control": control_ratio(sides)}
        row |= {"rounds": len(sides["head"]), "rivals": rivals, "verdict": said}
        record["rows"].append(row)
    if record["complete"]:
        record["verdict"] = overall([said for _, said in found.values()])
