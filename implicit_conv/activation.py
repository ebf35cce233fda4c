"""Activations of the epilogue: ``y = activation(conv + bias + residual)``."""

from __future__ import annotations

import math
from typing import TypeAlias

from implicit_conv.errors import PlanError
from implicit_conv.kernels.activation import (
    CLAMP,
    GELU,
    HARDSWISH,
    LEAKY_RELU,
    SIGMOID,
    SILU,
    TANH,
)
from implicit_conv.options import ACTIVATIONS

Activation: TypeAlias = "str | tuple[str, float] | tuple[str, float, float] | None"

PLAIN = {
    None: (CLAMP, -math.inf, math.inf),
    "relu": (CLAMP, 0.0, math.inf),
    "relu6": (CLAMP, 0.0, 6.0),
    "silu": (SILU, 0.0, 0.0),
    "gelu": (GELU, 0.0, 0.0),
    "sigmoid": (SIGMOID, 0.0, 0.0),
    "tanh": (TANH, 0.0, 0.0),
    "hardswish": (HARDSWISH, 0.0, 0.0),
}
PARAMETERS = {"leaky_relu": 1, "clamp": 2}


def parse_activation(activation: Activation) -> tuple[float, float, float]:
    """(kind, low, high) for the epilogue; for a leaky relu, `low` is the slope.

    Raises
    ------
    PlanError
        The name is unknown, or the parameters do not match it.
    """
    name, parameters = (
        (activation[0], activation[1:])
        if isinstance(activation, tuple) and activation
        else (activation, ())
    )
    if name in PLAIN and not parameters:
        kind, low, high = PLAIN[name]
        return float(kind), low, high
    if not isinstance(name, str) or PARAMETERS.get(name) != len(parameters):
        names = ", ".join(str(known) for known in PLAIN)
        raise PlanError(
            f"activation {activation!r} is not supported; choose from {names}, "
            "('leaky_relu', slope), ('clamp', low, high)"
        )
    try:
        values = [float(value) for value in parameters]
    except (TypeError, ValueError, OverflowError):
        raise PlanError(
            f"activation {activation!r}: its parameters must be numbers in the range of float64"
        ) from None
    if name == "leaky_relu":
        return float(LEAKY_RELU), values[0], 0.0
    if not values[0] <= values[1]:
        raise PlanError(f"activation {activation!r}: low must not exceed high")
    return float(CLAMP), values[0], values[1]


def activation_kind(parsed: tuple[float, float, float]) -> str:
    """The name of the kind of an activation that `parse_activation` returned, or "" for none."""
    return "" if parsed == PLAIN[None] else ACTIVATIONS[int(parsed[0])]
