"""Operators of implicit GEMM, and of implicit GEMM with swapped operands."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from implicit_conv.kernels.cpu.gemm import amx, fprop, panels
from implicit_conv.kernels.cpu.gemm.layout import SPAN, GemmLayout, panel_widths, register_tiles
from implicit_conv.kernels.cpu.gemm.microkernel import RegisterTile, compile_microkernel
from implicit_conv.kernels.cpu.operator import Build, Operator
from implicit_conv.kernels.cpu.runtime import table
from implicit_conv.kernels.cpu.runtime.layout import Layout
from implicit_conv.kernels.cpu.tile.few_columns import compile_few_columns


class Gemm(Operator):
    """Implicit GEMM: pixels are rows, filters are vector lanes."""

    rounds = True

    def __init__(self, layout: Layout, lanes: int, build: Build, use_amx: bool = False) -> None:
        self.use_amx = use_amx
        super().__init__(layout, lanes, build)
        self.constant["heads"] = isinstance(layout, GemmLayout) and layout.heads

    def _own_parts(self) -> dict[int, Any]:
        return self._multiply_parts(register_tiles(self.g))

    def _entry(self) -> int:
        return int(fprop.compile_fprop().address)

    def _packer(self) -> int:
        return int(panels.compile_pack().address)

    def _require_for_filters(self, w: Any) -> None:
        super()._require_for_filters(w)
        if self.form.channels == 1 and taps_are_near(w):
            for full in (True, False):
                part = compile_few_columns(self.lanes, self.form.w, self.form.panel, full)
                self.table[table.FEW_COLUMNS + (not full)] = part.address

    def _multiply_parts(self, tiles: list[tuple[int, int]]) -> dict[int, Any]:
        """Microkernels of all register tiles and panel widths, and the part that packs panels."""
        form, recording = self.form, self.build.recording
        parts = {table.PACK_BLOCK: panels.compile_pack_block(self.lanes, form, recording)}
        compiled = amx.compile_microkernel if self.use_amx else compile_microkernel
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
                    integers=form.integers,
                    y=form.rounded if self.rounds and form.rounded != form.sums else "",
                    far=self.layout.in_place,
                    fresh=self.winograd > 0,
                )
                parts[table.microkernel_slot(vectors, groups, inner)] = compiled(tile)
        return parts


def taps_are_near(w: Any) -> bool:
    """Whether packing `w` may transpose its filter rows one by one, see `panels`."""
    taps = w.shape[2:]
    element, next_channel = w.itemsize, math.prod(taps) * w.itemsize
    steps = zip(w.strides[2:], taps, strict=True)
    reach = sum(abs(stride) * (extent - 1) for stride, extent in steps)
    near = reach // element < SPAN * math.prod(taps)
    follow = w.strides[1] == next_channel and w[:1, :1].flags.c_contiguous
    return near and not follow and w.strides[0] != element


class TransposedGemm(Gemm):
    """C^T = B^T A^T: filters are rows, pixels are vector lanes, and a row has one bias."""

    def _bias_steps(self, biased: bool) -> dict[str, int]:
        return {"bias_pixel": self.g.tile_k * self.itemsize if biased else 0}

    def initial_sums(self, bias: Any) -> Any:
        """The bias of each filter, repeated for every lane of a panel."""
        return np.repeat(bias.astype(self.form.sums), self.g.tile_k)
