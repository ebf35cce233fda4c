"""Activations, compiled into the GPU's epilogue: activate(x, limits), by the numbers of
activation.py.

A NaN stays a NaN: no comparison with it holds, so `select` keeps the value. Constants are float32:
one literal would have the rest computed in float64, which most GPUs do at 1/64 of the rate.
"""

import numpy as np

from implicit_conv.kernels.activation import (
    CLAMP,
    GELU,
    HARDSWISH,
    LEAKY_RELU,
    SIGMOID,
    SILU,
    TANH,
)
from implicit_conv.kernels.gpu.gmem import select
from implicit_conv.kernels.gpu.ptx import device, float_function

exp, tanh, erfc = (float_function(name) for name in ("exp", "tanh", "erfc"))
ZERO, HALF, ONE, THREE, SIX = (np.float32(value) for value in (0, 0.5, 1, 3, 6))
ROOT_HALF = np.float32(0.7071067811865476)


@device
def clamp(x, limits):
    """None, relu, relu6 and clamp, by their limits."""
    x = select(limits.low, x, x < limits.low)
    return select(limits.high, x, x > limits.high)


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
