"""The engines of input gradients and of transposed convolutions, which are gradients too.

An input gradient is planned as a convolution is: the methods are those that compute all stride
phases in one pass, one convolution for each phase, one GEMM whose products are folded, and for
complex numbers and padding that repeats pixels what makes gradients of real numbers of them.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any, ClassVar

from implicit_conv.cpu.candidates.candidate import Method
from implicit_conv.cpu.candidates.phrases import gradient_text
from implicit_conv.cpu.candidates.query import Query, Request
from implicit_conv.cpu.engines.engine import CpuEngine, Shape, parsed_options
from implicit_conv.cpu.engines.gradients import gradient_methods
from implicit_conv.cpu.machine.arch import CpuArch
from implicit_conv.cpu.plan import planner
from implicit_conv.problem.options import SPACE, Activation
from implicit_conv.problem.phases import MOST_PHASES, phase_count, phases_of
from implicit_conv.problem.problem import Problem
from implicit_conv.process.cache import cached_property
from implicit_conv.process.preparation import imports

LOG = logging.getLogger("implicit_conv")


@imports
def _complex_transposed() -> Any:
    from implicit_conv.cpu.engines.complex_transposed import COMPLEX_TRANSPOSED

    return COMPLEX_TRANSPOSED


@imports
def _borders() -> Any:
    from implicit_conv.cpu.engines.repeated_padding import BORDERS

    return BORDERS


@dataclass(frozen=True)
class InputGradientEngine(CpuEngine):
    """The plan of an input gradient; `problem` is the convolution."""

    names: ClassVar[tuple[str, str]] = ("dy", "w")
    has_epilogue: ClassVar[bool] = False
    result: ClassVar[str] = "dx"

    @property
    def x_shape(self) -> Shape:
        """The shape of dy."""
        return self.problem.output_shape

    @property
    def y_shape(self) -> Shape:
        """The shape of dx."""
        return self.problem.input_shape

    @cached_property
    def y_dtype(self) -> str:
        """The dtype that kernels store: that of the sums, if strips of padding are added."""
        return self.problem.sum_dtype if self.problem.repeats else super().y_dtype

    @cached_property
    def summed(self) -> Problem:
        """The fprop of the phase with most taps."""
        return of_most_taps(self.problem)

    def _problem_text(self) -> str:
        return gradient_text(self.problem, self.names, self.result)

    def of_shape(self, x_shape: Shape, shape: Shape | None) -> Problem | None:
        """The convolution whose result has `x_shape`, if it is another one of its kind.

        `shape` is that of the gradient or its spatial extents; without it, the gradient grows by
        the stride for each pixel that is read.
        """
        near = self.problem
        if len(x_shape) != len(near.array_layout) or isinstance(shape, int):
            return None
        extents = dict(zip(near.array_layout, x_shape, strict=True))
        read = tuple([extents[axis] for axis in SPACE[near.rank]])
        if shape is None:
            each = zip(near.size, read, near.output, near.stride, strict=True)
            size = tuple([own + (now - before) * step for own, now, before, step in each])
        elif len(shape) == near.rank:
            size = shape
        else:
            whole = dict(zip(near.array_layout, shape, strict=True))
            size = tuple([whole[axis] for axis in SPACE[near.rank]])
            if whole["C"] != near.C or whole.get("N") != extents.get("N"):
                return None
        # Axes of one pixel may be in another order: see `problem_views.spatial`.
        if extents["C"] != near.K or min(*read, *size, *near.output, *near.size) < 2:
            return None
        problem = near.changed(N=extents.get("N", 1), size=size)
        return problem if problem.output == read else None


@dataclass(frozen=True)
class TransposedEngine(InputGradientEngine):
    """The plan of a transposed convolution, which is the input gradient of `problem`."""

    names: ClassVar[tuple[str, str]] = ("x", "w")
    has_epilogue: ClassVar[bool] = True
    result: ClassVar[str] = "y"


def of_most_taps(problem: Problem) -> Problem:
    """The fprop of the phase of an input gradient with most taps; of floats, whose sums have the
    same dtype however many they are, and of more phases than are supported, one of all taps.
    """
    swapped = problem.changed(C=problem.K, K=problem.C)
    if not problem.is_integer or phase_count(problem) > MOST_PHASES:
        return swapped
    found = (phase.problem for phase in phases_of(problem))
    return max(found, key=lambda fprop: fprop.terms, default=swapped)


def plan(
    problem: Problem,
    arch: CpuArch,
    request: Request,
    kind: type[InputGradientEngine] = InputGradientEngine,
    *,
    activation: Activation = None,
    out_dtype: object = None,
) -> InputGradientEngine:
    """Plan the input gradient of `problem`.

    Raises
    ------
    PlanError, DTypeError
        The precision, algorithm, activation or out_dtype is unknown, or is not supported for this
        problem; or there are too many phases.
    """
    # The default dtype of integers counts all taps, of which a phase may have a part: it must not
    # change with the stride.
    summed = problem.changed(C=problem.K, K=problem.C)
    if out_dtype is not None:
        summed = of_most_taps(problem)
    problem, request, parsed, dtype = parsed_options(
        problem, request, activation, out_dtype, summed
    )
    methods: tuple[type[Method], ...]
    if problem.is_complex:
        methods = _complex_transposed()
    elif problem.repeats:
        methods = _borders()
    else:
        methods = gradient_methods(problem)
    choice = planner.plan(Query(problem, arch, request, None, methods))
    LOG.debug("%s of %s: %s", kind.result, problem, choice.best.name)
    return kind(problem, choice, parsed, dtype)
