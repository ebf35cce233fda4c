"""Fprop: the compiled operator of one Geometry, called with arrays; what a GPU launch is to its
kernel.

Holds what does not change between calls: entries, kernel table, scratch layout. A call fills in
addresses and byte strides, borrows scratch and launches.
"""

import itertools
import math

import numpy as np

from implicit_conv.kernels import schedule
from implicit_conv.kernels.activation import CLAMP
from implicit_conv.kernels.cpu import table
from implicit_conv.kernels.cpu.call import Call, blob_of
from implicit_conv.kernels.cpu.epilogue import compile_store_tile
from implicit_conv.kernels.cpu.fprop import compile_fprop
from implicit_conv.kernels.cpu.launch import launch
from implicit_conv.kernels.cpu.load import compile_load_tile
from implicit_conv.kernels.cpu.microkernel import RegisterTile, compile_microkernel
from implicit_conv.kernels.cpu.panels import compile_pack, compile_pack_block
from implicit_conv.kernels.cpu.pool import POOL, aligned_bytes
from implicit_conv.kernels.cpu.sizes import packing_bytes, panel_bytes, scratch_layout
from implicit_conv.kernels.cpu.transpose import compile_transpose

PACKED_BYTES_PER_THREAD = 256 << 10  # about 10 us of packing: less does not pay for a wake-up
NO_ACTIVATION = (float(CLAMP), -math.inf, math.inf)


