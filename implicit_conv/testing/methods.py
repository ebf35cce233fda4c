"""Which methods of the planner compute a plan, and plans that a given method computes."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from implicit_conv.cpu.candidates.candidate import Candidate
from implicit_conv.cpu.plan.input_gradients import INPUT_GRADIENTS
from implicit_conv.cpu.plan.planner import METHODS, Choice
from implicit_conv.cpu.plan.weight_gradients import WEIGHT_GRADIENTS
from implicit_conv.operators.plan import Plan


def name_of(method: type) -> str:
    """The name of a method: its class in small letters, such as "window-gemm"."""
    return re.sub(r"(?<!^)([A-Z])", r"-\1", method.__name__).lower()


NAMES = {name_of(method): method for method in (*METHODS, *WEIGHT_GRADIENTS, *INPUT_GRADIENTS)}


def best(plan: Plan) -> list[Candidate]:
    """The candidates that compute a plan, or its parts, for contiguous arrays."""
    return [choice.best for choice in _choices(plan)]


def chosen(plan: Plan) -> list[str]:
    """The names of the methods of these candidates."""
    return list(dict.fromkeys(name_of(type(c.method)) for c in best(plan)))


def offered(plan: Plan) -> list[str]:
    """The names of the methods that can compute a plan, or parts of it."""
    candidates = (c for choice in _choices(plan) for c in choice.candidates)
    return list(dict.fromkeys(name_of(type(c.method)) for c in candidates))


def blocks(plan: Plan) -> set[int]:
    """The blocks of outputs that methods which can compute a plan transform together."""
    return {c.method.block for choice in _choices(plan) for c in choice.candidates} - {0}


def computed_by(plan: Plan, name: str) -> Plan:
    """The plan with the candidates of a method first, where it has any, for all filters."""

    def preferred(choice: Choice) -> Choice:
        is_other = [name_of(type(c.method)) != name for c in choice.candidates]
        if all(is_other):
            return choice
        order = sorted(range(len(is_other)), key=is_other.__getitem__)
        candidates = tuple(choice.candidates[i] for i in order)
        return Choice(candidates, choice.refusals, tuned="a test asks for it")

    return Plan(_changed(plan.engine, preferred))


def _choices(plan: Plan) -> list[Choice]:
    """The choices of all engines that a plan is made of."""
    found: list[Choice] = []

    def note(choice: Choice) -> Choice:
        found.append(choice)
        return choice

    _changed(plan.engine, note)
    return found


def _changed(engine: Any, change: Callable[[Choice], Choice]) -> Any:
    """An engine with the choices changed of all engines that it is made of, but for the engine of
    pixels that no tap reaches.
    """
    changes: dict[str, Any] = {}
    if hasattr(engine, "choice"):
        changes["choice"] = change(engine.choice)
    for name in ("real", "image"):  # of complex numbers, of padding that repeats pixels
        if hasattr(engine, name):
            changes[name] = _changed(getattr(engine, name), change)
    for name in ("parts", "strips"):  # stride phases, padding that repeats pixels
        changed = (
            replace(part, engine=_changed(part.engine, change))
            for part in getattr(engine, name, ())
        )
        if hasattr(engine, name):
            changes[name] = tuple(changed)
    return replace(engine, **changes)
