"""The operators, one for each algorithm: their parts, entries and scratch."""

import numpy as np

from implicit_conv.kernels import schedule
from implicit_conv.kernels.cpu.channel_lanes import fprop as channel_lanes
from implicit_conv.kernels.cpu.depthwise import fprop as depthwise
from implicit_conv.kernels.cpu.depthwise import microkernel as depthwise_microkernel
from implicit_conv.kernels.cpu.gemm import fprop, panels
from implicit_conv.kernels.cpu.operator import Operator
from implicit_conv.kernels.cpu.pixel_lanes import flat as long_rows
from implicit_conv.kernels.cpu.pixel_lanes import fprop as pixel_lanes
from implicit_conv.kernels.cpu.pixel_lanes import microkernel as pixel_microkernel
from implicit_conv.kernels.cpu.planes import fprop as planes
from implicit_conv.kernels.cpu.runtime import table
from implicit_conv.kernels.cpu.shapes import (
    box_tiles,
    depthwise_row,
    register_tiles,
    row_pieces,
    row_shapes,
    tile_extents,
)
from implicit_conv.kernels.cpu.sizes import (
    PLANE_ROWS,
    ScratchLayout,
    asks_ahead,
    channel_lanes_layout,
    depthwise_layout,
    depthwise_packed_bytes,
    depthwise_packs,
    depthwise_panel_bytes,
    long_row_bytes,
    pixel_lanes_layout,
    plane_pass_rows,
    planes_layout,
    register_filters,
    scratch_layout,
    tail_filters,
    tail_pixels,
    waiting_filters,
    winograd_layout,
    winograd_panel_bytes,
)
from implicit_conv.kernels.cpu.tile import plane_loads, transpose
from implicit_conv.kernels.cpu.tile.storage import SIZES
from implicit_conv.kernels.cpu.winograd import fprop as winograd
from implicit_conv.kernels.cpu.winograd import transforms as winograd_transforms


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
    """Depthwise, or groups of `group` = (channels, filters): `g` takes all groups as channels of
    one, a panel is the filters of a block of channels.
    """

    rounds = True

    def __init__(self, *arguments, group=(1, 1), **options):
        self.group = group
        super().__init__(*arguments, **options)
        packed = self.g, self.itemsize, group[0]
        self.packs_in_loop = depthwise_packs(*packed)
        self.group_bytes = depthwise_panel_bytes(*packed)  # of a channel block
        self.packed_bytes = depthwise_packed_bytes(*packed)
        self.constant |= {
            "panel_group": self.group_bytes, "row_kernels": self._row() is not None,
            "group_channels": group[0],
        }  # fmt: skip
        if self.in_place and self._row():
            self.pieces = self._pieces()
            self.constant["pieces"] = self.pieces.ctypes.data

    def _require_for_filters(self, w, axes):
        if self.transposes:
            self._require(table.TRANSPOSE_IN)

    def _own_parts(self, recording):
        extents = {(self.g.tile_m, q) for *_, q in tile_extents(self.g)}
        whole = {h for m, q in extents for h in (min(m, q), q % m)} - {0}
        row = self._row()
        if row and self.in_place:
            kernels = {
                table.DEPTHWISE_ROW + i: (pixels, depthwise_microkernel.Row(*row, *missing))
                for i, (pixels, *missing) in enumerate(row_shapes(self.g))
            }
        elif row:
            kernels = {table.DEPTHWISE_ROW + h: (h, depthwise_microkernel.Row(*row)) for h in whole}
        else:
            if self.in_place:  # pixels at the border go one by one, and what is left between them
                whole = set(range(1, min(self.g.tile_m, self.g.Q) + 1))
            kernels = {table.DEPTHWISE + h: (h, None) for h in whole}
        read_as = self.form.x if self.in_place else self.form.buffer
        types_stored = read_as, self.form.sums, self.form.y
        parts = {table.PACK_BLOCK: depthwise.compile_pack_channels(self.lanes, self.form)}
        return parts | {
            slot: depthwise_microkernel.compile_microkernel(
                *kernel, self.group, types_stored, self.lanes, self.fma
            )
            for slot, kernel in kernels.items()
        }

    def _row(self):
        """(taps, stride) of kernels that take a filter row at once, if they do."""
        return depthwise_row(self.g, self.in_place, self.group[0])

    def _pieces(self):
        """Where the pieces of each load tile's rows begin and end, then (first column, register
        tiles, kernel slot) of each.
        """
        shapes = row_shapes(self.g)
        tiles = row_pieces(self.g)
        ends = np.cumsum([0, *map(len, tiles)])
        words = [
            (piece.column, piece.tiles, table.DEPTHWISE_ROW + shapes.index(piece.shape))
            for pieces in tiles
            for piece in pieces
        ]  # fmt: skip
        return np.concatenate([ends, np.ravel(words)]).astype(np.int64)

    def _entry(self):
        return depthwise.compile_depthwise().address

    def _packer(self):
        return depthwise.compile_pack().address

    def _layout(self, packs):
        return depthwise_layout(
            self.g, self.itemsize, self.lanes, self.in_place, packs, self.group[0]
        )

    def _packing_layout(self):
        return ScratchLayout(0, 0, 0, 0, 0)


