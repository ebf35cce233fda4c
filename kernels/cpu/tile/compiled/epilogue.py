"""Store the staging tile: residual, activation, then rows or transposed blocks into y.

A staging tile is ``[plane][row][column][filter of the panel]``. The axis that is contiguous in y
decides how the tile is stored, and what a row of the part `finish` is:

    filters (channels last)   rows are the filters of a pixel, from the staging tile into y
    pixels (planes)           blocks of the tile are transposed: rows are the pixels of a filter,
                              finished in the block unless they are clamped; a tile of a single
                              filter is such a row already
    pixels, a few elements    rows are the pixels of a filter, finished in a block; then they are
    apart                     spread into y, vector by vector
    neither                   rows are the filters of a pixel, finished in place; then they are
                              copied into y element by element

Whole panels of a channels-last output with a clamp (none, relu, relu6) do not come here: the
microkernel stores them itself. Planes with a clamp come here clamped.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

from implicit_conv.kernels import schedule
from implicit_conv.kernels.cpu.emit import memory
from implicit_conv.kernels.cpu.emit.vector import BYTES, Builder, Emitter, Value, i64
from implicit_conv.kernels.cpu.runtime.call import Call
from implicit_conv.kernels.cpu.runtime.compiled.entry import Blob, fields
from implicit_conv.kernels.cpu.runtime.compiled.part import declare
from implicit_conv.kernels.cpu.runtime.compiled.source import Source, emitted, translated
from implicit_conv.kernels.cpu.runtime.table import (
    SPREAD,
    STORE_TILE,
    TRANSPOSE_OUT,
    TRANSPOSE_WORDS,
    transpose_slot,
)
from implicit_conv.kernels.cpu.tile import storage
from implicit_conv.kernels.cpu.tile.compiled import convert
from implicit_conv.kernels.cpu.tile.compiled.finish import finish
from implicit_conv.kernels.cpu.tile.compiled.transpose import transpose
from implicit_conv.kernels.cpu.tile.storage import Format
from implicit_conv.kernels.cpu.tile.variants import (
    PIXEL_BLOCKS,
    PIXEL_ROW,
    PIXEL_ROWS,
    SINGLE,
    SPREAD_ROW,
    SPREAD_ROWS,
)
from implicit_conv.kernels.geometry import Place

ROWS_AHEAD = 8  # pixels by which prefetches of a residual's filters run ahead
BLOCK_VECTORS = 4  # vectors of pixels in a block that is transposed before it is finished


spread_row = declare(SPREAD, "spread_row", "to at count")


def make_spread_row(apart: int, lanes: int, form: Format) -> Source:
    """The part that writes contiguous elements into y with a stride of `apart` elements."""
    itemsize, size = storage.SIZES[form.sums], storage.SIZES[form.y]

    def emit(builder: Builder, arguments: dict[str, Value]) -> None:
        e = Emitter(builder, lanes, itemsize, fma=True)
        *addresses, count = arguments.values()
        to, at = (builder.inttoptr(address, BYTES) for address in addresses)

        def vector(first: Value, _: object) -> list[Value]:
            source = e.at(at, builder.mul(first, i64(size)))
            target = e.at(to, builder.mul(first, i64(apart * size)))
            rest = builder.sub(count, first)
            convert.spread(e, form.y, apart, target, source, rest)
            return []

        e.loop(count, lanes, [], vector)

    return emitted(spread_row, emit)


class Rows(NamedTuple):
    """Rows in memory: address of the first, and byte stride."""

    address: int
    stride: int


class Staged(NamedTuple):
    """Sums of the pixels of an output row in a staging tile, of the filters from `first` on."""

    address: int
    width: int  # filters of a pixel in the staging tile
    first: int
    filters: int
    pixels: int


def finish_rows(
    call: Call, k: int, sums: Rows, residual: Rows, y: Rows, rows: int, columns: int, ahead: int
) -> None:
    """`rows` rows of `columns` elements, from filter k on: y = activation(scale * sums + shift +
    residual).
    """
    low = memory.read_float(call.activation + 8)
    high = memory.read_float(call.activation + 16)
    finish(
        call.kernels,
        slot=call.stores.finish,
        sums=sums.address,
        sums_row=sums.stride,
        residual=residual.address,
        residual_row=residual.stride,
        y=y.address,
        y_row=y.stride,
        rows=rows,
        columns=columns,
        ahead=ahead,
        scale=call.scale.address + k * call.scale.bytes,
        shift=call.scale.shift + k * call.scale.bytes,
        low=low,
        high=high,
    )


@functools.cache
def make_write(lanes: int, form: Format) -> Callable[..., Any]:
    """Make write(), which finishes pixels and stores them; elements have the formats `form`."""
    itemsize, size = storage.SIZES[form.sums], storage.SIZES[form.y]
    residual_size = storage.SIZES[form.residual]
    copy_element = memory.copy_bytes(size)
    block_pixels = BLOCK_VECTORS * lanes
    block_row = block_pixels * itemsize
    block_bytes = lanes * block_row

    def write_planes(call: Call, pitch: int, staged: Staged, residual: int, y: int) -> None:
        """Transpose blocks of pixels x filters into y, and finish them unless they are clamped."""
        staging, _, first_filter, filters, count = staged
        block = memory.stack(block_bytes)
        spreads = call.stores.row_axis == SPREAD_ROWS
        directly = call.stores.row_axis == PIXEL_ROWS
        way = TRANSPOSE_OUT if directly else TRANSPOSE_WORDS
        for k in range(0, filters, lanes):
            columns = min(lanes, filters - k)
            for first in range(0, count, block_pixels):
                pixels = min(block_pixels, count - first)
                target = y + first * call.y.q + k * call.y.k
                to, to_row, step = block, block_row, itemsize
                if directly:
                    to, to_row, step = target, call.y.k, size
                for pixel in range(0, pixels, lanes):
                    rows = min(lanes, pixels - pixel)
                    source = staging + (first + pixel) * pitch + k * itemsize
                    transpose(
                        call.kernels,
                        slot=transpose_slot(way, 1, rows < lanes or columns < lanes),
                        source=source,
                        source_stride=pitch,
                        target=to + pixel * step,
                        target_stride=to_row,
                        rows=rows,
                        columns=columns,
                    )
                if not directly:
                    addend = residual + first * residual_size + k * call.residual.k
                    sums, out = Rows(block, block_row), Rows(target, call.y.k)
                    ahead = block_pixels * residual_size
                    added = Rows(addend, call.residual.k)
                    out = sums if spreads else out
                    finish_rows(call, first_filter + k, sums, added, out, columns, pixels, ahead)
                if spreads:
                    for i in range(columns):
                        place = target + i * call.y.k
                        for pixel in range(0, pixels, lanes):
                            at = block + i * block_row + pixel * size
                            to = place + pixel * call.y.q
                            spread_row(
                                call.kernels,
                                slot=call.stores.spread,
                                to=to,
                                at=at,
                                count=min(lanes, pixels - pixel),
                            )

    def write(call: Call, staged: Staged, residual: int, y: int) -> None:
        """Finish pixels of an output row, and store them in y."""
        staging, width, first_filter, filters, count = staged
        pitch = width * itemsize
        if call.stores.row_axis in (PIXEL_BLOCKS, PIXEL_ROWS, SPREAD_ROWS):
            write_planes(call, pitch, staged, residual, y)
            return
        sums, added, out = Rows(staging, pitch), Rows(residual, call.residual.q), Rows(y, call.y.q)
        rows, columns, ahead = count, filters, ROWS_AHEAD * call.residual.q
        if call.stores.row_axis == PIXEL_ROW:
            rows, columns, ahead = 1, count, block_pixels * residual_size
        elif call.stores.row_axis == SPREAD_ROW:
            out, rows, columns = sums, 1, count
        elif call.stores.row_axis == SINGLE:  # an element of y is no wider than a sum
            out = sums
        finish_rows(call, first_filter, sums, added, out, rows, columns, ahead)
        if call.stores.row_axis == SPREAD_ROW:
            spread_row(call.kernels, slot=call.stores.spread, to=y, at=staging, count=count)
        if call.stores.row_axis == SINGLE:
            for pixel in range(count):
                for k in range(filters):
                    source = staging + pixel * pitch + k * size
                    copy_element(y + pixel * call.y.q + k * call.y.k, source)

    return write


@functools.cache
def make_add_residual(form: Format) -> Callable[..., Any]:
    """Make add_residual(), for a residual whose contiguous axis is not that of y.

    The engine gives none to integers.
    """
    itemsize = storage.SIZES[form.sums]
    read, write = convert.make_read(form.sums), convert.make_write(form.sums)
    read_residual = convert.make_read(form.residual)

    def add_residual(
        call: Call, staging: int, width: int, filters: int, count: int, residual: int
    ) -> None:
        """Add the residual to `count` pixels in place, element by element."""
        for pixel in range(count):
            for k in range(filters):
                at = staging + (pixel * width + k) * itemsize
                added = residual + pixel * call.residual.q + k * call.residual.k
                write(at, read(at) + read_residual(added))

    return add_residual


store_tile = declare(STORE_TILE, "store_tile", "blob staging width n p q k filters")


def store_at(blob: Blob, origin: Place, staging: int, width: int, k: int, filters: int) -> None:
    """Call the part that stores staging tiles for the tile at `origin`."""
    kernels, (n, p, q) = fields(blob).call.kernels, origin
    store_tile(
        kernels, blob=blob, staging=staging, width=width, n=n, p=p, q=q, k=k, filters=filters
    )


def make_store_tile(lanes: int, form: Format) -> Source:
    """The part that stores staging tiles; elements have the formats `form`."""
    write = make_write(lanes, form)
    add_residual = make_add_residual(form)

    def stored_tile(
        blob: Blob, staging: int, width: int, n: int, p: int, q: int, k: int, filters: int
    ) -> None:
        """Finish a staging tile of filters k, k + 1, ..., and store it from output pixel (n, p, q)
        on.

        Rows and columns past the end of the output are not stored.
        """
        call, g = fields(blob).call, fields(blob).geometry
        planes, staged_rows, pitch = schedule.tile_extent(g, n, p, q)
        rows, columns = min(staged_rows, call.p_end - p), min(pitch, call.q_end - q)
        follow = call.y.p == columns * call.y.q and call.residual.p == columns * call.residual.q
        if columns == pitch == call.q_end and follow:
            columns, rows = rows * columns, 1  # rows are contiguous, and form one long row
        for plane in range(planes):
            for row in range(rows):
                at = staging + (plane * staged_rows + row) * pitch * width * call.itemsize
                residual = schedule.plane_offset(g, n + plane, call.residual.n, call.residual.z)
                residual += call.residual.address + (p + row) * call.residual.p
                residual += q * call.residual.q + k * call.residual.k
                if call.stores.adds_first:
                    add_residual(call, at, width, filters, columns, residual)
                y = call.y.address + schedule.plane_offset(g, n + plane, call.y.n, call.y.z)
                y += (p + row) * call.y.p + q * call.y.q + k * call.y.k
                write(call, Staged(at, width, k, filters, columns), residual, y)

    return translated(store_tile, stored_tile)
