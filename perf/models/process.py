"""Processes that run one network: that in which ours and torch take turns, and one of a rival.

``python -m perf.models.process NAME SUITE PLACE THREADS`` is such a process.
"""

from __future__ import annotations

import logging
import sys
import warnings
from typing import Any

import numpy as np
import torch

from implicit_conv.timing import calls_per_sample, no_collection, sample
from perf.model_names import OURS
from perf.models.catalogue import SUITES
from perf.models.engines import model_of, version
from perf.models.workload import Function, Workload, first
from perf.rival import settle
from perf.side import serve

# The most that a right result differs from float64, in shares of its norm. Gradients may differ
# more: a rounding that turns a sign before a ReLU switches them on or off, and torch's own differ
# by 0.011 in one parameter of ResNet-18. A wrong index leads to a difference of about 1.
MOST_ERROR, MOST_GRADIENT_ERROR = 1e-3, 0.1


class Caller:
    """One network in this process; each public method is a request."""

    def __init__(self, name: str, suite: str, place: int, threads: int) -> None:
        self.name, self.threads = name, threads
        self.network = SUITES[suite]()[place]
        self.functions: dict[str, Function] = {}

    def hello(self) -> dict[str, Any]:
        """The version of the engine, or of torch, and the number of threads."""
        torch.set_num_threads(self.threads)
        found = torch.__version__ if self.name == OURS else version(self.name)
        return {"version": str(found), "threads": self.threads}

    def prepare(self, path: str) -> dict[str, Any]:
        """Make the functions; compare their results with those of the file at `path`, which the
        process of ours writes. The answer has their errors, or why an engine cannot run the
        network.
        """
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of exports, whose results are compared
            self.workload = Workload(self.network)
            if self.name == OURS:
                return self._ours(path)
            try:
                return self._engine(path)
            except Exception as error:  # engines have exceptions of their own
                told = str(error).strip().splitlines() or [type(error).__name__]
                return {"unsupported": told[0][:200]}

    def _ours(self, path: str) -> dict[str, Any]:
        self.functions = self.workload.functions()
        results = self.workload.results()
        exact = [tensor.numpy() for tensor in results.pop("exact")]
        np.savez(path, *exact)
        most = MOST_GRADIENT_ERROR if self.workload.trains else MOST_ERROR
        errors = {name: error(found, exact, most) for name, found in results.items()}
        parameters = sum(tensor.numel() for tensor in self.workload.model.parameters())
        return {"errors": errors, "functions": [*self.functions], "parameters": parameters}

    def _engine(self, path: str) -> dict[str, Any]:
        """A step of training returns its loss alone, and its gradients are not compared."""
        self.model = model_of(self.name, self.workload, self.threads)
        self.functions = {self.name: self.workload.function(self.model)}
        y = first(self.functions[self.name]())
        if self.workload.trains:
            return {"errors": {}}
        with np.load(path) as exact:
            return {"errors": {self.name: error([y], [*exact.values()], MOST_ERROR)}}

    def convolutions(self) -> dict[str, Any]:
        """See `Workload.convolutions`."""
        return self.workload.convolutions()

    def renew(self) -> dict[str, Any]:
        """Another set of inputs."""
        self.workload.add_inputs()
        if self.name == OURS:
            self.functions = self.workload.functions()
        else:
            self.functions = {self.name: self.workload.function(self.model)}
        return {}

    def calls_per_sample(self, name: str, seconds: float) -> dict[str, Any]:
        """The number of calls in a sample of at least `seconds`."""
        with self.workload.door(name), no_collection():
            return {"calls": calls_per_sample(self.functions[name], seconds)}

    def sample(self, name: str, calls: int) -> dict[str, Any]:
        """One sample, in seconds per call; calls before the clock starts pack filters again."""
        with self.workload.door(name), no_collection():
            seconds = sample(self.functions[name], calls)
        if self.threads > 1:
            settle()
        return {"seconds": seconds}


def error(results: list[Any], exact: list[Any], most: float) -> float:
    """The largest norm of the difference of tensors from exact arrays, over that of the arrays.

    Raises
    ------
    ArithmeticError
        It is larger than `most`.
    """
    found = max(
        float(np.linalg.norm(tensor.detach().double().numpy() - array) / np.linalg.norm(array))
        for tensor, array in zip(results, exact, strict=True)
    )
    if not found <= most:
        raise ArithmeticError(
            f"a result differs from that in float64 by {found:.2g} of its norm, and a right one by "
            f"at most {most:g}"
        )
    return found


if __name__ == "__main__":
    logging.disable(logging.WARNING)  # what libraries miss, and what an export cannot carry
    serve(Caller(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
