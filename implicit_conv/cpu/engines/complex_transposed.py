"""Complex transposed convolutions: one real one with the real and imaginary parts as channels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from implicit_conv.cpu.candidates.candidate import Method
from implicit_conv.cpu.candidates.phrases import gradient_text
from implicit_conv.cpu.candidates.query import Query, Request
from implicit_conv.cpu.engines.complex_numbers import ComplexAsReal
from implicit_conv.cpu.engines.gradients import gradient_methods
from implicit_conv.cpu.machine.arch import CpuArch
from implicit_conv.problem.problem import Problem


@dataclass(frozen=True)
class ComplexTransposed(ComplexAsReal):
    """One real transposed convolution."""

    letters: ClassVar[str] = "CK"

    @classmethod
    def query(cls, real: Problem, arch: CpuArch, request: Request) -> Query:
        """What the planner is asked for the real convolution."""
        return Query(real, arch, request, None, gradient_methods(real))

    def shapes(self, problem: Problem) -> tuple[tuple[int, ...], ...]:
        """Those of x, w and y."""
        return problem.output_shape, problem.weight_shape, problem.input_shape

    def part_text(self, problem: Problem) -> str:
        """The problem of the real convolution in words."""
        return gradient_text(problem, ("x", "w"), "y")


COMPLEX_TRANSPOSED: tuple[type[Method], ...] = (ComplexTransposed,)
