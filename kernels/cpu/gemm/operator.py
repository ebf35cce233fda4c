"""Operators of implicit GEMM, and of implicit GEMM with swapped operands."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from implicit_conv.kernels import schedule
from implicit_conv.kernels.cpu.gemm.layout import (
    FETCHED_BYTES,
    STREAMED_BYTES,
    GemmLayout,
    RegisterTile,
    Way,
    panel_widths,
    register_tiles,
    way_of,
)
from implicit_conv.kernels.cpu.operator import Build, Operator
from implicit_conv.kernels.cpu.runtime import table
from implicit_conv.kernels.cpu.runtime.call import Bias, Input, Windows
from implicit_conv.kernels.cpu.runtime.code import Code, code
from implicit_conv.kernels.cpu.runtime.layout import LINE, Layout

TRANSPOSES = {  # that a way to pack filters uses
    Way.TAPS: table.TRANSPOSE_TAPS,
    Way.SPANS: table.TRANSPOSE_TAPS,
    Way.CHANNELS: table.TRANSPOSE_FILTERS,
    Way.WORDS: table.TRANSPOSE_WORDS,
}


class Gemm(Operator):
    """Implicit GEMM: pixels are rows, filters are vector lanes."""

    rounds = True

    def __init__(self, layout: Layout, lanes: int, build: Build, multiplier: str = "") -> None:
        self.multiplier = multiplier  # "amx" or "matrices", if they multiply several pixels at once
        super().__init__(layout, lanes, build)

    def _size(self, layout: Layout) -> None:
        super()._size(layout)
        self.constant["heads"] = self._has_heads

    def _part_kind(self) -> Any:
        return self._is_far

    @property
    def _has_heads(self) -> bool:
        return isinstance(self.layout, GemmLayout) and self.layout.heads

    @property
    def _tiles(self) -> list[tuple[int, int]]:
        return register_tiles(self.g, self.layout.in_place, self._has_heads)

    def _extents(self) -> Any:
        return tuple(self._tiles)

    def _large_result(self, y: Any) -> dict[str, int]:
        vector, size = self.lanes * self.itemsize, math.prod(y.shape) * y.itemsize
        lines = vector == LINE and self.form.y == self.form.sums
        lines = lines and not any([step % LINE for step in y.strides[:4]])
        return {
            "streams": lines and size > STREAMED_BYTES,
            "fetches": lines and FETCHED_BYTES < size <= STREAMED_BYTES,
        }

    @property
    def _is_far(self) -> bool:
        """Whether pixels are far apart in the caller's array, and are prefetched."""
        return self.layout.in_place and not schedule.reads_padding(self.g)

    def _own_parts(self) -> dict[int, Code]:
        return self._multiply_parts(self._tiles)

    def _entry(self) -> Code:
        return code(".gemm.compiled.fprop:FPROP")

    def _packer(self) -> Code:
        return code(".gemm.compiled.panels:PACK")

    def _filter_fields(self, w: Any) -> dict[str, Any]:
        """Compile the parts that pack filters with the strides of `w`."""
        way, form = way_of(w, self.form.channels), self.form
        zips = self.multiplier == "matrices"
        slot = table.PACK_BLOCK + way
        made = self.lanes, form, way, zips, self.build.recording
        self._fill({slot: code(".gemm.compiled.panels:make_pack_block", *made)})
        if way == Way.ROWS:
            for full in (True, False):
                block = self.lanes, form.w, form.panel, full
                few = code(".tile.compiled.few_columns:make_few_columns", *block)
                self._fill({table.FEW_COLUMNS + (not full): few})
        elif way in TRANSPOSES:
            self._require(TRANSPOSES[way])
        return {**super()._filter_fields(w), "pack_block": slot}

    def _multiply_parts(self, tiles: list[tuple[int, int]]) -> dict[int, Code]:
        """Microkernels of all register tiles and panel widths."""
        form, parts = self.form, {}
        module = "amx" if self.multiplier == "amx" else "microkernel"
        maker = f".gemm.compiled.{module}:make_microkernel"
        for vectors in panel_widths(self.g, self.lanes):
            for groups, inner in tiles:
                tile = RegisterTile(
                    groups,
                    inner,
                    vectors,
                    self.lanes,
                    self.itemsize,
                    self.fma,
                    dots=(form.buffer, form.panel) if form.channels > 1 else None,
                    matrices=self.multiplier == "matrices",
                    integers=form.integers,
                    y=form.rounded if self.rounds and form.rounded != form.sums else "",
                    far=self._is_far,
                    fresh=self.winograd > 0,
                )
                parts[table.microkernel_slot(vectors, groups, inner)] = code(maker, tile)
        return parts


class WindowGemm(Gemm):
    """The window of an output column is a pixel of the buffer."""

    def _size(self, layout: Layout) -> None:
        assert isinstance(layout, GemmLayout) and layout.window is not None
        self.window = layout.window
        super()._size(layout)
        self.constant |= {
            "channels": self.window.elements,
            "windows": Windows(self.window.before, self.window.columns),
        }

    def _input(self, x: Any) -> Input:
        """Windows have a stride of several pixels."""
        pixels = super()._input(x)
        return pixels._replace(tap=pixels.w, w=pixels.w * self.window.stride)

    def _load_tile(self, x: Any) -> int:
        """The slot of the part that loads windows of `x`, now compiled."""
        made = self.form, self.window.shape, self.build.recording
        self._fill({table.LOAD_TILE: code(".tile.compiled.load:make_window_tile", *made)})
        return table.LOAD_TILE


class TransposedGemm(Gemm):
    """C^T = B^T A^T: filters are rows, pixels are vector lanes, and a row has one bias."""

    def _bias(self, biased: bool) -> Bias:
        zeros = self._fixed["zeros"]
        return Bias(zeros, pixel=self.g.tile_k * self.itemsize if biased else 0)

    def initial_sums(self, bias: Any) -> Any:
        """The bias of each filter, repeated for every lane of a panel."""
        return np.repeat(bias.astype(self.form.sums), self.g.tile_k)
