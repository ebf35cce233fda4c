"""Activations by number, which the host's parser and every epilogue share.

An activation is (kind, low, high). CLAMP is used for none, relu and relu6; `low` is also the slope
of a leaky relu.
"""

ACTIVATIONS = 7  # kinds of activation
CLAMP, LEAKY_RELU, SILU, GELU, SIGMOID, TANH, HARDSWISH = range(ACTIVATIONS)
