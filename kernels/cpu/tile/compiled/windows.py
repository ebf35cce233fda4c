"""Load windows: the pixels that a filter row multiplies become the channels of one pixel.

A pixel of the buffer is an output column, and its elements are those of a window in the order of
memory, ``[tap][channel]``. Windows of few channels then fill words of two channels, where each
pixel alone would leave a part of its last word empty.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

from implicit_conv.kernels import schedule
from implicit_conv.kernels.cpu.emit import masks, memory
from implicit_conv.kernels.cpu.emit.internals import ir, types
from implicit_conv.kernels.cpu.emit.intrinsics import emitting
from implicit_conv.kernels.cpu.runtime.call import Call
from implicit_conv.kernels.cpu.runtime.layout import WINDOW_ELEMENTS
from implicit_conv.kernels.cpu.tile import storage
from implicit_conv.kernels.cpu.tile.compiled import convert
from implicit_conv.kernels.cpu.tile.storage import Format
from implicit_conv.kernels.geometry import Geometry


class Row(NamedTuple):
    """A row of the buffer, and the row of an image that it is loaded from."""

    target: int  # their addresses
    source: int
    pitch: int  # byte stride of pixels in the buffer
    w: int  # the position in the image of its first pixel, or the column of its first window


@functools.cache
def _make_copy_windows(count: int, elements: int, step: int, pitch: int) -> Any:
    """copy_windows(to, at): store WINDOW_ELEMENTS elements: `count` windows of `elements` elements
    with a stride of `step` elements, each completed with zeros to `pitch` elements, then zeros.
    """
    read = (count - 1) * step + elements
    windows, places = zip(*(divmod(lane, pitch) for lane in range(WINDOW_ELEMENTS)), strict=True)
    taken = [
        window * step + place if window < count and place < elements else WINDOW_ELEMENTS
        for window, place in zip(windows, places, strict=True)
    ]

    @emitting(types.void(types.int64, types.int64), count, elements, step, pitch)
    def copy_windows(builder: ir.IRBuilder, to: ir.Value, at: ir.Value) -> None:
        kind = ir.VectorType(ir.IntType(16), WINDOW_ELEMENTS)
        to, at = (builder.inttoptr(address, kind.as_pointer()) for address in (to, at))
        bits = [lane < read for lane in range(WINDOW_ELEMENTS)]
        mask = ir.Constant(ir.VectorType(ir.IntType(1), WINDOW_ELEMENTS), bits)
        row = masks.load(builder, at, kind, mask, 2)
        order = ir.Constant(ir.VectorType(ir.IntType(32), WINDOW_ELEMENTS), taken)
        row = builder.shuffle_vector(row, ir.Constant(kind, None), order)
        builder.store(row, to).align = 2

    return copy_windows


@functools.cache
def make_load_windows(form: Format, shape: tuple[int, int, int]) -> Callable[..., Any]:
    """Make load_row() for windows of `shape` = (channels, taps, stride); see `layout.Window` and
    `load.make_load_row`.
    """
    window_channels, taps, stride = shape
    elements, size = window_channels * taps, storage.SIZES[form.x]
    filled = elements + elements % form.channels  # of a window in the buffer
    step = stride * window_channels
    together = min(WINDOW_ELEMENTS // filled, 1 + (WINDOW_ELEMENTS - elements) // step)
    copy_windows = _make_copy_windows(together, elements, step, filled)
    move_element = convert.make_move_element(form.x, form.buffer)

    def gather_window(call: Call, target: int, source: int, column: int, pitch: int) -> None:
        """The window that begins at `column` of the row at `source`, element by element."""
        memory.zero(target, pitch)
        for tap in range(taps):
            if 0 <= column + tap and column + tap < call.windows.columns:
                at = source + (column + tap) * call.x.tap
                for c in range(window_channels):
                    to = target + (tap * window_channels + c) * size
                    move_element(to, at + c * call.x.c)

    def load_row(call: Call, g: Geometry, row: Row, count: int, channels: int) -> None:
        """Load the windows of the output columns q .. q + count - 1.

        Those inside the image are copied several at once, if that stays inside the row's buffer.
        """
        target, source, pitch, q = row
        first = min(count, max(0, schedule.ceil_div(call.windows.before, stride) - q))
        last = (call.windows.columns - taps + call.windows.before) // stride - q
        last = min(last + 1 - together, count - schedule.ceil_div(WINDOW_ELEMENTS, filled))
        contiguous = window_channels == 1 or call.x.c == size
        copies = 0
        if contiguous and call.x.tap == window_channels * size and last >= first:
            copies = (last - first) // together + 1
        for i in range(first):
            to, column = target + i * pitch, (q + i) * stride - call.windows.before
            gather_window(call, to, source, column, pitch)
        at = source + ((q + first) * stride - call.windows.before) * call.x.tap
        for i in range(copies):
            copy_windows(target + (first + i * together) * pitch, at + i * together * step * size)
        for i in range(first + copies * together, count):
            to, column = target + i * pitch, (q + i) * stride - call.windows.before
            gather_window(call, to, source, column, pitch)

    return load_row
