"""The operator of Winograd F(m x m, 3x3)."""

from __future__ import annotations

from typing import Any

from implicit_conv.kernels.cpu.gemm.operator import Gemm
from implicit_conv.kernels.cpu.operator import Build
from implicit_conv.kernels.cpu.winograd import fprop, transforms
from implicit_conv.kernels.cpu.winograd.layout import WinogradLayout, box_tiles


class Winograd(Gemm):
    """The geometry is rounded up to whole m x m tiles; `build.end` is the true (P, Q)."""

    rounds = False

    def __init__(self, layout: WinogradLayout, lanes: int, build: Build) -> None:
        self.winograd = layout.m
        super().__init__(layout, lanes, build)

    def _own_parts(self) -> dict[int, Any]:
        g, m = self.g, self.winograd
        parts = transforms.compile_transforms(m, g.stride_h, self.lanes, self.itemsize, self.fma)
        return parts | self._multiply_parts(box_tiles(g, m))

    def _entry(self) -> int:
        return int(fprop.compile_winograd().address)

    def _packer(self) -> int:
        return int(fprop.compile_pack().address)
