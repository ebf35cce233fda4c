"""The methods of input gradients of real numbers with padding of zeros."""

from __future__ import annotations

from typing import Any

from implicit_conv.cpu.candidates.candidate import Method
from implicit_conv.cpu.engines.stride_phases import Phases
from implicit_conv.problem.problem import Problem
from implicit_conv.process.preparation import imports


@imports
def _fold() -> Any:
    from implicit_conv.cpu.engines.fold import Fold

    return Fold


@imports
def _input_gradients() -> Any:
    from implicit_conv.cpu.plan.input_gradients import INPUT_GRADIENTS

    return INPUT_GRADIENTS


def gradient_methods(problem: Problem) -> tuple[type[Method], ...]:
    """Those that may compute the gradient of `problem`. Under precision "strict" the first one that
    can run fixes the order of sums. Without a stride there is a single phase.
    """
    if max(problem.stride) == 1:
        return (Phases,)
    depthwise = _input_gradients() if problem.groups == problem.C == problem.K else ()
    return (*depthwise, Phases, *(() if problem.groups > 1 else (_fold(),)))
