"""Arithmetic of the epilogue, in float32: scale, bias, residual and activation of values of y.

Activations are functions (x, limits), one for each number of kernels/geometry.py. A NaN stays a
NaN: `limit` keeps it, and comparisons with it are false, so `select` returns it. Constants are
float32: a single float64 literal would promote the whole expression, at 1/64 of the rate on most
GPUs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from math import erfc, exp, tanh
from typing import Any

import numpy as np

from implicit_conv.kernels.geometry import (
    CLAMP,
    GELU,
    HARDSWISH,
    LEAKY_RELU,
    SIGMOID,
    SILU,
    TANH,
)
from implicit_conv.kernels.gpu import fragment
from implicit_conv.kernels.gpu.call import Floats, Limits, Params
from implicit_conv.kernels.gpu.gmem import limit, select
from implicit_conv.kernels.gpu.ptx import device
from implicit_conv.kernels.gpu.variant import Variant

ZERO, HALF, ONE, THREE, SIX = (np.float32(value) for value in (0, 0.5, 1, 3, 6))
ROOT_HALF = np.float32(0.7071067811865476)


@device
def clamp(x: float, limits: Limits) -> float:
    """No activation, relu, relu6 and clamp, which differ in their limits."""
    return limit(x, limits.low, limits.high)


@device
def leaky_relu(x: float, limits: Limits) -> float:
    return select(x * limits.low, x, x < ZERO)


@device
def sigmoid(x: float, limits: Limits) -> Any:
    return ONE / (ONE + exp(-x))


@device
def silu(x: float, limits: Limits) -> Any:
    return x / (ONE + exp(-x))


@device
def gelu(x: float, limits: Limits) -> Any:
    return HALF * x * erfc(-x * ROOT_HALF)


@device
def tanh_(x: float, limits: Limits) -> float:
    return tanh(x)


@device
def hardswish(x: float, limits: Limits) -> float:
    inner = select(ZERO, x + THREE, x + THREE < ZERO)
    return x * select(SIX, inner, inner > SIX) / SIX


ACTIVATIONS = {
    CLAMP: clamp,
    LEAKY_RELU: leaky_relu,
    SIGMOID: sigmoid,
    SILU: silu,
    GELU: gelu,
    TANH: tanh_,
    HARDSWISH: hardswish,
}


@functools.cache
def make_epilogue_math(v: Variant, count: int, add_bias: Any) -> Any:
    """epilogue_math(params, values, bias, residual): `count` values of y before they are rounded.

    `add_bias` adds `bias`, the biases of the values' columns, or scales by pairs of them, and
    `residual` has as many values; they are empty without one.
    """
    add_bias = add_bias if v.biased else device(lambda values, bias: values)
    add = fragment.add(count) if v.residual else device(lambda values, residual: values)
    change = device(lambda values, limits: values)
    if not v.plain:
        change = make_map(ACTIVATIONS[v.activation], count)

    @device
    def epilogue_math(params: Params, values: Floats, bias: Floats, residual: Floats) -> Any:
        return change(add(add_bias(values, bias), residual), params.limits)

    return epilogue_math


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
