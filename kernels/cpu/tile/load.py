"""Execute the schedule's loads: image rows into a buffer, channels fastest, zeros outside.

A load is one im2col::w walk along an image row: `pixels` of them, `step` apart, `channels` of each.
The source is taken as it lies in memory: channels-last rows are copied, others transposed on the
way. All strides are in bytes.
"""

import functools

from numba import types

from implicit_conv.kernels.cpu.emit import memory
from implicit_conv.kernels.cpu.runtime.cache import kernel
from implicit_conv.kernels.cpu.runtime.compiled import schedule
from implicit_conv.kernels.cpu.runtime.launch import BLOB_POINTER, fields
from implicit_conv.kernels.cpu.runtime.record import ACTIVATION, recorder
from implicit_conv.kernels.cpu.runtime.table import BOUND, TRANSPOSE_IN, compile_part
from implicit_conv.kernels.cpu.tile import storage
from implicit_conv.kernels.cpu.tile.transpose import make_transpose_block

WIDE_BYTES = 16  # of a copy that takes one instruction where the size of a pixel would not


@functools.cache
def make_load_row(lanes, form):
    """load_row for numbers of `form`, on vectors of `lanes`."""
    together = form.channels  # of an element
    transpose_block = make_transpose_block(TRANSPOSE_IN, lanes, together)
    move = storage.make_move(form.x, form.buffer, lanes)
    move_element = storage.make_move_element(form.x, form.buffer)
    as_stored, copy_wide = form.x == form.buffer, memory.copy_bytes(WIDE_BYTES)
    size, itemsize = storage.SIZES[form.x], storage.SIZES[form.buffer]  # of what is read, written

    @kernel()
    def copy_pixels(target, source, pitch, step, pixels, channels):
        """Channels lie together: pixel by pixel, or the whole run at once where pixels do too."""
        if step == channels * size and pitch == channels * itemsize:
            move(target, source, pixels * channels)
            return
        wide = 0  # pixels copied with what follows them, in whose place the next ones are written
        if as_stored and channels * size < WIDE_BYTES and step > 0:
            rest = schedule.ceil_div(WIDE_BYTES - channels * size, min(step, pitch))
            wide = max(0, pixels - rest)
        for i in range(wide):
            copy_wide(target + i * pitch, source + i * step)
        for i in range(wide, pixels):
            move(target + i * pitch, source + i * step, channels)

    @kernel()
    def gather_pixels(target, source, pitch, step, channel, pixels, channels):
        """Any strides at all, number by number."""
        for i in range(pixels):
            for c in range(channels):
                move_element(target + i * pitch + c * itemsize, source + i * step + c * channel)

    @kernel()
    def transpose_pixels(kernels, target, source, pitch, step, channel, pixels, channels):
        """Pixels lie together, channels far apart (NCHW); `step` counts pixels and is 1 or 2."""
        span = (pixels - 1) * step + 1  # source pixels that may be read
        block = lanes * together
        for c in range(0, channels, block):
            for w in range(0, span, lanes):
                from_, to = c * channel + w * size, w // step * pitch + c * itemsize
                rows, columns = min(block, channels - c), min(lanes, span - w)
                transpose_block(
                    kernels, step, source + from_, channel, target + to, pitch, rows, columns
                )

    @kernel()
    def load_row(call, g, target, source, pitch, w, pixels, channels):
        """Pixels w, w + step, ... of the image row at `source`; those outside it are zero."""
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
        if channels % together:  # the second half of the last pair
            for i in range(pixels):
                memory.zero(target + i * pitch + channels * itemsize, itemsize)

    return load_row


record = together = load_row = BOUND  # by compile_load_tile


def load_tile(blob, buffer, n0, p0, q0, c, channels):
    """Template of the part that loads a tile: per image, per buffered row, per phase buffer.

    `c` is the first element of the block, counted over all groups, `channels` counts elements too.
    Where the tile is read in place there is nothing to copy, only loads to record.
    """
    call, g = fields(blob).call, fields(blob).geometry
    if call.in_place and call.record == 0:
        return
    images, rows, columns = schedule.tile_extent(g, n0, p0, q0)
    pixel = channels * call.itemsize
    numbers = min(channels * together, call.channels - c * together)
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
                        load_row(call, g, target, source, pixel, w + offset, pixels, numbers)


SIGNATURE = types.void(BLOB_POINTER, *[types.int64] * 6)


@functools.cache
def compile_load_tile(lanes, form, recording=False):
    """The part that loads tiles of numbers of `form`."""
    name = f"load_tile_{lanes}x{form.x}_{form.buffer}{'_recording' if recording else ''}"
    return compile_part(
        SIGNATURE,
        load_tile,
        name,
        record=recorder(recording),
        together=form.channels,
        load_row=make_load_row(lanes, form),
    )
