"""Lowering to im2col::w, im2col::w::128, and a permuted im2col map with the same walk on sm_90.

The GEMM rows of a tile are (n, slot) at one output row p. An image row takes L slots; the slots
from Q on are computed and dropped. The S taps of a filter row read shifted views of the phase
buffers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from implicit_conv.kernels import schedule
from implicit_conv.kernels import walk as steps
from implicit_conv.schedule import KBlock, Load, Tap, slots_per_row
from implicit_conv.tma.limits import HALO_END, OFFSET_BITS, W_OFFSET_END
from implicit_conv.tma.lowering import Lowering
from implicit_conv.tma.maps import Im2colMap, Im2colWideMap, TensorMap
from implicit_conv.tma.simulate import Array

OVERRUN_MAX = 127  # images past the last one that an 8-bit upper corner can admit


@dataclass(frozen=True)
class WideLowering(Lowering):
    """One load per filter row, channel block and phase buffer; see `Lowering`."""

    slots_given: int = 0  # slots of an image row if another operand determines them, else 0

    @property
    def offset_max(self) -> int:
        """Largest w_offset that the instruction accepts."""
        return W_OFFSET_END - 1

    @property
    def buffers(self) -> int:
        """Phase buffers: distinct remainders of tap * dilation modulo the stride."""
        axis = self.width
        return min(axis.taps, axis.stride // math.gcd(axis.stride, axis.dilation))

    @cached_property
    def slots(self) -> int:
        """L, the slots of an image row."""
        a = self.width
        geometry = (a.size, a.out, a.taps, a.stride, a.dilation, a.pad_lo)
        return self.slots_given or slots_per_row(*geometry, self.offset_max)

    @property
    def upper_corner(self) -> int:
        """Upper corner of W: the box holds L positions."""
        a = self.width
        return a.lower + (self.slots - 1) * a.stride - (a.size - 1)

    def halo(self, buffer: int) -> int:
        """w_halo of a buffer."""
        a = self.width
        axis = (a.taps, self.buffers, a.dilation, a.stride, self.offset_max)
        return int(schedule.buffer_halo(buffer, *axis))

    def offset(self, buffer: int) -> int:
        """w_offset of a buffer."""
        a = self.width
        return int(schedule.buffer_offset(buffer, a.dilation, a.stride, self.offset_max))

    @cached_property
    def maps(self) -> tuple[TensorMap, ...]:
        """One map, which every buffer uses."""
        map = Im2colWideMap(
            shape=self.shape,
            lower_corner_w=self.width.lower,
            upper_corner_w=self.upper_corner,
            traversal_stride=self.width.stride,
            pixels_per_column=self.tile_m,
            mode=self.mode,
            **self.common,
        )
        longest = max(range(self.buffers), key=self.halo)
        if self.halo(longest) >= HALO_END[self.mode]:
            raise ValueError(
                f"buffer {longest} needs w_halo={self.halo(longest)}, but mode {self.mode} accepts "
                f"at most {HALO_END[self.mode] - 1}; use mode 'im2col'"
            )
        return (map,) * self.buffers

    def rows(self, buffer: int) -> int:
        """Rows that a load of this buffer delivers, including the halo."""
        return self.maps[buffer].rows(self.halo(buffer))

    @property
    def row_tiles(self) -> int:
        """Tiles of one output row."""
        return int(schedule.ceil_div(self.N * self.slots, self.tile_m))

    @property
    def tiles(self) -> int:
        """Number of GEMM tiles; a tile lies in one output row."""
        return self.height.out * self.row_tiles

    def outputs(self, tile: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
        """(output pixel (n, p, slot) of each row of a tile, whether the row is kept)."""
        p, first = divmod(tile, self.row_tiles)
        m = first * self.tile_m + np.arange(self.tile_m)
        n, slot = m // self.slots, m % self.slots
        kept = (n < self.N) & (slot < self.width.out)
        return np.stack([n, np.full_like(n, p), slot], axis=1), kept

    def k_blocks(self, tile: int) -> Iterator[KBlock]:
        """Loads and taps of a tile; a k-block is one channel block of a filter row in the image."""
        n, p, slot = map(int, self.outputs(tile)[0][0])
        w = self.width.lower + slot * self.width.stride
        a = self.height
        for r in range(a.taps):
            h = a.lower + p * a.stride + r * a.dilation
            if not steps.inside(h, a.size):
                continue  # the row is padding and adds zeros
            taps = tuple(self._tap(r, s) for s in range(self.width.taps))
            for c in range(0, self.channels, self.tile_c):
                loads = tuple(self.load(n, h, w, c, b) for b in range(self.buffers))
                yield KBlock(loads, taps)

    def load(self, n: int, h: int, w: int, c: int, buffer: int) -> Load:
        """The load of one phase buffer."""
        operands = (self.halo(buffer), self.offset(buffer), buffer)
        return self._load((n, h, w, c), None, *operands)

    def _tap(self, r: int, s: int) -> Tap:
        a = self.width
        shift = schedule.tap_shift(s, self.buffers, a.dilation, a.stride, self.offset_max)
        return Tap(*self.filter_tap(r, s), s % self.buffers, int(shift))

    def gradient(self) -> Lowering:
        """For wgrad: dy in the same (n, slot) order; slots from Q on are filled and add nothing."""
        return replace(super().gradient(), slots_given=self.slots)  # type: ignore[call-arg]


@dataclass(frozen=True)
class Wide128Lowering(WideLowering):
    """`WideLowering` for im2col::w::128: the halo rows of each group of 32 follow row 127."""

    def __post_init__(self) -> None:
        if self.tile_m != steps.W128_PIXELS:
            raise ValueError(f"tile_m={self.tile_m}: im2col::w::128 loads 128 pixels")

    def view_rows(self, tap: Tap) -> npt.NDArray[np.int64]:
        """The rows that a tap reads: those inside a group of 32, then the group's halo rows."""
        m = np.arange(self.tile_m)
        moved, halo = m + tap.row_shift, self.halo(tap.buffer)
        past = m % steps.W128_GROUP + tap.row_shift >= steps.W128_GROUP
        behind = [steps.w128_halo_row(int(k), halo) for k in moved]
        return np.where(past, behind, moved)


