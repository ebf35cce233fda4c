"""The CPU engine of weight gradients: it plans, explains and computes."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from implicit_conv.arrays import Array, as_array, numpy_dtype
from implicit_conv.cache import cached_property, keep_call
from implicit_conv.cpu import explain as words
from implicit_conv.cpu import planner, tuning
from implicit_conv.cpu.arch import CpuArch, cpu_arch
from implicit_conv.cpu.call import Call, CallForm
from implicit_conv.cpu.candidate import Candidate, Formats, Request
from implicit_conv.cpu.phrases import options_of
from implicit_conv.cpu.planner import WEIGHT_GRADIENTS, Choice
from implicit_conv.cpu.problem_views import in_own_axes, spatial
from implicit_conv.cpu.runner import Runner, check_array, parse_out_dtype
from implicit_conv.errors import PlanError
from implicit_conv.kernels.activation import Epilogue
from implicit_conv.kernels.cpu.runtime.preparation import prepare
from implicit_conv.problem import Problem
from implicit_conv.schedule import Load

LOG = logging.getLogger("implicit_conv")


@dataclass(frozen=True)
class WgradEngine(Runner):
    """The plan of one weight gradient on one CPU.

    Attributes
    ----------
    problem : Problem
        The convolution whose weight gradient this is.
    arch : CpuArch
    request : Request
    choice : Choice
        The candidates, best first, and the refusals.
    out_dtype : str
        The dtype of dw.
    """

    problem: Problem
    arch: CpuArch
    request: Request
    choice: Choice
    out_dtype: str
    names: ClassVar[tuple[str, str]] = ("x", "dy")

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle and copy what was asked for; the plan is made anew for the CPU of the process."""
        threads = None if self.arch.threads == cpu_arch().threads else self.arch.threads
        return _for_this_cpu, (self.problem, threads, self.request, self.out_dtype)

    @cached_property
    def calls(self) -> dict[object, object]:
        """Prepared calls; the keys are the strides of their arrays."""
        return {}

    @cached_property
    def candidates(self) -> tuple[Candidate, ...]:
        """All candidates, in the order in which they are tried."""
        found, limit = self.choice.candidates, self.request.limit
        return found + tuple(f for c in found for f in c.method.fallbacks(c, limit))

    @property
    def best(self) -> Candidate:
        """The candidate that runs if it accepts the strides of the arrays."""
        return self.choice.best

    @property
    def algorithm(self) -> str:
        """The algorithm of the best candidate."""
        return self.best.algorithm

    @property
    def x_shape(self) -> tuple[int, ...]:
        """The shape of x."""
        return self.problem.input_shape

    @property
    def y_shape(self) -> tuple[int, ...]:
        """The shape of dw."""
        return self.problem.weight_shape

    @property
    def summed(self) -> Problem:
        """The convolution, though nothing is added to sums of gradients."""
        return self.problem

    @property
    def formats(self) -> Formats:
        """The properties of compiled kernels that are not part of a candidate."""
        return Formats(self.y_dtype, self.request.flushes)

    @property
    def workspace_bytes(self) -> int:
        """Bytes of scratch memory of all threads."""
        return self.best.workspace_bytes

    @property
    def packed_bytes(self) -> int:
        """Nothing is packed."""
        return 0

    @property
    def call_bytes(self) -> int:
        """Bytes of scratch memory of all threads."""
        return self.workspace_bytes

    def explain(self) -> str:
        """The text of `Plan.explain`: the best candidate, then the table of all candidates."""
        problem = self.problem
        text = (
            f"x {self.x_shape}, dy {problem.output_shape} {problem.array_layout} -> dw "
            f"{self.y_shape} {problem.weight_layout}{options_of(problem)}"
        )
        choice = self.choice._replace(candidates=self.candidates)
        return words.explain(text, choice, self.request, self.formats)

    def trace(self) -> list[Load]:
        """The loads of x by the best candidate, for contiguous arrays."""
        return in_own_axes(self.problem, self.best.method.loads(self.best))

    def pack(self, w: object) -> Any:
        """A weight gradient reads no filter.

        Raises
        ------
        PlanError
            Always.
        """
        raise PlanError("a weight gradient reads no filter; call the plan with x and dy")

    def tuned(self, filters: str) -> WgradEngine:
        """The plan with its fastest candidate first, measured with contiguous arrays; see
        `Plan.tune`.
        """
        tuning.parse_filters(filters)
        problem = self.problem
        if math.prod(self.y_shape) == 0:
            return self
        x = tuning.example(self.x_shape, problem.dtype, 0)
        dy = tuning.example(problem.output_shape, problem.dtype, 1)
        dw = np.empty(self.y_shape, numpy_dtype(self.y_dtype))

        def run(c: Candidate) -> Callable[[], object]:
            call = replace(self, choice=Choice((c,), ())).bind(x, dy, dw, None, False)
            return lambda: call(x, dy, None, dw)

        query = tuning.Query(spatial(problem), self.arch, self.request, methods=WEIGHT_GRADIENTS)
        return replace(self, choice=tuning.tuned(query, run, packs=False))

    def filters(self, w: object) -> Array:
        """`w`, which is dy, after its checks."""
        dy = as_array("dy", w)
        check_array("dy", dy, self.problem.output_shape, self.problem.dtype)
        return dy

    def run(
        self,
        x: object,
        w: object,
        bias: object = None,
        residual: object = None,
        out: Array | None = None,
        scale: object = None,
    ) -> Array:
        """Check x and dy, which is `w`, and compute dw.

        Raises
        ------
        PlanError
            There is a bias, a residual or a scale.
        """
        if not (bias is residual is scale is None):
            raise PlanError("a weight gradient has no bias, residual or scale; leave them out")
        return super().run(x, w, out=out)

    def bind(
        self,
        x: Array,
        w: Array,
        y: Array,
        residual: Array | None,
        biased: bool,
        scaled: bool = False,
    ) -> Call:
        """The cached call for arrays x, dy and dw of these strides."""
        key = x.strides, w.strides, y.strides
        call = self.calls.get(key)
        if call is None:
            call = prepare(self._bind_anew, x, w, y)
            keep_call(self.calls, key, call)
        assert isinstance(call, Call)
        return call

    def _bind_anew(self, x: Array, dy: Array, dw: Array) -> Call:
        """Bind the first candidate that accepts the strides of the arrays.

        Raises
        ------
        PlanError
            All that accept them need more memory than `max_workspace`.
        """
        problem = self.best.problem
        form = CallForm(problem, dw.shape, dw.dtype, problem.filter_axes)
        arrays = form.arrays(x, dw, dy, None)
        suited = [c for c in self.candidates if c.method.accepts(c, arrays)]
        candidate = next((c for c in suited if c.call_bytes() <= self.request.limit), None)
        if candidate is None:
            least = min(c.call_bytes() for c in suited)
            raise PlanError(
                f"max_workspace is {self.request.max_workspace} bytes, but x and dy of these "
                f"strides need {least}, because {self.best.name} needs {self.best.method.needs}; "
                f"pass contiguous arrays, max_workspace={least}, or None for no limit"
            )
        return candidate.method.bind(candidate, form, arrays, Epilogue(), self.formats)


def plan(
    problem: Problem, arch: CpuArch, request: Request, *, out_dtype: object = None
) -> WgradEngine:
    """Plan the weight gradient of `problem`.

    Raises
    ------
    PlanError, DTypeError
        The precision or out_dtype is unknown, or is not supported for this problem.
    """
    choice = planner.plan(spatial(problem), arch, request, methods=WEIGHT_GRADIENTS)
    LOG.debug("weight gradient of %s: %s", problem, choice.best.name)
    dtype = parse_out_dtype(out_dtype, problem)
    return WgradEngine(problem, arch, request, choice, dtype)


def _for_this_cpu(
    problem: Problem, threads: int | None, request: Request, out_dtype: str
) -> WgradEngine:
    """The plan of a pickle or a copy."""
    return prepare(plan, problem, cpu_arch(threads), request, out_dtype=out_dtype)
