"""The CPU engine: it plans a request, explains the plan, packs filters and convolves."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from implicit_conv.arrays.integers import check_activation
from implicit_conv.cpu.candidates.candidate import Candidate, Choice, Given
from implicit_conv.cpu.candidates.problem_views import spatial
from implicit_conv.cpu.candidates.query import Formats, Query, Request
from implicit_conv.cpu.engines.executor import Executor, parse_out_dtype
from implicit_conv.cpu.machine.arch import CpuArch, cpu_arch
from implicit_conv.cpu.plan import planner
from implicit_conv.cpu.plan.planner import steps_of
from implicit_conv.cpu.run.call import Arrays, stand_in
from implicit_conv.cpu.run.packed import PackedFilter
from implicit_conv.errors import PlanError
from implicit_conv.kernels.cpu.runtime.program import Room, Step
from implicit_conv.kernels.geometry import Epilogue
from implicit_conv.problem.options import (
    COMPLEX_PARTS,
    Activation,
    activation_kind,
    parse_activation,
)
from implicit_conv.problem.problem import Problem
from implicit_conv.problem.schedule import Load
from implicit_conv.process.cache import cached_property
from implicit_conv.process.preparation import imports, prepare

Shape = tuple[int, ...]
LOG = logging.getLogger("implicit_conv")


@imports
def _explain() -> Any:
    from implicit_conv.cpu.plan.explain import explain

    return explain


@imports
def _facts_of() -> Any:
    from implicit_conv.cpu.plan.facts import facts_of

    return facts_of


@imports
def _tuning() -> Any:
    from implicit_conv.cpu.plan import tuning

    return tuning


@imports
def _complex() -> Any:
    from implicit_conv.cpu.engines.complex_numbers import COMPLEX

    return COMPLEX


@dataclass(frozen=True)
class CpuEngine(Executor):
    """The plan of one request on one CPU.

    Attributes
    ----------
    problem : Problem
    choice : Choice
        The candidates, of which `best` or, with packed filters, `best_packed` runs if it accepts
        the strides of the arrays, and the refusals.
    activation : (kind, low, high)
        As `parse_activation` returns it.
    out_dtype : str
        The dtype of results.
    """

    problem: Problem
    choice: Choice
    activation: tuple[float, float, float]
    out_dtype: str

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle and copy the plan with the CPU of this process, and without prepared calls, which
        hold addresses of this process.
        """
        values = (getattr(self, field.name) for field in fields(self))
        return _for_this_cpu, (type(self), cpu_arch(), *values)

    @property
    def arch(self) -> CpuArch:
        """The machine that the plan is for."""
        return self.choice.query.arch

    @property
    def request(self) -> Request:
        """Precision, algorithm, whether subnormals are treated as zero, and the limit of memory."""
        return self.choice.query.request

    @property
    def candidates(self) -> tuple[Candidate, ...]:
        """All candidates, in the order in which they are tried."""
        return tuple(self.choice.in_order(self.best))

    @property
    def best(self) -> Candidate:
        """The candidate that runs if it accepts the strides of the arrays."""
        return self.choice.best

    @property
    def best_packed(self) -> Candidate:
        """The candidate that runs with packed filters if it accepts the strides of the arrays."""
        return self.choice.best_packed

    @property
    def algorithm(self) -> str:
        """The algorithm of the best candidate."""
        return self.best.algorithm

    @property
    def x_shape(self) -> Shape:
        """The shape of x."""
        return self.problem.input_shape

    @property
    def w_shape(self) -> Shape:
        """The shape of w."""
        return self.problem.weight_shape

    @property
    def y_shape(self) -> Shape:
        """The shape of y."""
        return self.problem.output_shape

    @property
    def summed(self) -> Problem:
        """The problem itself."""
        return self.problem

    @cached_property
    def formats(self) -> Formats:
        """The properties of compiled kernels that are not part of a candidate."""
        return Formats(self.y_dtype, self.request.flushes, compiler=self.request.compiler)

    @property
    def workspace_bytes(self) -> int:
        """Bytes of scratch memory of all threads, without the packed filter."""
        return self.choice.workspace_bytes

    @property
    def packed_bytes(self) -> int:
        """Bytes of the packed filter."""
        return self.choice.packed_bytes

    @property
    def packed_key(self) -> tuple[object, ...]:
        """The key of packed filters that the plan reads."""
        return self.best_packed.packed.key

    @property
    def call_bytes(self) -> int:
        """Bytes of scratch memory and of the filter that a call with a plain filter packs, or of a
        call with a packed filter if it takes more.
        """
        return self.choice.call_bytes()

    def explain(self) -> str:
        """The text of `Plan.explain`: the best candidate, then the table of all candidates."""
        choice = replace(self.choice, candidates=self.candidates)
        text: str = _explain()(self._problem_text(), choice, self.formats)
        return text

    def facts(self) -> dict[str, Any]:
        """The facts of `Plan.facts`."""
        choice = replace(self.choice, candidates=self.candidates)
        found: dict[str, Any] = _facts_of()(self._problem_text(), choice)
        return found

    def _problem_text(self) -> str:
        """The problem in the words of the operator."""
        return str(self.problem)

    def trace(self) -> list[Load]:
        """The loads of the best candidate for contiguous arrays."""
        return self.best.trace(self.problem)

    def pack(self, w: object) -> PackedFilter:
        """The filter `w` in the order that the best candidate for it reads; see `Plan.pack`."""
        return self.choice.pack(self.plain_filter(w), self.formats)

    def tuned(self, filters: str) -> CpuEngine:
        """The plan with its fastest candidate first; see `Plan.tune`."""
        tuning = _tuning()
        packs = tuning.parse_filters(filters)
        if math.prod(self.y_shape) == 0:
            return self
        choice = tuning.tuned(self.choice.query, self.arrays, self.formats, packs)
        return replace(self, choice=choice)

    @property
    def arrays(self) -> Arrays:
        """Contiguous arrays of a call, without memory."""
        return Arrays(
            stand_in(self.x_shape, self.problem.dtype),
            stand_in(self.w_shape, self.problem.filter_dtype),
            stand_in(self.y_shape, self.y_dtype),
        )

    def steps(self, arrays: Arrays, room: Room, *, biased: bool, scaled: bool) -> list[Step]:
        """Those of the first candidate that accepts the strides; with a scale, a bias is added
        after it.

        Raises
        ------
        PlanError
            There is none.
        """
        epilogue = Epilogue(self.activation, biased and not scaled, scaled)
        return steps_of(self.choice, Given(arrays, epilogue, self.formats, room), self.names)

    def vectors_of_steps(self) -> Callable[[Any, Any], tuple[Any, Any]] | None:
        """What makes a bias and a scale of steps of those of a call; None if they are the same."""
        return real_vectors if self.problem.is_complex else None

    def sized(self, problem: Problem, choice: Choice) -> CpuEngine:
        """The engine of another size, which stores the same dtypes."""
        other = type(self)(problem, choice, self.activation, self.out_dtype)
        vars(other).update(formats=self.formats, y_dtype=self.y_dtype)
        return other

    def of_shape(self, x_shape: Shape, shape: Shape | None) -> Problem | None:
        """The problem of an x of another shape, or None if it needs a plan of its own; `shape` is
        what else has a size.
        """
        problem: Problem | None = self.problem.of_shape(x_shape)
        # Axes of one pixel may be in another order: see `problem_views.spatial`.
        if problem is None or 1 in (*problem.size, *self.problem.size):
            return None
        if min(problem.output) < 1 or shape not in (None, problem.output_shape):
            return None
        return problem


