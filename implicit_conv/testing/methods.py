"""Which methods of the planner compute a plan, and plans that a given method computes."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

from implicit_conv.cpu.candidates.candidate import Candidate, Choice
from implicit_conv.cpu.engines.engine import CpuEngine
from implicit_conv.cpu.engines.stride_phases import Phases
from implicit_conv.cpu.plan.input_gradients import INPUT_GRADIENTS
from implicit_conv.cpu.plan.planner import METHODS
from implicit_conv.cpu.plan.weight_gradients import WEIGHT_GRADIENTS
from implicit_conv.operators.plan import Plan


def name_of(method: type) -> str:
    """The name of a method: its class in small letters, such as "window-gemm"."""
    return re.sub(r"(?<!^)([A-Z])", r"-\1", method.__name__).lower()


NAMES = {name_of(method): method for method in (*METHODS, *WEIGHT_GRADIENTS, *INPUT_GRADIENTS)}


def best(plan: Plan) -> list[Candidate]:
    """The candidates that compute a plan, or its parts, for contiguous arrays."""
    return _leaves(_engine(plan).choice, lambda choice: (choice.best,))


def chosen(plan: Plan) -> list[str]:
    """The names of the methods of these candidates."""
    return list(dict.fromkeys(name_of(type(c.method)) for c in best(plan)))


def offered(plan: Plan) -> list[str]:
    """The names of the methods that can compute a plan, or parts of it."""
    return list(dict.fromkeys(name_of(type(c.method)) for c in _all(plan)))


def blocks(plan: Plan) -> set[int]:
    """The blocks of outputs that methods which can compute a plan transform together."""
    return {c.method.block for c in _all(plan)} - {0}


def computed_by(plan: Plan, name: str) -> Plan:
    """The plan with the candidates of a method first, where it has any, for all filters."""
    engine = _engine(plan)
    return Plan(replace(engine, choice=_preferred(engine.choice, name)))


def _preferred(choice: Choice, name: str) -> Choice:
    """A choice, and those of all parts, with the candidates of a method first."""

    def computes(c: Candidate) -> bool:
        return name_of(type(c.method)) == name or any(computes(part.best) for part in c.parts)

    def changed(c: Candidate) -> Candidate:
        if not c.parts or c.method == Phases(together=True):  # which packs for its own parts
            return c
        return replace(c, parts=tuple(_preferred(part, name) for part in c.parts))

    candidates = list(map(changed, choice.candidates))
    if not any(map(computes, candidates)):
        return choice
    candidates.sort(key=lambda c: not computes(c))
    return replace(choice, candidates=tuple(candidates), tuned="a test asks for it")


def _all(plan: Plan) -> list[Candidate]:
    """All candidates without parts of a plan, and of its parts."""
    return _leaves(_engine(plan).choice, lambda choice: choice.candidates)


def _engine(plan: Plan) -> CpuEngine:
    assert isinstance(plan.engine, CpuEngine)
    return plan.engine


def _leaves(choice: Choice, of: Callable[[Choice], tuple[Candidate, ...]]) -> list[Candidate]:
    """The candidates without parts among those that `of` gives of a choice, and of their parts."""
    found = []
    for c in of(choice):
        found += [leaf for part in c.parts for leaf in _leaves(part, of)] if c.parts else [c]
    return found