def column_tap(g, s):
    """(phase buffer, shift) of filter column s."""
    b = s % g.phases_w
    return b, schedule.tap_column(g, s) - schedule.buffer_column(g, b)


def plane_filter(g):
    """Where the taps of the filter of `g` lie."""
    together = plane_pass_rows(g.R, g.S)

    def row(r):
        a = r % g.phases_h
        return a, schedule.tap_row(g, r) - schedule.tap_row(g, a), r * g.dilation_h

    passes = schedule.ceil_div(g.R, together)
    return planes.Filter(
        passes, rows=tuple(map(row, range(together))),
        last=tuple(map(row, range(g.R - (passes - 1) * together))),
        columns=tuple(column_tap(g, s) for s in range(g.S)), stride=g.stride_h,
    )  # fmt: skip


def _row_loads(step, lanes, form, recording):
    """What loads rows of pixels that lie `step` numbers apart, or anyhow."""
    return {
        table.LOAD_ROWS: plane_loads.compile_load_rows(step, lanes, form),
        table.GATHER_ROWS: plane_loads.compile_gather_rows(form),
        table.WRITE_LOADS: plane_loads.compile_write_loads(recording),
    }


class Planes(Depthwise):
    """Depthwise over planes, a channel at a time; a chunk is the channels of a work item."""

    rounds = transposes = False
    stages_planes = True

    def __init__(self, *arguments, apart, **options):
        self.apart = apart
        super().__init__(*arguments, **options)
        self.constant["x_apart"] = apart * SIZES[self.form.x]

    def _own_parts(self, recording):
        heights = {
            h for _, p, _ in tile_extents(self.g) for h in (min(p, PLANE_ROWS), p % PLANE_ROWS)
        }
        taps = plane_filter(self.g)
        parts = {
            table.PLANES + height: planes.compile_microkernel(
                height, taps, self.lanes, self.itemsize, self.fma
            )
            for height in heights - {0}
        }
        parts[table.PACK_BLOCK] = planes.compile_pack_planes(self.lanes, self.form)
        return parts | _row_loads(self.apart * self.g.step_w, self.lanes, self.form, recording)

    def _entry(self):
        return planes.compile_planes().address

    def _packer(self):
        return planes.compile_pack().address

    def _layout(self, packs):
        return planes_layout(self.g, self.itemsize, self.lanes, packs)


