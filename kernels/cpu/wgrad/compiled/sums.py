"""The sums of weight gradients in memory: levels, and stores into dw.

The sums of a work item are ``[panel][row][filter of the panel]``, where a row is a tap and a
channel. The inner one of the two is the one with the smaller stride in dw, so that whole blocks of
rows are transposed into contiguous elements of dw.
"""

from __future__ import annotations

from implicit_conv.kernels import schedule
from implicit_conv.kernels.cpu.emit import memory
from implicit_conv.kernels.cpu.emit.vector import BYTES, Builder, Emitter, Value
from implicit_conv.kernels.cpu.runtime.call import Call
from implicit_conv.kernels.cpu.runtime.compiled.entry import Blob, fields
from implicit_conv.kernels.cpu.runtime.compiled.part import declare
from implicit_conv.kernels.cpu.runtime.compiled.source import Source, emitted, translated
from implicit_conv.kernels.cpu.runtime.table import ADD_SUMS, STORE_SUMS, TRANSPOSE_OUT
from implicit_conv.kernels.cpu.tile import storage
from implicit_conv.kernels.cpu.tile.compiled import convert
from implicit_conv.kernels.cpu.tile.compiled.transpose import make_transpose_block
from implicit_conv.kernels.cpu.tile.storage import Format
from implicit_conv.kernels.cpu.wgrad.compiled.addresses import dw_address
from implicit_conv.kernels.cpu.wgrad.layout import RADIX_BITS

add_sums = declare(ADD_SUMS, "add_sums", "to at size")
store_sums = declare(STORE_SUMS, "store_sums", "blob sums k filters c channels")


def carry(call: Call, sums: int, tiles: int) -> None:
    """Before another load tile is added to `tiles` tiles: add each full level to the next one.

    The microkernels overwrite the lowest level afterwards.
    """
    for level in range(call.gradient.levels - 1):
        if tiles & ((1 << RADIX_BITS * (level + 1)) - 1):
            return
        at = sums + level * call.gradient.item_sums
        above = at + call.gradient.item_sums
        if tiles >> RADIX_BITS * (level + 1) == 1:
            memory.copy(above, at, call.gradient.item_sums)
        else:
            add_sums(call.kernels, to=above, at=at, size=call.gradient.item_sums)
        memory.zero(at, call.gradient.item_sums)


def total(call: Call, sums: int, tiles: int) -> None:
    """Add all levels of `tiles` load tiles to the lowest one."""
    for level in range(1, call.gradient.levels):
        if tiles > 1 << RADIX_BITS * level:
            at = sums + level * call.gradient.item_sums
            add_sums(call.kernels, to=sums, at=at, size=call.gradient.item_sums)


def is_fresh(tiles: int) -> bool:
    """Whether the lowest level is empty after `tiles` load tiles."""
    return tiles & ((1 << RADIX_BITS) - 1) == 0


def make_add_sums(lanes: int, itemsize: int) -> Source:
    """The part that adds `size` bytes of whole vectors at `at` to those at `to`."""

    def emit(builder: Builder, arguments: dict[str, Value]) -> None:
        e = Emitter(builder, lanes, itemsize, fma=True)
        to, at = (builder.inttoptr(arguments[name], BYTES) for name in ("to", "at"))

        def vector(offset: Value, _: object) -> list[Value]:
            target = e.at(to, offset)
            e.store(builder.fadd(e.load(target), e.load(e.at(at, offset))), target)
            return []

        e.loop(arguments["size"], lanes * itemsize, [], vector)

    return emitted(add_sums, emit)


def make_store_sums(lanes: int, form: Format) -> Source:
    """The part that stores sums into a dw whose elements have the format `form.y`."""
    element_bytes = storage.SIZES[form.y]
    transpose_block = make_transpose_block(TRANSPOSE_OUT, lanes)
    move = convert.make_move(form.sums, form.y, lanes)
    move_element = convert.make_move_element(form.sums, form.y)

    def stored_sums(blob: Blob, sums: int, k: int, filters: int, c: int, channels: int) -> None:
        """Store the sums of one panel: filters from k on of all
        groups, and channels from c on of one group.
        """
        call, g = fields(blob).call, fields(blob).geometry
        pitch, size = g.tile_k * call.itemsize, element_bytes
        taps = schedule.taps(g)
        tap_row, c_row = 1, taps  # rows from a tap to the next one, and from a channel
        if not call.gradient.taps_inside:
            tap_row, c_row = channels, 1
        if call.w.k != size and (call.gradient.taps_inside or call.w.c == size):
            outer, inner = 1, channels * taps
            if not call.gradient.taps_inside:
                outer, inner = taps, channels
            for run in range(outer):
                to = dw_address(call, g, k, c, run)
                for i in range(0, inner, call.lanes):
                    at = sums + (run * inner + i) * pitch
                    rows = min(call.lanes, inner - i)
                    for first in range(0, filters, call.lanes):
                        columns = min(call.lanes, filters - first)
                        source, target = (
                            at + first * call.itemsize,
                            to + i * size + first * call.w.k,
                        )
                        transpose_block(
                            call.kernels, 1, source, pitch, target, call.w.k, rows, columns
                        )
            return
        for tap in range(taps):
            for i in range(channels):
                at = sums + (tap * tap_row + i * c_row) * pitch
                to = dw_address(call, g, k, c + i, tap)
                if call.w.k == size:
                    move(to, at, filters)
                else:
                    for j in range(filters):
                        move_element(to + j * call.w.k, at + j * call.itemsize)

    return translated(store_sums, stored_sums)
