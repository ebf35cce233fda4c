"""Execute the schedule's loads: image rows into a buffer, channels fastest, zeros for the padding.

A load is one im2col::w walk along an image row: `channels` channels of each of `pixels` pixels,
with a stride of `step` pixels. x may have any strides: channels-last rows are copied, others are
transposed. All strides are in bytes.
"""

import functools

from numba import types

from implicit_conv.kernels.cpu.emit import memory
from implicit_conv.kernels.cpu.runtime.cache import kernel
from implicit_conv.kernels.cpu.runtime.compiled import schedule
from implicit_conv.kernels.cpu.runtime.entry import BLOB_POINTER, fields
from implicit_conv.kernels.cpu.runtime.parts import BOUND, compile_part
from implicit_conv.kernels.cpu.runtime.record import ACTIVATION, recorder
from implicit_conv.kernels.cpu.runtime.table import TRANSPOSE_IN
from implicit_conv.kernels.cpu.tile import convert, storage
from implicit_conv.kernels.cpu.tile.transpose import make_transpose_block

WIDE_BYTES = 16  # bytes of a copy in one instruction; smaller pixels are copied with what follows


@functools.cache
def make_load_row(lanes, form):
    """Make load_row(), for elements with the formats `form` and vectors of `lanes`."""
    element_channels = form.channels  # channels of an element of the buffer
    transpose_block = make_transpose_block(TRANSPOSE_IN, lanes, element_channels)
    move = convert.make_move(form.x, form.buffer, lanes)
    move_element = convert.make_move_element(form.x, form.buffer)
    as_stored, copy_wide = form.x == form.buffer, memory.copy_bytes(WIDE_BYTES)
    size, itemsize = storage.SIZES[form.x], storage.SIZES[form.buffer]  # of x, of the buffer

    @kernel()
    def copy_pixels(target, source, pitch, step, pixels, channels):
        """Contiguous channels: one copy for each pixel, or one for the whole row if pixels are
        contiguous too.
        """
        if step == channels * size and pitch == channels * itemsize:
            move(target, source, pixels * channels)
            return
        wide = 0  # pixels that are copied with what follows, which the next copies overwrite
        if as_stored and channels * size < WIDE_BYTES and step > 0:
            rest = schedule.ceil_div(WIDE_BYTES - channels * size, min(step, pitch))
            wide = max(0, pixels - rest)
        for i in range(wide):
            copy_wide(target + i * pitch, source + i * step)
        for i in range(wide, pixels):
            move(target + i * pitch, source + i * step, channels)

    @kernel()
    def gather_pixels(target, source, pitch, step, channel, pixels, channels):
        """Any strides, element by element."""
        for i in range(pixels):
            for c in range(channels):
                move_element(target + i * pitch + c * itemsize, source + i * step + c * channel)

    @kernel()
    def transpose_pixels(kernels, target, source, pitch, step, channel, pixels, channels):
        """Contiguous pixels (NCHW), transposed; `step` counts pixels and is 1 or 2."""
        span = (pixels - 1) * step + 1  # source pixels that may be read
        block = lanes * element_channels
        for c in range(0, channels, block):
            for w in range(0, span, lanes):
                from_, to = c * channel + w * size, w // step * pitch + c * itemsize
                rows, columns = min(block, channels - c), min(lanes, span - w)
                transpose_block(
                    kernels, step, source + from_, channel, target + to, pitch, rows, columns
                )

    @kernel()
    def load_row(call, g, target, source, pitch, w, pixels, channels):
        """Load the pixels w, w + step, ... of the image row at `source`; padding is zero."""
        first, end = schedule.valid_pixels(w, g.W, g.step_w, pixels)
        memory.zero(target, first * pitch)
        memory.zero(target + end * pitch, (pixels - end) * pitch)
        pixels = end - first
        if pixels == 0:
            return
        source += (w + first * g.step_w) * call.x_w
        target += first * pitch
        step = g.step_w * call.x_w
        if call.x_c == size:
            copy_pixels(target, source, pitch, step, pixels, channels)
        elif call.x_w == size and g.step_w <= 2:
            transpose_pixels(
                call.kernels, target, source, pitch, g.step_w, call.x_c, pixels, channels
            )
        else:
            gather_pixels(target, source, pitch, step, call.x_c, pixels, channels)
        if channels % element_channels:  # the second half of the last pair
            for i in range(pixels):
                memory.zero(target + i * pitch + channels * itemsize, itemsize)

    return load_row


record = element_channels = load_row = BOUND  # bound by compile_load_tile


def load_tile(blob, buffer, n0, p0, q0, c, channels):
    """Template of the part that loads a tile: per image, per buffered row, per phase buffer.

    `c` is the first element of the channel block, counted over all groups, and `channels` counts
    elements too. Where the tile is read in place nothing is copied, and loads are only recorded.
    """
    call, g = fields(blob).call, fields(blob).geometry
    if call.in_place and call.record == 0:
        return
    images, rows, columns = schedule.tile_extent(g, n0, p0, q0)
    pixel = channels * call.itemsize
    count = min(channels * element_channels, call.channels - c * element_channels)
    pitch = schedule.row_pitch(g) * pixel
    w = q0 * g.stride_w - g.pad_w
    for image in range(images):
        n = n0 + image
        for a in range(g.phases_h):
            first_h = schedule.first_row(g, p0, a)
            first_row = image * schedule.image_rows(g) + schedule.buffer_row(g, a, 0)
            for i in range(rows + schedule.row_halo(g, a)):
                if not schedule.row_needed(g, i, rows, a):
                    continue
                h, row = first_h + i * g.stride_h, first_row + i
                source = call.x + n * call.x_n + h * call.x_h + c * call.x_element
                for b in range(g.phases_w):
                    offset, halo = schedule.column_offset(g, b), schedule.column_halo(g, b)
                    pixels = schedule.column_pixels(g, columns) + halo
                    index = -1 if call.in_place else row * g.phases_w + b
                    where = (n, h, w, c)
                    size = pixels * pixel
                    record(call.record, ACTIVATION, where, offset, halo, index, pixels, size)
                    if call.in_place:
                        continue
                    target = buffer + row * pitch + schedule.buffer_column(g, b) * pixel
                    if h < 0 or h >= g.H:
                        memory.zero(target, size)
                    else:
                        load_row(call, g, target, source, pixel, w + offset, pixels, count)


SIGNATURE = types.void(BLOB_POINTER, *[types.int64] * 6)


@functools.cache
def compile_load_tile(lanes, form, recording=False):
    """The part that loads tiles; elements have the formats `form`."""
    name = f"load_tile_{lanes}x{form.x}_{form.buffer}{'_recording' if recording else ''}"
    return compile_part(
        SIGNATURE,
        load_tile,
        name,
        record=recorder(recording),
        element_channels=form.channels,
        load_row=make_load_row(lanes, form),
    )