def register_tiles(g):
    """All (groups, inner) shapes of register tiles that the tiles of `g` are cut into."""
    shapes = set()
    sizes = [_extents(g.N, g.tile_n), _extents(g.P, g.tile_p), _extents(g.Q, g.tile_q)]
    for n, p, q in itertools.product(*sizes):
        _, group, inner = schedule.by_role(g, n, p, q)
        step = max(1, g.tile_m // inner)
        parts = schedule.ceil_div(inner, g.tile_m)
        heights = {(i + 1) * inner // parts - i * inner // parts for i in range(parts)}
        groups = {min(step, group), group % step} - {0}
        shapes |= {(count, height) for count in groups for height in heights}
    return sorted(shapes)


def _extents(size, tile):
    return {min(size, tile), size % tile} - {0}


def panel_widths(g, lanes):
    """Vectors of the panels of `g`: 2 for a whole one, 1 for a last one that one holds."""
    rest = g.K % g.tile_k
    widths = {g.tile_k // lanes} if g.K >= g.tile_k else set()
    return sorted(widths | ({schedule.ceil_div(rest, lanes)} if rest else set()))


def kernel_table(g, itemsize, lanes, fma, recording):
    """Addresses of all parts that `g` needs, compiled or loaded from the cache."""
    addresses = np.zeros(table.SLOTS, np.int64)
    for vectors in panel_widths(g, lanes):
        for groups, inner in register_tiles(g):
            tile = RegisterTile(groups, inner, vectors, lanes, itemsize, fma)
            slot = table.microkernel_slot(vectors, groups, inner)
            addresses[slot] = compile_microkernel(tile).address
    for step, full in itertools.product((1, 2), (True, False)):
        slot = table.transpose_slot(step, not full)
        addresses[slot] = compile_transpose(lanes, itemsize, step, full).address
    addresses[table.LOAD_TILE] = compile_load_tile(lanes, itemsize, recording).address
    addresses[table.PACK_BLOCK] = compile_pack_block(lanes, itemsize, recording).address
    addresses[table.STORE_TILE] = compile_store_tile(lanes, itemsize).address
    return addresses


class Fprop:
    """fprop of one Geometry for elements of `itemsize` bytes on vectors of `lanes`."""

    def __init__(self, g, itemsize, lanes, fma, *, chunk, in_place, recording=False):
        self.g, self.itemsize, self.lanes = g, itemsize, lanes
        self.chunk, self.in_place = chunk, in_place
        self.table = kernel_table(g, itemsize, lanes, fma, recording)
        self.fprop = compile_fprop().address
        self.group_bytes = panel_bytes(g, lanes, itemsize)
        self.packed_bytes = g.groups * self.group_bytes
        self.items = g.groups * schedule.tile_count(g)
        self.items *= schedule.ceil_div(schedule.panel_count(g), chunk)
        self.no_bias = aligned_bytes(g.tile_k * itemsize)
        self.no_bias[:] = 0
        self.constant = {
            "kernels": self.table.ctypes.data, "itemsize": itemsize, "lanes": lanes,
            "panel_group": self.group_bytes,
        }  # fmt: skip

    def pack(self, w, axes, threads, record=0):
        """Panels of `w`, whose axes k, c, r, s stand at `axes`; an aligned byte array."""
        packed = aligned_bytes(self.packed_bytes)
        self._pack_into(packed, w, axes, threads, record)
        return packed

    def _pack_into(self, packed, w, axes, threads, record):
        threads = min(threads, 1 + self.packed_bytes // PACKED_BYTES_PER_THREAD)
        size = packing_bytes(self.g, self.lanes, self.itemsize)
        with POOL.borrow(size * threads) as scratch:
            call = _call(
                **self.constant, **_filter(w, axes), panels=packed.ctypes.data, record=record,
                items=self.g.groups * schedule.panel_count(self.g),
                scratch=scratch.ctypes.data, scratch_bytes=size,
            )  # fmt: skip
            launch(compile_pack().address, blob_of(call, self.g), threads)

    def __call__(self, x, w, y, axes, threads, *, weight_axes=None, record=0, **epilogue):
        """y = activation(conv(x, w) + bias + residual); `axes` are those of n, h, w, c in all.

        `w` is what `pack` returned, or with `weight_axes` a plain filter: packed panel by panel
        where a single tile uses each panel, else as a whole before. Where the operator reads in
        place, the channels of x must lie one behind the other.
        """
        if weight_axes is None:
            self._run(x, {"panels": w.ctypes.data}, y, axes, threads, record, **epilogue)
        elif schedule.tile_count(self.g) == 1:
            self._run(x, _filter(w, weight_axes), y, axes, threads, record, **epilogue)
        else:
            with POOL.borrow(self.packed_bytes) as packed:
                self._pack_into(packed, w, weight_axes, threads, record)
                self._run(x, {"panels": packed.ctypes.data}, y, axes, threads, record, **epilogue)

    def _run(
        self, x, filters, y, axes, threads, record, *, bias=None, residual=None,
        activation=NO_ACTIVATION,
    ):  # fmt: skip
        g = self.g
        x_n, x_h, x_w, x_c = (x.strides[axis] for axis in axes)
        y_n, y_p, y_q, y_k = (y.strides[axis] for axis in axes)
        z = [residual.strides[axis] for axis in axes] if residual is not None else [0] * 4
        sums, sums_panel = self._initial_sums(bias)
        act = np.array(activation, np.float64)
        staged = y_k != self.itemsize or residual is not None or activation[0] != CLAMP
        layout = scratch_layout(
            g, self.itemsize, self.lanes, self.chunk, self.in_place, "w" in filters
        )
        with POOL.borrow(layout.total * threads) as scratch:
            call = _call(
                **self.constant, **filters, x=x.ctypes.data, bias=sums.ctypes.data,
                residual=0 if residual is None else residual.ctypes.data, y=y.ctypes.data,
                activation=act.ctypes.data, record=record,
                x_n=x_n, x_h=x_h, x_w=x_w, x_c=x_c, y_n=y_n, y_p=y_p, y_q=y_q, y_k=y_k,
                residual_n=z[0], residual_p=z[1], residual_q=z[2], residual_k=z[3],
                bias_panel=sums_panel, items=self.items, chunk=self.chunk,
                in_place=self.in_place, staged=staged,
                scratch=scratch.ctypes.data, scratch_bytes=layout.total,
                staging=layout.staging, runs=layout.runs, packing=layout.packing,
                panel=layout.panel,
            )  # fmt: skip
            launch(self.fprop, blob_of(call, g), threads)

    def _initial_sums(self, bias):
        """Initial sums, by panels, and the bytes between two; one of zeros serves all."""
        if bias is None:
            return self.no_bias, 0
        g = self.g
        sums = np.zeros((g.groups, schedule.panel_count(g) * g.tile_k), bias.dtype)
        sums[:, : g.K] = bias.reshape(g.groups, g.K)
        return sums, g.tile_k * self.itemsize


def _filter(w, axes):
    """Address and strides of a plain filter, as fields of a Call."""
    w_k, w_c, w_r, w_s = (w.strides[axis] for axis in axes)
    return {"w": w.ctypes.data, "w_k": w_k, "w_c": w_c, "w_r": w_r, "w_s": w_s}


_NOTHING = dict.fromkeys(Call._fields, 0)


def _call(**fields):
    return Call(**{**_NOTHING, **fields})
