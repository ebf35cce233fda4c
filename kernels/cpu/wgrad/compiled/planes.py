"""wgrad of depthwise filters over planes: vector lanes are pixels of one channel.

    dw[c, r, s] = sum over pixels of dy[c, pixel] * x[c, pixel + tap]

x and dy are read in place. One work item is a part of the load tiles and a chunk of channels:

    for each load tile of the part:
        for each pass over a few taps: microkernel over all channels -> sums, a vector for each tap
        after every 64 tiles: add the sums to the level above
    levels -> sums -> sums of lanes -> dw, or memory, if there are several parts
"""

from __future__ import annotations

from implicit_conv.kernels import schedule
from implicit_conv.kernels.cpu.emit import memory
from implicit_conv.kernels.cpu.runtime.compiled.entry import Blob, fields
from implicit_conv.kernels.cpu.runtime.compiled.part import declare
from implicit_conv.kernels.cpu.runtime.compiled.source import Source, translated
from implicit_conv.kernels.cpu.runtime.table import STORE_SUMS, microkernel_slot
from implicit_conv.kernels.cpu.tile import storage
from implicit_conv.kernels.cpu.tile.compiled import convert
from implicit_conv.kernels.cpu.tile.compiled.filters import taps_follow
from implicit_conv.kernels.cpu.tile.storage import Format
from implicit_conv.kernels.cpu.wgrad.compiled.addresses import dw_address, dy_address
from implicit_conv.kernels.cpu.wgrad.compiled.plane_sums import reduce_sums, sum_planes
from implicit_conv.kernels.cpu.wgrad.compiled.sums import carry, is_fresh, total
from implicit_conv.kernels.cpu.wgrad.compiled.work import adder, operator

store_channels = declare(STORE_SUMS, "store_channels", "blob sums k channels")


def make_planes(pass_rows: int, pass_columns: int) -> Source:
    """The entry that sums, in passes over `pass_rows` x `pass_columns` taps."""

    def sum_tile(blob: Blob, tile: int, first: int, channels: int, sums: int, adds: int) -> None:
        """Add the products of a load tile to the sums of `channels` channels."""
        call, g = fields(blob).call, fields(blob).geometry
        n, p, q = schedule.tile_origin(g, tile)
        _, rows, columns = schedule.tile_extent(g, n, p, q)
        top, before = p * g.stride_h - g.pad_h, q * g.stride_w - g.pad_w
        image = call.x.address + n // g.Z * call.x.n + first * call.x.c
        vector = call.lanes * call.itemsize
        for t in range(g.T):
            d = schedule.input_plane(g, n, t)
            used = rows if 0 <= d < g.D else 0
            for r in range(0, g.R, pass_rows):
                for s in range(0, g.S, pass_columns):
                    h, w = top + r * g.dilation_h, before + s * g.dilation_w
                    sum_planes(
                        call.kernels,
                        slot=microkernel_slot(
                            1, min(pass_rows, g.R - r), min(pass_columns, g.S - s)
                        ),
                        a=image + d * call.x.d + h * call.x.h + w * call.x.w,
                        a_channel=call.x.c,
                        a_row=g.stride_h * call.x.h,
                        a_tap=g.dilation_h * call.x.h,
                        b=dy_address(call, g, (n, p, q), first),
                        b_channel=call.y.k,
                        b_row=call.y.p,
                        c=sums + ((t * g.R + r) * g.S + s) * vector,
                        c_channel=schedule.taps(g) * vector,
                        c_row=g.S * vector,
                        channels=channels,
                        rows=used,
                        columns=columns,
                        top=h,
                        row_step=g.stride_h,
                        tap_step=g.dilation_h,
                        height=g.H,
                        before=w,
                        width=g.W,
                        adds=adds,
                    )

    def sum_item(blob: Blob, index: int, first_tile: int, end_tile: int, scratch: int) -> None:
        """The sums of the chunk of channels of this index over a range of load tiles."""
        call, g = fields(blob).call, fields(blob).geometry
        first, sums = index * call.chunk, scratch + call.scratch.staging
        channels = min(call.chunk, g.K - first)
        if first_tile >= end_tile:
            memory.zero(sums, call.gradient.item_sums)
        for tile in range(first_tile, end_tile):
            done = tile - first_tile
            if done > 0:
                carry(call, sums, done)
            adds = not is_fresh(done)
            sum_tile(blob, tile, first, channels, sums, adds)
        total(call, sums, end_tile - first_tile)

    return operator(sum_item, store_item)


def store_item(blob: Blob, index: int, sums: int) -> None:
    """Store the sums of the chunk of channels of this index into dw."""
    call, g = fields(blob).call, fields(blob).geometry
    first = index * call.chunk
    channels = min(call.chunk, g.K - first)
    reduce_sums(call.kernels, sums=sums, count=channels * schedule.taps(g))
    store_channels(call.kernels, blob=blob, sums=sums, k=first, channels=channels)


ADD_PARTS = adder(store_item)  # the entry that adds the sums of parts


def make_store_channels(lanes: int, form: Format) -> Source:
    """The part that stores sums, one for each channel and tap, into a dw of the format `form.y`."""
    element_bytes = storage.SIZES[form.y]
    move = convert.make_move(form.sums, form.y, lanes)
    move_element = convert.make_move_element(form.sums, form.y)

    def stored_channels(blob: Blob, sums: int, k: int, channels: int) -> None:
        """Store the sums of the channels from k on."""
        call, g = fields(blob).call, fields(blob).geometry
        taps, size = schedule.taps(g), element_bytes
        if taps_follow(call, g, size) and call.w.k == taps * size:
            move(dw_address(call, g, k, 0, 0), sums, channels * taps)
            return
        for i in range(channels):
            for tap in range(taps):
                at = sums + (i * taps + tap) * call.itemsize
                move_element(dw_address(call, g, k + i, 0, tap), at)

    return translated(store_channels, stored_channels)
