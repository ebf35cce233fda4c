"""Execute the schedule's loads: image rows into a buffer, channels fastest, zeros outside the image.

A load is one im2col::w walk along one image row: `rows` pixels, `step` apart, `channels` of each. The
source is taken as it lies in memory: channels-last rows are copied, other layouts transposed on the way.
"""

import functools

from implicit_conv.kernels.cpu import memory
from implicit_conv.kernels.cpu.cache import kernel
from implicit_conv.kernels.cpu.compiled import schedule
from implicit_conv.kernels.cpu.transpose import transpose_block


@functools.cache
def make_load_row(lanes, itemsize):
    """load_row for elements of `itemsize` bytes, on vectors of `lanes`."""
    full1 = transpose_block(lanes, itemsize, step=1)
    edge1 = transpose_block(lanes, itemsize, step=1, full=False)
    full2 = transpose_block(lanes, itemsize, step=2)
    edge2 = transpose_block(lanes, itemsize, step=2, full=False)
    copy_element = memory.copy_element4 if itemsize == 4 else memory.copy_element8

    @kernel()
    def copy_pixels(source, step_bytes, channel_stride, pixels, channels, target):
        """Channels-last source: pixel by pixel, or the whole run at once where it is contiguous."""
        pitch = channels * itemsize
        if step_bytes == pitch:
            memory.copy(target, source, pixels * pitch)
            return
        for k in range(pixels):
            memory.copy(target + k * pitch, source + k * step_bytes, pitch)

    @kernel()
    def gather_pixels(source, step_bytes, channel_stride, pixels, channels, target):
        """Any strides at all, element by element."""
        for k in range(pixels):
            for c in range(channels):
                copy_element(
                    target + (k * channels + c) * itemsize,
                    source + k * step_bytes + c * channel_stride,
                )

    @kernel()
    def transpose_pixels(source, step, channel_stride, pixels, channels, target):
        """Pixels contiguous, channels far apart (NCHW), `step` 1 or 2: blocks of lanes x lanes."""
        pitch = channels * itemsize
        span = (pixels - 1) * step + 1  # source elements that may be read
        for c in range(0, channels, lanes):
            rows = min(lanes, channels - c)
            for w in range(0, span, lanes):
                columns = min(lanes, span - w)
                src = source + c * channel_stride + w * itemsize
                dst = target + w // step * pitch + c * itemsize
                if rows == lanes and columns == lanes:
                    if step == 1:
                        full1(src, channel_stride, dst, pitch, rows, columns)
                    else:
                        full2(src, channel_stride, dst, pitch, rows, columns)
                elif step == 1:
                    edge1(src, channel_stride, dst, pitch, rows, columns)
                else:
                    edge2(src, channel_stride, dst, pitch, rows, columns)

    @kernel()
    def load_row(source, w, step, width, w_stride, channel_stride, rows, channels, target):
        """Pixels w, w + step, ... (`rows` of them) of the image row at `source`, into `target`.

        `w` may lie outside [0, width): such pixels are zero. Strides are in bytes.
        """
        pitch = channels * itemsize
        first, end = schedule.valid_pixels(w, width, step, rows)
        memory.zero(target, first * pitch)
        memory.zero(target + end * pitch, (rows - end) * pitch)
        if first == end:
            return
        src = source + (w + first * step) * w_stride
        dst = target + first * pitch
        if channel_stride == itemsize or channels == 1:
            copy_pixels(src, step * w_stride, channel_stride, end - first, channels, dst)
        elif w_stride == itemsize and step <= 2 and channels >= 4:
            transpose_pixels(src, step, channel_stride, end - first, channels, dst)
        else:
            gather_pixels(src, step * w_stride, channel_stride, end - first, channels, dst)

    return load_row
