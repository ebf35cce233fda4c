"""Which methods of the planner compute a plan, and plans that a given method computes."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

from implicit_conv.cpu.candidates.candidate import Candidate, Choice, Method
from implicit_conv.cpu.engines.complex_numbers import ComplexAsReal
from implicit_conv.cpu.engines.complex_transposed import ComplexTransposed
from implicit_conv.cpu.engines.engine import CpuEngine
from implicit_conv.cpu.engines.fold import Fold
from implicit_conv.cpu.engines.repeated_padding import Borders
from implicit_conv.cpu.engines.stride_phases import Phases
from implicit_conv.cpu.plan.input_gradients import INPUT_GRADIENTS
from implicit_conv.cpu.plan.planner import METHODS
from implicit_conv.cpu.plan.weight_gradients import WEIGHT_GRADIENTS
from implicit_conv.operators.plan import Plan


def name_of(method: type) -> str:
    """The name of a method: its class in small letters, such as "window-gemm"."""
    return re.sub(r"(?<!^)([A-Z])", r"-\1", method.__name__).lower()


TOGETHER = "phases-together"  # the filters of all stride phases are packed in one pass
COMPOSITES: tuple[type[Method], ...] = (Phases, Fold, ComplexAsReal, ComplexTransposed, Borders)
NAMES: dict[str, type[Method]] = {
    name_of(method): method
    for method in (*METHODS, *WEIGHT_GRADIENTS, *INPUT_GRADIENTS, *COMPOSITES)
}
NAMES[TOGETHER] = Phases


def best(plan: Plan) -> list[Candidate]:
    """The candidates that compute a plan, or its parts, for contiguous arrays."""
    return [c for c in _all(_engine(plan).choice, lambda choice: (choice.best,)) if not c.parts]


def chosen(plan: Plan) -> list[str]:
    """The names of the methods of these candidates, then of those that consist of them."""
    found = _all(_engine(plan).choice, lambda choice: (choice.best,))
    return list(dict.fromkeys(map(_name, sorted(found, key=lambda c: bool(c.parts)))))


def offered(plan: Plan) -> list[str]:
    """The names of the methods that can compute a plan, or parts of it."""
    return list(dict.fromkeys(map(_name, _candidates(plan))))


def blocks(plan: Plan) -> set[int]:
    """The blocks of outputs that methods which can compute a plan transform together."""
    return {c.method.block for c in _candidates(plan)} - {0}


def computed_by(plan: Plan, name: str) -> Plan:
    """The plan with the candidates of a method first, where it has any, for all filters."""
    engine = _engine(plan)
    return Plan(replace(engine, choice=_preferred(engine.choice, name)))


def _preferred(choice: Choice, name: str) -> Choice:
    """A choice, and those of all parts, with the candidates of a method first."""

    def computes(c: Candidate) -> bool:
        return _name(c) == name or any(computes(part.best) for part in c.parts)

    def changed(c: Candidate) -> Candidate:
        if not c.parts or _name(c) == TOGETHER:  # which packs for its own parts
            return c
        return replace(c, parts=tuple(_preferred(part, name) for part in c.parts))

    candidates = list(map(changed, choice.candidates))
    if not any(map(computes, candidates)):
        return choice
    candidates.sort(key=lambda c: not computes(c))
    return replace(choice, candidates=tuple(candidates), tuned="a test asks for it")


def _name(c: Candidate) -> str:
    return TOGETHER if c.method == Phases(together=True) else name_of(type(c.method))


def _candidates(plan: Plan) -> list[Candidate]:
    """All candidates of a plan, and of their parts."""
    return _all(_engine(plan).choice, lambda choice: choice.candidates)


def _engine(plan: Plan) -> CpuEngine:
    assert isinstance(plan.engine, CpuEngine)
    return plan.engine


def _all(choice: Choice, of: Callable[[Choice], tuple[Candidate, ...]]) -> list[Candidate]:
    """The candidates that `of` gives of a choice, and of their parts."""
    found = []
    for c in of(choice):
        found.append(c)
        found += [each for part in c.parts for each in _all(part, of)]
    return found
