"""Rivals in processes of their own: thread pools, allocators and settings cannot meet ours.

``python -m perf.rival NAME THREADS`` is such a process; it has one convolution at a time. A rival's
threads may spin for milliseconds after a call, in wait for the next one. They would slow down
whoever is timed next, so that the process answers only when they sleep.
"""

from __future__ import annotations

import importlib
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from implicit_conv.testing import Array, Case
from implicit_conv.timing import Timed, calls_per_sample, no_collection, sample
from implicit_conv.tools.rivals import Function, result_of
from perf import onednn, outliers
from perf.engines import ANY_RANK, rival
from perf.onnx import onnxruntime_operator
from perf.operators import inputs_of, is_conv2d, torch_operator
from perf.record import ROOT
from perf.shapes import case_of
from perf.side import serve
from perf.workers import Process

# Names of modules where they differ from those of rivals.
MODULES = {"opencv": "cv2", "xnnpack": "ai_edge_litert"}
OPERATORS = {"torch": torch_operator, "onnxruntime": onnxruntime_operator}  # besides conv2d
# How long the CPU time of this process is watched: two ticks of a kernel with 100 in a second. Some
# kernels add up the time of other threads once in a tick, and none of it in between.
STEP_SECONDS = 0.02
ASLEEP = 0.1  # share of CPU time in a step below which no thread spins
MOST_STEPS = 25  # half a second, many times longer than any known rival spins

# numpy and scipy take their number of threads from the variable of their BLAS.
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def module_of(name: str) -> str:
    """The Python module of a rival."""
    return MODULES.get(name, name)


def is_installed(name: str) -> bool:
    """Whether a rival is installed; oneDNN is no module."""
    if name in onednn.PACKAGES:
        return onednn.library(name) is not None
    return find_spec(module_of(name)) is not None


def version_of(name: str) -> str:
    """The version of a rival that is installed."""
    if name in onednn.PACKAGES:
        return onednn.Library(name).version
    return str(importlib.import_module(module_of(name)).__version__)


class Rival:
    """The convolutions of one rival; each public method is a request."""

    def __init__(self, name: str, threads: int) -> None:
        self.name, self.threads = name, threads
        self.functions: list[Function] = []  # of one case; each has arrays of its own
        if name in onednn.PACKAGES:
            onednn.keep_to(threads)

    def hello(self) -> dict[str, Any]:
        """The version of the rival, and the number of threads that it was told to use."""
        return {"version": version_of(self.name), "threads": self.threads}

    def prepare(
        self, operator: str, case: dict[str, Any], result: str, number: int
    ) -> dict[str, Any]:
        """Make ready to compute `operator` on a case with new arrays, beside the `number` sets that
        the case has already, and write the result to the file `result`.

        The answer has the reason where the rival cannot compute the case.
        """
        del self.functions[number:]  # frees the arrays of the case before
        try:
            function, y = function_of(self.name, operator, case_of(case), self.threads)
        except Exception as error:  # engines have exceptions of their own
            return {"unsupported": f"{self.name}: {error}".strip().splitlines()[0]}
        self.functions.append(function)
        np.save(result, y)
        settle()
        return {}

    def beside_outlier(self, case: dict[str, Any], result: str) -> dict[str, Any]:
        """Write the result of a convolution that was prepared, beside an outlier, to a file."""
        given = case_of(case)
        arrays = given.arrange(*outliers.inputs(given))
        np.save(result, function_of(self.name, "fprop", given, self.threads, arrays)[1])
        return {}

    def calls_per_sample(self, seconds: float) -> dict[str, Any]:
        """The number of calls in a sample of at least `seconds`."""
        return {"calls": self._timed(lambda call: calls_per_sample(call, seconds))}

    def sample(self, calls: int) -> dict[str, Any]:
        """One sample, in seconds per call."""
        return {"seconds": self._timed(lambda call: sample(call, calls))}

    def _timed(self, work: Callable[[Function], float]) -> float:
        with no_collection():
            found = work(self.functions[-1])
        settle()
        return found


def function_of(
    name: str,
    operator: str,
    case: Case,
    threads: int,
    arrays: tuple[Array, Array] | None = None,
) -> tuple[Function, Array]:
    """A rival's function for an operator on a case, and its result with channels second, or with
    axes K, C, R, S. It is given `inputs_of` the case, or the `arrays`.

    Raises
    ------
    ValueError
        The rival cannot compute the case.
    """
    first, second = arrays or inputs_of(operator, case)
    if is_conv2d(operator, case) or (operator == "fprop" and name in ANY_RANK):
        function = rival(name, case, first, second, threads)
    elif name in OPERATORS:
        function = OPERATORS[name](operator, case, first, second, threads)
    else:
        raise ValueError(f"{name} is compared for fprop with two spatial axes only")
    return function, result_of(case, name, function())


def settle() -> None:
    """Wait until the threads of this process sleep.

    Raises
    ------
    TimeoutError
        They do not.
    """
    for _ in range(MOST_STEPS):
        before = time.process_time()
        time.sleep(STEP_SECONDS)
        if time.process_time() - before < ASLEEP * STEP_SECONDS:
            return
    raise TimeoutError(
        f"the rival's threads still spin {MOST_STEPS * STEP_SECONDS:g} s after a call, which would "
        "slow down every other function; leave it out of --against or use --threads 1"
    )


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

    def prepare(
        self, operator: str, case: Case, number: int = 0
    ) -> tuple[dict[str, Timed], dict[str, str]]:
        """Make every rival ready for a case, with set `number` of its arrays: (those that are,
        reasons of the others).
        """
        ready: dict[str, Timed] = {}
        reasons = dict(self.missing)
        for name, process in self.processes.items():
            path = self.folder / f"{name}.npy"
            wanted = {"operator": operator, "case": asdict(case), "number": number}
            answer = process.ask("prepare", **wanted, result=str(path))
            if "unsupported" in answer:
                reasons[name] = answer["unsupported"]
            else:
                ready[name] = Remote(process, path)
        return ready, reasons

    def errors_beside_outlier(self, case: Case, names: Collection[str]) -> dict[str, float]:
        """`outliers.error_of` of the rivals called `names`, which were prepared for a case."""
        errors = {}
        for name in names:
            path = self.folder / f"{name}.npy"
            self.processes[name].ask("beside_outlier", case=asdict(case), result=str(path))
            errors[name] = outliers.error_of(case, np.load(path))
        return errors


@contextmanager
def rivals(names: Sequence[str], threads: int) -> Iterator[Rivals]:
    """Start a process for each rival that is installed; they end with the block."""
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        found = Rivals({}, {}, {}, Path(folder))
        variables = dict.fromkeys(THREAD_VARIABLES, str(threads))
        for name in names:
            if not is_installed(name):
                found.missing[name] = f"{name} is not installed: pip install '.[rivals]'"
                continue
            command = ["-m", "perf.rival", name, str(threads)]
            told = onednn.environment(name, threads) if name in onednn.PACKAGES else {}
            process = Process(name, command, str(ROOT), variables | told)
            stack.enter_context(closing(process))
            found.processes[name] = process
            found.facts[name] = process.ask("hello")
        yield found


if __name__ == "__main__":
    serve(Rival(sys.argv[1], int(sys.argv[2])))
