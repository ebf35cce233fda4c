"""A call of any operator in one to three dimensions, and its result by definition."""

from dataclasses import dataclass

import numpy as np

import implicit_conv as ic
from implicit_conv import reference
from implicit_conv.arrays import numpy_dtype
from implicit_conv.options import INTEGER_RANGES, SPACE, TAPS

CONV, TRANSPOSED, GRADIENT = "conv{}d", "conv_transpose{}d", "conv{}d_input_grad"


def permuted(array, letters, order):
    return array.transpose([letters.index(letter) for letter in order])


@dataclass(frozen=True)
class Call:
    """A call of an operator; letters are those of its family."""

    family: str
    size: tuple  # pixels of x, also in a gradient
    kernel: tuple
    stride: tuple
    dilation: tuple
    padding: tuple
    output_padding: tuple = ()
    N: int = 1
    C: int = 1  # of a group
    K: int = 1
    groups: int = 1
    layout: str = ""
    weight_layout: str = ""
    dtype: str = "float32"
    w_dtype: str | None = None

    @property
    def rank(self):
        return len(self.size)

    @property
    def is_integer(self):
        return self.dtype in INTEGER_RANGES

    @property
    def letters(self):
        """The axes of arrays as the reference has them."""
        return "NC" + SPACE[self.rank]

    @property
    def filter_letters(self):
        """The axes of filters as the reference has them."""
        return ("CK" if self.family == TRANSPOSED else "KC") + TAPS[self.rank]

    @property
    def output(self):
        spans = zip(self.size, self.stride, self.kernel, self.dilation, self.padding, strict=True)
        if self.family != TRANSPOSED:
            return tuple((n + sum(p) - (t - 1) * d - 1) // s + 1 for n, s, t, d, p in spans)
        pixels = ((n - 1) * s - sum(p) + (t - 1) * d + 1 for n, s, t, d, p in spans)
        return tuple(n + more for n, more in zip(pixels, self.output_padding, strict=True))

    @property
    def shapes(self):
        """The shapes of both arrays and of the result, as the reference has them."""
        x = self.N, self.C * self.groups, *self.size
        y = self.N, self.K * self.groups, *self.output
        if self.family == TRANSPOSED:
            return x, (x[1], self.K, *self.kernel), y
        w = y[1], self.C, *self.kernel
        return (y, w, x) if self.family == GRADIENT else (x, w, y)

    @property
    def options(self):
        names = "stride", "dilation", "padding", "groups", "layout", "weight_layout"
        options = {name: getattr(self, name) or None for name in names}
        more = {"output_padding": self.output_padding} if self.output_padding else {}
        return {**options, **more}

    def inputs(self, rng, normal=False):
        """Both arrays, in any dtype: normal numbers, or integers with exact sums."""
        dtypes = self.dtype, self.w_dtype or self.dtype
        for shape, dtype, most in zip(self.shapes[:2], dtypes, (2, 1), strict=True):
            if dtype in INTEGER_RANGES:
                yield rng.integers(*INTEGER_RANGES[dtype], shape, dtype, endpoint=True)
            elif normal:
                yield rng.standard_normal(shape).astype(numpy_dtype(dtype))
            else:
                yield rng.integers(-most, most + 1, shape).astype(numpy_dtype(dtype))

    def sums(self, first, w, magnitude=False):
        """The result by definition."""
        geometry = {"stride": self.stride, "pads": self.padding, "dilation": self.dilation}
        exact = "int64" if self.is_integer else "float64"
        more = {**geometry, "groups": self.groups, "magnitude": magnitude, "dtype": exact}
        if self.family == CONV:
            return reference.conv(first, w, **more)
        return reference.input_grad(first, w, self.shapes[2], **more)

    def arrange(self, array):
        """An array of pixels in the layout of the call."""
        return np.ascontiguousarray(permuted(array, self.letters, self.layout or self.letters))

    def arrange_filter(self, w):
        order = self.weight_layout or self.filter_letters
        return np.ascontiguousarray(permuted(w, self.filter_letters, order))

    def restore(self, result):
        """A result in the order of the reference."""
        return permuted(result, self.layout or self.letters, self.letters)

    def restore_filter(self, w):
        order = self.weight_layout or self.filter_letters
        return permuted(w, order, self.filter_letters)

    def shape_of(self, shape):
        return tuple(shape[self.letters.index(letter)] for letter in self.layout or self.letters)

    def function(self, **options):
        """The operator, with the options of the call, as a function of arrays."""
        name = self.family.format(self.rank)
        shape = self.shape_of(self.shapes[2])

        def compute(first, w, **arrays):
            own = [shape[first.ndim == self.rank + 1 :]] if self.family == GRADIENT else []
            return getattr(ic, name)(first, w, *own, **arrays, **self.options, **options)

        return compute

    def plan(self, **options):
        name = "plan_" + self.family.format(self.rank)
        first, w, result = self.shapes
        order = self.weight_layout or self.filter_letters
        filters = [w[self.filter_letters.index(letter)] for letter in order]
        own = [self.shape_of(result)] if self.family == GRADIENT else []
        dtypes = {"dtype": self.dtype, "w_dtype": self.w_dtype}
        return getattr(ic, name)(
            self.shape_of(first), filters, *own, **dtypes, **self.options, **options
        )
