"""Operators: the compiled kernels of one Geometry, called with arrays; a GPU launch's counterpart.

An operator holds what does not change between calls: entries, kernel table, scratch layout. A call
fills in addresses and byte strides, borrows scratch and launches.
"""

import itertools
import math

import numpy as np

from implicit_conv.kernels import schedule
from implicit_conv.kernels.activation import CLAMP
from implicit_conv.kernels.cpu import depthwise, fprop, panels, table, winograd
from implicit_conv.kernels.cpu.call import Call, blob_of
from implicit_conv.kernels.cpu.epilogue import compile_store_tile
from implicit_conv.kernels.cpu.launch import launch
from implicit_conv.kernels.cpu.load import compile_load_tile
from implicit_conv.kernels.cpu.microkernel import RegisterTile, compile_microkernel
from implicit_conv.kernels.cpu.pool import POOL, aligned_bytes
from implicit_conv.kernels.cpu.sizes import (
    ScratchLayout,
    depthwise_layout,
    depthwise_panel_bytes,
    packing_bytes,
    panel_bytes,
    scratch_layout,
    winograd_layout,
)
from implicit_conv.kernels.cpu.transpose import compile_transpose

PACKED_BYTES_PER_THREAD = 256 << 10  # about 10 us of packing: less does not pay for a wake-up
NO_ACTIVATION = (float(CLAMP), -math.inf, math.inf)


