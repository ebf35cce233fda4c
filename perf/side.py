"""One side of a comparison: a process that convolves with a given tree and takes samples.

This file is run by its path, with the tree of the side on PYTHONPATH. That tree may be older, so
`perf` is not imported from it, and the timing core of the running tree is loaded by path for all
sides. The process reads one JSON request per line on standard input and answers each with a line.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
OPTIONS = ("stride", "padding", "dilation", "groups", "layout")


def timing_core() -> Any:
    """The module implicit_conv/timing.py of the running tree; it imports only numpy."""
    path = HERE.parent / "implicit_conv" / "timing.py"
    spec = importlib.util.spec_from_file_location("perf_timing_core", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def inputs(x_shape: list[int], w_shape: list[int]) -> list[Any]:
    """(x, w), which are equal on every side."""
    rng = np.random.default_rng(0)
    return [rng.standard_normal(shape).astype(np.float32) for shape in (x_shape, w_shape)]


class Side:
    """The convolutions of one side; each public method is a request."""

    def __init__(self, kind: str, threads: int) -> None:
        self.kind, self.threads = kind, threads
        self.core = timing_core()
        self.functions: list[Callable[[], Any]] = []
        self.settings = ExitStack()  # never closed: settings hold while the process lives

    def hello(self) -> dict[str, Any]:
        """The tree that the code of the side is imported from."""
        import implicit_conv

        return {"tree": str(Path(implicit_conv.__file__).resolve().parent.parent)}

    def prepare(self, case: dict[str, Any], shapes: list[list[int]]) -> dict[str, Any]:
        """Prepare a convolution of random arrays; answer sums that must agree on all sides."""
        x, w = inputs(*shapes)
        convolve = self._torch if self.kind == "torch" else self._ours
        function = convolve(case, x, w)
        self.functions.append(function)
        y = np.asarray(function(), np.float64)
        return {"sum": float(y.sum()), "size": float(np.abs(y).sum())}

    def calibrate(self, which: int) -> dict[str, Any]:
        """The number of calls in a sample."""
        return {"calls": self.core.calls_per_sample(self.functions[which])}

    def sample(self, which: int, calls: int) -> dict[str, Any]:
        """One sample, in seconds per call."""
        with self.core.no_collection():
            return {"seconds": self.core.sample(self.functions[which], calls)}

    def _ours(self, case: dict[str, Any], x: Any, w: Any) -> Callable[[], Any]:
        import implicit_conv

        options = {name: case[name] for name in OPTIONS}
        self.settings.enter_context(implicit_conv.config(num_threads=self.threads))
        return lambda: implicit_conv.conv2d(x, w, **options)

    def _torch(self, case: dict[str, Any], x: Any, w: Any) -> Callable[[], Any]:
        from implicit_conv.testing import Case
        from implicit_conv.tools.rivals import torch_rival

        return torch_rival(Case(**case), x, w, self.threads)


def serve(side: object) -> None:
    """Answer requests by the methods of `side` until standard input ends."""
    answers, sys.stdout = sys.stdout, sys.stderr  # prints of a tree must not mix with answers
    for line in sys.stdin:
        request = json.loads(line)
        answer = getattr(side, request.pop("request"))(**request)
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    serve(Side(sys.argv[1], int(sys.argv[2])))
