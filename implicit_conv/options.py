"""Options of the public functions: words, integers and arrays in, tuples of integers out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np

from implicit_conv.errors import ShapeError

Padding: TypeAlias = "int | str | Sequence[int] | Sequence[Sequence[int]]"
PADDING_NAMES = ("valid", "same", "same_lower", "full", "causal")
PRECISIONS = ("strict", "standard", "fast")
ALGORITHMS = (
    "implicit_gemm",
    "pointwise",
    "depthwise",
    "winograd_f2",
    "winograd_f4",
    "winograd_f2_stride2",
    "gemm_im2col",
)
LEAST_PADDING = -(1 << 31)


def choice(name: str, value: str, allowed: Iterable[str]) -> str:
    """`value` if it is one of `allowed`; ShapeError otherwise."""
    names = list(allowed)
    if value not in names:
        raise ShapeError(f"{name} {value!r} is none of {', '.join(names)}")
    return value


def frozen(name: str, value: object) -> Any:
    """An option of integers, lists and arrays as hashable tuples; True and 1.0 are refused."""
    if type(value) is int:  # the most common type, and each call has four of them
        return value
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, (list, tuple)):
        return tuple(frozen(name, entry) for entry in value)
    if isinstance(value, (bool, float, np.bool_, np.floating)):
        raise ShapeError(f"{name} must be an integer, not {value!r}")
    return value


def integer(name: str, value: object, least: int) -> int:
    """`value` as an int; booleans and floats are refused, not truncated."""
    try:
        number = value.__index__()  # type: ignore[attr-defined]
    except (AttributeError, TypeError):
        raise ShapeError(f"{name} must be an integer, not {value!r}") from None
    if isinstance(value, bool) or number < least:
        raise ShapeError(f"{name} is {value!r}; it must be an integer of at least {least}")
    return int(number)


def _pair(name: str, value: object) -> tuple[object, object]:
    """One value for H and one for W; a single value is used for both."""
    if not isinstance(value, Sequence) or isinstance(value, str):
        return value, value
    if len(value) != 2:
        more = ", or a (low, high) pair for each" if name == "padding" else ""
        raise ShapeError(
            f"{name} has {len(value)} values {tuple(value)}; give one, or one for each of H, W"
            f"{more}"
        )
    return value[0], value[1]


def per_axis(name: str, value: object, least: int) -> tuple[int, int]:
    """(of H, of W) of an option, integers of at least `least`."""
    h, w = _pair(name, value)
    return integer(name, h, least), integer(name, w, least)


def parse_padding(
    padding: Padding,
    size: tuple[int, int],
    kernel: tuple[int, int],
    stride: tuple[int, int],
    dilation: tuple[int, int],
) -> tuple[tuple[int, int], tuple[int, int]]:
    """(low, high) padding of H and of W; negative values crop.

    "same" pads so that the output has ceil(size / stride) pixels and puts an odd pixel on the high
    side ("same_lower": on the low side); "full" pads so that every window which touches the image
    counts; "causal" pads the low side only, so that no output reads ahead.
    """
    if isinstance(padding, str):
        if padding not in PADDING_NAMES:
            raise ShapeError(f"padding {padding!r} is none of {', '.join(PADDING_NAMES)}")
        axes = zip(size, kernel, stride, dilation, strict=True)
        h, w = (_named_padding(padding, *axis) for axis in axes)
        return h, w
    h, w = (_axis_padding(axis) for axis in _pair("padding", padding))
    return h, w


def _axis_padding(value: object) -> tuple[int, int]:
    low, high = _pair("padding of an axis, (low, high),", value)
    return integer("padding", low, LEAST_PADDING), integer("padding", high, LEAST_PADDING)


def _named_padding(name: str, size: int, taps: int, stride: int, dilation: int) -> tuple[int, int]:
    reach = (taps - 1) * dilation
    if name == "valid":
        return 0, 0
    if name == "full":
        return reach, reach
    if name == "causal":
        return reach, 0
    total = max(0, (-(-size // stride) - 1) * stride + reach + 1 - size)
    low = total - total // 2 if name == "same_lower" else total // 2
    return low, total - low
