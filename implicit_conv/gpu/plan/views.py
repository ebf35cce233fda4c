"""Views: the same convolution of the same memory, with other shapes that a kernel loads faster."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from implicit_conv.problem.options import LAYOUTS_OF, WEIGHT_LAYOUTS_OF, contiguous_strides
from implicit_conv.problem.problem import Problem


class Viewed:
    """A choice for `problem`, which is in the caller's layouts, by kernels that compute `view`."""

    problem: Problem
    view: Any

    @property
    def axes(self) -> tuple[int, ...]:
        """Positions of the view's axes in the caller's images, which may lack some."""
        return _positions(self.view.layout, self.problem.array_layout)

    @property
    def filter_axes(self) -> tuple[int, ...]:
        """Positions of the view's axes in the caller's filter, which may lack rows."""
        return _positions(self.view.weight_layout, self.problem.weight_layout)


def _positions(order: str, letters: str) -> tuple[int, ...]:
    """The positions in `letters` of those letters of `order` that are there.

    An order without planes has them before rows.
    """
    for plane, row in ("DH", "TR"):
        if plane not in order:
            order = order.replace(row, plane + row)
    return tuple(letters.index(letter) for letter in order if letter in letters)


def images(problem: Problem) -> Problem:
    """The convolution of the arrays N, [D,] H, W, C and K, [T,] R, S, C that kernels prefer.

    A signal is an image of one row: x (N, W, C) is (N, 1, W, C), and w (K, S, C) is (K, 1, S, C).
    """
    rank = max(2, problem.rank)
    missing = 2 - problem.rank
    one, zero = (1,) * missing, (0,) * missing
    return replace(
        problem,
        size=one + problem.size,
        kernel=one + problem.kernel,
        stride=one + problem.stride,
        dilation=one + problem.dilation,
        pad_lo=zero + problem.pad_lo,
        pad_hi=zero + problem.pad_hi,
        layout=LAYOUTS_OF[rank][1],
        weight_layout=WEIGHT_LAYOUTS_OF[rank][1],
        batched=True,
    )


def stacked(shape: tuple[int, ...], letters: str) -> tuple[int, ...]:
    """The shape in which kernels read an array of axes `letters`: planes of a volume are stacked.

    x (N, D, H, W, C) is (N, D * H, W, C), and w (K, T, R, S, C) is (K, T * R, S, C).
    """
    if len(letters) < 5:
        return shape
    at = letters.index("T" if "T" in letters else "D")
    return *shape[:at], shape[at] * shape[at + 1], *shape[at + 2 :]


def is_channels_last(view: Problem) -> bool:
    """Whether the channels of each pixel and of each filter tap are its last axis."""
    return view.channels_last and view.weight_layout[0] + view.weight_layout[-1] == "KC"


def other_views(view: Problem) -> list[Problem]:
    """The same convolution of the same memory, in all other shapes that may be faster."""
    flat = planes(view)
    shapes = [] if flat is None else [flat]
    return [*shapes, *filter(None, map(patches, (view, *shapes)))]


def planes(view: Problem) -> Problem | None:
    """The convolution of images that one of volumes is, if there is one.

    Where windows have one plane, planes are images: x (N, D, H, W, C) is (N * D, H, W, C). Where
    they have one pixel of each plane, planes are rows: x is (N, D, H * W, C).
    """
    if view.rank == 2 or not is_channels_last(view):
        return None
    single = [
        (view.kernel[axis], view.stride[axis], view.pad_lo[axis], view.pad_hi[axis]) == (1, 1, 0, 0)
        for axis in range(3)
    ]
    D, H, W = view.size
    if single[0]:
        N, kept, size = view.N * D, slice(1, 3), (H, W)
    elif single[1] and single[2]:
        N, kept, size = view.N, slice(0, 2), (D, H * W)
    else:
        return None
    return replace(
        view,
        N=N,
        size=size,
        kernel=view.kernel[kept],
        stride=view.stride[kept],
        dilation=view.dilation[kept],
        pad_lo=view.pad_lo[kept],
        pad_hi=view.pad_hi[kept],
        layout="NHWC",
        weight_layout="KRSC",
    )


def patches(view: Problem) -> Problem | None:
    """The convolution whose channels are the S * C elements of a window's row, if there is one.

    Where windows tile each row of a channels-last image, x (N, H, Q * S, C) is (N, H, Q, S * C),
    and w (K, R, S, C) is (K, R, 1, S * C). Where they tile its columns too, each R rows are an
    image of their own: x is (N * P, R, Q, S * C) and y is (N * P, 1, Q, K), so that a tensor map
    needs no stride, which 8 bounds. A window that is a whole such image is a pixel: x is
    (N * P, 1, 1, R * S * C).
    Volumes keep their rows: x (N, D, H, Q * S, C) is (N, D, H, Q, S * C).
    """
    H, (R, S), (P, Q) = view.size[-2], view.kernel[-2:], view.output[-2:]
    if view.groups > 1 or not is_channels_last(view):
        return None
    apart = view.rank == 2 and R > 1 and _tiled(view, 0)  # R rows are an image
    if not _tiled(view, -1) or (S == 1 and not apart):
        return None
    rows, N, C = (H, R), view.N, S * view.C
    if apart:
        rows, N = (R, R), N * P
    if apart and Q == 1:
        rows, C = (1, 1), R * C
    strides = (1, 1) if apart else (*view.stride[:-1], 1)
    return replace(
        view,
        N=N,
        C=C,
        size=(*view.size[:-2], rows[0], Q),
        kernel=(*view.kernel[:-2], rows[1], 1),
        stride=strides,
        dilation=(*view.dilation[:-1], 1),
        pad_lo=(*view.pad_lo[:-1], 0),
        pad_hi=(*view.pad_hi[:-1], 0),
    )


def _tiled(view: Problem, axis: int) -> bool:
    """Whether windows along an axis tile the image: each pixel is in one of them."""
    taps, outputs = view.kernel[axis], view.output[axis]
    pads = view.pad_lo[axis], view.pad_hi[axis]
    return (
        view.size[axis] == outputs * taps
        and pads == (0, 0)
        and (view.stride[axis] == taps or outputs == 1)
        and (view.dilation[axis] == 1 or taps == 1)
    )


def reshaped(
    shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int, other: tuple[int, ...]
) -> tuple[int, ...] | None:
    """The strides of an array's elements in another shape; None where that would need a copy.

    Axes of one element get the strides of a contiguous array.
    """
    found = list(contiguous_strides(other, itemsize))
    if 0 in other:
        return tuple(found)
    runs: list[tuple[int, int]] = []  # (extent, stride) of axes that one stride walks together
    for extent, stride in zip(shape, strides, strict=True):
        if extent == 1:
            continue
        outer = runs.pop()[0] if runs and runs[-1][1] == extent * stride else 1
        runs.append((outer * extent, stride))
    for axis in reversed(range(len(other))):
        extent = other[axis]
        if extent == 1:
            continue
        count, found[axis] = runs.pop()
        if count % extent:
            return None
        if count > extent:
            runs.append((count // extent, found[axis] * extent))
    return tuple(found)
