"""Lowering to im2col::w, im2col::w::128, and a permuted im2col map with the same walk on sm_90.

The GEMM rows of a tile are (n, slot) at one output row ([z,] p). An image row takes L slots; the
slots from Q on are computed and dropped. The S taps of a filter row read shifted views of the phase
buffers.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from implicit_conv.kernels import schedule
from implicit_conv.kernels import walk as steps
from implicit_conv.problem.schedule import KBlock, Tap, slots_per_row
from implicit_conv.tma.maps.limits import CORNER_BITS, HALO_END, OFFSET_BITS, W_OFFSET_END
from implicit_conv.tma.maps.maps import Im2colMap, Im2colWideMap, TensorMap
from implicit_conv.tma.maps.ptx import INFIXES
from implicit_conv.tma.run.lowering import AxisBox, Lowering, Operands


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

    @property
    def boxes(self) -> tuple[AxisBox, ...]:
        """What W must have in the maps: L slots."""
        a = self.width
        return (AxisBox(a.size, a.lower, a.stride, self.slots, self.slots),)

    def make_maps(self) -> tuple[TensorMap, ...]:
        """One map, which every buffer uses."""
        map = Im2colWideMap(
            shape=self.shape,
            lower_corner_w=self.width.lower,
            upper_corner_w=self.upper_corner,
            traversal_stride=self.width.stride,
            pixels_per_column=self.tile_m,
            mode=self.mode,
            strides=self.strides,
            **self.common,
        )
        longest = max(range(self.buffers), key=self.halo)
        if self.halo(longest) >= HALO_END[self.mode]:
            mode = INFIXES[self.mode]
            raise ValueError(
                f"buffer {longest} needs w_halo={self.halo(longest)}, but mode {mode} accepts "
                f"at most {HALO_END[self.mode] - 1}; use mode 'im2col'"
            )
        return (map,) * self.buffers

    @property
    def row_tiles(self) -> int:
        """Tiles of one output row."""
        return int(schedule.ceil_div(self.N * self.slots, self.tile_m))

    @property
    def tiles(self) -> int:
        """Number of GEMM tiles; a tile lies in one output row."""
        return math.prod(self.out[:-1]) * self.row_tiles

    def positions(self, tile: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
        """(output pixel (n, [z,] p, slot) of each row of a tile, whether the row is kept)."""
        row, first = divmod(tile, self.row_tiles)
        m = first * self.tile_m + np.arange(self.tile_m)
        n, slot = m // self.slots, m % self.slots
        kept = (n < self.N) & (slot < self.width.out)
        fixed = np.unravel_index(row, self.out[:-1]) if self.out[:-1] else ()
        return np.stack([n, *(np.full_like(n, p) for p in fixed), slot], axis=1), kept

    def k_blocks(self, tile: int, group: int = 0) -> Iterator[KBlock]:
        """Loads and taps of a tile; a k-block is one channel block of a filter row in the image."""
        n, *fixed, slot = map(int, self.positions(tile)[0][0])
        w = self.width.lower + slot * self.width.stride
        outer = self.axes[:-1]
        for tap in itertools.product(*(range(axis.taps) for axis in outer)):
            at = [
                axis.lower + p * axis.stride + r * axis.dilation
                for axis, p, r in zip(outer, fixed, tap, strict=True)
            ]
            if not all(steps.inside(x, axis.size) for axis, x in zip(outer, at, strict=True)):
                continue  # the row is padding and adds zeros
            taps = tuple(self._tap((*tap, s)) for s in range(self.width.taps))
            for c in self.group_channels(group):
                start, buffers = (n, *at, w, c), range(self.buffers)
                loads = (self.make_load(start, self.buffer_operands(b), b) for b in buffers)
                yield KBlock(tuple(loads), taps)

    def buffer_operands(self, buffer: int) -> Operands:
        """The operands of the loads of one phase buffer."""
        return Operands(None, self.halo(buffer), self.offset(buffer))

    def operands(self) -> set[Operands]:
        """The operands of all loads: those of each phase buffer."""
        return set(map(self.buffer_operands, range(self.buffers)))

    def _tap(self, tap: tuple[int, ...]) -> Tap:
        a, s = self.width, tap[-1]
        shift = schedule.tap_shift(s, self.buffers, a.dilation, a.stride, self.offset_max)
        return self.make_tap(tap, s % self.buffers, int(shift))

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
    """The im2col::w walk by plain im2col: the batch takes the place next to W.

    The map has the axes ([d, h,] n, w, c), so that W carries to the next image at a fixed row. A
    tensor (n, w, c) keeps its axes. The others are unproven on hardware, because the strides of
    such a map do not increase.
    """

    @property
    def rank(self) -> int:
        """Dimensions of the tensor."""
        return len(self.axes) + 2

    @property
    def offset_max(self) -> int:
        """Largest im2col offset along W."""
        return (1 << OFFSET_BITS[self.rank]) - 1

    def overrun(self, rows: int) -> int:
        """Images past the last one that a tile of `rows` rows may reach."""
        return (rows - 1) // self.slots + 1

    @property
    def boxes(self) -> tuple[AxisBox, ...]:
        """What the axes of the maps that have corners must have."""
        a = self.width
        width = AxisBox(a.size, a.lower, a.stride, self.slots, self.slots)
        if self.rank == 3:
            return (width,)
        least = self.N + self.overrun(self.tile_m)
        images = AxisBox(self.N, 0, 1, least, least + (1 << CORNER_BITS[self.rank]))
        fixed = (AxisBox(axis.size, 0, 1, axis.size, axis.size) for axis in self.axes[1:-1])
        return *fixed, images, width

    def make_maps(self) -> tuple[TensorMap, ...]:
        """One map for each buffer, because pixels_per_column includes the halo."""
        halos = [self.halo(b) for b in range(self.buffers)]
        overrun = self.overrun(self.tile_m + max(halos))
        most = (1 << (CORNER_BITS[self.rank] - 1)) - 1
        if self.rank > 3 and overrun > most:
            raise ValueError(
                f"a tile of {self.tile_m} rows covers {overrun} images of {self.slots} slots, "
                f"but the upper corner admits {most}; use mode 'im2col' or a smaller tile_m"
            )
        return tuple(self._map(halo, overrun) for halo in halos)

    def _map(self, halo: int, overrun: int) -> Im2colMap:
        outer = self.rank - 3  # axes that the walk leaves alone
        strides = self.strides or self._packed_strides()
        images = ([0], [overrun]) if outer else ([], [])
        return Im2colMap(
            shape=self.shape,
            strides=(*strides[1:-1], strides[0], strides[-1]),
            lower_corner=[0] * (outer - 1) + images[0] + [self.width.lower],
            upper_corner=[0] * (outer - 1) + images[1] + [self.upper_corner],
            traversal_stride=[1] * outer + [self.width.stride],
            pixels_per_column=self.tile_m + halo,
            **self.common,
        )

    def order(self, values: tuple[int, ...]) -> tuple[int, ...]:
        """Values of (n, [d, h,] w, c) in the order of the map's axes, ([d, h,] n, w, c)."""
        return *values[1:-2], values[0], *values[-2:]

    def is_permuted(self, strides: tuple[int, ...]) -> bool:
        """Whether byte strides are those of the map's axes: n's is at least that of the row."""
        return self.rank == 3 or (len(strides) > 2 and strides[-2] >= strides[-3])

    def buffer_operands(self, buffer: int) -> Operands:
        """The operands of the loads of one phase buffer; the halo is in the map's pixels."""
        return Operands((*(0,) * (self.rank - 3), self.offset(buffer)))

    def _packed_strides(self) -> tuple[int, ...]:
        """Byte strides of n, [d, h,] w of a packed tensor."""
        shape = (*(axis.size for axis in self.axes), self.channels)
        return tuple(self.dtype.itemsize * math.prod(shape[i:]) for i in range(len(shape)))
