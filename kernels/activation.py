"""Activations by number, which the host's parser and all kernels share, and the CPU's epilogue.

An activation is (kind, low, high). CLAMP is used for none, relu and relu6; `low` is also the slope
of a leaky relu.
"""

import math
from typing import NamedTuple

ACTIVATIONS = 7  # kinds of activation
CLAMP, LEAKY_RELU, SILU, GELU, SIGMOID, TANH, HARDSWISH = range(ACTIVATIONS)


class Epilogue(NamedTuple):
    """What is done to sums before they are stored."""

    # (kind, low, high)
    activation: tuple[float, float, float] = (float(CLAMP), -math.inf, math.inf)
    biased: bool = False  # whether sums begin with a bias
    scaled: bool = False  # whether sums are scaled for each filter, and a bias is added after that
