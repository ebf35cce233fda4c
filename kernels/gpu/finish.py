"""Bias, residual and activation of the values that a lane stores together, in float32."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from implicit_conv.kernels.gpu import activate, fragment
from implicit_conv.kernels.gpu.call import Floats, Limits, Params
from implicit_conv.kernels.gpu.ptx import device
from implicit_conv.kernels.gpu.variant import Variant


@functools.cache
def make_finish(v: Variant, count: int, add_columns: Any) -> Any:
    """finish(params, values, bias, residual): `count` values of y before they are rounded.

    `add_columns` adds `bias`, the biases of the values' columns, and `residual` has as many values;
    they are empty without one.
    """
    add_bias = add_columns if v.biased else device(lambda values, bias: values)
    add = fragment.add(count) if v.residual else device(lambda values, residual: values)
    change = device(lambda values, limits: values)
    if not v.plain:
        change = make_map(activate.FUNCTIONS[v.activation], count)

    @device
    def finish(params: Params, values: Floats, bias: Floats, residual: Floats) -> Any:
        return change(add(add_bias(values, bias), residual), params.limits)

    return finish


@functools.cache
def make_map(function: Callable[..., Any], count: int) -> Any:
    """map(values, limits): (function(value, limits), ...) of `count` values."""
    if count == 1:
        return device(lambda values, limits: (function(values[0], limits),))
    half = count // 2
    first, second = make_map(function, half), make_map(function, count - half)

    @device
    def both(values: Floats, limits: Limits) -> Any:
        return first(values[:half], limits) + second(values[half:], limits)

    return both
