"""Problem: a convolution in the field's letters, checked once.

    y[n, z, p, q, k] = sum over t, r, s, c of x[n, d, h, w, c] * w[k, t, r, s, c], where
        d = z*stride_d + t*dilation_d - pad_d,  h = p*stride_h + r*dilation_h - pad_h,
        w = q*stride_w + s*dilation_w - pad_w

This is cross-correlation: the filter is not flipped. N batch, D H W input, C channels, K filters,
T R S filter, Z P Q output. C and K count all groups; a filter has C / groups channels. A problem
with two spatial axes lacks D, T and Z, and one with a single axis lacks H, R and P too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from implicit_conv.errors import DTypeError, ShapeError
from implicit_conv.problem.operand_checks import (
    check_axes,
    check_channels,
    check_dtypes,
    check_groups,
    check_taps,
)
from implicit_conv.problem.options import (
    COMPLEX_PARTS,
    DTYPES,
    INTEGER_RANGES,
    ITEMSIZES,
    SPACE,
    TAPS,
)
from implicit_conv.problem.parse import (
    MOST_ELEMENTS,
    Axes,
    Padding,
    check_elements,
    exact_key,
    integer,
    parse_layout,
    parse_padding,
    parse_padding_mode,
    parse_shape,
    parse_weight_layout,
    per_axis,
)
from implicit_conv.process.cache import Recent, cached_property

LARGEST = {"int32": 2**31 - 1, "int64": 2**63 - 1}  # by the dtype of sums of integers


@dataclass(frozen=True)
class Problem:
    """One fprop problem; `Problem.parse` checks shapes and options, and makes it.

    Sizes, strides, dilations and pads have a value for each spatial axis, in the order D, H, W.
    """

    N: int
    C: int
    K: int
    groups: int
    size: Axes  # D, H, W
    kernel: Axes  # T, R, S
    stride: Axes
    dilation: Axes
    pad_lo: Axes
    pad_hi: Axes
    dtype: str  # of x
    layout: str = "NCHW"
    weight_layout: str = "KCRS"
    padding_mode: str = "zeros"
    batched: bool = True  # whether x and y have a batch axis
    w_dtype: str | None = None  # of w, where it is another integer dtype than that of x
    wide: bool = False  # whether integers are summed in int64, even if int32 suffices
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
        padding_mode: str = "zeros",
        rank: int = 2,
        w_dtype: str | None = None,
        dtypes: Sequence[str] = DTYPES,
    ) -> Problem:
        """Check shapes and options, and make the problem.

        Parameters
        ----------
        x_shape : sequence of rank + 2 ints, or one less without the batch axis, in `layout`
        w_shape : sequence of rank + 2 ints, in `weight_layout`
        dtype : one of `dtypes`, of x
        stride, padding, dilation, groups, layout, weight_layout, padding_mode
            As in `implicit_conv.conv2d`.
        rank : 1, 2 or 3
            The number of spatial axes.
        w_dtype : one of `dtypes`, of w
            By default that of x; integers may differ.
        dtypes : sequence of str
            The dtypes that the engine supports.

        Raises
        ------
        ShapeError
            Shapes, strides, padding or layouts do not match, the output has no pixels, padding has
            no pixel to repeat, or a number exceeds MOST_PIXELS or MOST_ELEMENTS.
        DTypeError
            A dtype is not supported, x and w have different dtypes that are not both integers, or
            sums of integers could overflow int64.
        """
        key = exact_key(
            (
                *(len(x_shape), w_shape, dtype, stride, padding, dilation, groups, layout),
                *(weight_layout, padding_mode, rank, w_dtype, dtypes),
            )
        )
        known = None if key is None else _KNOWN.get(key)
        if known is not None:
            found = known.of_shape(x_shape)
            if found is not None:
                found.check_sizes()
                return found
        problem = cls._parsed(
            *(x_shape, w_shape, dtype, stride, padding, dilation, groups, layout),
            *(weight_layout, padding_mode, rank, w_dtype, dtypes),
        )
        if key is not None and not depends_on_size(padding, stride):
            _KNOWN.keep(key, problem)
        return problem

    def of_shape(self, x_shape: Sequence[int]) -> Problem | None:
        """The problem with an x of another shape; None if it has other axes or channels, or an
        extent is no plain int.
        """
        letters = self.array_layout
        if len(x_shape) != len(letters):
            return None
        extents = dict(zip(letters, x_shape, strict=True))
        if extents["C"] != self.C or {*map(type, x_shape)} != {int} or min(x_shape) < 0:
            return None
        size = tuple(map(extents.__getitem__, SPACE[len(self.size)]))
        found = self.changed(N=extents.get("N", 1), size=size)
        vars(found)["input_shape"] = tuple(x_shape)
        return found

    def changed(self, **fields: Any) -> Problem:
        """The problem with other values of some fields; `dataclasses.replace` takes five times as
        long. One of another size shares what depends on no size.
        """
        other = object.__new__(Problem)
        values = vars(other)
        values.update(vars(self))
        for name in OF_SIZE if SIZES.issuperset(fields) else CACHED:
            values.pop(name, None)
        values.update(fields)
        return other

    @classmethod
    def _parsed(
        cls,
        x_shape: Sequence[int],
        w_shape: Sequence[int],
        dtype: str,
        stride: int | Sequence[int],
        padding: Padding,
        dilation: int | Sequence[int],
        groups: int,
        layout: str | None,
        weight_layout: str | None,
        padding_mode: str,
        rank: int,
        w_dtype: str | None,
        dtypes: Sequence[str],
    ) -> Problem:
        space, taps = SPACE[rank], TAPS[rank]
        layout, weight_layout = parse_layout(layout, rank), parse_weight_layout(weight_layout, rank)
        w_dtype = w_dtype or dtype
        x_shape, w_shape = parse_shape("x", x_shape), parse_shape("w", w_shape)
        shapes, layouts = (x_shape, w_shape), (layout, weight_layout)
        check_channels(shapes, layouts, (dtype, w_dtype), f"conv{rank}d")
        check_dtypes(dtype, w_dtype, dtypes)
        check_axes(shapes, layouts)
        batched = len(x_shape) == len(layout)
        x = dict(zip(layout if batched else layout.replace("N", ""), x_shape, strict=True))
        w = dict(zip(weight_layout, w_shape, strict=True))
        groups = integer("groups", groups, 1, MOST_ELEMENTS)
        check_groups(x, w, groups, layout, weight_layout)
        size, kernel = tuple(x[axis] for axis in space), tuple(w[axis] for axis in taps)
        steps = per_axis("stride", stride, 1, space)
        dilations = per_axis("dilation", dilation, 1, space)
        check_taps(kernel, taps)
        pads = parse_padding(padding, space, size, kernel, steps, dilations)
        problem = cls(
            N=x.get("N", 1),
            C=x["C"],
            K=w["K"],
            groups=groups,
            size=size,
            kernel=kernel,
            stride=steps,
            dilation=dilations,
            pad_lo=tuple(low for low, _ in pads),
            pad_hi=tuple(high for _, high in pads),
            dtype=dtype,
            layout=layout,
            weight_layout=weight_layout,
            padding_mode=parse_padding_mode(padding_mode),
            batched=batched,
            w_dtype=None if w_dtype == dtype else w_dtype,
        )
        problem.check_sizes()
        return problem

    def _swapped(self) -> str:
        """Words for a filter that is larger than the image along every axis, as an image is."""
        if not all(taps > size for taps, size in zip(self.kernel, self.size, strict=True)):
            return ""
        return (
            f"; w has more pixels {self.kernel} than x {self.size} along each axis: if x and w are "
            "swapped, pass the image first"
        )

    def check_sizes(self) -> None:
        """Check that there are output pixels, pixels that padding can repeat, and not too many
        elements.

        Raises
        ------
        ShapeError
            There are none, or too many.
        DTypeError
            Sums of integers could overflow int64.
        """
        for axis in range(self.rank if self.repeats else 0):
            size, lo, hi = self.size[axis], self.pad_lo[axis], self.pad_hi[axis]
            if max(lo, hi) > 0 and size + min(0, lo) + min(0, hi) < 1:
                raise ShapeError(
                    f"padding ({lo}, {hi}) in mode {self.padding_mode!r} has no pixel to repeat "
                    f"along {SPACE[self.rank][axis]}: of {size} pixels, negative padding crops "
                    f"{-min(0, lo) - min(0, hi)}; use padding_mode='zeros', or pad by 0 there"
                )
        for axis, out in enumerate(self.output):
            if out >= 1:
                continue
            size, taps = self.size[axis], self.kernel[axis]
            reach = (taps - 1) * self.dilation[axis] + 1
            padded = size + self.pad_lo[axis] + self.pad_hi[axis]
            raise ShapeError(
                f"the output has no pixels along {SPACE[self.rank][axis]}: {size} pixels with "
                f"padding ({self.pad_lo[axis]}, {self.pad_hi[axis]}) make {padded}, but {taps} "
                f"taps with dilation {self.dilation[axis]} reach over {reach}; pad by "
                f"{reach - padded} more{self._swapped()}"
            )
        padded_size = (
            size + max(0, lo) + max(0, hi)
            for size, lo, hi in zip(self.size, self.pad_lo, self.pad_hi, strict=True)
        )
        check_elements("x with its padding", (self.N, self.C, *padded_size))
        check_elements("y", (self.N, self.K, *self.output))
        if self.is_integer and self.largest_sum > LARGEST["int64"]:
            raise DTypeError(
                f"sums of {self.terms} products of {self.dtype} and {self.filter_dtype} may reach "
                f"{self.largest_sum}, more than {LARGEST['int64']}, the largest int64; convert x "
                "and w to float64"
            )

    @property
    def rank(self) -> int:
        """The number of spatial axes."""
        return len(self.size)

    @property
    def repeats(self) -> bool:
        """Whether there is padding that repeats pixels of x."""
        return self.padding_mode != "zeros" and max((*self.pad_lo, *self.pad_hi)) > 0

    @cached_property
    def channels_last(self) -> bool:
        """Whether the channels of a pixel are contiguous in x and y."""
        return self.layout.endswith("C")

    @cached_property
    def output(self) -> Axes:
        """(Z, P, Q); an axis has (size + pads - (taps - 1) * dilation - 1) // stride + 1 pixels."""
        each, found = (self.size, self.kernel, self.stride, self.dilation), list[int]()
        for size, taps, stride, dilation, lo, hi in zip(
            *each, self.pad_lo, self.pad_hi, strict=True
        ):
            found.append((size + lo + hi - (taps - 1) * dilation - 1) // stride + 1)
        return tuple(found)

    @cached_property
    def array_layout(self) -> str:
        """The letters of the axes of x and y: `layout`, without N where there is no batch axis."""
        return self.layout if self.batched else self.layout.replace("N", "")

    @cached_property
    def axes(self) -> tuple[int, ...]:
        """The positions of n, d, h, w, c in x and y; -1 where an axis is missing."""
        return tuple(map(self.array_layout.find, "NDHWC"))

    @cached_property
    def filter_axes(self) -> tuple[int, ...]:
        """The positions of k, c, t, r, s in w; -1 where an axis is missing."""
        return tuple(map(self.weight_layout.find, "KCTRS"))

    @cached_property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of x in its layout."""
        return self._shape(self.C, self.size)

    @cached_property
    def output_shape(self) -> tuple[int, ...]:
        """Shape of y in its layout."""
        return self._shape(self.K, self.output)

    def _shape(self, channels: int, pixels: Axes) -> tuple[int, ...]:
        extents = dict(zip(SPACE[len(pixels)], pixels, strict=True), N=self.N, C=channels)
        return tuple(map(extents.__getitem__, self.array_layout))

    @cached_property
    def weight_shape(self) -> tuple[int, ...]:
        """Shape of w in `weight_layout`."""
        taps = zip(TAPS[self.rank], self.kernel, strict=True)
        extents = dict(taps, K=self.K, C=self.C // self.groups)
        return tuple(map(extents.__getitem__, self.weight_layout))

    @cached_property
    def itemsize(self) -> int:
        """Bytes of one element of x."""
        return ITEMSIZES[self.dtype]

    @property
    def filter_dtype(self) -> str:
        """The dtype of w."""
        return self.w_dtype or self.dtype

    @property
    def dtypes(self) -> tuple[str, str, str]:
        """The dtypes of x, w and sums."""
        return self.dtype, self.filter_dtype, self.sum_dtype

    @property
    def is_complex(self) -> bool:
        """Whether x and w are complex numbers."""
        return self.dtype in COMPLEX_PARTS

    @property
    def is_integer(self) -> bool:
        """Whether x and w are integers."""
        return self.dtype in INTEGER_RANGES

    @property
    def terms(self) -> int:
        """The number of products of a sum: C / groups * R * S."""
        return self.C // self.groups * math.prod(self.kernel)

    @property
    def largest_sum(self) -> int:
        """The largest |sum| that integers of these shapes and dtypes can have."""
        return self.terms * largest_product(self.dtype, self.filter_dtype)

    @property
    def needs_int64(self) -> bool:
        """Whether sums of integers of these shapes and dtypes could overflow int32."""
        return self.largest_sum > LARGEST["int32"]

    @cached_property
    def sum_dtype(self) -> str:
        """The dtype of sums and of the bias: float64 for float64, float32 for other floats; for
        integers int32 if it holds the largest sum, else int64; that of x for complex numbers.
        """
        if self.is_integer:
            return "int64" if self.wide or self.needs_int64 else "int32"
        own = ("float64", "int32", "int64", *COMPLEX_PARTS)
        return self.dtype if self.dtype in own else "float32"

    @cached_property
    def flops(self) -> int:
        """The number of multiplications and additions of the direct sum, padding included:
        2 * N * Z * P * Q * K * T * R * S * C / groups, and four times as many for complex numbers.
        """
        products = math.prod(self.output_shape) * math.prod(self.kernel) * (self.C // self.groups)
        return (8 if self.is_complex else 2) * products

    @cached_property
    def bytes(self) -> int:
        """Bytes of x, w and y, each counted once; y has the default dtype."""
        y_dtype = self.sum_dtype if self.is_integer else self.dtype
        x = math.prod(self.input_shape) * self.itemsize
        w = math.prod(self.weight_shape) * ITEMSIZES[self.filter_dtype]
        return x + w + math.prod(self.output_shape) * ITEMSIZES[y_dtype]

    def __str__(self) -> str:
        text = f"x {self.input_shape} {self.array_layout}, w {self.weight_shape} "
        text += f"{self.weight_layout} -> y {self.output_shape}"
        for name, value in (("stride", self.stride), ("dilation", self.dilation)):
            if set(value) != {1}:
                text += f", {name} {value}"
        if any((*self.pad_lo, *self.pad_hi)):
            pairs = tuple(zip(self.pad_lo, self.pad_hi, strict=True))
            text += f", padding {self.pad_lo if self.pad_lo == self.pad_hi else pairs}"
        if self.repeats:
            text += f" in mode {self.padding_mode!r}"
        if self.groups > 1:
            text += f", groups {self.groups}"
        dtypes = f"{self.dtype} x, {self.w_dtype} w" if self.w_dtype else self.dtype
        return f"{text}; {dtypes}"


SIZES = {"N", "size", "pad_lo", "pad_hi"}  # fields that may differ between sizes
OF_SIZE = ("output", "input_shape", "output_shape", "flops", "bytes")  # what is cached of them
CACHED = (
    *(*OF_SIZE, "array_layout", "axes", "filter_axes", "weight_shape", "sum_dtype"),
    *("itemsize", "channels_last"),
)
# Maps all that `Problem.parse` was given, but the sizes of x, to the problem.
_KNOWN: Recent[Problem] = Recent(512)


def depends_on_size(padding: Padding, stride: int | Sequence[int]) -> bool:
    """Whether the padding in pixels depends on the size of x."""
    named = isinstance(padding, str) and padding.lower().startswith("same")
    return named and {*(stride if isinstance(stride, Sequence) else (stride,))} != {1}


def largest_product(x: str, w: str) -> int:
    """The largest |product| of an integer of dtype `x` and one of dtype `w`."""
    return max(abs(a * b) for a in INTEGER_RANGES[x] for b in INTEGER_RANGES[w])
