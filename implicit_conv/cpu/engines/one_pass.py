"""Plans of input gradients and transposed convolutions that need no phases: one launch has them."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from implicit_conv.cpu.candidates.candidate import Method, Query, Request
from implicit_conv.cpu.candidates.phrases import gradient_text
from implicit_conv.cpu.candidates.problem_views import spatial
from implicit_conv.cpu.engines.engine import CpuEngine
from implicit_conv.cpu.engines.runner import parse_out_dtype
from implicit_conv.cpu.machine.arch import CpuArch
from implicit_conv.cpu.plan import planner
from implicit_conv.cpu.plan.input_gradients import INPUT_GRADIENTS
from implicit_conv.cpu.run.call import Placed
from implicit_conv.kernels.cpu.runtime.program import Room, Step, copied
from implicit_conv.problem.options import Activation, activation_kind, parse_activation
from implicit_conv.problem.problem import Problem
from implicit_conv.process.preparation import imports


@imports
def _range_of() -> Any:
    from implicit_conv.cpu.engines.gradient_kinds import range_of

    return range_of


LOG = logging.getLogger("implicit_conv")


@dataclass(frozen=True)
class OnePassEngine(CpuEngine):
    """The plan of an input gradient; `problem` is the convolution."""

    names: ClassVar[tuple[str, str]] = ("dy", "w")
    has_epilogue: ClassVar[bool] = False
    result: ClassVar[str] = "dx"
    has_near_sizes: ClassVar[bool] = False
    methods: ClassVar[tuple[type[Method], ...] | None] = INPUT_GRADIENTS

    @property
    def x_shape(self) -> tuple[int, ...]:
        """The shape of dy."""
        return self.problem.output_shape

    @property
    def y_shape(self) -> tuple[int, ...]:
        """The shape of dx."""
        return self.problem.input_shape

    def range_of_sizes(self) -> Any:
        """The range of near sizes that the plan serves, or None; see `kinds`."""
        return _range_of()(self)

    def _problem_text(self) -> str:
        return gradient_text(self.problem, self.names, self.result)

    def steps(self, of: Placed, room: Room) -> list[Step]:
        """See `CpuEngine`; arrays that vectors cannot load are copied first.

        Raises
        ------
        PlanError
            The copy would exceed `max_workspace`.
        """
        arrays = self._arrays(of)
        if self.best.method.accepts(self.best, arrays):
            return super().steps(of, room)
        if self.call_bytes + of.x.nbytes > self.request.limit:
            raise self._refusal(of, arrays)
        LOG.debug("%s is copied, because %s is needed", self.names[0], self.best.method.needs)
        found = list[Step]()
        x = copied(of.x, room, found)
        return found + super().steps(of._replace(x=x), room)


@dataclass(frozen=True)
class OnePassTransposedEngine(OnePassEngine):
    """The plan of a transposed convolution, which is the input gradient of `problem`."""

    names: ClassVar[tuple[str, str]] = ("x", "w")
    has_epilogue: ClassVar[bool] = True
    result: ClassVar[str] = "y"


def plan(
    problem: Problem,
    arch: CpuArch,
    request: Request,
    *,
    has_epilogue: bool,
    activation: Activation = None,
    out_dtype: object = None,
) -> OnePassEngine | str:
    """Plan the input gradient of `problem` in one pass, or say why phases compute it; a transposed
    convolution `has_epilogue`.

    Raises
    ------
    PlanError, DTypeError
        The precision, algorithm, activation or out_dtype is unknown, or is not supported for this
        problem.
    """
    parsed = parse_activation(activation)
    request = replace(request, activation=activation_kind(parsed))
    query = Query(spatial(problem), arch, request, None, INPUT_GRADIENTS)
    refusal = planner.refusal(query)
    if refusal:
        return refusal
    dtype = parse_out_dtype(out_dtype, problem)
    least = planner.least_workspace(query)
    if least > request.limit + request.reserved_bytes:
        return f"it needs max_workspace={least}"
    choice = planner.plan(query.problem, arch, request, methods=INPUT_GRADIENTS)
    kind = OnePassTransposedEngine if has_epilogue else OnePassEngine
    LOG.debug("%s of %s: %s", kind.result, problem, choice.best.name)
    return kind(problem, arch, request, choice, parsed, dtype)
