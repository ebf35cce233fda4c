"""Rivals in processes of their own: thread pools, allocators and settings cannot meet ours."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from implicit_conv.testing import Array, Case
from implicit_conv.timing import Timed
from perf.process import Process
from perf.record import ROOT
from perf.rival import module_of

# numpy and scipy take their number of threads from the variable of their BLAS.
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


class Remote(NamedTuple):
    """The function that a rival's process has prepared; a `Timed`."""

    process: Process
    path: Path

    def result(self) -> Array:
        """What the first call returned."""
        y: Array = np.load(self.path)
        return y

    def calls_per_sample(self, seconds: float) -> int:
        """A number of calls that takes at least `seconds`."""
        return int(self.process.ask("calls_per_sample", seconds=seconds)["calls"])

    def sample(self, calls: int) -> float:
        """One sample: mean seconds per call over `calls` calls."""
        return float(self.process.ask("sample", calls=calls)["seconds"])


class Rivals(NamedTuple):
    """The rivals of a run, each with its process."""

    processes: dict[str, Process]
    missing: dict[str, str]  # rival -> why it takes no part at all
    facts: dict[str, dict[str, Any]]  # rival -> version and threads
    folder: Path  # for results

    def prepare(self, operator: str, case: Case) -> tuple[dict[str, Timed], dict[str, str]]:
        """Make every rival ready for a case: (those that are, reasons of the others)."""
        ready: dict[str, Timed] = {}
        reasons = dict(self.missing)
        for name, process in self.processes.items():
            path = self.folder / f"{name}.npy"
            answer = process.ask("prepare", operator=operator, case=asdict(case), result=str(path))
            if "unsupported" in answer:
                reasons[name] = answer["unsupported"]
            else:
                ready[name] = Remote(process, path)
        return ready, reasons


@contextmanager
def rivals(names: Sequence[str], threads: int) -> Iterator[Rivals]:
    """Start a process for each rival that is installed; they end with the block."""
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        found = Rivals({}, {}, {}, Path(folder))
        variables = dict.fromkeys(THREAD_VARIABLES, str(threads))
        for name in names:
            if not find_spec(module_of(name)):
                found.missing[name] = f"{name} is not installed: pip install '.[rivals]'"
                continue
            command = ["-m", "perf.rival", name, str(threads)]
            process = stack.enter_context(closing(Process(name, command, str(ROOT), variables)))
            found.processes[name] = process
            found.facts[name] = process.ask("hello")
        yield found
