"""Lower a convolution to tensor maps: the copies that feed each GEMM tile, and its taps.

The activation (fprop, wgrad) or the output gradient (dgrad) is walked:

    mode             GEMM rows             loads
    im2col           rows (n, p, q)        one per tap and channel block
    w, w128, w_sm90  rows (p; n, slot)     one per filter row, channel block and phase buffer

dgrad at stride 1 is the correlation of dy with the flipped filter. It is lowered as an fprop whose
padding is (taps - 1) * dilation - pad and whose taps count down. Arrays are channels-last.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from implicit_conv.kernels import schedule
from implicit_conv.kernels.gpu.sizes import SWIZZLE_ATOM_BYTES
from implicit_conv.problem import Problem
from implicit_conv.schedule import KBlock, Load, Tap
from implicit_conv.tma.driver import driver_arguments
from implicit_conv.tma.limits import SPANS
from implicit_conv.tma.maps import Im2colMap, TensorMap
from implicit_conv.tma.ptx import instruction
from implicit_conv.tma.simulate import Array


class AxisWalk(NamedTuple):
    """One spatial axis of the correlation that is lowered."""

    size: int
    taps: int
    stride: int
    dilation: int
    pad_lo: int
    pad_hi: int
    out: int

    @property
    def lower(self) -> int:
        """Lower corner of the im2col box."""
        return -self.pad_lo

    @property
    def upper(self) -> int:
        """Upper corner of the im2col box: the last position is the start of the last window."""
        return self.pad_hi - (self.taps - 1) * self.dilation


@dataclass(frozen=True)
class Lowering:
    """The maps and loads of one operator; `maps_for` constructs it.

    Attributes
    ----------
    problem, operator, mode
        What was lowered.
    N, channels : int
        Images and channels of the walked tensor.
    height, width : AxisWalk
        Spatial axes of the walked tensor; for dgrad, those of the flipped correlation.
    tile_m : int
        GEMM rows of a tile.
    tile_c : int
        Channels of a load.
    dtype, swizzle, address
        Those of the walked tensor.
    """

    problem: Problem
    operator: str
    mode: str
    N: int
    channels: int
    height: AxisWalk
    width: AxisWalk
    tile_m: int
    tile_c: int
    dtype: np.dtype[Any]
    swizzle: str
    address: int | None

    @property
    def operand(self) -> str:
        """The tensor that is walked: "x", or "dy" for dgrad."""
        return "dy" if self.operator == "dgrad" else "x"

    @property
    def buffers(self) -> int:
        """Shared-memory buffers of a k-block."""
        return 1

    @cached_property
    def maps(self) -> tuple[TensorMap, ...]:
        """The tensor map of each buffer; several buffers may share one map."""
        return (
            Im2colMap(
                shape=self.shape,
                lower_corner=(self.height.lower, self.width.lower),
                upper_corner=(self.height.upper, self.width.upper),
                traversal_stride=(self.height.stride, self.width.stride),
                pixels_per_column=self.tile_m,
                **self.common,
            ),
        )

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Shape of the walked tensor, channels last."""
        return self.N, self.height.size, self.width.size, self.channels

    @property
    def common(self) -> dict[str, Any]:
        """The arguments that all maps of the walked tensor share."""
        return {
            "dtype": self.dtype,
            "channels_per_pixel": self.tile_c,
            "swizzle": self.swizzle,
            "address": self.address,
        }

    @property
    def arguments(self) -> tuple[dict[str, Any], ...]:
        """The arguments of the driver calls that encode `maps`, by the names of cuda.h."""
        return tuple(driver_arguments(map) for map in self.maps)

    def array(self, x: Array) -> Array:
        """The walked tensor (n, h, w, c) as the view that the maps describe."""
        return x

    def ptx(self, load: Load) -> str:
        """The instruction that issues a load."""
        operands = (load.coords, load.offsets, load.w_halo, load.w_offset)
        return instruction(load.mode, *operands, dst=f"smem + {self.buffer_address(load.buffer)}")

    def buffer_address(self, buffer: int) -> int:
        """Shared address of a buffer: a multiple of SWIZZLE_ATOM_BYTES, 0 for the first."""
        sizes = [self.rows(b) * self.maps[b].pitch for b in range(buffer)]
        return sum(
            schedule.ceil_div(size, SWIZZLE_ATOM_BYTES) * SWIZZLE_ATOM_BYTES for size in sizes
        )

    def rows(self, buffer: int) -> int:
        """Rows that a load of this buffer delivers."""
        return self.maps[buffer].rows()

    @property
    def tiles(self) -> int:
        """Number of GEMM tiles: blocks of tile_m rows (n, p, q); the last one is padded."""
        return int(schedule.ceil_div(self.N * self.height.out * self.width.out, self.tile_m))

    def outputs(self, tile: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
        """(output pixel (n, p, q) of each row of a tile, whether the row is kept)."""
        m = tile * self.tile_m + np.arange(self.tile_m)
        P, Q = self.height.out, self.width.out
        return np.stack([m // (P * Q), m // Q % P, m % Q], axis=1), m < self.N * P * Q

    def k_blocks(self, tile: int) -> Iterator[KBlock]:
        """Loads and taps of a tile; a k-block is one tap and channel block."""
        n, p, q = map(int, self.outputs(tile)[0][0])
        h = self.height.lower + p * self.height.stride
        w = self.width.lower + q * self.width.stride
        for r in range(self.height.taps):
            for s in range(self.width.taps):
                offsets = (r * self.height.dilation, s * self.width.dilation)
                for c in range(0, self.channels, self.tile_c):
                    load = self._load((n, h, w, c), offsets=offsets)
                    yield KBlock((load,), (Tap(*self.filter_tap(r, s), 0, 0),))

    def filter_tap(self, r: int, s: int) -> tuple[int, int]:
        """The filter tap that tap (r, s) of the walk multiplies; dgrad flips the filter."""
        if self.operator != "dgrad":
            return r, s
        return self.height.taps - 1 - r, self.width.taps - 1 - s

    def view_rows(self, tap: Tap) -> npt.NDArray[np.int64]:
        """The shared-memory rows that a tap reads for the rows of a tile."""
        return tap.row_shift + np.arange(self.tile_m)

    def gradient(self) -> Lowering:
        """For wgrad: the lowering that loads dy in the same row order; dropped slots are zeros."""
        if self.operator != "wgrad":
            raise ValueError(f"{self.operator} has no second walked operand; only wgrad loads dy")
        K = self.problem.K
        channels = default_channels(K, self.dtype, self.swizzle)
        height, width = _untapped(self.height), _untapped(self.width)
        like = replace(self, channels=K, tile_c=channels, height=height, width=width)
        return replace(like, operator="dgrad")

    def _load(
        self,
        coords: tuple[int, ...],
        offsets: tuple[int, ...] | None = None,
        w_halo: int = 0,
        w_offset: int = 0,
        buffer: int = 0,
    ) -> Load:
        map, rows = self.maps[buffer], self.rows(buffer)
        map.start(coords, offsets, w_halo, w_offset)
        size = rows * map.row_bytes
        operands = (coords, offsets, w_halo, w_offset, buffer, rows, size)
        return Load(self.operand, map.mode, *operands)


def default_channels(count: int, dtype: np.dtype[Any], swizzle: str) -> int:
    """Channels of a load: those of a swizzle span, or of the tensor if it has fewer."""
    unit, span = max(1, 16 // dtype.itemsize), SPANS.get(swizzle, 0) or 128
    return min(span // dtype.itemsize, int(schedule.ceil_div(count, unit)) * unit)


def _untapped(axis: AxisWalk) -> AxisWalk:
    """The axis of dy for the same output rows: one tap, no padding."""
    return AxisWalk(axis.out, 1, 1, 1, 0, 0, axis.out)
