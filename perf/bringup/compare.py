"""``compare``: the kernels of a kit, those of another checkout, and cuDNN on one card, in one
process; then whole networks, by torch and through our door to it.

Values come first: random problems for VALUES_SECONDS, all bytes of whose results are compared. Then
the layers of the kit, each of which is checked against float64 and timed in turns with a cold L2
(perf/cuda.py), until LAYERS_SECONDS have passed. The networks (networks.py) have the rest of the
time. A kernel that fails is named, and the rest goes on. What was measured is written after each
layer, so that a kernel that never ends costs what comes after it alone.
"""

from __future__ import annotations

import json
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from implicit_conv.errors import DriverError
from implicit_conv.testing import Case
from implicit_conv.testing.gpu.device_memory import StuckError
from implicit_conv.timing import Seconds
from implicit_conv.tools.rivals import WrongResultError
from perf import cuda
from perf.bringup.gpu import Gpu
from perf.bringup.kit import Kit, Launch
from perf.bringup.processes import run_module
from perf.bringup.steps import TOOLS, NotRunError, WrongError, bound, check, watched
from perf.networks import all_resnet50
from perf.shapes import case_of

OURS, BEFORE, RIVAL, EAGER = "ours", "before", "cuDNN", "eager"
STEPS = {OURS: "rates", BEFORE: "before"}  # of a kit, with the layers of each
SECONDS, LAYERS_SECONDS, VALUES_SECONDS = 300, 180, 60  # for all, values and layers, values alone
GRACE = 30  # seconds after SECONDS until a process that still measures is stopped
PROFILE_SECONDS = 75  # of a profile
PROFILES = [name for name in TOOLS if name.startswith("profile")]
ROUNDS = 5
# RuntimeError is torch's, for a card that a kernel has left unusable.
FAILURES = (DriverError, WrongError, WrongResultError, StuckError, RuntimeError)

Call = Callable[[], Any]


class Arrays(NamedTuple):
    """The arrays of a layer on the card: their addresses, and what they are to `Card.measure`."""

    places: Mapping[str, int]
    values: Any


class Card(Protocol):
    """A GPU with what compares."""

    gpu: Gpu

    def arrays(self, case: Case) -> Arrays:
        """New arrays x, w and y of a layer."""

    def measure(
        self, case: Case, arrays: Arrays, calls: Mapping[str, Call]
    ) -> tuple[dict[str, float], dict[str, Seconds]]:
        """(errors, samples) of each call, which writes y, and of the rival.

        Raises
        ------
        WrongResultError
            A result is wrong.
        """

    def networks(self, in_time: Callable[[], bool]) -> Iterator[dict[str, Any]]:
        """The rows of `networks.rows`.

        Raises
        ------
        NotRunError
            The kit has no kernels for them.
        """


class Torch:
    """The current GPU, on which torch has arrays, events and cuDNN."""

    device = "cuda"

    def __init__(self, kit: Kit) -> None:
        self.torch, self.gpu = cuda.torch_with_cuda(), Gpu(kit)

    def arrays(self, case: Case) -> Arrays:
        """Arrays with channels last."""
        x, w = cuda.inputs(self.torch, case, self.device)
        shape = (case.N, *case.output, case.K * case.groups)
        y = self.torch.empty(shape, device=self.device, dtype=x.dtype).permute(0, 3, 1, 2)
        places = {name: array.data_ptr() for name, array in (("x", x), ("w", w), ("y", y))}
        return Arrays(places, (x, w, y))

    def measure(
        self, case: Case, arrays: Arrays, calls: Mapping[str, Call]
    ) -> tuple[dict[str, float], dict[str, Seconds]]:
        """Errors in units of eps * sum|x||w|, and samples in seconds."""
        x, w, y = arrays.values
        rival = {RIVAL: lambda: cuda.torch_conv(self.torch, case, x, w)}
        checked = {who: _written(call, y) for who, call in calls.items()}
        errors = cuda.check(self.torch, case, x, w, {**checked, **rival})
        functions = {**calls, **rival}
        return errors, cuda.time_in_turn(self.torch, functions, ROUNDS, device=self.device)

    def networks(self, in_time: Callable[[], bool]) -> Iterator[dict[str, Any]]:
        """ResNet-50, by the kernels of the kit and by torch."""
        from perf.bringup import networks

        networks.provide(self.gpu.kit)
        given = networks.RESNET50, networks.WORKS, self.device
        return networks.rows(*given, networks.event_seconds, in_time)


