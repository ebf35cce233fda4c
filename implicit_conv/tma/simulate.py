"""Simulate TMA im2col copies on numpy arrays: walk, load, store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from implicit_conv.kernels import walk as steps
from implicit_conv.tma.limits import Start
from implicit_conv.tma.maps import Im2colMap, Im2colWideMap, TensorMap

Array = npt.NDArray[Any]
NAN_BITS = 0x7FF7  # of each 16 bits of an element that is filled with NaN, as hardware fills


@dataclass(frozen=True, eq=False)
class Walk:
    """The pixels of one load, in the order of its shared-memory rows.

    Attributes
    ----------
    coordinates : int64 array, rows x (n, [d,] h, w)
        The pixel of each row, which may lie outside the tensor.
    filled : bool array, rows
        Rows whose pixel lies outside the tensor. (`load` fills channels past C as well.)
    halo : bool array, rows
        Rows that belong to the halo.
    order : int64 array, rows
        Position of each row in the walk; im2col::w::128 delivers some pixels twice.
    bytes : int
        Bytes that the copy reports to its mbarrier; filled rows count.
    """

    coordinates: npt.NDArray[np.int64]
    filled: npt.NDArray[np.bool_]
    halo: npt.NDArray[np.bool_]
    order: npt.NDArray[np.int64]
    bytes: int

    def __len__(self) -> int:
        return len(self.coordinates)


def walk(
    map: TensorMap,
    coords: Sequence[int],
    offsets: Sequence[int] | None = None,
    w_halo: int = 0,
    w_offset: int = 0,
) -> Walk:
    """The pixels that one tensor copy visits; nothing is read.

    The store walk ``im2col_no_offs`` is this walk without offsets.

    Parameters
    ----------
    map : Im2colMap or Im2colWideMap
        The tensor map.
    coords : sequence of int
        (n, [d,] h, w, c), row-major; PTX has the reverse order.
    offsets : sequence of int, optional
        im2col offsets ([d,] h, w), which are added to every pixel.
    w_halo, w_offset : int
        Operands of im2col::w and im2col::w::128.

    Raises
    ------
    TensorMapError
        The load breaks rules; the message lists all (a ValueError).

    Notes
    -----
    PTX ISA 5.5.4 and 5.5.5.
    """
    start = map.start(coords, offsets, w_halo, w_offset)
    positions = np.empty((map.rows(start.w_halo), 4), np.int64)
    _check_interleave(map)
    trace(steps, map, start, positions)
    sizes = np.array((map.shape[0], *(axis.size for axis in map.axes())))
    filled = np.any((positions < 0) | (positions >= sizes), axis=1)
    order = row_order(map, start.w_halo)
    pixels = map.rows()
    return Walk(
        coordinates=positions[:, _kept(map.rank)],
        filled=filled,
        halo=np.arange(len(positions)) >= pixels,
        order=order,
        bytes=len(positions) * map.row_bytes,
    )


def load(
    map: TensorMap,
    x: Array,
    coords: Sequence[int],
    offsets: Sequence[int] | None = None,
    w_halo: int = 0,
    w_offset: int = 0,
) -> Array:
    """Rows x channels that one tensor copy delivers, including filled ones.

    Parameters
    ----------
    x : array of map.shape and map.dtype
        The tensor. If the map has strides, the array must have the same, else any.
    map, coords, offsets, w_halo, w_offset
        As in `walk`.

    Returns
    -------
    array, rows x channels_per_pixel
        In the order of shared-memory rows; see `smem_image` for the bytes.
    """
    return load_rows(map, x, map.start(coords, offsets, w_halo, w_offset))


def load_rows(map: TensorMap, x: Array, start: Start) -> Array:
    """`load` with a start that is already checked."""
    from implicit_conv.kernels.cpu import simulate

    bits = tensor_bits(map, x)
    positions = np.empty((map.rows(start.w_halo), 4), np.int64)
    _check_interleave(map)
    trace(simulate, map, start, positions)
    rows = np.empty((len(positions), map.channels_per_pixel), bits.dtype)
    simulate.gather(bits, positions, start.coords[-1], fill_bits(map), rows)
    return rows.view(map.dtype)


def store(map: Im2colMap, x: Array, coords: Sequence[int], rows: Array) -> None:
    """Write rows x channels into x by the store walk, im2col_no_offs, except filled pixels.

    Parameters
    ----------
    rows : array, pixels_per_column x channels_per_pixel
        The rows of shared memory, in walk order.
    map, x, coords
        As in `load`.

    Notes
    -----
    PTX ISA 9.7.9.25.5, ``cp.async.bulk.tensor`` from shared to global memory. A pixel that the walk
    visits twice keeps the later row here; the hardware promises no order.
    """
    from implicit_conv.kernels.cpu import simulate

    if not isinstance(map, Im2colMap):
        raise ValueError("im2col::w cannot store: the store walk im2col_no_offs needs an Im2colMap")
    start = map.start(coords)
    bits = tensor_bits(map, x)
    expected = (map.rows(), map.channels_per_pixel)
    if rows.shape != expected or rows.dtype != map.dtype:
        raise ValueError(
            f"rows are {rows.dtype} {rows.shape}, but the map stores {map.dtype} {expected}"
        )
    positions = np.empty((len(rows), 4), np.int64)
    _check_interleave(map)
    trace(simulate, map, start, positions)
    simulate.scatter(bits, positions, start.coords[-1], rows.view(bits.dtype))


def trace(walks: Any, map: TensorMap, start: Start, positions: npt.NDArray[np.int64]) -> None:
    """Write rows x (n, d, h, w) into `positions`.

    `walks` is kernels.walk, which Python runs, or kernels.cpu.simulate, which is compiled.
    """
    depth, height, width = map.axes(start.w_offset)
    n = start.coords[0]
    d, h, w = (0,) * (5 - map.rank) + start.coords[1:-1]
    if map.mode == "w128":
        walks.walk_w128(positions, n, d, h, w + start.w_offset, width, start.w_halo)
    elif isinstance(map, Im2colWideMap):
        walks.walk_wide(positions, n, d, h, w + start.w_offset, width)
    else:
        walks.walk_im2col(positions, n, d, h, w, depth, height, width)
        if start.offsets is not None:
            positions[:, _kept(map.rank)[1:]] += start.offsets


def row_order(map: TensorMap, w_halo: int) -> npt.NDArray[np.int64]:
    """For each shared-memory row, the position in the walk of the pixel that it holds."""
    order = np.arange(map.rows(w_halo))
    if map.mode == "w128":
        for k in range(steps.W128_PIXELS + w_halo):
            row = steps.w128_halo_row(k, w_halo)
            if row >= 0:
                order[row] = k
    return order


def tensor_bits(map: TensorMap, x: Array) -> Array:
    """The memory of x as unsigned integers (n, d, h, w, c), after a check against the map."""
    if x.shape != map.shape or x.dtype != map.dtype:
        raise ValueError(f"x is {x.dtype} {x.shape}, but the map describes {map.dtype} {map.shape}")
    strides = map.strides
    if strides is not None and any(
        size > 1 and have != want
        for size, have, want in zip(x.shape, x.strides, (*strides, x.itemsize), strict=True)
    ):
        raise ValueError(f"x has byte strides {x.strides}, but the map {(*strides, x.itemsize)}")
    spatial = range(1, 6 - x.ndim)
    return np.expand_dims(x.view(f"u{x.itemsize}"), tuple(spatial))


def fill_bits(map: TensorMap) -> np.unsignedinteger[Any]:
    """The bits of a filled element: zero, or a NaN whose 16-bit parts are all `NAN_BITS`."""
    unsigned = np.dtype(f"u{map.itemsize}")
    if map.oob_fill != "nan":
        return unsigned.type(0)  # type: ignore[no-any-return]
    parts = np.full(map.itemsize // 2, NAN_BITS, np.uint16)
    return parts.view(unsigned)[0]  # type: ignore[no-any-return]


def _kept(rank: int) -> list[int]:
    """Columns of (n, d, h, w) that a tensor of this rank has."""
    return [0, *range(6 - rank, 4)]


def _check_interleave(map: TensorMap) -> None:
    if map.interleave != "none":
        raise ValueError(
            f"interleave {map.interleave!r} is checked but not simulated; "
            "only maps with interleave 'none' can be walked"
        )
