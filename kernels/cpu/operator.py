"""Operators: the compiled kernels of one Geometry, called with arrays; a GPU launch's counterpart.

An operator holds what does not change between calls: entries, kernel table, scratch layout. It
prepares launches for arrays of given strides; a call of one fills in addresses.
"""

import math

import numpy as np

from implicit_conv.kernels import schedule
from implicit_conv.kernels.activation import CLAMP
from implicit_conv.kernels.cpu.gemm import amx as amx_kernels
from implicit_conv.kernels.cpu.gemm import panels
from implicit_conv.kernels.cpu.gemm.microkernel import RegisterTile, compile_microkernel
from implicit_conv.kernels.cpu.runtime import table
from implicit_conv.kernels.cpu.runtime.call import Call
from implicit_conv.kernels.cpu.runtime.launch import Launch
from implicit_conv.kernels.cpu.runtime.pool import aligned_bytes
from implicit_conv.kernels.cpu.shapes import panel_widths
from implicit_conv.kernels.cpu.sizes import panel_bytes
from implicit_conv.kernels.cpu.tile.epilogue import (
    FILTER_ROWS,
    PIXEL_ROW,
    PIXEL_ROWS,
    SPREAD,
    compile_spread_row,
    compile_store_tile,
    row_axis,
)
from implicit_conv.kernels.cpu.tile.finish import Finish, compile_finish
from implicit_conv.kernels.cpu.tile.load import compile_load_tile
from implicit_conv.kernels.cpu.tile.storage import SIZES
from implicit_conv.kernels.cpu.tile.transpose import transposes

PACKED_BYTES_PER_THREAD = 256 << 10  # about 10 us of packing: less does not pay for a wake-up
NO_ACTIVATION = (float(CLAMP), -math.inf, math.inf)


