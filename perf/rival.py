"""``python -m perf.rival NAME THREADS``: the process of one rival, which `rivals` asks.

It has one convolution at a time. A rival's threads may spin for milliseconds after a call, in wait
for the next one. They would slow down whoever is timed next, so that this process answers only when
they sleep.
"""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from implicit_conv.testing import Array, Case
from implicit_conv.timing import calls_per_sample, no_collection, sample
from implicit_conv.tools.rivals import Function, result_of
from perf.engines import rival
from perf.operators import inputs_of, torch_operator
from perf.side import serve

MODULES = {"opencv": "cv2"}  # names of modules where they differ from those of rivals
# How long the CPU time of this process is watched: two ticks of a kernel with 100 in a second. Some
# kernels add up the time of other threads once in a tick, and none of it in between.
STEP_SECONDS = 0.02
ASLEEP = 0.1  # share of CPU time in a step below which no thread spins
MOST_STEPS = 25  # half a second, many times longer than any known rival spins


def module_of(name: str) -> str:
    """The Python module of a rival."""
    return MODULES.get(name, name)


class Rival:
    """The convolutions of one rival; each public method is a request."""

    def __init__(self, name: str, threads: int) -> None:
        self.name, self.threads = name, threads
        self.function: Function | None = None

    def hello(self) -> dict[str, Any]:
        """The version of the rival, and the number of threads that it was told to use."""
        module = importlib.import_module(module_of(self.name))
        return {"version": str(module.__version__), "threads": self.threads}

    def prepare(self, operator: str, case: dict[str, Any], result: str) -> dict[str, Any]:
        """Make ready to compute `operator` on a case, and write the result to the file `result`.

        The answer has the reason where the rival cannot compute the case.
        """
        self.function = None  # frees the arrays of the case before
        try:
            self.function, y = function_of(self.name, operator, case_of(case), self.threads)
        except Exception as error:  # engines have exceptions of their own
            return {"unsupported": f"{self.name}: {error}".strip().splitlines()[0]}
        np.save(result, y)
        settle()
        return {}

    def calls_per_sample(self, seconds: float) -> dict[str, Any]:
        """The number of calls in a sample of at least `seconds`."""
        return {"calls": self._timed(lambda call: calls_per_sample(call, seconds))}

    def sample(self, calls: int) -> dict[str, Any]:
        """One sample, in seconds per call."""
        return {"seconds": self._timed(lambda call: sample(call, calls))}

    def _timed(self, work: Callable[[Function], float]) -> float:
        assert self.function is not None, "prepare a convolution first"
        with no_collection():
            found = work(self.function)
        settle()
        return found


def function_of(name: str, operator: str, case: Case, threads: int) -> tuple[Function, Array]:
    """A rival's function for an operator on a case, and its result with channels second, or with
    axes K, C, R, S.

    Raises
    ------
    ValueError
        The rival cannot compute the case.
    """
    if operator == "fprop" and len(case.size) == 2:
        function = rival(name, case, *case.arrange(*case.inputs(0)), threads)
    elif name != "torch":
        raise ValueError(f"{name} is compared for fprop with two spatial axes only")
    else:
        function = torch_operator(operator, case, *inputs_of(operator, case), threads)
    return function, result_of(case, name, function())


def case_of(fields: dict[str, Any]) -> Case:
    """A case from JSON, where tuples are lists."""

    def tuples(value: Any) -> Any:
        return tuple(map(tuples, value)) if isinstance(value, list) else value

    return Case(**{name: tuples(value) for name, value in fields.items()})


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


if __name__ == "__main__":
    serve(Rival(sys.argv[1], int(sys.argv[2])))
