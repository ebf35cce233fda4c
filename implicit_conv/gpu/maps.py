"""Tensor maps of a GPU plan: the activation's by lowering the problem, the filter's as a box."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from implicit_conv.kernels.gpu.variant import Variant
from implicit_conv.problem import Problem
from implicit_conv.tma.lower import maps_for
from implicit_conv.tma.lowering_wide import WideLowering
from implicit_conv.tma.maps import TensorMap

SWIZZLES = {64: "64B", 128: "128B"}


@dataclass(frozen=True)
class BoxMap:
    """A tiled map over (a, b, c), c contiguous, whose box is {channels, 1, box_rows}.

    `strides` are the byte strides of a and b. Rows outside [0, a) and channels past c are zero.
    """

    shape: tuple[int, int, int]
    dtype: str
    strides: tuple[int, int]
    box_rows: int
    channels: int
    swizzle: str
    address: int | None = None

    @cached_property
    def row_bytes(self) -> int:
        """Bytes that one row delivers."""
        return self.channels * {"uint16": 2, "float32": 4}[self.dtype]

    def axes(self) -> None:
        """A box has no walk."""


def moved_as(dtype: str) -> str:
    """The numpy type that copies move: bits, for types that numpy or the driver may lack."""
    return "float32" if dtype == "float32" else "uint16"


def activation_map(problem: Problem, v: Variant, address: int | None = None) -> TensorMap:
    """The map of a channels-last activation.

    Raises
    ------
    ValueError
        Sizes that no map can hold, with all reasons.
    """
    mode = "im2col" if not v.wide else "w_sm90" if v.permuted else "w"
    lowering = maps_for(
        problem, mode, tile_m=v.tile_m, channels=v.tile_c, dtype=moved_as(problem.dtype),
        swizzle=SWIZZLES[v.row_bytes], address=address,
    )  # fmt: skip
    if not isinstance(lowering, WideLowering):
        return lowering.maps[0]
    longest = max(range(lowering.buffers), key=lowering.halo)
    return lowering.maps[longest]  # one map serves all buffers


def filter_map(problem: Problem, v: Variant, address: int | None = None) -> BoxMap:
    """The map of a KRSC filter: a box is the tile's filters at one tap and channel block."""
    taps = problem.kernel[0] * problem.kernel[1]
    row = problem.C * problem.itemsize
    return BoxMap(
        (problem.K, taps, problem.C), moved_as(problem.dtype), (taps * row, row), v.tile_n,
        v.tile_c, SWIZZLES[v.row_bytes], address,
    )  # fmt: skip


def at(map: Any, address: int) -> Any:
    """The same map for a tensor at another address."""
    return replace(map, address=address)
