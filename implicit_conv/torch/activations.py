"""Which activations of torch our epilogues compute, by the same formula."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from implicit_conv.problem.options import Activation

FUNCTIONS: dict[Any, Activation] = {
    functional.relu: "relu",
    functional.relu_: "relu",
    torch.relu: "relu",
    torch.relu_: "relu",
    functional.relu6: "relu6",
    functional.silu: "silu",
    functional.sigmoid: "sigmoid",
    torch.sigmoid: "sigmoid",
    functional.tanh: "tanh",
    torch.tanh: "tanh",
    functional.hardswish: "hardswish",
}
HARDTANH = "min_val", "max_val", "inplace"
METHODS: dict[str, Activation] = {
    "relu": "relu",
    "relu_": "relu",
    "sigmoid": "sigmoid",
    "sigmoid_": "sigmoid",
    "tanh": "tanh",
    "tanh_": "tanh",
}


def of_call(function: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> Activation:
    """The activation that a function or, by its name, a method computes of its first argument;
    `arguments` are the others. None if epilogues have none of this formula.
    """
    others = {name: value for name, value in options.items() if name != "inplace"}
    if function is functional.gelu and not arguments and set(others) <= {"approximate"}:
        return _gelu(others.get("approximate", "none"))
    if (
        function is functional.leaky_relu
        and len(arguments) < 2
        and set(others) <= {"negative_slope"}
    ):
        (slope,) = arguments or (others.get("negative_slope", 0.01),)
        return ("leaky_relu", float(slope)) if isinstance(slope, (int, float)) else None
    if function is functional.hardtanh:
        return _clamp(dict(zip(HARDTANH, arguments, strict=False)) | others)
    if others or len(arguments) > 1 or not all(type(value) is bool for value in arguments):
        return None
    return METHODS.get(function) if isinstance(function, str) else FUNCTIONS.get(function)


def _clamp(given: dict[str, Any]) -> Activation:
    """Hardtanh between two numbers."""
    bounds = given.get("min_val", -1.0), given.get("max_val", 1.0)
    plain = given.keys() <= {*HARDTANH} and all(isinstance(each, (int, float)) for each in bounds)
    return ("clamp", float(bounds[0]), float(bounds[1])) if plain else None


def _gelu(approximate: object) -> Activation:
    """The formula by tanh differs from ours by up to 5e-4, and so stays torch's."""
    return "gelu" if approximate == "none" else None