def _written(call: Call, y: Any) -> Call:
    """A function that returns y as `call` writes it, without what another one wrote before."""
    return lambda: (y.fill_(np.nan), call(), y)[-1]


@dataclass
class Report:
    """What was found on a card."""

    facts: list[str]
    about: dict[str, Any]  # the kit
    right: int = 0  # problems
    failures: dict[str, str] = field(default_factory=dict)  # why, by what failed
    rows: list[dict[str, Any]] = field(default_factory=list)
    networks: list[dict[str, Any]] = field(default_factory=list)  # rows
    profiles: dict[str, list[str]] = field(default_factory=dict)  # lines of ncu, by kernel

    def save(self, path: Path) -> None:
        """Write it as JSON."""
        path.write_text(json.dumps(asdict(self), indent=1) + "\n")

    @classmethod
    def read(cls, path: Path) -> Report:
        """The report that `save` wrote."""
        return cls(**json.loads(path.read_text()))

    def lines(self) -> list[str]:
        """A table of the layers, sums over the network, tables of networks, and what failed."""
        lines = [*self.facts, f"{self.right} problems right", ""]
        for row in self.rows:
            kernels = ", ".join(f"{who} {name}" for who, name in row["kernels"].items())
            lines.append(f"{row['layer']:34} {_times(_medians(row))}  {kernels}")
        lines += ["", *self.sums()]
        for row in self.networks:
            lines += ["", f"{row['name']}:", *_ways(row)]
        lines += [f"FAILED: {what}: {why}" for what, why in self.failures.items()]
        for name, profile in self.profiles.items():
            lines += ["", f"{name}:", *profile]
        return lines

    def sums(self) -> list[str]:
        """For each dtype and batch, times of all layers that have them, as often as ResNet-50 has
        these layers.
        """
        often = Counter(f"ResNet-50 {name}" for name, _ in all_resnet50())
        groups: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for row in self.rows:
            groups[row["group"]].append(row)
        lines = []
        for group, rows in groups.items():
            counts = {row["layer"]: often[row["layer"].removesuffix(f" {group}")] for row in rows}
            whole = [row for row in rows if set(row["seconds"]) >= {OURS, RIVAL}]
            totals: dict[str, float] = defaultdict(float)
            for row in whole:
                for who, seconds in _medians(row).items():
                    totals[who] += counts[row["layer"]] * seconds
            if any(BEFORE not in row["seconds"] for row in whole):
                totals.pop(BEFORE, None)
            layers = sum(counts[row["layer"]] for row in whole)
            if layers:
                lines.append(f"{layers} of {often.total()} layers, {group}: {_times(totals)}")
        return lines


def _medians(row: dict[str, Any]) -> dict[str, float]:
    return {who: float(np.median(samples)) for who, samples in row["seconds"].items()}


def _times(seconds: Mapping[str, float]) -> str:
    """Times in us; those of others with how many times as long they are as ours."""
    ours = seconds.get(OURS)
    return ", ".join(
        f"{who} {1e6 * value:8.1f} us" + (f" ({value / ours:.2f})" if ours and who != OURS else "")
        for who, value in seconds.items()
    )


def _ways(row: dict[str, Any]) -> Iterator[str]:
    """For each way to run a network its time, how many times as long torch's is, and who computes
    its convolutions and, in training, their gradients.
    """
    seconds = _medians(row)
    for way, value in seconds.items():
        ours = row["ours"][way]
        faster = f"{seconds[EAGER] / value:6.2f}" if EAGER in seconds else " " * 6
        theirs = row["operators"] - ours
        yield f"  {way:20} {1e3 * value:9.3f} ms {faster}  {ours:3} ours, {theirs:3} torch's"


