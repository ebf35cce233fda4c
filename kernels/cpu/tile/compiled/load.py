"""Execute the schedule's loads: image rows into a buffer, channels fastest, padding included.

A load is one im2col::w walk along an image row: `channels` channels of each of `pixels` pixels,
with a stride of `step` pixels. x may have any strides: channels-last rows are copied, others are
transposed. Padding is zeros, or the rows and pixels of x that it repeats. All strides are in bytes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

from implicit_conv.kernels import schedule
from implicit_conv.kernels.cpu.emit import memory
from implicit_conv.kernels.cpu.emit.internals import ir, types
from implicit_conv.kernels.cpu.emit.intrinsics import emitting
from implicit_conv.kernels.cpu.emit.vector import I32, i64
from implicit_conv.kernels.cpu.runtime.call import Call
from implicit_conv.kernels.cpu.runtime.compiled.entry import Blob, fields
from implicit_conv.kernels.cpu.runtime.compiled.executed_loads import ACTIVATION, recorder
from implicit_conv.kernels.cpu.runtime.compiled.part import declare
from implicit_conv.kernels.cpu.runtime.compiled.source import Source, emitted, translated
from implicit_conv.kernels.cpu.runtime.table import LOAD_PIXELS, LOAD_TILE, TRANSPOSE_IN
from implicit_conv.kernels.cpu.tile import storage
from implicit_conv.kernels.cpu.tile.compiled import convert
from implicit_conv.kernels.cpu.tile.compiled.transpose import make_transpose_block
from implicit_conv.kernels.cpu.tile.compiled.windows import Row, make_load_windows
from implicit_conv.kernels.cpu.tile.storage import Format
from implicit_conv.kernels.geometry import Geometry, Place

WORD_BYTES = 4  # bytes of a word of several channels
WIDE_BYTES = 16  # bytes of a copy in one instruction; smaller pixels are copied with what follows
FEW_PLANES = 4  # channels that are copied one by one (AMD EPYC, Zen 4, 2026-11)


class Pixels(NamedTuple):
    """Every step-th of neighbouring pixels of the image, at least one, and where they go."""

    target: int  # addresses of the first pixel
    source: int
    pitch: int  # byte stride of pixels in the buffer
    pixel: int  # byte stride of neighbouring pixels in memory
    step: int  # neighbouring pixels from one to the next
    channel: int  # byte stride of channels in memory
    pixels: int
    channels: int


@functools.cache
def make_load_contiguous(lanes: int, form: Format) -> Callable[..., Any]:
    """Make load_pixels() for contiguous channels; see `make_load_any`."""
    element_channels = form.channels  # channels of an element of the buffer
    move = convert.make_move(form.x, form.buffer, lanes)
    as_stored, copy_wide = form.x == form.buffer, memory.copy_bytes(WIDE_BYTES)
    size, itemsize = storage.SIZES[form.x], storage.SIZES[form.buffer]  # of x, of the buffer

    def copy_pixels(row: Pixels) -> None:
        """One copy for each pixel, or one for the whole row if pixels are contiguous too."""
        target, source, pitch, pixel, step, _, pixels, channels = row
        step *= pixel
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

    def copy_words(row: Pixels) -> None:
        """Channels that do not fill a word: each is copied with what follows, which is masked."""
        target, source, pitch, pixel, step, _, pixels, channels = row
        step *= pixel
        beyond = schedule.ceil_div(WORD_BYTES - channels * size, step) if step > 0 else pixels
        whole = max(0, pixels - beyond)
        mask = (1 << 8 * channels * size) - 1
        for i in range(whole):
            memory.copy_bits(target + i * pitch, source + i * step, mask)
        for i in range(whole, pixels):
            memory.zero(target + i * pitch, pitch)
            move(target + i * pitch, source + i * step, channels)

    def load_pixels(kernels: int, row: Pixels) -> None:
        if row.channels < element_channels:
            copy_words(row)
        else:
            copy_pixels(row)

    return load_pixels


@functools.cache
def _make_interleave(planes: int, pixels: int, bits: int) -> Any:
    """interleave(to, at, plane): store `pixels` pixels of `planes` elements of `bits` bits each, of
    neighbouring elements of planes that are `plane` bytes apart.
    """

    @emitting(types.void(types.int64, types.int64, types.int64), planes, pixels, bits)
    def interleave(builder: ir.IRBuilder, to: ir.Value, at: ir.Value, plane: ir.Value) -> None:
        kind = ir.VectorType(ir.IntType(bits), pixels)
        rows = []
        for c in range(planes):
            place = builder.add(at, builder.mul(plane, i64(c)))
            rows.append(builder.load(builder.inttoptr(place, kind.as_pointer())))
            rows[-1].align = bits // 8
        rows += [ir.Constant(kind, None)] * (planes % 2)
        while len(rows) > 1:
            count = rows[0].type.count
            joined = ir.Constant(ir.VectorType(I32, 2 * count), [*range(2 * count)])
            rows = [
                builder.shuffle_vector(a, b, joined)
                for a, b in zip(rows[::2], rows[1::2], strict=True)
            ]
        (row,) = rows
        order = [c * pixels + i for i in range(pixels) for c in range(planes)]
        order = ir.Constant(ir.VectorType(I32, len(order)), order)
        row = builder.shuffle_vector(row, ir.Constant(row.type, None), order)
        builder.store(row, builder.inttoptr(to, row.type.as_pointer())).align = bits // 8

    return interleave


@functools.cache
def make_load_apart(lanes: int, form: Format) -> Callable[..., Any]:
    """Make load_pixels() for channels with any stride; see `make_load_any`."""
    element_channels = form.channels  # channels of an element of the buffer
    transpose_block = make_transpose_block(TRANSPOSE_IN, lanes, element_channels)
    move_element = convert.make_move_element(form.x, form.buffer)
    size, itemsize = storage.SIZES[form.x], storage.SIZES[form.buffer]  # of x, of the buffer
    as_stored = form.x == form.buffer
    of_two, of_three, of_four = (_make_interleave(n, lanes, 8 * size) for n in (2, 3, 4))

    def gather_pixels(row: Pixels) -> None:
        """Any strides, element by element."""
        target, source, pitch, pixel, step, channel, pixels, channels = row
        step *= pixel
        for i in range(pixels):
            for c in range(channels):
                move_element(target + i * pitch + c * itemsize, source + i * step + c * channel)

    def interleave_planes(row: Pixels) -> None:
        """Few planes, each read in order: their transposed blocks would be almost empty."""
        target, source, pitch, pixel, step, channel, pixels, channels = row
        step *= pixel
        vectors = 0  # pixels that are loaded as vectors of each plane
        if as_stored and step == size and pitch == channels * size and channels > 1:
            vectors = pixels // lanes * lanes
        for i in range(0, vectors, lanes):
            to, at = target + i * pitch, source + i * size
            if channels == 2:
                of_two(to, at, channel)
            elif channels == 3:
                of_three(to, at, channel)
            else:
                of_four(to, at, channel)
        for c in range(channels):
            for i in range(vectors, pixels):
                move_element(target + i * pitch + c * itemsize, source + i * step + c * channel)

    def transpose_pixels(kernels: int, row: Pixels) -> None:
        """Contiguous pixels (NCHW), transposed; `step` is 1 or 2."""
        target, source, pitch, _, step, channel, pixels, channels = row
        span = (pixels - 1) * step + 1  # source pixels that may be read
        block = lanes * element_channels
        for c in range(0, channels, block):
            for w in range(0, span, lanes):
                from_, to = c * channel + w * size, w // step * pitch + c * itemsize
                rows, columns = min(block, channels - c), min(lanes, span - w)
                transpose_block(
                    kernels, step, source + from_, channel, target + to, pitch, rows, columns
                )

    def load_pixels(kernels: int, row: Pixels) -> None:
        if row.channels <= FEW_PLANES:
            interleave_planes(row)
        elif row.pixel == size and row.step <= 2:
            transpose_pixels(kernels, row)
        else:
            gather_pixels(row)

    return load_pixels


@functools.cache
def make_load_any(lanes: int, form: Format) -> Callable[..., Any]:
    """Make load_pixels(), for elements with the formats `form` and vectors of `lanes`."""
    size = storage.SIZES[form.x]
    load_contiguous, load_apart = make_load_contiguous(lanes, form), make_load_apart(lanes, form)

    def load_pixels(kernels: int, row: Pixels) -> None:
        """Load pixels by the fastest way for their strides."""
        if row.channel == size:
            load_contiguous(kernels, row)
        else:
            load_apart(kernels, row)

    return load_pixels


@functools.cache
def make_load_row(lanes: int, form: Format, apart: bool, repeats: bool) -> Callable[..., Any]:
    """Make load_row(), for elements with the formats `form` and vectors of `lanes`.

    `apart` says that channels are not contiguous, and `repeats` that padding repeats pixels.
    """
    element_channels = form.channels  # channels of an element of the buffer
    itemsize = storage.SIZES[form.buffer]
    load_pixels = (make_load_apart if apart else make_load_contiguous)(lanes, form)
    fill = _make_repeat(lanes, form, apart) if repeats else _zero_pixels
    fills_words = not apart and not repeats  # also where channels do not fill a word

    def load_row(call: Call, g: Geometry, row: Row, pixels: int, channels: int) -> None:
        """Load `pixels` pixels of an image row, padding included.

        An image without channels has no memory that wide copies could read.
        """
        target, source, pitch, w = row
        first, end = schedule.valid_pixels(w, g.W, g.step_w, pixels)
        if first < end and channels > 0:
            to, at = target + first * pitch, source + (w + first * g.step_w) * call.x.w
            inside = Pixels(to, at, pitch, call.x.w, g.step_w, call.x.c, end - first, channels)
            load_pixels(call.kernels, inside)
        fill(call, g, row, 0, first, channels)
        fill(call, g, row, end, pixels, channels)
        missing = -channels % element_channels  # of the channels of the last element
        if missing > 0 and not (fills_words and channels < element_channels):
            for i in range(pixels):
                memory.zero(target + i * pitch + channels * itemsize, missing * itemsize)

    return load_row


def _zero_pixels(call: Call, g: Geometry, row: Row, first: int, end: int, channels: int) -> None:
    """Write the pixels first .. end - 1 of a row, which are padding of zeros."""
    memory.zero(row.target + first * row.pitch, (end - first) * row.pitch)


@functools.cache
def _make_repeat(lanes: int, form: Format, apart: bool) -> Callable[..., Any]:
    """Make repeat_pixels(), for padding that repeats pixels."""
    itemsize = storage.SIZES[form.buffer]
    move = convert.make_move(form.x, form.buffer, lanes)
    move_element = convert.make_move_element(form.x, form.buffer)

    def move_contiguous(call: Call, to: int, at: int, channels: int) -> None:
        move(to, at, channels)

    def move_apart(call: Call, to: int, at: int, channels: int) -> None:
        for c in range(channels):
            move_element(to + c * itemsize, at + c * call.x.c)

    move_pixel = move_apart if apart else move_contiguous

    def repeat_pixels(
        call: Call, g: Geometry, row: Row, first: int, end: int, channels: int
    ) -> None:
        """Load the pixels first .. end - 1 of a row, which are padding, one by one."""
        target, source, pitch, w = row
        for i in range(first, end):
            column = schedule.source_column(g, w + i * g.step_w, call.q_end)
            if column < 0:
                memory.zero(target + i * pitch, pitch)
            else:
                move_pixel(call, target + i * pitch, source + column * call.x.w, channels)

    return repeat_pixels


load_pixels = declare(
    LOAD_PIXELS,
    "load_pixels",
    "blob target source plane row column step channel planes rows columns channels pitch",
)


def make_load_pixels(lanes: int, form: Format) -> Source:
    """The part that loads pixels without padding; elements have the formats `form`."""
    load_row_pixels = make_load_any(lanes, form)

    def pixel_loads(
        blob: Blob,
        target: int,
        source: int,
        plane: int,
        row: int,
        column: int,
        step: int,
        channel: int,
        planes: int,
        rows: int,
        columns: int,
        channels: int,
        pitch: int,
    ) -> None:
        """Load rows of every step-th column of planes, into ``[plane][row][column][channel]``.

        `plane`, `row`, `column` and `channel` are byte strides in memory; `pitch` is that of pixels
        in the buffer. Rows and planes without gaps are loaded as one row.
        """
        if row == columns * step * column:
            rows, columns = 1, rows * columns
            if plane == columns * step * column:
                planes, columns = 1, planes * columns
        kernels = fields(blob).call.kernels
        for i in range(planes):
            for j in range(rows):
                to, at = target + (i * rows + j) * columns * pitch, source + i * plane + j * row
                pixels = Pixels(to, at, pitch, column, step, channel, columns, channels)
                load_row_pixels(kernels, pixels)

    return translated(load_pixels, pixel_loads)


load_tile = declare(LOAD_TILE, "load_tile", "blob buffer n p q c channels")


def load_at(blob: Blob, origin: Place, buffer: int, c: int, channels: int) -> None:
    """Call the part that loads tiles for the tile at `origin`."""
    call, (n, p, q) = fields(blob).call, origin
    slot = call.load_tile
    load_tile(
        call.kernels, slot=slot, blob=blob, buffer=buffer, n=n, p=p, q=q, c=c, channels=channels
    )


# The part in place of `load_tile` for pixels that are read in place.
LOAD_NOTHING = emitted(load_tile, lambda builder, at: None)


def make_load_tile(
    lanes: int, form: Format, apart: bool, repeats: bool, recording: bool = False
) -> Source:
    """The part that loads tiles; elements have the formats `form`; see `make_load_row`."""
    return _load_tile(form, make_load_row(lanes, form, apart, repeats), recording)


def make_window_tile(form: Format, shape: tuple[int, int, int], recording: bool = False) -> Source:
    """The part that loads tiles of windows; `shape` is that of a `layout.Window`."""
    return _load_tile(form, make_load_windows(form, shape), recording)


def _load_tile(form: Format, load_row: Callable[..., Any], recording: bool) -> Source:
    """The part `load_tile` with a way to load a row."""
    record = recorder(recording)
    element_channels = form.channels

    def tile_loads(blob: Blob, buffer: int, n: int, p: int, q: int, c: int, channels: int) -> None:
        """From output pixel (n, p, q) on: per input plane, row, phase buffer.

        `c` is the first element of the channel block, counted over all groups, and `channels`
        counts elements too. Where the tile is read in place nothing is copied, and loads are only
        recorded.
        """
        call, g = fields(blob).call, fields(blob).geometry
        if call.in_place and call.record == 0:
            return
        planes, rows, columns = schedule.tile_extent(g, n, p, q)
        pixel = channels * call.itemsize
        count = min(channels * element_channels, call.channels - c * element_channels)
        pitch = schedule.row_pitch(g) * pixel
        w = q * g.stride_w - g.pad_w
        for buffered in range(schedule.buffered_planes(g, planes)):
            plane, t = schedule.buffered_plane(g, buffered, planes)
            image, d = (n + plane) // g.Z, schedule.input_plane(g, n + plane, t)
            source_d = schedule.source_plane(g, d)
            above = buffered * schedule.plane_rows(g)
            for a in range(g.phases_h):
                first_h, first_row = (
                    schedule.first_row(g, p, a),
                    above + schedule.buffer_row(g, a, 0),
                )
                for i in range(rows + schedule.row_halo(g, a)):
                    if not schedule.row_needed(g, i, rows, a):
                        continue
                    h, row = first_h + i * g.stride_h, first_row + i
                    source_h = schedule.source_row(g, h, call.p_end)
                    source = call.x.address + image * call.x.n + c * call.x.element
                    source += source_d * call.x.d + source_h * call.x.h
                    for b in range(g.phases_w):
                        offset, halo = schedule.column_offset(g, b), schedule.column_halo(g, b)
                        pixels = schedule.column_pixels(g, columns) + halo
                        index = -1 if call.in_place else row * g.phases_w + b
                        where = (image, d, h, w, c)
                        size = pixels * pixel
                        record(call.record, ACTIVATION, where, offset, halo, index, pixels, size)
                        if call.in_place:
                            continue
                        target = buffer + row * pitch + schedule.buffer_column(g, b) * pixel
                        if source_d < 0 or source_h < 0:
                            memory.zero(target, size)
                        else:
                            line = Row(target, source, pixel, w + offset)
                            load_row(call, g, line, pixels, count)

    return translated(load_tile, tile_loads)