def real_vectors(bias: Any, scale: Any) -> tuple[Any, Any]:
    """The parts of a complex bias, and a factor for each part."""
    if bias is not None:
        bias = bias.view(COMPLEX_PARTS[bias.dtype.name])
    return bias, None if scale is None else np.repeat(scale, 2)


def parsed_options(
    problem: Problem,
    request: Request,
    activation: Activation,
    out_dtype: object,
    summed: Problem | None = None,
) -> tuple[Problem, Request, tuple[float, float, float], str]:
    """The problem and the request with what an epilogue asks for, the activation as
    `parse_activation` returns it, and the dtype of results, whose default is that of the sums of
    `summed`, by default the problem.

    Raises
    ------
    PlanError, DTypeError
        The activation or out_dtype is unknown, or is not supported for this problem.
    """
    if problem.is_complex and activation is not None:
        raise PlanError(
            f"activation {activation!r} is not defined for complex numbers; leave it out, and "
            "apply a function to the parts of the result"
        )
    name = parse_out_dtype(out_dtype, problem if summed is None else summed)
    if problem.is_integer:
        check_activation(activation, name)
        problem = replace(problem, wide=name in ("int64", "float64"))
    parsed = parse_activation(activation)
    return problem, replace(request, activation=activation_kind(parsed)), parsed, name


def plan(
    problem: Problem,
    arch: CpuArch,
    request: Request,
    *,
    activation: Activation = None,
    out_dtype: object = None,
) -> CpuEngine:
    """Plan a request.

    Raises
    ------
    PlanError, DTypeError
        The precision, algorithm, activation or out_dtype is unknown, or is not supported for this
        problem.
    """
    problem, request, parsed, dtype = parsed_options(problem, request, activation, out_dtype)
    query = (
        Query(problem, arch, request, None, _complex())
        if problem.is_complex
        else (Query(spatial(problem, request.precision), arch, request))
    )
    choice = planner.plan(query)
    best = choice.best
    LOG.debug("%s: %s on %d threads", problem, best.name, best.threads)
    return CpuEngine(problem, choice, parsed, dtype)


def _for_this_cpu(
    kind: type[CpuEngine], before: CpuArch, problem: Problem, choice: Choice, *options: Any
) -> CpuEngine:
    """The plan of a pickle or a copy, made anew if this is not the CPU `before` that pickled it.

    The same CPU with other threads keeps the plan, so that it takes filters packed for it.
    """
    if replace(cpu_arch(), threads=before.threads) != before:
        query = choice.query
        arch = cpu_arch(None if query.arch.threads == before.threads else query.arch.threads)
        choice = prepare(planner.plan, query._replace(arch=arch))
    return kind(problem, choice, *options)
