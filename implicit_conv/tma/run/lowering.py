"""Lower a convolution to tensor maps: the copies that feed each GEMM tile, and its taps.

The activation (fprop, wgrad) or the output gradient (dgrad) is walked:

    mode             GEMM rows                loads
    im2col           rows (n, [z,] p, q)      one per tap and channel block
    w, w128, w_sm90  rows ([z,] p; n, slot)   one per outer tap, channel block and phase buffer

dgrad is the correlation of dy with the flipped filter, one for each stride phase of dx. A phase is
lowered as an fprop of dy whose taps are some of the filter's. Arrays are channels-last.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from implicit_conv.kernels import schedule
from implicit_conv.kernels.gpu.sizes import SWIZZLE_ATOM_BYTES
from implicit_conv.problem.problem import Problem
from implicit_conv.problem.schedule import KBlock, Load, Tap
from implicit_conv.tma.maps.maps import Im2colMap, TensorMap, drawn
from implicit_conv.tma.maps.swizzles import SWIZZLES
from implicit_conv.tma.run.simulate import Array


class AxisWalk(NamedTuple):
    """One spatial axis of the correlation that is lowered."""

    size: int
    taps: int
    stride: int
    dilation: int
    pad_lo: int
    pad_hi: int
    out: int
    filter_taps: slice = slice(None)  # of the filter's taps; a negative step for a flipped filter
    pixels: slice = slice(None)  # of the output's pixels

    @property
    def lower(self) -> int:
        """Lower corner of the im2col box."""
        return -self.pad_lo

    @property
    def upper(self) -> int:
        """Upper corner of the im2col box: the last position is the start of the last window."""
        return self.pad_hi - (self.taps - 1) * self.dilation

    def filter_tap(self, tap: int) -> int:
        """The filter's tap that a tap of the walk multiplies."""
        return (self.filter_taps.start or 0) + tap * (self.filter_taps.step or 1)


class Operands(NamedTuple):
    """The operands of a load that depend on its tap alone: offsets of im2col, or those of W."""

    offsets: tuple[int, ...] | None = None
    w_halo: int = 0
    w_offset: int = 0


class AxisBox(NamedTuple):
    """What one axis of a map must have: two maps with equal boxes walk alike.

    The box holds `least` to `most` positions from `lower` on, `step` apart.
    """

    size: int
    lower: int
    step: int
    least: int
    most: int


