"""The CPU engine of weight gradients: a choice of the planner for x and dy, whose result is dw."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any, ClassVar

from implicit_conv.arrays.arrays import Array, as_array
from implicit_conv.cpu.candidates.phrases import options_of
from implicit_conv.cpu.candidates.problem_views import spatial
from implicit_conv.cpu.candidates.query import Query, Request
from implicit_conv.cpu.engines.engine import CpuEngine
from implicit_conv.cpu.engines.executor import check_array, parse_out_dtype
from implicit_conv.cpu.machine.arch import CpuArch
from implicit_conv.cpu.plan import planner, tuning
from implicit_conv.cpu.plan.weight_gradients import WEIGHT_GRADIENTS
from implicit_conv.errors import PlanError
from implicit_conv.problem.options import parse_activation
from implicit_conv.problem.problem import Problem

LOG = logging.getLogger("implicit_conv")


@dataclass(frozen=True)
class WgradEngine(CpuEngine):
    """The plan of one weight gradient on one CPU; `problem` is the convolution."""

    names: ClassVar[tuple[str, str]] = ("x", "dy")
    has_epilogue: ClassVar[bool] = False

    @property
    def w_shape(self) -> tuple[int, ...]:
        """The shape of dy."""
        return self.problem.output_shape

    @property
    def y_shape(self) -> tuple[int, ...]:
        """The shape of dw."""
        return self.problem.weight_shape

    @property
    def packed_bytes(self) -> int:
        """Nothing is packed."""
        return 0

    def _problem_text(self) -> str:
        problem = self.problem
        return (
            f"x {self.x_shape}, dy {self.w_shape} {problem.array_layout} -> dw {self.y_shape} "
            f"{problem.weight_layout}{options_of(problem)}"
        )

    def pack(self, w: object) -> Any:
        """A weight gradient reads no filter.

        Raises
        ------
        PlanError
            Always.
        """
        raise PlanError("a weight gradient reads no filter; call the plan with x and dy")

    def tuned(self, filters: str) -> CpuEngine:
        """The plan with its fastest candidate first; see `Plan.tune`."""
        tuning.parse_filters(filters)
        return super().tuned("plain")

    def filters(self, w: object) -> Array:
        """`w`, which is dy, after its checks."""
        dy = as_array("dy", w)
        check_array("dy", dy, self.w_shape, self.problem.dtype)
        return dy


def plan(
    problem: Problem, arch: CpuArch, request: Request, *, out_dtype: object = None
) -> WgradEngine:
    """Plan the weight gradient of `problem`.

    Raises
    ------
    PlanError, DTypeError
        The precision or out_dtype is unknown, or is not supported for this problem.
    """
    query = Query(spatial(problem), arch, request, None, WEIGHT_GRADIENTS)
    choice = planner.plan(query)
    LOG.debug("weight gradient of %s: %s", problem, choice.best.name)
    dtype = parse_out_dtype(out_dtype, problem)
    return WgradEngine(problem, choice, parse_activation(None), dtype)
