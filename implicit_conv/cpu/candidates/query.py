"""Query: what the planner is asked, and what a method says that it serves."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from implicit_conv.cpu.candidates.problem_views import is_pointwise
from implicit_conv.cpu.candidates.tiling import Near
from implicit_conv.cpu.machine.arch import CpuArch
from implicit_conv.cpu.run.call import Arrays
from implicit_conv.kernels.geometry import Epilogue
from implicit_conv.kernels.sources import TRANSLATOR
from implicit_conv.problem.options import ACTIVATIONS, DTYPES, FLOAT_DTYPES, PRECISIONS
from implicit_conv.problem.problem import Problem

OPERANDS = ("bias", "residual", "scale")  # arrays of an epilogue
# Why a method does not serve a precision, by the strictest one that it serves.
TOO_STRICT = {
    "standard": "its order of sums is not that of precision {!r}; ask for 'standard'",
    "fast": "its error exceeds that of precision {!r}; ask for 'fast'",
}


class Serves(NamedTuple):
    """The problems that a method computes; it is given no other.

    Attributes
    ----------
    dtypes : tuple of str
        Of x.
    precision : str
        The strictest one; the method serves those that allow more, too.
    activations : tuple of str
        Kinds of activations, of ACTIVATIONS. Every method can do without one.
    operands : tuple of str
        Arrays of the epilogue, of OPERANDS. A method that scales adds a bias after that.
    """

    dtypes: tuple[str, ...] = DTYPES
    precision: str = "strict"
    activations: tuple[str, ...] = ACTIVATIONS
    operands: tuple[str, ...] = OPERANDS

    @property
    def precisions(self) -> tuple[str, ...]:
        """All precisions that it serves."""
        return PRECISIONS[PRECISIONS.index(self.precision) :]

    def refusal(self, dtype: str, precision: str, activation: str) -> str:
        """Why the planner does not give it a problem with these options, or an empty string."""
        if dtype not in self.dtypes:
            return f"it supports {_listed(self.dtypes)}, not {dtype}"
        if precision not in self.precisions:
            return TOO_STRICT[self.precision].format(precision)
        if activation not in ("", *self.activations):
            served = _listed(self.activations) if self.activations else "none"
            return f"of the activations it supports {served}, not {activation}"
        return ""

    def takes(self, epilogue: Epilogue, added: bool) -> bool:
        """Whether it computes an epilogue with these operands, and a residual if `added`."""
        given = zip(OPERANDS, (epilogue.biased, added, epilogue.scaled), strict=True)
        return {name for name, is_given in given if is_given}.issubset(self.operands)


def _listed(words: Sequence[str]) -> str:
    *others, last = words
    return f"{', '.join(others)} and {last}" if others else last


FLOATS = Serves(FLOAT_DTYPES)


@dataclass(frozen=True)
class Request:
    """The options of `conv2d` that decide which methods may run.

    `activation` is the kind of the activation, one of ACTIVATIONS, or "" for none. `flushes` says
    that subnormals are treated as zero. `max_workspace` is the limit of a candidate's `call_bytes`,
    of which the operator itself takes `reserved_bytes`. Each variant of a method proposes its
    `tilings` cheapest tilings. Unless it `searches`, the choice for a near size serves, if there is
    one; `near` is then that choice, and the only tiling that is tried is most like its own.
    """

    precision: str = "standard"
    algorithm: str = "auto"
    flushes: bool = False
    max_workspace: int | None = None
    reserved_bytes: int = 0
    tilings: int = 1
    activation: str = ""
    compiler: str = TRANSLATOR  # of COMPILERS
    searches: bool = True
    near: Near | None = None

    @property
    def strict(self) -> bool:
        """Whether every sum must have one fixed order."""
        return self.precision == "strict"

    @property
    def limit(self) -> float:
        """Bytes that a candidate may take: infinite without `max_workspace`."""
        limit = math.inf if self.max_workspace is None else self.max_workspace
        return limit - self.reserved_bytes

    def admits(self, algorithm: str) -> bool:
        """Whether the caller allows `algorithm`."""
        return self.algorithm in ("auto", algorithm)

    def gemm_algorithm(self, problem: Problem) -> str | None:
        """The algorithm name of implicit GEMM for `problem`; None if the caller does not allow it.

        A problem whose filter is 1x1, with stride 1 and no padding, is "pointwise", unless the
        caller asks for "implicit_gemm".
        """
        pointwise = is_pointwise(problem) and self.algorithm != "implicit_gemm"
        name = "pointwise" if pointwise else "implicit_gemm"
        return name if self.admits(name) else None


class Refusal(NamedTuple):
    """A method or algorithm that cannot run, and the reason."""

    name: str
    reason: str


class Formats(NamedTuple):
    """The properties of compiled kernels that are not part of a candidate."""

    y_dtype: str
    flushes: bool = False  # whether subnormals are treated as zero
    recording: bool = False  # whether a debug build records its loads
    compiler: str = TRANSLATOR  # of COMPILERS


class Query(NamedTuple):
    """What the planner is asked.

    `arrays`, in the axes of a call, have the strides that the best candidate must accept; without
    them it may need contiguous arrays. `methods` are by default those of convolutions.
    """

    problem: Problem
    arch: CpuArch
    request: Request
    arrays: Arrays | None = None
    methods: tuple[type[Any], ...] | None = None