class PixelLanes(Operator):
    """fprop over planes, pixels as vector lanes; filters are read where they lie."""

    transposes = False

    def __init__(self, *arguments, channels_last, **options):
        self._channels_last = channels_last
        self.stages_planes = not channels_last
        super().__init__(*arguments, **options)
        self.packs_in_loop = True
        self.views = self._views()
        self.constant |= {
            "filters_together": channels_last, "views": self.views.ctypes.data,
            "x_apart": SIZES[self.form.x],
        }  # fmt: skip

    def _own_parts(self, recording):
        heights = self._heights({p for _, p, _ in tile_extents(self.g)})
        return self._sums(heights, together=self._channels_last) | self._loads(recording)

    def _heights(self, extents):
        """Heights of the register tiles that so many rows, or vectors, are cut into."""
        rows = schedule.pixel_rows(self.g)
        return {part for extent in extents for part in (min(extent, rows), extent % rows)} - {0}

    def _sums(self, heights, *, together=False, long_row=False, ahead=False):
        """Microkernels of these heights, for whole panels and the last one."""
        g = self.g
        filters = {min(g.tile_k, g.K), g.K % g.tile_k} - {0}
        return {
            table.pixel_lanes_slot(k, height): pixel_microkernel.compile_microkernel(
                pixel_microkernel.RegisterTile(k, height, together, long_row, ahead),
                self.lanes, self.itemsize, self.fma,
            )
            for k in filters
            for height in heights
        }  # fmt: skip

    def _loads(self, recording):
        """What loads rows of pixels, where channels lie apart and where they lie together."""
        parts = _row_loads(self.g.step_w, self.lanes, self.form, recording)
        if self._channels_last:
            parts[table.LOAD_PLANES] = plane_loads.compile_load_planes(self.lanes, self.form)
            parts |= transpose.transposes(table.TRANSPOSE_IN, 1, self.lanes, self.form)
        return parts

    def _views(self):
        """Byte offset of the view of the buffer that each element (c, r, s) multiplies."""
        g = self.g
        phase = schedule.plane_vectors(g, self.lanes) * self.lanes * self.itemsize
        taps = (column_tap(g, s) for s in range(g.S))
        columns = [b * phase + shift * self.itemsize for b, shift in taps]
        pitch = g.phases_w * phase
        rows = [schedule.tap_row(g, r) * pitch for r in range(g.R)]
        planes = [c * schedule.image_rows(g) * pitch for c in range(g.C)]
        return np.array([c + r + s for c in planes for r in rows for s in columns], np.int64)

    def _entry(self):
        return pixel_lanes.compile_pixel_lanes().address

    def _layout(self, packs):
        return pixel_lanes_layout(
            self.g, self.itemsize, self.lanes, self.in_place, self._channels_last
        )


class LongRows(PixelLanes):
    """Likewise for 1x1 filters: a tile's pixels are one row, which may be read where it lies."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        if self._channels_last:
            self._require(table.TRANSPOSE_WORDS)
        self.constant |= {
            "long_rows": 1, "plane": long_row_bytes(self.g, self.itemsize, self.lanes),
            "tail_pixels": tail_pixels(self.lanes),
            "tile_filters": tail_filters(self.g, self.lanes),
            "waiting_filters": waiting_filters(
                self.g, self.itemsize, self.lanes, self._channels_last
            ),
        }  # fmt: skip

    def _own_parts(self, recording):
        pixels = {p * q for _, p, q in tile_extents(self.g)}
        tails = {count % self.lanes for count in pixels} - {0}
        heights = self._heights({count // self.lanes for count in pixels})
        few = tail_pixels(self.lanes)
        if any(tail > few for tail in tails):
            heights |= {0}
        ahead = self.in_place and asks_ahead(self.g, self.itemsize, self.lanes)
        parts = self._sums(heights, long_row=True, ahead=ahead) | self._loads(recording)
        if any(tail <= few for tail in tails):
            parts[table.CHANNEL_LANES] = channel_lanes.compile_microkernel(
                1, tail_filters(self.g, self.lanes), self.form.x, self.lanes, self.itemsize,
                self.fma,
            )  # fmt: skip
        return parts

    def _views(self):
        """Byte offset of each channel's row, in the buffer or x."""
        g = self.g
        row = long_row_bytes(g, self.itemsize, self.lanes)
        plane = g.H * g.W * self.itemsize
        return np.arange(g.C, dtype=np.int64) * (plane if self.in_place else row)

    def _entry(self):
        return long_rows.compile_long_rows().address


class ChannelLanes(Operator):
    """fprop by dot products, channels as vector lanes; x and filters are read where they lie."""

    transposes = False

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.packs_in_loop = True
        self.constant["tile_filters"] = register_filters(self.g, self.lanes)

    def _group_bytes(self):
        return self.g.K * self.g.C * SIZES[self.form.x]

    def _own_parts(self, recording):
        filters = register_filters(self.g, self.lanes)
        return {
            table.CHANNEL_LANES: channel_lanes.compile_microkernel(
                self.g.tile_m, filters, self.form.x, self.lanes, self.itemsize, self.fma
            )
        }

    def _entry(self):
        return channel_lanes.compile_channel_lanes().address

    def _layout(self, packs):
        return channel_lanes_layout(self.g, self.itemsize)