def register_tiles(g):
    """All (groups, inner) shapes of register tiles that the tiles of `g` are cut into."""
    shapes = set()
    for n, p, q in _tile_extents(g):
        _, group, inner = schedule.by_role(g, n, p, q)
        step = max(1, g.tile_m // inner)
        groups = {min(step, group), group % step} - {0}
        shapes |= {(count, height) for count in groups for height in _heights(g, inner)}
    return sorted(shapes)


def box_tiles(g, m):
    """Likewise for Winograd, whose register tiles span the boxes of a load tile."""
    extents = _tile_extents(g)
    return sorted({(1, h) for n, p, q in extents for h in _heights(g, n * p * q // m**2)})


def _heights(g, pixels):
    """Heights of the register tiles that `pixels` are cut into."""
    parts = schedule.ceil_div(pixels, g.tile_m)
    return {(i + 1) * pixels // parts - i * pixels // parts for i in range(parts)}


def _tile_extents(g):
    """All (images, rows, columns) that tiles of `g` have: whole ones and the last."""
    axes = ((g.N, g.tile_n), (g.P, g.tile_p), (g.Q, g.tile_q))
    return list(itertools.product(*({min(size, t), size % t} - {0} for size, t in axes)))


def panel_widths(g, lanes):
    """Vectors of the panels of `g`: 2 for a whole one, 1 for a last one that one holds."""
    rest = g.K % g.tile_k
    widths = {g.tile_k // lanes} if g.K >= g.tile_k else set()
    return sorted(widths | ({schedule.ceil_div(rest, lanes)} if rest else set()))


class Operator:
    """One algorithm for one Geometry; subclasses say which parts, entries and scratch it needs."""

    winograd = 0

    def __init__(self, g, itemsize, lanes, fma, *, chunk, in_place=False, recording=False, end):
        self.g, self.itemsize, self.lanes, self.fma = g, itemsize, lanes, fma
        self.chunk, self.in_place, self.end = chunk, in_place, end
        self.table = self._kernel_table(recording)
        self.group_bytes = panel_bytes(g, lanes, itemsize, self._taps())
        self.packed_bytes = g.groups * self.group_bytes
        chunks = schedule.ceil_div(schedule.panel_count(g), chunk)
        self.items = g.groups * schedule.tile_count(g) * chunks
        self.packs_in_loop = schedule.tile_count(g) == 1
        self.zeros = aligned_bytes(g.tile_k * itemsize)
        self.zeros[:] = 0
        self.constant = {
            "kernels": self.table.ctypes.data, "itemsize": itemsize, "lanes": lanes,
            "panel_group": self.group_bytes, "zeros": self.zeros.ctypes.data,
            "p_end": end[0], "q_end": end[1], "winograd": self.winograd,
        }  # fmt: skip

    def pack(self, w, axes, threads, record=0):
        """Panels of `w`, whose axes k, c, r, s stand at `axes`; an aligned byte array."""
        packed = aligned_bytes(self.packed_bytes)
        self._pack_into(packed, w, axes, threads, record)
        return packed

    def __call__(self, x, w, y, axes, threads, *, weight_axes=None, record=0, **epilogue):
        """y = activation(conv(x, w) + bias + residual); `axes` are those of n, h, w, c in all.

        `w` is what `pack` returned, or with `weight_axes` a plain filter: packed panel by panel
        where a single tile uses each panel, else as a whole before. Where the operator reads in
        place, the channels of x must lie one behind the other.
        """
        if weight_axes is None:
            self._run(x, {"panels": w.ctypes.data}, y, axes, threads, record, **epilogue)
        elif self.packs_in_loop:
            self._run(x, _filter(w, weight_axes), y, axes, threads, record, **epilogue)
        else:
            with POOL.borrow(self.packed_bytes) as packed:
                self._pack_into(packed, w, weight_axes, threads, record)
                self._run(x, {"panels": packed.ctypes.data}, y, axes, threads, record, **epilogue)

    def _kernel_table(self, recording):
        """Addresses of all parts that are needed, compiled or loaded from the cache."""
        parts = {
            table.LOAD_TILE: compile_load_tile(self.lanes, self.itemsize, recording),
            table.STORE_TILE: compile_store_tile(self.lanes, self.itemsize),
            **self._own_parts(recording),
        }
        for step, full in itertools.product((1, 2), (True, False)):
            slot = table.transpose_slot(step, not full)
            parts[slot] = compile_transpose(self.lanes, self.itemsize, step, full)
        addresses = np.zeros(table.SLOTS, np.int64)
        for slot, part in parts.items():
            addresses[slot] = part.address
        return addresses

    def _multiply_parts(self, tiles, recording):
        """Microkernels of all register tiles and panel widths, and what packs their panels."""
        parts = {table.PACK_BLOCK: panels.compile_pack_block(self.lanes, self.itemsize, recording)}
        for vectors in panel_widths(self.g, self.lanes):
            for groups, inner in tiles:
                tile = RegisterTile(groups, inner, vectors, self.lanes, self.itemsize, self.fma)
                slot = table.microkernel_slot(vectors, groups, inner)
                parts[slot] = compile_microkernel(tile)
        return parts

    def _pack_into(self, packed, w, axes, threads, record):
        threads = min(threads, 1 + self.packed_bytes // PACKED_BYTES_PER_THREAD)
        layout = self._packing_layout()
        with POOL.borrow(layout.total * threads) as scratch:
            call = _call(
                **self.constant, **_filter(w, axes), panels=packed.ctypes.data, record=record,
                items=self.g.groups * schedule.panel_count(self.g),
                **_scratch(scratch, layout),
            )  # fmt: skip
            launch(self._packer(), blob_of(call, self.g), threads)

    def _run(
        self, x, filters, y, axes, threads, record, *, bias=None, residual=None,
        activation=NO_ACTIVATION,
    ):  # fmt: skip
        x_n, x_h, x_w, x_c = (x.strides[axis] for axis in axes)
        y_n, y_p, y_q, y_k = (y.strides[axis] for axis in axes)
        z = [residual.strides[axis] for axis in axes] if residual is not None else [0] * 4
        sums, sums_panel = self._initial_sums(bias)
        act = np.array(activation, np.float64)
        clamps = residual is None and activation[0] == CLAMP
        layout = self._layout("w" in filters)
        with POOL.borrow(layout.total * threads) as scratch:
            call = _call(
                **self.constant, **filters, x=x.ctypes.data, bias=sums.ctypes.data,
                residual=0 if residual is None else residual.ctypes.data, y=y.ctypes.data,
                activation=act.ctypes.data, record=record,
                x_n=x_n, x_h=x_h, x_w=x_w, x_c=x_c, y_n=y_n, y_p=y_p, y_q=y_q, y_k=y_k,
                residual_n=z[0], residual_p=z[1], residual_q=z[2], residual_k=z[3],
                bias_panel=sums_panel, items=self.items, chunk=self.chunk,
                in_place=self.in_place, clamps=clamps,
                staged=y_k != self.itemsize or not clamps, **_scratch(scratch, layout),
            )  # fmt: skip
            launch(self._entry(), blob_of(call, self.g), threads)

    def _initial_sums(self, bias):
        """Initial sums, by panels, and the bytes between two; one of zeros serves all."""
        if bias is None:
            return self.zeros, 0
        g = self.g
        sums = np.zeros((g.groups, schedule.panel_count(g) * g.tile_k), bias.dtype)
        sums[:, : g.K] = bias.reshape(g.groups, g.K)
        return sums, g.tile_k * self.itemsize


class Fprop(Operator):
    """The schedule itself: implicit GEMM."""

    def _taps(self):
        return self.g.R * self.g.S

    def _own_parts(self, recording):
        return self._multiply_parts(register_tiles(self.g), recording)

    def _entry(self):
        return fprop.compile_fprop().address

    def _packer(self):
        return panels.compile_pack().address

    def _layout(self, packs):
        return scratch_layout(self.g, self.itemsize, self.lanes, self.chunk, self.in_place, packs)

    def _packing_layout(self):
        return ScratchLayout(0, 0, 0, packing_bytes(self.g, self.lanes, self.itemsize), 0)


class Winograd(Operator):
    """Winograd F(m x m, 3x3); `g` is rounded up to whole boxes, `end` is the true (P, Q)."""

    def __init__(self, m, *arguments, **options):
        self.winograd = m
        super().__init__(*arguments, **options)

    def _taps(self):
        return (self.winograd + 2) ** 2

    def _own_parts(self, recording):
        m = self.winograd
        transforms = winograd.compile_transforms(m, self.lanes, self.itemsize, self.fma)
        return transforms | self._multiply_parts(box_tiles(self.g, m), recording)

    def _entry(self):
        return winograd.compile_winograd().address

    def _packer(self):
        return winograd.compile_pack().address

    def _layout(self, packs):
        return winograd_layout(self.g, self.itemsize, self.lanes, self.winograd, packs)

    def _packing_layout(self):
        layout = self._layout(packs=True)
        return ScratchLayout(0, 0, 0, layout.packing, layout.panel)


class Depthwise(Operator):
    """Depthwise: `g` takes all groups as channels of one, a panel is a block of channels."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options, chunk=1)
        self.packs_in_loop = False
        self.group_bytes = depthwise_panel_bytes(self.g, self.itemsize)  # of a channel block
        self.packed_bytes = self.group_bytes * schedule.block_count(self.g)
        self.constant["panel_group"] = self.group_bytes

    def _taps(self):
        return self.g.R * self.g.S

    def _own_parts(self, recording):
        heights = {h for *_, q in _tile_extents(self.g) for h in _heights(self.g, q)}
        return {
            table.DEPTHWISE + height: depthwise.compile_microkernel(
                height, self.lanes, self.itemsize, self.fma
            )
            for height in heights
        }

    def _entry(self):
        return depthwise.compile_depthwise().address

    def _packer(self):
        return depthwise.compile_pack().address

    def _layout(self, packs):
        return depthwise_layout(self.g, self.itemsize, self.lanes)

    def _packing_layout(self):
        return ScratchLayout(0, 0, 0, 0, 0)


def _filter(w, axes):
    """Address and strides of a plain filter, as fields of a Call."""
    w_k, w_c, w_r, w_s = (w.strides[axis] for axis in axes)
    return {"w": w.ctypes.data, "w_k": w_k, "w_c": w_c, "w_r": w_r, "w_s": w_s}


def _scratch(memory, layout):
    """Address, size and parts of the threads' scratch, as fields of a Call."""
    offsets = layout.offsets()
    del offsets["buffer"]  # it begins the scratch
    return {"scratch": memory.ctypes.data, "scratch_bytes": layout.total, **offsets}


_NOTHING = dict.fromkeys(Call._fields, 0)


def _call(**fields):
    return Call(**{**_NOTHING, **fields})
