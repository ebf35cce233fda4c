"""Windows and products of images with channels last, as steps of a program."""

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

__all__ = ["product_steps", "window_steps"]

CHUNK = 256  # channels of an item, where items are few: four vectors of float32, at least
ITEM_BYTES = 1 << 17  # of elements that pay for another thread
# Of each row, or column, of a result: its first pixel, the number of pixels, and their count.
Table = Sequence[tuple[int, int, int]]


def window_steps(
    x: Array, y: Array, rows: Table, columns: Table, largest: bool, arch: CpuArch, room: Room
) -> list[Step]:
    """The steps that reduce windows of x (N, H, W, C) into y (N, P, Q, C), placed arrays of one
    dtype: their maxima if `largest`, else their sums over the counts.
    """
    tables = [np.array(table, np.int64) for table in (rows, columns)]
    at = [int(table.ctypes.data) for table in tables]

    def launch(images: Images, items: int, threads: int) -> Launch:
        from implicit_conv.kernels.cpu.channelwise.operator import windows

        images = images._replace(row_table=at[0], column_table=at[1])
        return windows(stored(x.dtype.name, arch), largest, images, items, threads, tables)

    return _steps(x, None, y, launch, arch, room)


def product_steps(x: Array, gate: Array, y: Array, arch: CpuArch, room: Room) -> list[Step]:
    """The steps that multiply x (N, H, W, C) by a gate (N, 1, 1, C) into y, placed arrays of one
    dtype.
    """

    def launch(images: Images, items: int, threads: int) -> Launch:
        from implicit_conv.kernels.cpu.channelwise.operator import products

        return products(stored(x.dtype.name, arch), images, items, threads)

    return _steps(x, gate, y, launch, arch, room)


def _steps(
    x: Array,
    gate: Array | None,
    y: Array,
    launch: Callable[[Images, int, int], Launch],
    arch: CpuArch,
    room: Room,
) -> list[Step]:
    """A launch, on copies of arrays whose channels are not contiguous."""
    steps, after = list[Step](), list[Step]()
    x = x if _is_plain(x) else copied(x, room, steps)
    if gate is not None and not _is_plain(gate):
        gate = copied(gate, room, steps)
    if not _is_plain(y):
        result, y = y, room.array(y.shape, y.dtype)
        after.append(Copied(y, result))
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
        gate_n=0 if gate is None else gate.strides[0],
    )
    ready = prepare(launch, images, items, min(most, items))
    at = 0 if gate is None else address_of(gate)
    return [*steps, launched(ready, room, address_of(x), at, address_of(y)), *after]


def _is_plain(array: Array) -> bool:
    """Whether channels are contiguous."""
    return array.shape[-1] == 1 or array.strides[-1] == array.itemsize
