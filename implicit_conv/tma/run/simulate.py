"""Simulate TMA im2col copies on numpy arrays: walk, load, store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from implicit_conv.kernels import walk as steps
from implicit_conv.kernels.walk import Axis
from implicit_conv.tma.maps.limits import Start
from implicit_conv.tma.maps.maps import TensorMap, drawn
from implicit_conv.tma.maps.ptx import INFIXES
from implicit_conv.tma.maps.tiled import TiledMap

Array = npt.NDArray[Any]
HALO_ORDERS = {  # where im2col::w::128 puts halo element j of group g, of `halo` elements each
    "interleaved": "row 128 + 4*j + g",
    "grouped": "row 128 + g*halo + j",
    "inline": "after the 32 rows of its group: row 32*(g+1) + g*halo + j",
}
HALO_ORDER = "interleaved" if steps.W128_HALO_BY_ELEMENT else "grouped"
NAN_BITS = 0x7FF7  # of each 16 bits of an element that is filled with NaN, as hardware fills


@dataclass(frozen=True, eq=False)
class Walk:
    """The pixels of one load, in the order of its shared-memory rows.

    Attributes
    ----------
    coordinates : int64 array, rows x (n, [d,] h, w)
        The pixel of each row, which may lie outside the tensor; for a tiled map, the position
        along all dimensions but the last.
    filled : bool array, rows
        Rows whose pixel lies outside the tensor. (`load` fills channels past C as well.)
    halo : bool array, rows
        Rows that belong to the halo.
    order : int64 array, rows
        Position of each row in the walk; im2col::w::128 delivers some pixels twice.
    bytes : int
        Bytes that the copy reports to its mbarrier; filled rows count.
    map : TiledMap, Im2colMap or Im2colWideMap
        The tensor map of the copy.
    start : Start
        Its operands: `coords`, `offsets`, `w_halo` and `w_offset`.
    halo_order : str
        As `walk` was told.
    """

    coordinates: npt.NDArray[np.int64]
    filled: npt.NDArray[np.bool_]
    halo: npt.NDArray[np.bool_]
    order: npt.NDArray[np.int64]
    bytes: int
    map: TensorMap
    start: Start
    halo_order: str

    def __repr__(self) -> str:
        counts = f"{len(self)} rows of {self.map.row_bytes} bytes from {self.start.coords}"
        filled, halo = self.filled.sum(), self.halo.sum()
        return f"<Walk of {INFIXES[self.map.mode]}: {counts}; {filled} filled, {halo} of the halo>"

    def _repr_svg_(self) -> str | None:
        """What a notebook shows: the copy."""
        return drawn(self.map, [self.start.operands], halo_order=self.halo_order)

    def __len__(self) -> int:
        return len(self.coordinates)


def walk(
    map: TensorMap,
    coords: Sequence[int],
    offsets: Sequence[int] | None = None,
    w_halo: int = 0,
    w_offset: int = 0,
    *,
    halo_order: str = HALO_ORDER,
) -> Walk:
    """The pixels that one tensor copy visits; nothing is read.

    The store walk ``im2col_no_offs`` is this walk without offsets.

    Parameters
    ----------
    map : TiledMap, Im2colMap or Im2colWideMap
        The tensor map.
    coords : sequence of int
        (n, [d,] h, w, c), row-major; PTX has the reverse order.
    offsets : sequence of int, optional
        im2col offsets ([d,] h, w), which are added to every pixel.
    w_halo, w_offset : int
        Operands of im2col::w and im2col::w::128.
    halo_order : {"interleaved", "grouped", "inline"}
        The rows of the halos of im2col::w::128; other modes have one halo, at the end.

    Raises
    ------
    TensorMapError
        The load breaks rules; the message lists all (a ValueError).
    ValueError
        `halo_order` is unknown.

    Notes
    -----
    PTX ISA 5.5.4 and 5.5.5. The documentation has a halo of im2col::w::128 "after every 32
    elements", which reads as "inline". Row oracles measured on a B200, and the four-row shape of
    tcgen05.cp.4x256b, which fetches element j of all four groups, speak for "interleaved". With a
    halo of at most 1, "grouped" is the same. This project has not proven any.

    Examples
    --------
    The walk of the middle tap passes from the row above the image to its first row:

    >>> from implicit_conv import tma
    >>> m = tma.Im2colMap(
    ...     shape=(2, 4, 4, 8), dtype="float32", lower_corner=(-1, -1),
    ...     upper_corner=(-1, -1), pixels_per_column=16, channels_per_pixel=8
    ... )
    >>> found = tma.walk(m, (0, -1, -1, 0), offsets=(0, 1))
    >>> found.coordinates[3:6].tolist(), found.filled[3:6].tolist()
    ([[0, -1, 3], [0, 0, 0], [0, 0, 1]], [True, False, False])
    """
    start = map.start(coords, offsets, w_halo, w_offset)
    order = row_order(map, start.w_halo, halo_order)
    positions = trace(map, start, order)
    coordinates = positions[:, map.columns]
    filled = np.any((coordinates < 0) | (coordinates >= map.shape[:-1]), axis=1)
    return Walk(
        coordinates=coordinates,
        filled=filled,
        halo=halo_rows(map, start.w_halo, halo_order),
        order=order,
        bytes=len(positions) * map.row_bytes,
        map=map,
        start=start,
        halo_order=halo_order,
    )


def load(
    map: TensorMap,
    x: Array,
    coords: Sequence[int],
    offsets: Sequence[int] | None = None,
    w_halo: int = 0,
    w_offset: int = 0,
    *,
    halo_order: str = HALO_ORDER,
) -> Array:
    """Rows x channels that one tensor copy delivers, including filled ones.

    Parameters
    ----------
    x : array of map.shape and map.dtype
        The tensor. If the map has strides, the array must have the same, else any. For an
        interleaved map x has the axes of map.shape too, whatever its order in memory.
    map, coords, offsets, w_halo, w_offset, halo_order
        As in `walk`.

    Returns
    -------
    array, rows x channels_per_pixel
        In the order of shared-memory rows; see `smem_image` for the bytes.

    Raises
    ------
    TensorMapError
        The load breaks rules; the message lists all (a ValueError).
    ValueError
        x does not match the map, or `halo_order` is unknown.

    Examples
    --------
    Half of this box lies outside the tensor:

    >>> import numpy as np
    >>> from implicit_conv import tma
    >>> tile = tma.TiledMap(shape=(4, 4), dtype="float32", box=(2, 4))
    >>> tma.load(tile, np.ones((4, 4), np.float32), (3, 0)).tolist()
    [[1.0, 1.0, 1.0, 1.0], [0.0, 0.0, 0.0, 0.0]]
    """
    return load_rows(map, x, map.start(coords, offsets, w_halo, w_offset), halo_order)


def load_rows(map: TensorMap, x: Array, start: Start, halo_order: str = HALO_ORDER) -> Array:
    """`load` with a start that is already checked."""
    bits = tensor_bits(map, x)
    positions = trace(map, start, row_order(map, start.w_halo, halo_order))
    rows = np.full((len(positions), map.description.channels), fill_bits(map))
    inside, pixels, channels = overlap(bits, positions, start.coords[-1], rows)
    rows[inside, channels] = pixels[tuple(positions[inside].T)]
    return rows.view(map.dtype)


def store(map: TensorMap, x: Array, coords: Sequence[int], rows: Array) -> None:
    """Write rows x channels into x, except where they lie outside the tensor.

    A tiled map stores its box. An im2col map stores by the walk im2col_no_offs, and its box must
    lie inside the tensor.

    Parameters
    ----------
    map : TiledMap or Im2colMap
        The tensor map.
    rows : array, rows x channels_per_pixel
        The rows of shared memory, in the order of a load.
    x, coords
        As in `load`; coordinates are not negative.

    Raises
    ------
    TensorMapError
        The store breaks rules; the message lists all (a ValueError).
    ValueError
        x or the rows do not match the map.

    Notes
    -----
    PTX ISA 9.7.9.25.5.1, ``cp.async.bulk.tensor`` from shared to global memory. A pixel that the
    walk visits twice keeps the later row here; the hardware promises no order. Where the bytes of
    the last axis are no multiple of 16, hardware also writes the padding behind them, up to the
    next one (triton issue 11583), which is no element of x: `lint` says how many bytes.

    Examples
    --------
    >>> import numpy as np
    >>> from implicit_conv import tma
    >>> tile = tma.TiledMap(shape=(4, 4), dtype="float32", box=(2, 4))
    >>> x = np.zeros((4, 4), np.float32)
    >>> tma.store(tile, x, (3, 0), np.ones((2, 4), np.float32))
    >>> x.sum(axis=1).tolist()
    [0.0, 0.0, 0.0, 4.0]
    """
    start = map.start(coords, direction="store")
    bits = tensor_bits(map, x)
    expected = (map.rows(), map.description.channels)
    if rows.shape != expected or rows.dtype != map.dtype:
        raise ValueError(
            f"rows are {rows.dtype} {rows.shape}, but the map stores {map.dtype} {expected}"
        )
    positions = trace(map, start, np.arange(len(rows)))
    inside, pixels, channels = overlap(bits, positions, start.coords[-1], rows)
    # Of several rows for one pixel, numpy keeps the last one.
    pixels[tuple(positions[inside].T)] = rows.view(bits.dtype)[inside, channels]


def overlap(
    bits: Array, positions: npt.NDArray[np.int64], c: int, rows: Array
) -> tuple[npt.NDArray[np.bool_], Array, slice]:
    """(rows whose pixel is inside the tensor, a view of the tensor with the channels that they
    share with it, these channels in the rows); c is the first channel of the rows.
    """
    inside = np.all((positions >= 0) & (positions < bits.shape[:4]), axis=1)
    first = min(max(0, -c), rows.shape[1])
    end = max(first, min(rows.shape[1], bits.shape[4] - c))
    return inside, bits[..., c + first : c + end], slice(first, end)


def trace(map: TensorMap, start: Start, order: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Rows x (n, d, h, w): the pixels of the walk that `order` lists."""
    if isinstance(map, TiledMap):
        return box_positions(map, start.coords)
    m, n = map.description, start.coords[0]
    boxes = zip(m.sizes, m.lower, m.upper, m.step, strict=True)
    *outer, width = (Axis(size, low, size + up, step) for size, low, up, step in boxes)
    d, h, w = (0,) * (5 - map.rank) + start.coords[1:-1]
    if m.wide:  # W carries to N; d and h do not change
        width = steps.wide_axis(width, start.w_offset)
        columns, carries = along(order, w + start.w_offset, width)
        fixed = np.broadcast_to(np.array([d, h]), (len(order), 2))
        return np.column_stack([n + carries, fixed, columns])
    depth, height = [Axis(1)] * (2 - len(outer)) + outer
    columns, carries = along(order, w, width)
    lines, carries = along(carries, h, height)
    planes, carries = along(carries, d, depth)
    positions = np.column_stack([n + carries, planes, lines, columns])
    if start.offsets is not None:
        positions[:, map.columns[1:]] += start.offsets
    return positions