@dataclass(frozen=True)
class PermutedLowering(WideLowering):
    """The im2col::w walk by plain im2col: the batch takes the place of h, the image row that of n.

    W then carries to the next image at a fixed row. This is unproven on hardware, because the
    strides of such a map do not increase.
    """

    @property
    def offset_max(self) -> int:
        """Largest im2col offset of a 4-D map."""
        return (1 << OFFSET_BITS[4]) - 1

    @cached_property
    def maps(self) -> tuple[TensorMap, ...]:
        """One map for each buffer, because pixels_per_column includes the halo."""
        overrun = (self.tile_m + max(map(self.halo, range(self.buffers))) - 1) // self.slots + 1
        if overrun > OVERRUN_MAX:
            raise ValueError(
                f"a tile of {self.tile_m} rows covers {overrun} images of {self.slots} slots, "
                f"but the upper corner admits {OVERRUN_MAX}; use mode 'im2col' or a smaller tile_m"
            )
        return tuple(self._map(self.halo(b), overrun) for b in range(self.buffers))

    def _map(self, halo: int, overrun: int) -> Im2colMap:
        N, H, W, C = self.shape
        row = W * C * self.dtype.itemsize
        return Im2colMap(
            shape=(H, N, W, C),
            strides=(row, H * row, C * self.dtype.itemsize),
            lower_corner=(0, self.width.lower),
            upper_corner=(overrun, self.upper_corner),
            traversal_stride=(1, self.width.stride),
            pixels_per_column=self.tile_m + halo,
            **self.common,
        )

    def array(self, x: Array) -> Array:
        """The tensor with the image row as its first axis."""
        return x.transpose(1, 0, 2, 3)

    def rows(self, buffer: int) -> int:
        """Rows that a load of this buffer delivers, including the halo."""
        return self.maps[buffer].rows()

    def load(self, n: int, h: int, w: int, c: int, buffer: int) -> Load:
        """The load of one phase buffer; n and h are exchanged in its coordinates."""
        return self._load((h, n, w, c), (0, self.offset(buffer)), buffer=buffer)
