"""``perf run --suite models``: torch's models with `enable` in force and without it, in turn.

Each model has processes of its own: one in which ours and torch take turns, and one for each rival.
``perf run --suite tensors`` does the same with single calls, which arrays make too.
"""

from __future__ import annotations

import argparse
import tempfile
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from implicit_conv.cpu.machine.arch import cpu_arch
from implicit_conv.timing import Timed, calls_of, interleave, paired_ratio, summarise
from perf import opponents
from perf.model_names import ENGINES, KIND, OURS, TORCH
from perf.models import pages
from perf.models.catalogue import MODELS, WHOLE, Network, chosen, installed
from perf.operators import shares
from perf.record import ROOT, Record, new_record
from perf.rival import THREAD_VARIABLES
from perf.session import add, refuse, session, status_of
from perf.workers import Process


class Turn(NamedTuple):
    """One function of a process; a `Timed`."""

    process: Process
    name: str

    def result(self) -> Any:
        """Nothing: results were compared in the process."""

    def calls_per_sample(self, seconds: float) -> int:
        """A number of calls that takes at least `seconds`."""
        answer = self.process.ask("calls_per_sample", name=self.name, seconds=seconds)
        return int(answer["calls"])

    def sample(self, calls: int) -> float:
        """One sample: mean seconds per call over `calls` calls."""
        return float(self.process.ask("sample", name=self.name, calls=calls)["seconds"])


def run(options: argparse.Namespace) -> int:
    """Exit status: 0; UNTOLD if other work disturbs this machine; 130 after Ctrl-C, which keeps the
    finished rows.
    """
    refuse_others(options)
    threads = options.threads or cpu_arch().threads
    against = engines(options)
    networks, left_out = installed(chosen(options.suite, options.layer))
    settings = {"suite": options.suite, "threads": threads, "against": [TORCH, *against]}
    record = new_record(KIND, {**settings, "rounds": options.rounds, "left_out": left_out})
    record["rivals"] = {}
    with session(record, threads, options.output) as show:
        for done, (place, network) in enumerate(networks.items()):
            show(network.name, done, len(networks))
            add(record, row(record, place, network), options.output)
    print(pages.terminal_table(record))
    return status_of(record)


def refuse_others(options: argparse.Namespace) -> None:
    """Raise ValueError where an option asks for what these suites do not have."""
    refuse(options, f"suite {options.suite} has inputs of its own, in float32 on a CPU")
    if options.rounds < 1:
        raise ValueError(f"--rounds is {options.rounds}, but at least 1 is needed")


def engines(options: argparse.Namespace) -> list[str]:
    """The rivals in processes of their own: by default all for whole models, and for calls none.

    Raises
    ------
    ValueError
        torch or an engine would have wider or narrower vectors than ours, or an engine is asked for
        that runs no models, or to run single calls.
    """
    opponents.opponents([TORCH])
    narrow = opponents.narrowed()
    if options.against is None:
        return [] if narrow or options.suite not in WHOLE else [*ENGINES]
    wrong = [name for name in options.against if name not in (*ENGINES, TORCH)]
    if wrong or (options.suite not in WHOLE and set(options.against) & set(ENGINES)):
        beside = f", {', '.join(ENGINES)}" if options.suite in WHOLE else ""
        raise ValueError(
            f"suite {options.suite} is compared with torch{beside}; leave "
            f"--against {' and '.join(wrong or options.against)} out"
        )
    found = [name for name in ENGINES if name in options.against]
    if narrow and found:
        raise ValueError(
            f"ours has narrower vectors than this CPU, and {' and '.join(found)} cannot be told "
            "so: use --against torch"
        )
    return found


def row(record: Record, place: int, network: Network) -> dict[str, Any]:
    """One network: results are compared, convolutions timed, and then functions take turns."""
    settings = record["settings"]
    names = [name for name in settings["against"] if name in ENGINES]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        variables = dict.fromkeys(THREAD_VARIABLES, str(settings["threads"]))

        def start(name: str) -> Process:
            words = (name, settings["suite"], str(place), str(settings["threads"]))
            command = ["-m", "perf.models.process", *words]
            return stack.enter_context(closing(Process(name, command, str(ROOT), variables)))

        processes = {OURS: start(OURS)}
        record["rivals"][TORCH] = processes[OURS].ask("hello")
        found = processes[OURS].ask("prepare", path=str(folder / "exact.npz"))
        timed: dict[str, Timed] = {name: Turn(processes[OURS], name) for name in found["functions"]}
        whole = settings["suite"] == MODELS
        inside = {"convolutions": processes[OURS].ask("convolutions")} if whole else {}
        errors, reasons = found["errors"], dict[str, str]()
        for name in names:
            process = start(name)
            answer = prepared(process, record, name, folder / "exact.npz")
            errors |= answer.get("errors", {})
            if "unsupported" in answer:
                reasons[name] = answer["unsupported"]
            else:
                processes[name], timed[name] = process, Turn(process, name)
        samples = turns(processes, timed, settings["rounds"])
    return {
        "layer": network.name,
        "input": [*network.shape],
        "parameters": found["parameters"],
        **inside,
        "errors": errors,
        "timings": {
            name: {**summarise(values)._asdict(), "samples": values.tolist()}
            for name, values in samples.items()
        },
        "ratios": {
            name: paired_ratio(values, samples[OURS])
            for name, values in samples.items()
            if name != OURS
        },
        "not_timed": reasons,
    }


def prepared(process: Process, record: Record, name: str, path: Path) -> dict[str, Any]:
    """What the process of an engine answers; "unsupported" where it ends instead."""
    try:
        record["rivals"][name] = process.ask("hello")
        return process.ask("prepare", path=str(path))
    except ValueError as error:
        return {"unsupported": str(error)}


def turns(processes: dict[str, Process], timed: dict[str, Timed], rounds: int) -> dict[str, Any]:
    """Samples of all functions in turn, with several sets of inputs."""
    found, calls = [], calls_of(timed)
    for number, share in enumerate(shares(rounds)):
        if number:
            for process in processes.values():
                process.ask("renew")
        found.append(interleave(timed, share, seed=number, calls=calls))
    return {name: np.concatenate([one[name] for one in found]) for name in timed}