def along(
    steps: npt.NDArray[np.int64], start: int, axis: Axis
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """(position, carry) after each number of steps along an axis: past the box's end the walk wraps
    to its lower corner, and carries one step to the next axis.
    """
    first, every = (max(1, -(-(axis.end - x) // axis.step)) for x in (start, axis.lower))
    beyond = steps - first
    wrapped = axis.lower + beyond % every * axis.step
    positions = np.where(beyond < 0, start + steps * axis.step, wrapped)
    return positions, np.where(beyond < 0, 0, 1 + beyond // every)


def box_positions(map: TiledMap, coords: tuple[int, ...]) -> npt.NDArray[np.int64]:
    """Rows x 4: the positions of a box along all dimensions but the last, in row-major order."""
    counts = map.counts[:-1]
    within = np.indices(counts).reshape(len(counts), map.rows()).T
    positions = np.zeros((map.rows(), 4), np.int64)
    positions[:, map.columns] = np.array(coords[:-1]) + within * map.description.step[:-1]
    return positions


def row_order(map: TensorMap, w_halo: int, halo_order: str) -> npt.NDArray[np.int64]:
    """For each shared-memory row, the position in the walk of the pixel that it holds."""
    if halo_order not in HALO_ORDERS:
        known = "; ".join(f"{name!r}: {where}" for name, where in HALO_ORDERS.items())
        raise ValueError(f"halo_order {halo_order!r} is unknown; choose from {known}")
    if map.mode != "w128":
        return np.arange(map.rows(w_halo))
    pixels = np.arange(steps.W128_PIXELS).reshape(steps.W128_GROUPS, -1)
    halos = steps.W128_GROUP * np.arange(1, steps.W128_GROUPS + 1)[:, None] + np.arange(w_halo)
    if halo_order == "inline":
        return np.concatenate([pixels, halos], axis=1).ravel()
    return np.append(pixels, halos if halo_order == "grouped" else halos.T)


def halo_rows(map: TensorMap, w_halo: int, halo_order: str) -> npt.NDArray[np.bool_]:
    """For each shared-memory row, whether it belongs to a halo."""
    row = np.arange(map.rows(w_halo))
    if map.mode == "w128" and halo_order == "inline":
        return row % (steps.W128_GROUP + w_halo) >= steps.W128_GROUP
    return row >= map.rows()


def tensor_bits(map: TensorMap, x: Array) -> Array:
    """The memory of x as unsigned integers (n, d, h, w, c), after a check against the map."""
    if x.shape != map.shape or x.dtype != map.dtype:
        raise ValueError(f"x is {x.dtype} {x.shape}, but the map describes {map.dtype} {map.shape}")
    strides = map.strides if map.interleave == "none" else None
    if strides is not None and any(
        size > 1 and have != want
        for size, have, want in zip(x.shape, x.strides, (*strides, x.itemsize), strict=True)
    ):
        raise ValueError(f"x has byte strides {x.strides}, but the map {(*strides, x.itemsize)}")
    missing = tuple(axis for axis in range(4) if axis not in map.columns)
    return np.expand_dims(x.view(f"u{x.itemsize}"), missing)


def fill_bits(map: TensorMap) -> np.unsignedinteger[Any]:
    """The bits of a filled element: zero, or a NaN whose 16-bit parts are all `NAN_BITS`."""
    unsigned = np.dtype(f"u{map.itemsize}")
    if map.oob_fill != "nan":
        return unsigned.type(0)  # type: ignore[no-any-return]
    parts = np.full(map.itemsize // 2, NAN_BITS, np.uint16)
    return parts.view(unsigned)[0]  # type: ignore[no-any-return]
