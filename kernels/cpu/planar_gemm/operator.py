"""Operators of fprop with pixels of rows, or of one flat row, as vector lanes."""

from __future__ import annotations

from typing import Any

import numpy as np

from implicit_conv.kernels import schedule
from implicit_conv.kernels.cpu.few_outputs.layout import RegisterTile as DotsTile
from implicit_conv.kernels.cpu.operator import Operator
from implicit_conv.kernels.cpu.planar_gemm.layout import (
    Pixels,
    PlanarGemmLayout,
    RegisterTile,
    flat_row_bytes,
    tail_filters,
    tail_pixels,
)
from implicit_conv.kernels.cpu.runtime import table
from implicit_conv.kernels.cpu.runtime.call import Input
from implicit_conv.kernels.cpu.runtime.call import PlanarGemm as PlanarGemmFields
from implicit_conv.kernels.cpu.runtime.code import Code, code
from implicit_conv.kernels.cpu.runtime.layout import Layout, tap_in_phase, tile_extents
from implicit_conv.kernels.cpu.tile.storage import SIZES
from implicit_conv.kernels.cpu.tile.variants import row_loads, transposes


class PlanarGemm(Operator):
    """Vector lanes are pixels of an output row; filters are read in place."""

    transposes = False
    loads_tiles = False

    def _size(self, layout: Layout) -> None:
        assert isinstance(layout, PlanarGemmLayout)
        self.pixels = layout
        self.stages_planes = not layout.channels_last
        super()._size(layout)
        self.views = self._views()
        self.constant["planar_gemm"] = PlanarGemmFields(
            views=self.views.ctypes.data, filters_together=layout.channels_last
        )

    def _input(self, x: Any) -> Input:
        return super()._input(x)._replace(apart=SIZES[self.form.x])

    def _part_kind(self) -> Any:
        return self.layout.in_place

    def _extents(self) -> Any:
        return bool(schedule.edge_columns(self.g))

    def _own_parts(self) -> dict[int, Code]:
        return self._sums(self._heights, together=self.pixels.channels_last) | self._loads()

    @property
    def _heights(self) -> set[int]:
        """The rows or vectors of register tiles: all, which are few, so that every size has its
        own.
        """
        return {*range(1, 1 + schedule.pixel_rows(self.g))}

    def _sums(
        self,
        heights: set[int],
        *,
        together: bool = False,
        long_row: bool = False,
        ahead: bool = False,
    ) -> dict[int, Code]:
        """Microkernels with these heights, for whole panels and the last panel."""
        g = self.g
        filters = {min(g.tile_k, g.K), g.K % g.tile_k} - {0}
        chained = g.C * schedule.taps(g) > schedule.CHAIN
        return {
            table.planar_gemm_slot(k, height): code(
                ".planar_gemm.compiled.microkernel:make_microkernel",
                RegisterTile(k, height, together, long_row, ahead, chained),
                self.lanes,
                self.itemsize,
                self.fma,
            )
            for k in filters
            for height in heights
        }

    def _loads(self) -> dict[int, Code]:
        """The parts that load rows of pixels, from planes or from channels-last images."""
        form, recording = self.form, self.build.recording
        parts = row_loads(self.g, 1, self.lanes, form, recording)
        if self.pixels.channels_last:
            parts[table.LOAD_PLANES] = code(
                ".tile.compiled.plane_loads:make_load_planes", self.lanes, form
            )
            parts |= transposes(table.TRANSPOSE_IN, 1, self.lanes, form)
        return parts

    def _views(self) -> Any:
        """The byte offset, for each element (c, t, r, s), of its view of the buffer."""
        g = self.g
        phase = schedule.plane_vectors(g, self.lanes) * self.lanes * self.itemsize
        taps = (tap_in_phase(g, s) for s in range(g.S))
        columns = [b * phase + shift * self.itemsize for b, shift in taps]
        pitch = g.phases_w * phase
        rows = [schedule.tap_row(g, j) * pitch for j in range(schedule.filter_rows(g))]
        plane = schedule.image_rows(g) * pitch
        planes = [c * plane for c in range(g.C)]
        return np.array([c + r + s for c in planes for r in rows for s in columns], np.int64)

    def _is_direct(self, y: Any) -> bool:
        return self.stages_planes and y.strides[3] == self.itemsize

    def _entry(self) -> Code:
        return code(".planar_gemm.compiled.fprop:PLANAR_GEMM")


class FlatPlanarGemm(PlanarGemm):
    """1x1 filters: the pixels of a tile form one row, which may be read in place."""

    loads_tiles = True

    def _size(self, layout: Layout) -> None:
        super()._size(layout)
        self.constant |= {
            "tile_filters": tail_filters(self.g, self.lanes),
            "planar_gemm": self.constant["planar_gemm"]._replace(
                long_rows=1,
                plane=flat_row_bytes(self.g, self.itemsize, self.lanes),
                tail_pixels=tail_pixels(self.lanes),
                waiting_filters=self.pixels.waiting_filters,
                keeps=self.pixels.keeps,
            ),
        }

    def _part_kind(self) -> Any:
        return self._asks_ahead, self.pixels.keeps

    @property
    def _asks_ahead(self) -> bool:
        return self.layout.in_place and self.pixels.asks_ahead and not self.pixels.keeps

    def _own_parts(self) -> dict[int, Code]:
        if self.pixels.keeps:
            parts = self._kept_sums() | self._loads()
        else:  # height 0: pixels of a tile that fill no vector
            heights = self._heights | {0}
            parts = self._sums(heights, long_row=True, ahead=self._asks_ahead) | self._loads()
        if self.pixels.channels_last:
            parts |= transposes(table.TRANSPOSE_WORDS, 1, self.lanes, self.form)
        chained = self.g.C > self.lanes * schedule.CHAIN
        tile = DotsTile(1, tail_filters(self.g, self.lanes), self.form.x, chained)
        parts[table.FEW_OUTPUTS] = code(
            ".few_outputs.compiled:make_microkernel", tile, self.lanes, self.itemsize, self.fma
        )
        return parts

    def _kept_sums(self) -> dict[int, Code]:
        """Microkernels of an item's first panel, and of those that read its copy: of whole register
        tiles, and of single vectors.
        """
        g = self.g
        heights = (schedule.pixel_rows(g), 0)
        chained = g.C > schedule.CHAIN
        slots = {Pixels.COPIED: table.first_panel_slot, Pixels.KEPT: table.planar_gemm_slot}
        return {
            slot(k, height): code(
                ".planar_gemm.compiled.microkernel:make_long_row_microkernel",
                RegisterTile(k, height, False, True, False, chained, pixels),
                self.lanes,
                self.itemsize,
                self.fma,
            )
            for pixels, slot in slots.items()
            for k in {min(g.tile_k, g.K), g.K % g.tile_k} - {0}
            for height in heights
        }

    def _views(self) -> Any:
        """The byte offset of each channel's row, in the buffer or in x."""
        g = self.g
        row = flat_row_bytes(g, self.itemsize, self.lanes)
        plane = g.H * g.W * self.itemsize
        return np.arange(g.C, dtype=np.int64) * (plane if self.layout.in_place else row)

    def _is_direct(self, y: Any) -> bool:
        row, pixel = y.strides[2:4]
        extents = tile_extents(self.g)
        in_a_row = all(rows == 1 or row == columns * pixel for _, rows, columns in extents)
        return in_a_row and super()._is_direct(y)

    def _entry(self) -> Code:
        return code(".planar_gemm.compiled.flat:LONG_ROWS")
