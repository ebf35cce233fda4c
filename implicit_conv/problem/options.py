"""The words that options are given in, what follows from them, and what an activation means."""

from __future__ import annotations

import math
from typing import Literal, TypeAlias, get_args

from implicit_conv.errors import PlanError, nearest
from implicit_conv.kernels.geometry import (
    CLAMP,
    GELU,
    HARDSWISH,
    LEAKY_RELU,
    SIGMOID,
    SILU,
    TANH,
)

Layout = Literal["NCHW", "NHWC", "NCW", "NWC", "NCDHW", "NDHWC"]
WeightLayout = Literal["KCRS", "KRSC", "RSCK", "KCS", "KSC", "SCK", "KCTRS", "KTRSC", "TRSCK"]
# Of transposed convolutions, which also take those of convolutions.
Swapped = Literal["CKRS", "CRSK", "RSKC", "CKS", "CSK", "SKC", "CKTRS", "CTRSK", "TRSKC"]
PaddingName = Literal["valid", "same", "same_lower", "full", "causal"]
# What padding is made of, in the order of the numbers in kernels/geometry.py.
PaddingMode = Literal["zeros", "reflect", "symmetric", "replicate", "circular"]
Precision = Literal["strict", "standard", "fast"]
Algorithm = Literal[
    "auto",
    "implicit_gemm",
    "pointwise",
    "depthwise",
    "winograd_f2",
    "winograd_f4",
    "winograd_f6",
    "winograd_f2_stride2",
    "gemm_im2col",
]
ActivationName = Literal["relu", "relu6", "silu", "gelu", "sigmoid", "tanh", "hardswish"]

PRECISIONS: tuple[str, ...] = get_args(Precision)
ALGORITHMS: tuple[str, ...] = get_args(Algorithm)[1:]
PADDING_NAMES: tuple[str, ...] = get_args(PaddingName)
PADDING_MODES: tuple[str, ...] = get_args(PaddingMode)
# Kinds of activations, by their numbers in kernels/geometry.py; relu and relu6 are clamps.
ACTIVATIONS = ("clamp", "leaky_relu", "silu", "gelu", "sigmoid", "tanh", "hardswish")
SPACE = {1: "W", 2: "HW", 3: "DHW"}  # the spatial axes of an array, by their number
TAPS = {1: "S", 2: "RS", 3: "TRS"}  # the axes of a filter's taps
# The layouts of x, y and the residual, and of filters, by the number of spatial axes.
LAYOUTS_OF = {rank: (f"NC{space}", f"N{space}C") for rank, space in SPACE.items()}
WEIGHT_LAYOUTS_OF = {rank: (f"KC{taps}", f"K{taps}C", f"{taps}CK") for rank, taps in TAPS.items()}
# The positions of n, h, w, c, and of k, c, r, s, in the layouts with two spatial axes.
LAYOUTS = {layout: tuple(map(layout.index, "NHWC")) for layout in LAYOUTS_OF[2]}
WEIGHT_LAYOUTS = {layout: tuple(map(layout.index, "KCRS")) for layout in WEIGHT_LAYOUTS_OF[2]}
FLOAT_DTYPES = ("float32", "float64", "float16", "bfloat16")
INTEGER_RANGES = {"int8": (-128, 127), "uint8": (0, 255), "int16": (-32768, 32767)}
DTYPES = (*FLOAT_DTYPES, *INTEGER_RANGES)
COMPLEX_PARTS = {"complex64": "float32", "complex128": "float64"}  # dtypes of both parts
GPU_DTYPES = ("float16", "bfloat16", "float32")
ITEMSIZES = {  # bytes of an element
    "float16": 2,
    "bfloat16": 2,
    "float32": 4,
    "float64": 8,
    "int8": 1,
    "uint8": 1,
    "int16": 2,
    "int32": 4,
    "int64": 8,
    "complex64": 8,
    "complex128": 16,
}


def contiguous_strides(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """The strides of a new array, in bytes."""
    strides = []
    for extent in reversed(shape):
        strides.append(itemsize)
        itemsize *= extent
    return tuple(reversed(strides))


Activation: TypeAlias = (
    ActivationName
    | tuple[Literal["leaky_relu"], float]
    | tuple[Literal["clamp"], float, float]
    | None
)

PLAIN = {
    None: (CLAMP, -math.inf, math.inf),
    "relu": (CLAMP, 0.0, math.inf),
    "relu6": (CLAMP, 0.0, 6.0),
    "silu": (SILU, 0.0, 0.0),
    "gelu": (GELU, 0.0, 0.0),
    "sigmoid": (SIGMOID, 0.0, 0.0),
    "tanh": (TANH, 0.0, 0.0),
    "hardswish": (HARDSWISH, 0.0, 0.0),
}
# Words of other libraries, and ours.
ACTIVATIONS_ELSEWHERE = {
    "hard_swish": "hardswish",
    "identity": None,
    "linear": None,
    "logistic": "sigmoid",
    "none": None,
    "swish": "silu",
}
PARAMETERS = {"leaky_relu": 1, "clamp": 2}


def parse_activation(activation: Activation) -> tuple[float, float, float]:
    """(kind, low, high) for the epilogue; for a leaky relu, `low` is the slope.

    Raises
    ------
    PlanError
        The name is unknown, or the parameters do not match it.
    """
    name, parameters = (
        (activation[0], activation[1:])
        if isinstance(activation, tuple) and activation
        else (activation, ())
    )
    if name in PLAIN and not parameters:
        kind, low, high = PLAIN[name]
        return float(kind), low, high
    if not isinstance(name, str) or PARAMETERS.get(name) != len(parameters):
        names = ", ".join(str(known) for known in PLAIN)
        raise PlanError(
            f"activation {activation!r} is not supported; choose from {names}, "
            f"('leaky_relu', slope), ('clamp', low, high){_closest(name)}"
        )
    try:
        values = [float(value) for value in parameters]
    except (TypeError, ValueError, OverflowError):
        raise PlanError(
            f"activation {activation!r}: its parameters must be numbers in the range of float64"
        ) from None
    if name == "leaky_relu":
        return float(LEAKY_RELU), values[0], 0.0
    if not values[0] <= values[1]:
        raise PlanError(f"activation {activation!r}: low must not exceed high")
    return float(CLAMP), values[0], values[1]


def _closest(name: object) -> str:
    """The hint for a name that is no activation, or lacks its parameters."""
    if name in PARAMETERS:
        example = ("leaky_relu", 0.01) if name == "leaky_relu" else ("clamp", 0.0, 1.0)
        return f"; for example, activation={example}"
    word = str(name).lower()
    if word in ACTIVATIONS_ELSEWHERE:
        return f"; did you mean {ACTIVATIONS_ELSEWHERE[word]!r}?"
    return nearest(word, filter(None, PLAIN))


def activation_kind(parsed: tuple[float, float, float]) -> str:
    """The name of the kind of an activation that `parse_activation` returned, or "" for none."""
    return "" if parsed == PLAIN[None] else ACTIVATIONS[int(parsed[0])]
