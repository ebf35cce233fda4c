"""The operator of Winograd F(m x m, R x S)."""

from __future__ import annotations

from typing import Any

from implicit_conv.kernels.cpu.gemm.operator import Gemm
from implicit_conv.kernels.cpu.operator import Build
from implicit_conv.kernels.cpu.runtime.code import Code, code
from implicit_conv.kernels.cpu.runtime.table import WINOGRAD_FILTER, WINOGRAD_INPUT, WINOGRAD_OUTPUT
from implicit_conv.kernels.cpu.winograd.layout import WinogradLayout, box_tiles


class Winograd(Gemm):
    """The geometry is rounded up to whole tiles; `layout.end` is the true (P, Q)."""

    rounds = False
    _has_heads = False

    def __init__(self, layout: WinogradLayout, lanes: int, build: Build) -> None:
        self.winograd = layout.m
        super().__init__(layout, lanes, build)

    def _extents(self) -> Any:
        return tuple(box_tiles(self.g, self.winograd))

    def _own_parts(self) -> dict[int, Code]:
        g, m = self.g, self.winograd
        names = {WINOGRAD_INPUT: "input", WINOGRAD_FILTER: "filter", WINOGRAD_OUTPUT: "output"}
        made = m, (g.R, g.S), g.stride_h, self.lanes, self.itemsize, self.fma
        maker = ".winograd.compiled.transforms:make_transform"
        parts = {slot: code(maker, name, *made) for slot, name in names.items()}
        return parts | self._multiply_parts(box_tiles(g, m))

    def _entry(self) -> Code:
        return code(".winograd.compiled.fprop:WINOGRAD")

    def _packer(self) -> Code:
        return code(".winograd.compiled.fprop:PACK")
