"""Execute the schedule's loads: image rows into a buffer, channels fastest, zeros outside the
image.

A load is one im2col::w walk along one image row: `rows` pixels, `step` apart, `channels` of each.
The source is taken as it lies in memory: channels-last rows are copied, other layouts transposed on
the way.
"""

import functools

from implicit_conv.kernels.cpu import memory
from implicit_conv.kernels.cpu.cache import kernel
from implicit_conv.kernels.cpu.compiled import schedule
from implicit_conv.kernels.cpu.record import ACTIVATION, record_load
from implicit_conv.kernels.cpu.transpose import make_transpose_block


@functools.cache
def make_load_row(lanes, itemsize):
    """load_row for elements of `itemsize` bytes, on vectors of `lanes`."""
    transpose_block = make_transpose_block(lanes)
    copy_element = memory.copy_bytes(itemsize)

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
    def transpose_pixels(kernels, source, step, channel_stride, pixels, channels, target):
        """Pixels contiguous, channels far apart (NCHW), `step` 1 or 2: blocks of lanes x lanes."""
        pitch = channels * itemsize
        span = (pixels - 1) * step + 1  # source elements that may be read
        for c in range(0, channels, lanes):
            for w in range(0, span, lanes):
                transpose_block(
                    kernels, step,
                    source + c * channel_stride + w * itemsize, channel_stride,
                    target + w // step * pitch + c * itemsize, pitch,
                    min(lanes, channels - c), min(lanes, span - w),
                )  # fmt: skip

    @kernel()
    def load_row(kernels, source, w, step, width, w_stride, channel_stride, rows, channels, target):
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
            transpose_pixels(kernels, src, step, channel_stride, end - first, channels, dst)
        else:
            gather_pixels(src, step * w_stride, channel_stride, end - first, channels, dst)

    return load_row


@functools.cache
def make_load_tile(lanes, itemsize, record=False):
    """load_tile for elements of `itemsize` bytes; with `record`, each load is written down."""
    load_row = make_load_row(lanes, itemsize)

    @kernel()
    def load_tile(call, g, c, channels, origin, extent, buffer):
        """Producer: all loads of a tile and channel block c: per image, per buffered row, per
        phase.

        Where the tile is read in place there is nothing to copy, only loads to record.
        """
        pixel = channels * itemsize
        pitch = schedule.row_pitch(g) * pixel
        n0, p0, q0 = origin
        w = q0 * g.stride_w - g.pad_w
        for image in range(extent[0]):
            n = n0 + image
            for a in range(g.phases_h):
                for i in range(extent[1] + schedule.row_halo(g, a)):
                    if (call.in_place and not record) or not schedule.row_needed(
                        g, i, extent[1], a
                    ):
                        continue
                    h = schedule.first_row(g, p0, a) + i * g.stride_h
                    row = image * schedule.image_rows(g) + schedule.buffer_row(g, a, i)
                    for b in range(g.phases_w):
                        offset, halo = schedule.column_offset(g, b), schedule.column_halo(g, b)
                        pixels = schedule.column_pixels(g, extent[2]) + halo
                        if record:
                            index = -1 if call.in_place else row * g.phases_w + b
                            record_load(
                                call.record,
                                ACTIVATION,
                                n,
                                h,
                                w,
                                c,
                                offset,
                                halo,
                                index,
                                pixels,
                                pixels * pixel,
                            )
                        target = buffer + row * pitch + schedule.buffer_column(g, b) * pixel
                        if call.in_place:
                            continue
                        if h < 0 or h >= g.H:
                            memory.zero(target, pixels * pixel)
                            continue
                        source = call.x + n * call.x_n + h * call.x_h + c * call.x_c
                        load_row(
                            call.kernels,
                            source,
                            w + offset,
                            g.step_w,
                            g.W,
                            call.x_w,
                            call.x_c,
                            pixels,
                            channels,
                            target,
                        )

    return load_tile
