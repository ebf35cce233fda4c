"""How passes over an image go along its rows, and how much of it they keep."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from implicit_conv.arrays.arrays import Array
from implicit_conv.cpu.engines.image_rows import Images, Rows, first_axis
from implicit_conv.kernels.cpu.images.layout import Order

PITCH_BYTES = 8 << 10  # of a row of a tile, about
BATCH_BYTES = 192 << 10  # of the rows that the middle pass writes at once, at most
LEAST_BATCH = 8
LONGEST_BYTES = 1 << 16  # of a row that has running means


@dataclass(frozen=True, eq=False)
class Pass:
    """Sums over the taps of a window.

    Attributes
    ----------
    order : Order
    weights : array of shape (taps,)
    places : array of shape (taps, 2, axes)
        The positions in a window of a tap's element, and of the one that is joined with it.
    axes : tuple of int
        Those that are filtered, in rising order.
    kernel : tuple of int
        The extents of the window, by axis.
    sources : tuple of arrays
        For each axis the pixels that the positions repeat, from the first one that is read on;
        CONSTANT is outside the image.
    """

    order: Order
    weights: Array
    places: Array
    axes: tuple[int, ...]
    kernel: tuple[int, ...]
    sources: tuple[Array, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """That of the result."""
        pairs = zip(self.sources, self.kernel, strict=True)
        return tuple(len(source) - size + 1 for source, size in pairs)


class Format(NamedTuple):
    """The strides of x and y in bytes, their dtypes and that of sums, whether products may be added
    without rounding, and whether results are the nearest integers.
    """

    x_strides: tuple[int, ...]
    y_strides: tuple[int, ...]
    x: str
    y: str
    sums: str
    fma: bool
    nearest: bool = False


class Layout:
    """One pass over images, or two of which one is along rows.

    Attributes
    ----------
    rows : Rows
    before, middle, after : Pass or None
    row : Pass or None
        The pass along rows, if there is one.
    tile, pitch : int
        Columns of a tile, and bytes from row to row in scratch memory.
    batch : int
        Rows that the middle pass writes at once.
    in_place : bool
        Whether results may be written over x.

    Raises
    ------
    ValueError
        Rows are not contiguous in x or y, or too short, or passes cannot be computed along them.
    """

    def __init__(
        self, passes: Sequence[Pass], form: Format, constant: float, in_place: bool
    ) -> None:
        shape = passes[0].shape
        last = max(each.axes[-1] for each in passes)
        self._start = start = first_axis(shape, last, len(passes) == 1)
        self.before, self.middle, self.after = _roles(passes, start)
        self.row = (self.before or self.after or self.middle) if start == last else None
        along = None if self.row is None else (self.row.kernel[start], self.row.sources[start])
        images = Images(
            shape,
            form.x_strides,
            form.y_strides,
            form.x,
            form.sums,
            form.y,
            self.middle.kernel,
            self.middle.sources,
            constant,
        )
        self.rows = rows = Rows(images, self.middle.axes, start, along)
        self.tile = rows.tile(PITCH_BYTES)
        if self.runs_along:
            self.tile = rows.columns
            whole = rows.inner == 1 and self.before is None
            if not whole or rows.columns * rows.size > LONGEST_BYTES:
                raise ValueError(
                    "running means along rows are those of whole lines without colours"
                )
        if rows.are_short:
            raise ValueError("rows are too short for tables that say where they begin")
        self.pitch = rows.pitch(self.tile)
        self.in_place = in_place and (self.tile == rows.columns or rows.halo == 0)
        least = max(LEAST_BATCH, rows.window) if self.in_place else LEAST_BATCH
        self.batch = min(rows.rows, max(least, BATCH_BYTES // self.pitch))

    @property
    def runs_along(self) -> bool:
        """Whether rows have running means."""
        return self.row is not None and self.row.order is Order.RUNNING

    def order(self, each: Pass | None) -> Order | None:
        """The order of the sums of a pass, as parts know it."""
        if each is None:
            return None
        return Order.ALONG if each is self.row and self.runs_along else each.order

    @property
    def plane(self) -> int:
        """Bytes of the rows that the middle pass reads of a plane."""
        return (self.rows.window - 1 + self.batch) * self.pitch

    def offsets(self, each: Pass) -> Array:
        """The offsets of the elements of each tap in bytes."""
        places, found = each.places, np.zeros(each.places.shape[:2], np.int64)
        if each is self.middle:
            for axis in self.rows.plane_axes:
                found = found * each.kernel[axis] + places[..., axis]
            found *= self.plane
            if self.rows.axis >= 0:
                found += places[..., self.rows.axis] * self.pitch
        if self.row is not None:
            found += places[..., self._start] * self.rows.inner * self.rows.size
        return found


def _roles(passes: Sequence[Pass], start: int) -> tuple[Pass | None, Pass, Pass | None]:
    """The passes before the middle one, the middle one, and that after it."""
    if len(passes) == 1:
        return None, passes[0], None
    first, second = passes
    if (start,) == second.axes and start not in first.axes:
        return None, first, second
    if (start,) == first.axes and start not in second.axes:
        return first, second, None
    raise ValueError("two passes are joined where one of them is along rows")