class Operator:
    """One algorithm for one Geometry; subclasses say which parts, entries and scratch it needs."""

    winograd = 0
    rounds = False  # whether microkernels round to y
    transposes = True  # whether loads and packing transpose what does not lie channels last
    stages_planes = False  # whether a staging tile is the pixels of one filter
    apart = 1  # numbers of x and y from one pixel to the next, where planes are few

    def __init__(
        self, g, form, lanes, fma, *, channels, chunk, end, in_place=False, recording=False,
        flushes=False, swapped=False, amx=False,
    ):  # fmt: skip
        self.g, self.form, self.lanes, self.fma = g, form, lanes, fma
        self.itemsize = itemsize = SIZES[form.sums]
        self.chunk, self.in_place, self.end = chunk, in_place, end
        self.swapped, self.amx = swapped, amx
        self.table = self._kernel_table(recording)
        self.group_bytes = self._group_bytes()
        self.packed_bytes = g.groups * self.group_bytes
        chunks = schedule.ceil_div(schedule.panel_count(g), chunk)
        self.items = g.groups * schedule.tile_count(g) * chunks
        self.packs_in_loop = schedule.tile_count(g) == 1
        self.zeros = aligned_bytes(g.tile_k * itemsize)
        self.zeros[:] = 0
        self.constant = {
            "kernels": self.table.ctypes.data, "itemsize": itemsize, "lanes": lanes,
            "panel_group": self.group_bytes, "zeros": self.zeros.ctypes.data,
            "channels": channels, "p_end": end[0], "q_end": end[1], "winograd": self.winograd,
            "flushes": flushes,
        }  # fmt: skip

    def _group_bytes(self):
        """The panels of one group."""
        return panel_bytes(self.g, self.lanes, self.itemsize, self.g.R * self.g.S)

    def pack(self, w, axes, threads, record=0):
        """Panels of `w`, whose axes k, c, r, s stand at `axes`; an aligned byte array."""
        packed = aligned_bytes(self.packed_bytes)
        packed[:] = 0  # what no panel fills would be pickled
        self.prepare_packing(w, axes, threads, record).run(w, w, w, packed.ctypes.data)
        return packed

    def prepare_packing(self, w, axes, threads, record=0):
        """A launch that packs filters with the strides of `w`."""
        layout = self._packing_layout()
        self._require_for_filters(w, axes)
        return Launch(
            self._packer(), self.g, layout,
            min(threads, 1 + self.packed_bytes // PACKED_BYTES_PER_THREAD),
            _call(
                **self.constant, **_filter(w, axes), **_parts(layout), record=record,
                items=self.g.groups * schedule.panel_count(self.g),
            ),
            (w.dtype, w.dtype),
        )  # fmt: skip

    def prepare(
        self, x, y, axes, threads, *, residual=None, biased=False, activation=NO_ACTIVATION,
        w=None, weight_axes=None, record=0,
    ):  # fmt: skip
        """A launch of y = activation(conv(x, w) + bias + residual) for arrays of these strides.

        `axes` are the positions of n, h, w, c in x, y and residual. With `w` the launch packs such
        filters panel by panel; else it takes panels. Where the operator reads in place, the
        channels of x must lie one behind the other.
        """
        x_n, x_h, x_w, x_c = (x.strides[axis] for axis in axes)
        y_n, y_p, y_q, y_k = (y.strides[axis] for axis in axes)
        z = [residual.strides[axis] for axis in axes] if residual is not None else [0] * 4
        act = np.array(activation, np.float64)
        clamps = residual is None and activation[0] == CLAMP
        narrow = self.form.y != self.form.sums
        sums = self.g.tile_k * self.itemsize
        layout = self._layout(w is not None)
        filters = {} if w is None else _filter(w, weight_axes)
        if w is not None:
            self._require_for_filters(w, weight_axes)
        if self.transposes and x_c != x.itemsize:
            self._require(table.TRANSPOSE_IN, min(2, self.g.step_w))
        way_out = self._way_out((y_q, y_k), residual is not None and z[2:], int(activation[0]))
        return Launch(
            self._entry(), self.g, layout, threads,
            _call(
                **self.constant, **filters, **_parts(layout), **way_out, activation=act.ctypes.data,
                record=record, x_n=x_n, x_h=x_h, x_w=x_w, x_c=x_c,
                x_element=x_c * self.form.channels, y_n=y_n, y_p=y_p, y_q=y_q, y_k=y_k,
                residual_n=z[0], residual_p=z[1], residual_q=z[2], residual_k=z[3],
                bias=self.zeros.ctypes.data,
                bias_panel=sums if biased and not self.swapped else 0,
                bias_pixel=sums if biased and self.swapped else 0,
                items=self.items, chunk=self.chunk, in_place=self.in_place, clamps=clamps,
                rounds=narrow,
                staged=y_k != SIZES[self.form.y] or not clamps or (narrow and not self.rounds),
            ),
            (x.dtype, y.dtype),
            keep=(act, self),
        )  # fmt: skip

    def _way_out(self, y_steps, residual_steps, kind):
        """How staging tiles are finished, as fields of a Call; the parts for it are required.

        Steps are bytes between pixels and between filters; `residual_steps` may be False.
        """
        axis = row_axis(*y_steps, SIZES[self.form.y], self.stages_planes, self.apart)
        along = {PIXEL_ROWS: 0, PIXEL_ROW: 0, FILTER_ROWS: 1}.get(axis)
        joins = bool(residual_steps) and along is not None
        joins = joins and residual_steps[along] == SIZES[self.form.x]
        clamps = kind == CLAMP and not residual_steps
        part = Finish(kind, joins, self.form, self.lanes, self.fma)
        if axis == SPREAD:
            self.table[table.SPREAD_ROW] = compile_spread_row(
                self.apart, self.lanes, self.form
            ).address
        if axis == PIXEL_ROWS:
            self._require(table.TRANSPOSE_OUT if clamps else table.TRANSPOSE_WORDS)
        if axis != PIXEL_ROWS or not clamps:
            self.table[part.slot] = compile_finish(part).address
        return {
            "row_axis": axis, "finish": part.slot,
            "adds_first": bool(residual_steps) and not joins,
        }  # fmt: skip

    def initial_sums(self, bias):
        """`bias` by whole panels: what a launch that is biased begins its sums with."""
        g = self.g
        if self.swapped:
            return np.repeat(bias.astype(self.form.sums), g.tile_k)
        width = schedule.panel_count(g) * g.tile_k
        if width == g.K:
            return bias
        sums = np.zeros(g.groups * width, self.form.sums)
        sums.reshape(g.groups, width)[:, : g.K] = bias.reshape(g.groups, g.K)
        return sums

    def _kernel_table(self, recording):
        """Addresses of all parts but transposes, compiled or loaded from the cache."""
        parts = {
            table.LOAD_TILE: compile_load_tile(self.lanes, self.form, recording),
            table.STORE_TILE: compile_store_tile(self.lanes, self.form),
            **self._own_parts(recording),
        }
        addresses = np.zeros(table.SLOTS, np.int64)
        for slot, part in parts.items():
            addresses[slot] = part.address
        return addresses

    def _require(self, way, step=1):
        """Have transposes in the table, which depend on how arrays lie."""
        for slot, part in transposes(way, step, self.lanes, self.form).items():
            self.table[slot] = part.address

    def _require_for_filters(self, w, axes):
        """Those that pack filters; of pairs, words are transposed."""
        if not self.transposes:
            return
        self._require(table.TRANSPOSE_WORDS if self.form.channels > 1 else table.TRANSPOSE_TAPS)
        _, c, *_ = (w.strides[axis] for axis in axes)
        if c == w.itemsize:
            self._require(table.TRANSPOSE_IN)

    def _multiply_parts(self, tiles, recording):
        """Microkernels of all register tiles and panel widths, and what packs their panels."""
        parts = {table.PACK_BLOCK: panels.compile_pack_block(self.lanes, self.form, recording)}
        for vectors in panel_widths(self.g, self.lanes):
            for groups, inner in tiles:
                tile = RegisterTile(
                    groups, inner, vectors, self.lanes, self.itemsize, self.fma,
                    pairs=self.form.channels > 1,
                    y=self.form.y if self.rounds and self.form.y != self.form.sums else "",
                    far=self.in_place, fresh=self.winograd > 0,
                )  # fmt: skip
                slot = table.microkernel_slot(vectors, groups, inner)
                compiled = amx_kernels.compile_microkernel if self.amx else compile_microkernel
                parts[slot] = compiled(tile)
        return parts


def _filter(w, axes):
    """A plain filter and its strides, as fields of a Call."""
    strides = zip(("w_k", "w_c", "w_r", "w_s"), (w.strides[axis] for axis in axes), strict=True)
    return {"w": 1, **dict(strides)}


def _parts(layout):
    """Size and parts of a thread's scratch, as fields of a Call."""
    offsets = layout.offsets()
    del offsets["buffer"]  # it begins the scratch
    return {"scratch_bytes": layout.total, **offsets}


_NOTHING = dict.fromkeys(Call._fields, 0)


def _call(**fields):
    return Call(**{**_NOTHING, **fields})
