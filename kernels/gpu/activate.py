"""Activations of the epilogue: activate(x, limits) for each number of kernels/geometry.py.

A NaN stays a NaN: `limit` keeps it, and comparisons with it are false, so `select` returns it.
Constants are float32: a single float64 literal would promote the whole expression, at 1/64 of the
rate on most GPUs.
"""

from __future__ import annotations

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
from implicit_conv.kernels.gpu.call import Limits
from implicit_conv.kernels.gpu.gmem import limit, select
from implicit_conv.kernels.gpu.ptx import device

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


FUNCTIONS = {
    CLAMP: clamp,
    LEAKY_RELU: leaky_relu,
    SIGMOID: sigmoid,
    SILU: silu,
    GELU: gelu,
    TANH: tanh_,
    HARDSWISH: hardswish,
}