def run(path: Path, output: Path) -> Report:
    """Compare in a process with a time limit, then profile two kernels where ncu is installed."""
    output.unlink(missing_ok=True)
    seconds = SECONDS + GRACE
    done = run_module(
        "perf.bringup", "measure", str(path), "--report", str(output), seconds=seconds
    )
    report = Report.read(output) if output.exists() else Report([], {})
    if done.status != 0:
        why = f"did not end within {seconds} s" if done.status is None else f"status {done.status}"
        report.failures["the process"] = "\n".join([why, *done.output.splitlines()[-8:]])
    for name in PROFILES:
        try:
            report.profiles[name] = watched(name, path, PROFILE_SECONDS)
        except (NotRunError, WrongError) as error:
            report.profiles[name] = [str(error)]
    report.save(output)
    return report


def compared(
    kit: Kit, card: Card, path: Path, clock: Callable[[], float] = time.monotonic
) -> Report:
    """Compare on a card; the report is also written to `path` while it grows."""
    began = clock()
    report = Report(card.gpu.facts(), kit.about)
    problems = by_turns(kit.of_step("problems"))
    for number, launch in enumerate(problems):
        if clock() - began > VALUES_SECONDS:
            report.failures["values"] = f"{len(problems) - number} problems did not fit in the time"
            break
        try:
            check(kit, launch, card.gpu)
            report.right += 1
        except FAILURES as error:
            report.failures[launch.name] = str(error)
        report.save(path)
    for layer, launches in layers(kit).items():
        if clock() - began > LAYERS_SECONDS:
            report.failures[layer] = "not measured: it did not fit in the time"
        else:
            try:
                report.rows.append(_row(report, card, layer, launches))
            except FAILURES as error:
                report.failures[layer] = str(error)
        report.save(path)
    try:
        for row in card.networks(lambda: clock() - began <= SECONDS):
            failures = row.pop("failures")
            report.failures |= {f"{row['name']}, {way}": why for way, why in failures.items()}
            report.networks.append(row)
            report.save(path)
    except Exception as error:  # of torch, which a card may lack in part
        report.failures["networks"] = f"{type(error).__name__}: {error}"
        report.save(path)
    return report


def by_turns(launches: Iterable[Launch]) -> list[Launch]:
    """The first launch of each kernel, then the second of each, and so on."""
    turns: Counter[str] = Counter()
    ranked = []
    for launch in launches:
        turns[launch.image] += 1
        ranked.append((turns[launch.image], launch))
    return [launch for _, launch in sorted(ranked, key=itemgetter(0))]


def layers(kit: Kit) -> dict[str, dict[str, Launch]]:
    """{layer: {who: launch}}, of each the first kernel, which is the best by its estimate."""
    found: dict[str, dict[str, Launch]] = {}
    for who, step in STEPS.items():
        for launch in kit.of_step(step):
            layer = f"{launch.name.partition(', ')[0]} {_group(launch)}"
            found.setdefault(layer, {}).setdefault(who, launch)
    return found


def _group(launch: Launch) -> str:
    """The dtype and the number of images of a layer."""
    case = case_of(launch.recipe["case"])
    return f"{case.dtype} n{case.N}"


def _row(report: Report, card: Card, layer: str, launches: dict[str, Launch]) -> dict[str, Any]:
    one = next(iter(launches.values()))
    case = case_of(one.recipe["case"])
    arrays = card.arrays(case)
    calls = {}
    for who, launch in launches.items():
        try:
            calls[who] = card.gpu.ready(launch, bound(launch, arrays.places, card.gpu))
        except DriverError as error:
            report.failures[f"{layer}, {who}"] = str(error)
    errors, samples = card.measure(case, arrays, calls)
    return {
        "layer": layer,
        "group": _group(one),
        "kernels": {who: launches[who].name.partition(", ")[2] for who in calls},
        "errors": errors,
        "seconds": {who: np.asarray(values).tolist() for who, values in samples.items()},
    }
