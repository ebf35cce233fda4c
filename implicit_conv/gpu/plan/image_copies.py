"""Copies of x and dy that weight gradients load faster than the arrays themselves.

A copy is channels-last, with channels padded to whole chunks of 16 bytes. Where a pixel of x has
less than these, the copy has padding as columns of zeros, and the pixels of a filter row are one
pixel of a view: its columns are a stride apart, so they overlap.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import NamedTuple

from implicit_conv.kernels.gpu.sizes import COPY_SIZES, VECTOR_BYTES
from implicit_conv.kernels.gpu.wgrad_variant import ImageCopy
from implicit_conv.kernels.schedule import ceil_div
from implicit_conv.problem.options import contiguous_strides
from implicit_conv.problem.problem import Problem


class Copy(NamedTuple):
    """A copy of an array (N, H, W, channels); its columns begin with `pad` of zeros."""

    shape: tuple[int, ...]
    itemsize: int
    columns: int  # of the array
    channels: int  # of the array
    pad: int = 0
    step: int = 1  # columns of the copy from a pixel of the view to the next
    window: int = 0  # elements of a pixel of the view, where it has those of a filter row

    @property
    def bytes(self) -> int:
        """Bytes of the copy, a multiple of 16."""
        return math.prod(self.shape) * self.itemsize

    @property
    def source_bytes(self) -> int:
        """About as many bytes as the array has."""
        return self.bytes // self.shape[3] * self.channels

    @property
    def strides(self) -> tuple[int, ...]:
        """Byte strides of the view."""
        n, h, w, c = contiguous_strides(self.shape, self.itemsize)
        return n, h, w * self.step, c

    @property
    def kernel(self) -> ImageCopy:
        """The kernel that copies."""
        pixel = self.shape[3] * self.itemsize
        return ImageCopy(self.itemsize, max(1, VECTOR_BYTES // pixel))


class Copies(NamedTuple):
    """The view of the convolution that a kernel computes, with the copies of x and dy it reads."""

    view: Problem
    x: Copy | None = None
    dy: Copy | None = None

    @property
    def all(self) -> list[Copy]:
        """Those that there are."""
        return [copy for copy in (self.x, self.dy) if copy]

    @property
    def names(self) -> str:
        """The arrays that are copied, in words."""
        return " and ".join(name for name in ("x", "dy") if getattr(self, name))

    @property
    def copy_bytes(self) -> int:
        """The most bytes at a time that cp.async can copy pixels' channels by; else the least."""
        view = self.view
        sizes = [channels // view.groups * view.itemsize for channels in (view.C, view.K)]
        sizes += [self.x.strides[2]] if self.x else []
        able = (size for size in COPY_SIZES if not any(each % size for each in sizes))
        return next(able, min(COPY_SIZES))


def padded_names(view: Problem) -> set[str]:
    """The arrays whose pixels are no whole chunks of 16 bytes."""
    counts = {"x": view.C, "dy": view.K}
    return {name for name, count in counts.items() if count * view.itemsize % VECTOR_BYTES}


def copies(view: Problem, names: Collection[str] = ()) -> Iterator[Copies]:
    """The ways to copy these arrays, and those whose channels need padding.

    `view` is the problem of channels-last arrays with two spatial axes.
    """
    names = padded_names(view).union(names)
    if not names or not math.prod((view.N, view.C, view.K, *view.size, *view.output)):
        return
    if view.groups > 1 and padded_names(view):
        return  # each group of a copy would be padded
    unit = VECTOR_BYTES // view.itemsize
    C, K = (int(ceil_div(count, unit) * unit) for count in (view.C, view.K))
    dy = None
    if "dy" in names:
        dy = Copy((view.N, *view.output, K), view.itemsize, view.output[1], view.K)
        view = replace(view, K=K)
    if "x" not in names:
        yield Copies(view, None, dy)
        return
    x = Copy((view.N, *view.size, C), view.itemsize, view.size[1], view.C)
    yield Copies(replace(view, C=C), x, dy)
    if windows := _windows(view):
        rows = replace(
            view,
            C=windows.window,
            size=(view.size[0], view.output[1]),
            kernel=(view.kernel[0], 1),
            stride=(view.stride[0], 1),
            dilation=(view.dilation[0], 1),
            pad_lo=(view.pad_lo[0], 0),
            pad_hi=(view.pad_hi[0], 0),
        )
        yield Copies(rows, windows, dy)


def _windows(view: Problem) -> Copy | None:
    """The copy whose pixels of a filter row are one pixel of a view, if a pixel is that narrow."""
    (S, step), itemsize = (view.kernel[1], view.stride[1]), view.itemsize
    channels = 1 << (view.C - 1).bit_length()  # a power of two, so that chunks have whole pixels
    while step * channels * itemsize % min(COPY_SIZES):
        channels *= 2
    pixel = channels * itemsize
    if pixel >= VECTOR_BYTES or (S > 1 and view.dilation[1] > 1):
        return None
    window = int(ceil_div(S * pixel, VECTOR_BYTES)) * VECTOR_BYTES
    together = VECTOR_BYTES // pixel
    columns = (view.output[1] - 1) * step + window // pixel
    shape = view.N, view.size[0], int(ceil_div(columns, together)) * together, channels
    return Copy(shape, itemsize, view.size[1], view.C, view.pad_lo[1], step, window // itemsize)
