"""Activations by number: what the host's parser and every epilogue agree on."""

# (kind, low, high): a clamp covers none, relu and relu6; low doubles as the slope of a leaky relu.
ACTIVATIONS = 7
CLAMP, LEAKY_RELU, SILU, GELU, SIGMOID, TANH, HARDSWISH = range(ACTIVATIONS)
