"""Operators: the compiled kernels of one Geometry, called with arrays; a GPU launch's counterpart.

An operator holds what does not change between calls: entries, kernel table, scratch layout. It
prepares launches for arrays of given strides; a call of one fills in addresses.
"""

import itertools
import math

import numpy as np

from implicit_conv.kernels import schedule
from implicit_conv.kernels.activation import CLAMP
from implicit_conv.kernels.cpu import amx as amx_kernels
from implicit_conv.kernels.cpu import (
    depthwise,
    fprop,
    panels,
    pixel_lanes,
    planes,
    table,
    winograd,
    winograd_transforms,
)
from implicit_conv.kernels.cpu.call import Call
from implicit_conv.kernels.cpu.epilogue import compile_store_tile
from implicit_conv.kernels.cpu.load import compile_load_tile
from implicit_conv.kernels.cpu.microkernel import RegisterTile, compile_microkernel
from implicit_conv.kernels.cpu.pool import aligned_bytes
from implicit_conv.kernels.cpu.prepared import Launch
from implicit_conv.kernels.cpu.sizes import (
    PIXEL_ROWS,
    PLANE_ROWS,
    ScratchLayout,
    depthwise_layout,
    depthwise_packed_bytes,
    depthwise_packs,
    depthwise_panel_bytes,
    panel_bytes,
    pixel_lanes_layout,
    planes_layout,
    scratch_layout,
    winograd_layout,
    winograd_panel_bytes,
)
from implicit_conv.kernels.cpu.storage import SIZES
from implicit_conv.kernels.cpu.transpose import transposes

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
    rounds = False  # whether microkernels round to y
    transposes = True  # whether loads and packing transpose what does not lie channels last

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
        self.prepare_packing(w, axes, threads, record)(w=w, panels=packed.ctypes.data)
        return packed

    def prepare_packing(self, w, axes, threads, record=0):
        """A launch that packs filters with the strides of `w`."""
        layout = self._packing_layout()
        self._require_for_filters(w, axes)
        return Launch(
            self._packer(), self.g, layout,
            min(threads, 1 + self.packed_bytes // PACKED_BYTES_PER_THREAD),
            _call(
                **self.constant, **_filter_strides(w, axes), **_parts(layout), record=record,
                items=self.g.groups * schedule.panel_count(self.g),
            ),
        )  # fmt: skip

    def prepare(
        self, x, y, axes, threads, *, residual=None, bias=False, activation=NO_ACTIVATION,
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
        filters = {} if w is None else _filter_strides(w, weight_axes)
        if w is not None:
            self._require_for_filters(w, weight_axes)
        if self.transposes and x_c != x.itemsize:
            self._require(table.TRANSPOSE_IN, min(2, self.g.step_w))
        if y_k != y.itemsize:
            self._require(table.TRANSPOSE_OUT)
        return Launch(
            self._entry(), self.g, layout, threads,
            _call(
                **self.constant, **filters, **_parts(layout), activation=act.ctypes.data,
                record=record, x_n=x_n, x_h=x_h, x_w=x_w, x_c=x_c,
                x_element=x_c * self.form.channels, y_n=y_n, y_p=y_p, y_q=y_q, y_k=y_k,
                residual_n=z[0], residual_p=z[1], residual_q=z[2], residual_k=z[3],
                bias=self.zeros.ctypes.data,
                bias_panel=sums if bias and not self.swapped else 0,
                bias_pixel=sums if bias and self.swapped else 0,
                items=self.items, chunk=self.chunk, in_place=self.in_place, clamps=clamps,
                rounds=narrow,
                staged=y_k != SIZES[self.form.y] or not clamps or (narrow and not self.rounds),
            ),
            keep=(act, self),
        )  # fmt: skip

    def initial_sums(self, bias):
        """`bias` by whole panels: what a launch prepared with a bias begins its sums with."""
        g = self.g
        if self.swapped:
            return np.repeat(bias.astype(self.form.sums), g.tile_k)
        sums = np.zeros((g.groups, schedule.panel_count(g) * g.tile_k), self.form.sums)
        sums[:, : g.K] = bias.reshape(g.groups, g.K)
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
                    far=self.in_place,
                )  # fmt: skip
                slot = table.microkernel_slot(vectors, groups, inner)
                compiled = amx_kernels.compile_microkernel if self.amx else compile_microkernel
                parts[slot] = compiled(tile)
        return parts


class Fprop(Operator):
    """The schedule itself: implicit GEMM."""

    rounds = True

    def _own_parts(self, recording):
        return self._multiply_parts(register_tiles(self.g), recording)

    def _entry(self):
        return fprop.compile_fprop().address

    def _packer(self):
        return panels.compile_pack().address

    def _layout(self, packs):
        paired = self.form.channels > 1
        return scratch_layout(
            self.g, self.itemsize, self.lanes, self.chunk, self.in_place, packs, paired
        )

    def _packing_layout(self):
        layout = self._layout(packs=True)
        return ScratchLayout(0, 0, 0, layout.packing, 0)


class Winograd(Operator):
    """Winograd F(m x m, 3x3); `g` is rounded up to whole boxes, `end` is the true (P, Q)."""

    def __init__(self, m, *arguments, **options):
        self.winograd = m
        super().__init__(*arguments, **options)

    def _group_bytes(self):
        return winograd_panel_bytes(self.g, self.lanes, self.itemsize, self.winograd)

    def _own_parts(self, recording):
        m = self.winograd
        transforms = winograd_transforms.compile_transforms(
            m, self.g.stride_h, self.lanes, self.itemsize, self.fma
        )
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
        super().__init__(*arguments, **options)
        self.packs_in_loop = depthwise_packs(self.g, self.itemsize)
        self.group_bytes = depthwise_panel_bytes(self.g, self.itemsize)  # of a channel block
        self.packed_bytes = depthwise_packed_bytes(self.g, self.itemsize)
        self.constant["panel_group"] = self.group_bytes
        self.constant["row_kernels"] = self._row() is not None

    def _require_for_filters(self, w, axes):
        if self.transposes:
            self._require(table.TRANSPOSE_IN)

    def _own_parts(self, recording):
        extents = {(self.g.tile_m, q) for *_, q in _tile_extents(self.g)}
        whole = {h for m, q in extents for h in (min(m, q), q % m)} - {0}
        if self.in_place:  # border pixels are computed one by one, and what is left between them
            whole = set(range(1, min(self.g.tile_m, self.g.Q) + 1))
        row = self._row()
        single = {1} if row and self.in_place else set() if row else whole
        kinds = [(table.DEPTHWISE, None, single), (table.DEPTHWISE_ROW, row, whole if row else ())]
        parts = {table.PACK_BLOCK: depthwise.compile_pack_channels(self.lanes, self.form)}
        return parts | {
            slot + height: depthwise.compile_microkernel(
                height, kind, self.lanes, self.itemsize, self.fma
            )
            for slot, kind, heights in kinds
            for height in heights
        }

    def _row(self):
        """(taps, stride) of kernels that take a filter row at once; None where taps lie apart."""
        g = self.g
        stride = g.stride_w if self.in_place else 1
        together = g.dilation_w == 1 and (self.in_place or g.phases_w == 1)
        if not together or stride > 2 or not 2 <= g.S <= depthwise.ROW_TAPS:
            return None
        return g.S, stride

    def _entry(self):
        return depthwise.compile_depthwise().address

    def _packer(self):
        return depthwise.compile_pack().address

    def _layout(self, packs):
        return depthwise_layout(self.g, self.itemsize, self.lanes, self.in_place, packs)

    def _packing_layout(self):
        return ScratchLayout(0, 0, 0, 0, 0)


class Planes(Depthwise):
    """Depthwise over planes, a channel at a time; a chunk is the channels of a work item."""

    transposes = False

    def _own_parts(self, recording):
        heights = {
            h for _, p, _ in _tile_extents(self.g) for h in (min(p, PLANE_ROWS), p % PLANE_ROWS)
        }
        taps = tuple(self._column_tap(s) for s in range(self.g.S))
        parts = {
            table.PLANES + rows: planes.compile_microkernel(
                rows, taps, self.lanes, self.itemsize, self.fma
            )
            for rows in heights - {0}
        }
        step = self.g.step_w
        parts[table.LOAD_ROWS] = planes.compile_load_rows(step, self.lanes, self.itemsize)
        parts[table.WRITE_LOADS] = planes.compile_write_loads(recording)
        return parts

    def _column_tap(self, s):
        """(phase buffer, shift) of filter column s."""
        b = s % self.g.phases_w
        return b, schedule.tap_column(self.g, s) - schedule.buffer_column(self.g, b)

    def _entry(self):
        return planes.compile_planes().address

    def _packer(self):
        return planes.compile_pack().address

    def _layout(self, packs):
        return planes_layout(self.g, self.itemsize, self.lanes, packs)


class PixelLanes(Operator):
    """fprop over planes, pixels as vector lanes; filters are read where they lie."""

    transposes = False

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.packs_in_loop = True

    def _own_parts(self, recording):
        g = self.g
        filters = {min(g.tile_k, g.K), g.K % g.tile_k} - {0}
        heights = {
            h for _, p, _ in _tile_extents(g) for h in (min(p, PIXEL_ROWS), p % PIXEL_ROWS)
        } - {0}
        parts = {
            table.pixel_lanes_slot(k, rows): pixel_lanes.compile_microkernel(
                k, rows, self.lanes, self.itemsize, self.fma
            )
            for k in filters
            for rows in heights
        }
        parts[table.LOAD_ROWS] = planes.compile_load_rows(g.step_w, self.lanes, self.itemsize)
        parts[table.WRITE_LOADS] = planes.compile_write_loads(recording)
        return parts

    def _entry(self):
        return pixel_lanes.compile_pixel_lanes().address

    def _layout(self, packs):
        return pixel_lanes_layout(self.g, self.itemsize, self.lanes)


def _filter_strides(w, axes):
    """Strides of a plain filter, as fields of a Call."""
    return dict(zip(("w_k", "w_c", "w_r", "w_s"), (w.strides[axis] for axis in axes), strict=True))


def _parts(layout):
    """Size and parts of a thread's scratch, as fields of a Call."""
    offsets = layout.offsets()
    del offsets["buffer"]  # it begins the scratch
    return {"scratch_bytes": layout.total, **offsets}


_NOTHING = dict.fromkeys(Call._fields, 0)


def _call(**fields):
    return Call(**{**_NOTHING, **fields})
