"""Activations of the epilogue: activate(x, limits) for each number of kernels/geometry.py.

A NaN stays a NaN: `limit` keeps it, and comparisons with it are false, so `select` returns it.
Constants are float32: a single float64 literal would promote the whole expression, at 1/64 of the
rate on most GPUs.
"""

from math import erfc, exp, tanh

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
from implicit_conv.kernels.gpu.gmem import limit, select
from implicit_conv.kernels.gpu.ptx import device

ZERO, HALF, ONE, THREE, SIX = (np.float32(value) for value in (0, 0.5, 1, 3, 6))
ROOT_HALF = np.float32(0.7071067811865476)


@device
def clamp(x, limits):
    """No activation, relu, relu6 and clamp, which differ in their limits."""
    return limit(x, limits.low, limits.high)


@device
def leaky_relu(x, limits):
    return select(x * limits.low, x, x < ZERO)


@device
def sigmoid(x, limits):
    return ONE / (ONE + exp(-x))


@device
def silu(x, limits):
    return x / (ONE + exp(-x))


@device
def gelu(x, limits):
    return HALF * x * erfc(-x * ROOT_HALF)


@device
def tanh_(x, limits):
    return tanh(x)


@device
def hardswish(x, limits):
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
