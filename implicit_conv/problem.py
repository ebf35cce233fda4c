"""Problem: a convolution in the field's letters, checked once.

    y[n, p, q, k] = sum over r, s, c of x[n, h, w, c] * w[k, r, s, c], where
        h = p*stride_h + r*dilation_h - pad_h,  w = q*stride_w + s*dilation_w - pad_w

This is cross-correlation: the filter is not flipped. N batch, H W input, C channels, K filters, R S
filter, P Q output. C and K count all groups; a filter has C / groups channels.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from implicit_conv.errors import DTypeError, ShapeError
from implicit_conv.options import DTYPES, ITEMSIZES, LAYOUTS, PADDING_NAMES, WEIGHT_LAYOUTS

AXES = ("H", "W")
LEAST_PADDING = -(1 << 31)  # pixels
Padding: TypeAlias = "int | str | Sequence[int] | Sequence[Sequence[int]]"


@dataclass(frozen=True)
class Problem:
    """One fprop problem; `Problem.parse` checks shapes and options, and makes it."""

    N: int
    C: int
    K: int
    groups: int
    size: tuple[int, int]  # H, W
    kernel: tuple[int, int]  # R, S
    stride: tuple[int, int]
    dilation: tuple[int, int]
    pad_lo: tuple[int, int]
    pad_hi: tuple[int, int]
    dtype: str
    layout: str = "NCHW"
    weight_layout: str = "KCRS"
    converted: bool = False  # whether loads convert elements, so that x is not read in place

    @classmethod
    def parse(
        cls,
        x_shape: Sequence[int],
        w_shape: Sequence[int],
        dtype: str = "float32",
        *,
        stride: int | Sequence[int] = 1,
        padding: Padding = 0,
        dilation: int | Sequence[int] = 1,
        groups: int = 1,
        layout: str | None = None,
        weight_layout: str | None = None,
        dtypes: Sequence[str] = DTYPES,
    ) -> Problem:
        """Check shapes and options, and make the problem.

        Parameters
        ----------
        x_shape : sequence of 4 ints, or 3 without the batch axis, in `layout`
        w_shape : sequence of 4 ints, in `weight_layout`
        dtype : one of `dtypes`
        stride, padding, dilation, groups, layout, weight_layout
            As in `implicit_conv.conv2d`.
        dtypes : sequence of str
            The dtypes that the engine supports.

        Raises
        ------
        ShapeError
            Shapes, strides, padding or layouts do not match, or the output has no pixels.
        DTypeError
            The dtype is not supported.
        """
        layout = choice("layout", layout or "NCHW", LAYOUTS)
        weight_layout = choice("weight_layout", weight_layout or "KCRS", WEIGHT_LAYOUTS)
        if dtype not in dtypes:
            raise DTypeError(
                f"dtype {dtype} is not supported; convert to one of {', '.join(dtypes)}"
            )
        x_shape = tuple(integer("an extent of x", extent, 0) for extent in x_shape)
        w_shape = tuple(integer("an extent of w", extent, 0) for extent in w_shape)
        if len(x_shape) not in (3, 4):
            more = "; add axes of extent 1, as in x[None]" if len(x_shape) < 3 else ""
            raise ShapeError(
                f"x has {len(x_shape)} axes {tuple(x_shape)}; {layout} has 4, or 3 without N{more}"
            )
        if len(w_shape) != 4:
            more = "; add axes of extent 1, as in w[None]" if len(w_shape) < 4 else ""
            raise ShapeError(
                f"w has {len(w_shape)} axes {tuple(w_shape)}; {weight_layout} has 4{more}"
            )
        x_shape = (1, *x_shape) if len(x_shape) == 3 else tuple(x_shape)
        n, h, w, c = (x_shape[axis] for axis in LAYOUTS[layout])
        k, group_c, r, s = (w_shape[axis] for axis in WEIGHT_LAYOUTS[weight_layout])
        groups = integer("groups", groups, 1)
        _check_groups(c, k, group_c, groups, weight_layout)
        steps = per_axis("stride", stride, 1)
        dilations = per_axis("dilation", dilation, 1)
        if r < 1 or s < 1:
            raise ShapeError(f"w has a filter of {r} x {s} (R x S); both must be at least 1")
        pads = parse_padding(padding, (h, w), (r, s), steps, dilations)
        problem = cls(
            N=n,
            C=c,
            K=k,
            groups=groups,
            size=(h, w),
            kernel=(r, s),
            stride=steps,
            dilation=dilations,
            pad_lo=(pads[0][0], pads[1][0]),
            pad_hi=(pads[0][1], pads[1][1]),
            dtype=dtype,
            layout=layout,
            weight_layout=weight_layout,
        )
        problem._check_output()
        return problem

    def _check_output(self) -> None:
        for axis, out in enumerate(self.output):
            if out >= 1:
                continue
            size, taps = self.size[axis], self.kernel[axis]
            reach = (taps - 1) * self.dilation[axis] + 1
            padded = size + self.pad_lo[axis] + self.pad_hi[axis]
            raise ShapeError(
                f"the output has no pixels along {AXES[axis]}: {size} pixels with padding "
                f"({self.pad_lo[axis]}, {self.pad_hi[axis]}) make {padded}, but {taps} taps with "
                f"dilation {self.dilation[axis]} reach over {reach}; pad by {reach - padded} more"
            )

    @functools.cached_property
    def output(self) -> tuple[int, int]:
        """(P, Q); an axis has (size + pads - (taps - 1) * dilation - 1) // stride + 1 pixels."""
        p, q = (
            (size + lo + hi - (taps - 1) * dilation - 1) // stride + 1
            for size, taps, stride, dilation, lo, hi in zip(
                self.size,
                self.kernel,
                self.stride,
                self.dilation,
                self.pad_lo,
                self.pad_hi,
                strict=True,
            )
        )
        return p, q

    @functools.cached_property
    def input_shape(self) -> tuple[int, int, int, int]:
        """Shape of x in `layout`, with the batch axis."""
        h, w = self.size
        return (self.N, self.C, h, w) if self.layout == "NCHW" else (self.N, h, w, self.C)

    @functools.cached_property
    def weight_shape(self) -> tuple[int, ...]:
        """Shape of w in `weight_layout`."""
        letters = {
            "K": self.K,
            "C": self.C // self.groups,
            "R": self.kernel[0],
            "S": self.kernel[1],
        }
        return tuple(letters[letter] for letter in self.weight_layout)

    @functools.cached_property
    def output_shape(self) -> tuple[int, int, int, int]:
        """Shape of y in `layout`."""
        p, q = self.output
        return (self.N, self.K, p, q) if self.layout == "NCHW" else (self.N, p, q, self.K)

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return ITEMSIZES[self.dtype]

    @property
    def sum_dtype(self) -> str:
        """The dtype of sums and of the bias: float64 for float64, else float32."""
        return "float64" if self.dtype == "float64" else "float32"

    @property
    def flops(self) -> int:
        """The number of multiplications and additions of the direct sum, padding included:
        2 * N * P * Q * K * R * S * C / groups.
        """
        p, q = self.output
        r, s = self.kernel
        return 2 * self.N * p * q * self.K * r * s * (self.C // self.groups)

    @property
    def bytes(self) -> int:
        """Bytes of x, w and y, each counted once."""
        p, q = self.output
        x = self.N * self.size[0] * self.size[1] * self.C
        w = self.K * self.kernel[0] * self.kernel[1] * (self.C // self.groups)
        return (x + w + self.N * p * q * self.K) * self.itemsize

    def __str__(self) -> str:
        text = f"x {self.input_shape} {self.layout}, w {self.weight_shape} {self.weight_layout}"
        text += f" -> y {self.output_shape}"
        for name, value in (("stride", self.stride), ("dilation", self.dilation)):
            if value != (1, 1):
                text += f", {name} {value}"
        if any((*self.pad_lo, *self.pad_hi)):
            pairs = tuple(zip(self.pad_lo, self.pad_hi, strict=True))
            text += f", padding {self.pad_lo if self.pad_lo == self.pad_hi else pairs}"
        if self.groups > 1:
            text += f", groups {self.groups}"
        return f"{text}; {self.dtype}"


def _check_groups(c: int, k: int, group_c: int, groups: int, weight_layout: str) -> None:
    for name, count in (("C", c), ("K", k)):
        if count % groups:
            raise ShapeError(f"{name}={count} is not a multiple of groups={groups}")
    if c != group_c * groups:
        raise ShapeError(
            f"x has C={c} but w ({weight_layout}) expects C/groups={group_c} with groups={groups}, "
            f"that is C={group_c * groups}; check layout, weight_layout and groups"
        )


def choice(name: str, value: str, allowed: Iterable[str]) -> str:
    """`value`, if it is one of `allowed`.

    Raises
    ------
    ShapeError
        It is not; the message names the option `name` and all allowed values.
    """
    names = list(allowed)
    if value not in names:
        raise ShapeError(f"{name} {value!r} is none of {', '.join(names)}")
    return value


def frozen(name: str, value: object) -> Any:
    """The option `name` with its lists and arrays as tuples, which are hashable.

    Raises
    ------
    ShapeError
        A value is a bool or a float: as a key, True and 1.0 would be equal to 1.
    """
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
    """`value` as an int.

    Raises
    ------
    ShapeError
        It is a bool or not an integer, or is less than `least`.
    """
    try:
        number = value.__index__()  # type: ignore[attr-defined]
    except (AttributeError, TypeError):
        raise ShapeError(f"{name} must be an integer, not {value!r}") from None
    if isinstance(value, bool) or number < least:
        raise ShapeError(f"{name} is {value!r}; it must be an integer of at least {least}")
    return int(number)


def _pair(name: str, value: object) -> tuple[object, object]:
    """The values for H and for W; a single value is used for both."""
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
    """The option `name` as (value for H, value for W), integers of at least `least`.

    Raises
    ------
    ShapeError
        It does not have one or two values, or one is not such an integer.
    """
    h, w = _pair(name, value)
    return integer(name, h, least), integer(name, w, least)


def parse_padding(
    padding: Padding,
    size: tuple[int, int],
    kernel: tuple[int, int],
    stride: tuple[int, int],
    dilation: tuple[int, int],
) -> tuple[tuple[int, int], tuple[int, int]]:
    """The (low, high) padding of H and of W in pixels; negative values crop.

    "same" pads so that the output has ceil(size / stride) pixels, and puts an odd pixel on the high
    side; "same_lower" puts it on the low side. "full" keeps every window that touches the image.
    "causal" pads the low side only, so that no output depends on a later pixel.

    Raises
    ------
    ShapeError
        The name is unknown, the number of values is wrong, or one is not an integer.
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
