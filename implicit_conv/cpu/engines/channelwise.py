"""Windows, products and sums of images with channels last, as steps of a program.

Kernels know images of rows and columns. A signal is an image of one row, and pairs of volumes are
images whose rows are those of all slices.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from implicit_conv.arrays.arrays import Array
from implicit_conv.cpu.candidates.kernel_method import stored
from implicit_conv.cpu.machine.arch import CpuArch
from implicit_conv.kernels.cpu.channelwise.layout import Images
from implicit_conv.kernels.cpu.runtime.program import (
    Copied,
    Room,
    Step,
    address_of,
    copied,
    launched,
)
from implicit_conv.process.preparation import prepare

if TYPE_CHECKING:
    from implicit_conv.kernels.cpu.runtime.launch import Launch

__all__ = ["product_steps", "sum_steps", "window_steps"]

CHUNK = 256  # channels of an item, where items are few: four vectors of float32, at least
ITEM_BYTES = 1 << 17  # of elements that pay for another thread
# Of each pixel of a result along an axis: its first pixel, the number of pixels, and their count.
Table = Sequence[tuple[int, int, int]]
ONE_PIXEL: Table = ((0, 1, 1),)


def window_steps(
    x: Array, y: Array, tables: Sequence[Table], largest: bool, arch: CpuArch, room: Room
) -> list[Step]:
    """The steps that reduce windows of x (N, [D, [H,]] W, C) into y, placed arrays of one dtype:
    their maxima if `largest`, else their sums over the counts. Axes of pixels have a table each.
    """
    if x.ndim == 5:
        return _volume_steps(x, y, tables, largest, arch, room)
    words = [np.array(table, np.int64) for table in (ONE_PIXEL, *tables)[-2:]]
    at = [int(table.ctypes.data) for table in words]

    def launch(images: Images, items: int, threads: int) -> Launch:
        from implicit_conv.kernels.cpu.channelwise.operator import windows

        images = images._replace(row_table=at[0], column_table=at[1])
        return windows(stored(x.dtype.name, arch), largest, images, items, threads, words)

    return _steps(x, None, y, launch, arch, room)


def _volume_steps(
    x: Array, y: Array, tables: Sequence[Table], largest: bool, arch: CpuArch, room: Room
) -> list[Step]:
    """The steps that reduce the windows of all slices, and then those of slices."""
    steps, after = list[Step](), list[Step]()
    (n, depth, *_), (_, slices, rows, columns, channels) = x.shape, y.shape
    if 1 < depth and 1 < n and x.strides[0] != depth * x.strides[1]:
        x = copied(x, room, steps)
    between = room.array((n * depth, rows, columns, channels), y.dtype)
    if not y.flags.c_contiguous:
        result, y = y, room.array(y.shape, y.dtype)
        after.append(Copied(y, result))
    given, last = between.reshape(n, depth, 1, -1), y.reshape(n, slices, 1, -1)
    steps += window_steps(x.reshape(-1, *x.shape[2:]), between, tables[1:], largest, arch, room)
    steps += window_steps(given, last, (tables[0], ONE_PIXEL), largest, arch, room)
    return [*steps, *after]


def product_steps(x: Array, gate: Array, y: Array, arch: CpuArch, room: Room) -> list[Step]:
    """The steps that multiply x (N, .., C) by a gate (N, 1, .., C) into y, placed arrays of one
    dtype.
    """
    return _pair_steps(x, gate, y, arch, room, adds=False)


def sum_steps(a: Array, b: Array, y: Array, arch: CpuArch, room: Room) -> list[Step]:
    """The steps that add a and b into y (N, .., C), placed arrays of one dtype."""
    return _pair_steps(a, b, y, arch, room, adds=True)


def _pair_steps(
    x: Array, other: Array, y: Array, arch: CpuArch, room: Room, *, adds: bool
) -> list[Step]:
    def launch(images: Images, items: int, threads: int) -> Launch:
        from implicit_conv.kernels.cpu.channelwise.operator import pairs

        return pairs(stored(x.dtype.name, arch), adds, images, items, threads)

    return _steps(x, other, y, launch, arch, room)


def _steps(
    x: Array,
    other: Array | None,
    y: Array,
    launch: Callable[[Images, int, int], Launch],
    arch: CpuArch,
    room: Room,
) -> list[Step]:
    """A launch, on copies of arrays whose channels are not contiguous, or rows of slices."""
    steps, after = list[Step](), list[Step]()
    x = x if _is_plain(x) else copied(x, room, steps)
    if other is not None and not _is_plain(other):
        other = copied(other, room, steps)
    if not _is_plain(y):
        result, y = y, room.array(y.shape, y.dtype)
        after.append(Copied(y, result))
    x, y = _image(x), _image(y)
    other = None if other is None else _image(other)
    n, rows, columns, channels = y.shape
    most = max(1, min(arch.threads, max(x.nbytes, y.nbytes) // ITEM_BYTES))
    chunk = channels if n * rows >= 2 * most else CHUNK
    chunks = math.ceil(channels / chunk)
    items = n * rows * chunks
    images = Images(
        rows=rows,
        columns=columns,
        channels=channels,
        chunk=chunk,
        chunks=chunks,
        size=y.itemsize,
        **dict(zip(("x_n", "x_row", "x_pixel"), x.strides, strict=False)),
        **dict(zip(("y_n", "y_row", "y_pixel"), y.strides, strict=False)),
        **_strides_of_other(other),
    )
    ready = prepare(launch, images, items, min(most, items))
    at = 0 if other is None else address_of(other)
    return [*steps, launched(ready, room, address_of(x), at, address_of(y)), *after]


def _strides_of_other(other: Array | None) -> dict[str, int]:
    """Those of a second operand; an axis of one element, such as those of a gate, has none."""
    if other is None:
        return {}
    names = "other_n", "other_row", "other_pixel"
    every = zip(names, other.shape, other.strides, strict=False)
    return {name: stride if extent > 1 else 0 for name, extent, stride in every}


def _is_plain(array: Array) -> bool:
    """Whether channels are contiguous, and rows of slices that follow each other equally far."""
    if array.ndim == 5 and 1 not in array.shape[1:3]:
        if array.strides[1] != array.shape[2] * array.strides[2]:
            return False
    return array.shape[-1] == 1 or array.strides[-1] == array.itemsize


def _image(array: Array) -> Array:
    """A plain array as one of images, without a copy."""
    n, *pixels, columns, channels = array.shape
    return array.reshape(n, math.prod(pixels), columns, channels)
