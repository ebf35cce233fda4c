"""Bias, residual and activation of the 16 values that a lane has of a chunk, in float32."""

import functools

from implicit_conv.kernels.gpu import activate, fragment
from implicit_conv.kernels.gpu.ptx import device

VALUES = 16


@functools.cache
def make_finish(v):
    """finish(params, values, bias, residual): the values of y before they are rounded.

    `bias` has 8 values, one for each column, and `residual` 16; they are empty without one.
    """
    add_bias = fragment.add_columns if v.biased else device(lambda values, bias: values)
    add = fragment.add if v.residual else device(lambda values, residual: values)
    change = device(lambda values, limits: values)
    if not v.plain:
        change = make_map(activate.FUNCTIONS[v.activation], VALUES)

    @device
    def finish(params, values, bias, residual):
        return change(add(add_bias(values, bias), residual), params.limits)

    return finish


@functools.cache
def make_map(function, count):
    """map(values, limits): (function(value, limits), ...) of `count` values."""
    if count == 1:
        return device(lambda values, limits: (function(values[0], limits),))
    half = count // 2
    first, second = make_map(function, half), make_map(function, count - half)

    @device
    def both(values, limits):
        return first(values[:half], limits) + second(values[half:], limits)

    return both