@dataclass(frozen=True)
class Lowering:
    """The maps and loads of one operator; `maps_for` constructs it.

    Attributes
    ----------
    problem, operator, mode
        What was lowered.
    N, channels : int
        Images and channels of the walked tensor, all groups together.
    axes : tuple of AxisWalk
        Spatial axes ([d, [h,]] w) of the walked tensor; for dgrad, those of the flipped
        correlation.
    tile_m : int
        GEMM rows of a tile.
    tile_c : int
        Channels of a load.
    dtype, swizzle, address, strides
        Those of the walked tensor.
    """

    problem: Problem
    operator: str
    mode: str
    N: int
    channels: int
    axes: tuple[AxisWalk, ...]
    tile_m: int
    tile_c: int
    dtype: np.dtype[Any]
    swizzle: str
    address: int | None
    strides: tuple[int, ...] | None = None

    @property
    def operand(self) -> str:
        """The tensor that is walked: "x", or "dy" for dgrad."""
        return "dy" if self.operator == "dgrad" else "x"

    @property
    def width(self) -> AxisWalk:
        """The last spatial axis."""
        return self.axes[-1]

    @property
    def buffers(self) -> int:
        """Shared-memory buffers of a k-block."""
        return 1

    @cached_property
    def maps(self) -> tuple[TensorMap, ...]:
        """The tensor map of each buffer; several buffers may share one map.

        There is none for an empty batch, because a tensor map has no empty dimension, and nothing
        is to be loaded.
        """
        return self.make_maps() if self.N else ()

    def make_maps(self) -> tuple[TensorMap, ...]:
        """The maps of a batch that is not empty."""
        map = Im2colMap(
            shape=self.shape,
            lower_corner=[axis.lower for axis in self.axes],
            upper_corner=[axis.upper for axis in self.axes],
            traversal_stride=[axis.stride for axis in self.axes],
            pixels_per_column=self.tile_m,
            strides=self.strides,
            **self.common,
        )
        last = [(axis.taps - 1) * axis.dilation for axis in self.axes]
        map.start((0, *(axis.lower for axis in self.axes), 0), last)
        return (map,)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the walked tensor in the order of the maps' axes, channels last."""
        return self.order((self.N, *(axis.size for axis in self.axes), self.channels))

    def order(self, values: tuple[int, ...]) -> tuple[int, ...]:
        """Values of (n, [d,] h, w, c) in the order of the maps' axes, which is the same here."""
        return values

    @property
    def boxes(self) -> tuple[AxisBox, ...]:
        """What each axis of the maps that has corners must have."""
        return tuple(
            AxisBox(axis.size, axis.lower, axis.stride, axis.out, axis.out) for axis in self.axes
        )

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
        return tuple(map.arguments for map in self.maps)

    def _repr_svg_(self) -> str | None:
        """What a notebook shows: the loads of the first k-block, by their common map."""
        block = next(self.k_blocks(0), None) if self.tiles else None
        if block is None:
            return None
        loads = [load for load in block.loads if self.maps[load.buffer] == self.maps[0]]
        return drawn(self.maps[0], [load[2:6] for load in loads])

    def array(self, x: Array) -> Array:
        """The walked tensor (n, [d,] h, w, c) as the view that the maps describe."""
        return x.transpose(self.order(tuple(range(x.ndim))))

    def ptx(self, load: Load) -> str:
        """The instruction that issues a load."""
        operands = (load.coords, load.offsets, load.w_halo, load.w_offset)
        dst = f"smem + {self.buffer_address(load.buffer)}"
        return self.maps[load.buffer].ptx(*operands, dst=dst)

    def buffer_address(self, buffer: int) -> int:
        """Shared address of a buffer: a multiple of SWIZZLE_ATOM_BYTES, 0 for the first."""
        sizes = [self.rows(b) * self.maps[b].pitch for b in range(buffer)]
        return sum(
            schedule.ceil_div(size, SWIZZLE_ATOM_BYTES) * SWIZZLE_ATOM_BYTES for size in sizes
        )

    def rows(self, buffer: int) -> int:
        """Rows that a load of this buffer delivers, including the halo."""
        return self.maps[buffer].rows(self.buffer_operands(buffer).w_halo)

    def buffer_operands(self, buffer: int) -> Operands:
        """The operands of the loads of one buffer, besides those that a tap has."""
        return Operands()

    @property
    def groups(self) -> int:
        """Groups of channels; one map serves them all, and a load has channels of one group."""
        return self.problem.groups

    def group_channels(self, group: int) -> range:
        """The first channels of the loads of a group."""
        if not 0 <= group < self.groups:
            raise ValueError(f"group {group} must be in [0, {self.groups - 1}]")
        count = self.channels // self.groups
        return range(group * count, (group + 1) * count, self.tile_c)

    @property
    def out(self) -> tuple[int, ...]:
        """Extents of the output rows, ([z, [p,]] q)."""
        return tuple(axis.out for axis in self.axes)

    @property
    def tiles(self) -> int:
        """Number of GEMM tiles: blocks of tile_m rows (n, [z,] p, q); the last one is padded."""
        return int(schedule.ceil_div(self.N * math.prod(self.out), self.tile_m))

    def outputs(self, tile: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
        """(output pixel (n, [z,] p, q) of each row of a tile, whether the row is kept)."""
        positions, kept = self.positions(tile)
        return self.pixels(positions), kept

    def positions(self, tile: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
        """As `outputs`, but counted within the phase of the output that is computed."""
        m = tile * self.tile_m + np.arange(self.tile_m)
        count = math.prod(self.out)
        position = np.unravel_index(m % count, self.out)
        return np.stack([m // count, *position], axis=1), m < self.N * count

    def pixels(self, positions: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Positions (n, spatial) as pixels of the output: those of its stride phase."""
        first = np.array([0, *(axis.pixels.start or 0 for axis in self.axes)])
        step = np.array([1, *(axis.pixels.step or 1 for axis in self.axes)])
        return np.asarray(first + step * positions)

    def k_blocks(self, tile: int, group: int = 0) -> Iterator[KBlock]:
        """Loads and taps of a tile; a k-block is one tap and channel block."""
        n, *position = map(int, self.positions(tile)[0][0])
        start = [a.lower + p * a.stride for a, p in zip(self.axes, position, strict=True)]
        for tap in self.taps():
            for c in self.group_channels(group):
                load = self.make_load((n, *start, c), self.tap_operands(tap))
                yield KBlock((load,), (self.make_tap(tap, 0, 0),))

    def taps(self) -> Iterator[tuple[int, ...]]:
        """The taps ([t, [r,]] s) of the walk."""
        return itertools.product(*(range(axis.taps) for axis in self.axes))

    def tap_operands(self, tap: tuple[int, ...]) -> Operands:
        """The operands of the loads of one tap."""
        return Operands(tuple(r * axis.dilation for r, axis in zip(tap, self.axes, strict=True)))

    def operands(self) -> set[Operands]:
        """The operands of all loads, whose maps need not exist."""
        return {self.tap_operands(tap) for tap in self.taps()}

    def make_tap(self, tap: tuple[int, ...], buffer: int, shift: int) -> Tap:
        """The Tap for a tap ([t, [r,]] s) of the walk."""
        taps = [axis.filter_tap(r) for axis, r in zip(self.axes, tap, strict=True)]
        t, r, s = (0,) * (3 - len(taps)) + tuple(taps)
        return Tap(r, s, buffer, shift, t)

    def view_rows(self, tap: Tap) -> npt.NDArray[np.int64]:
        """The shared-memory rows that a tap reads for the rows of a tile."""
        return tap.row_shift + np.arange(self.tile_m)

    def gradient(self) -> Lowering:
        """For wgrad: the lowering that loads dy in the same row order; dropped slots are zeros."""
        if self.operator != "wgrad":
            raise ValueError(f"{self.operator} has no second walked operand; only wgrad loads dy")
        K = self.problem.K
        axes = tuple(map(_untapped, self.axes))
        channels = default_channels(K // self.groups, self.groups, self.dtype, self.swizzle)
        like = replace(self, channels=K, tile_c=channels, axes=axes, strides=None)
        gradient = replace(like, operator="dgrad")
        check_groups(gradient)
        return gradient

    def make_load(self, coords: tuple[int, ...], operands: Operands, buffer: int = 0) -> Load:
        """A checked load of one buffer, from (n, [d,] h, w, c)."""
        map, rows = self.maps[buffer], self.rows(buffer)
        coords = self.order(coords)
        map.start(coords, *operands)
        return Load(self.operand, map.mode, coords, *operands, buffer, rows, rows * map.row_bytes)


def check_groups(lowering: Lowering) -> None:
    """Check that every group begins at 16 bytes and that loads end where a group ends."""
    groups, tile = lowering.groups, lowering.tile_c
    share = lowering.channels // groups
    size = share * lowering.dtype.itemsize
    if groups == 1 or (size % 16 == 0 and tile > 0 and share % tile == 0):
        return
    if size % 16:
        raise ValueError(
            f"groups={groups}: a group has {share} channels of {lowering.dtype.itemsize} bytes, "
            f"and a copy must begin at a multiple of 16 bytes, not of {size}; pad the channels of "
            "a group, or lower each group as a problem of its own"
        )
    raise ValueError(
        f"groups={groups}: loads of {tile} channels do not divide the {share} channels of a "
        "group, so the last one would load channels of the next group; pass channels=, a divisor "
        f"of {share} of at least 16 bytes"
    )


def default_channels(count: int, groups: int, dtype: np.dtype[Any], swizzle: str) -> int:
    """Channels of a load: those of a swizzle span, or of a group if it has fewer.

    With several groups the loads of a group must end where it ends, so their channels divide it.
    """
    unit = max(1, 16 // dtype.itemsize)
    span = SWIZZLES[swizzle].span if swizzle in SWIZZLES else 0
    most = min((span or 128) // dtype.itemsize, int(schedule.ceil_div(count, unit)) * unit)
    if groups == 1:
        return most
    return next((c for c in range(most, 0, -unit) if count % c == 0), most)


def _untapped(axis: AxisWalk) -> AxisWalk:
    """The axis of dy for the same output rows: one tap, no padding."""
    return AxisWalk(axis.out, 1, 1, 1, 0, 0, axis.out)
