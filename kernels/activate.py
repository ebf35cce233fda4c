"""Activations, compiled into the GPU's epilogue: activate(x, limits), by the numbers of
activation.py.

A NaN stays a NaN: no comparison with it holds, so `select` keeps the value.
"""

from implicit_conv.kernels.activation import (
    CLAMP,
    GELU,
    HARDSWISH,
    LEAKY_RELU,
    SIGMOID,
    SILU,
    TANH,
)
from implicit_conv.kernels.gmem import select
from implicit_conv.kernels.ptx import device, float_function

exp, tanh, erfc = (float_function(name) for name in ("exp", "tanh", "erfc"))
ROOT_HALF = 0.7071067811865476


@device
def clamp(x, limits):
    """None, relu, relu6 and clamp, by their limits."""
    x = select(limits.low, x, x < limits.low)
    return select(limits.high, x, x > limits.high)


@device
def leaky_relu(x, limits):
    return select(x * limits.low, x, x < 0)


@device
def sigmoid(x, limits):
    return 1 / (1 + exp(-x))


@device
def silu(x, limits):
    return x / (1 + exp(-x))


@device
def gelu(x, limits):
    return 0.5 * x * erfc(-x * ROOT_HALF)


@device
def tanh_(x, limits):
    return tanh(x)


@device
def hardswish(x, limits):
    inner = select(0.0, x + 3, x + 3 < 0)
    return x * select(6.0, inner, inner > 6) / 6


FUNCTIONS = {
    CLAMP: clamp,
    LEAKY_RELU: leaky_relu,
    SIGMOID: sigmoid,
    SILU: silu,
    GELU: gelu,
    TANH: tanh_,
    HARDSWISH: hardswish,
}
