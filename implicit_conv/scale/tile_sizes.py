"""How large a tile may be: bytes of memory, and the chunks that files have."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

from implicit_conv.arrays.arrays import numpy_dtype
from implicit_conv.errors import ShapeError
from implicit_conv.scale.operation import Operation

UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
UNITS |= {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}
# The least extent of a tile in taps, if memory allows, along axes whose halos are read twice.
TAPS_ACROSS = 8


def parse_bytes(memory: object) -> int:
    """A number of bytes, such as 2e9, "2 GB" or "1.5 GiB".

    Raises
    ------
    ShapeError
        It is not one.
    """
    if isinstance(memory, (int, float)) and not isinstance(memory, bool) and memory > 0:
        return int(memory)
    found = re.fullmatch(
        r"\s*(\d+\.?\d*)\s*([A-Za-z]*)\s*", memory if isinstance(memory, str) else ""
    )
    if found is None or found[2].upper() not in UNITS:
        raise ShapeError(f"memory is {memory!r}; give bytes, or a text such as '2 GB' or '512 MiB'")
    return int(float(found[1]) * UNITS[found[2].upper()])


def text(count: float) -> str:
    """A number of bytes for people."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def tile_bytes(own: Operation, tile: Sequence[int], along: int, chunk: int, threads: int) -> int:
    """Bytes of the tiles that are in memory at a time."""
    shape = []
    for axis, (letter, size, pixels) in enumerate(zip(own.letters, own.x_shape, tile, strict=True)):
        needed = pixels
        if letter in own.axes:
            first, end = own.axes[letter].span(0, pixels)
            needed = min(end - first + 1, size + max(0, own.axes[letter].pad_lo))
        elif letter == "C":
            needed = size
        shape.append(min(size, needed + chunk - 1) if axis == along else needed)
    x = math.prod(shape) * numpy_dtype(own.x_dtype).itemsize
    y = math.prod(tile) * numpy_dtype(own.y_dtype).itemsize
    return int((threads + 2) * x + 2 * y)


def largest_tile(
    own: Operation, chunks: Sequence[int], steps: Sequence[int], memory: int, threads: int
) -> tuple[tuple[int, ...], int]:
    """The largest tiles that memory holds, and the axis that they follow.

    Images are divided first, then planes, rows and columns. Tiles follow the first of these axes
    that is divided, along which halos are read once.

    Parameters
    ----------
    chunks, steps : sequence of ints
        The chunks of x, and those of the output, of which tiles are multiples if memory allows.

    Raises
    ------
    ShapeError
        Memory does not hold the smallest tile.
    """
    spatial = [own.letters.index(letter) for letter in own.axes]
    for along in spatial:
        tile = _tile(own, chunks[along], steps, memory, (along, threads))
        if tile[along] < own.y_shape[along]:
            return tile, along
    return tile, spatial[0]


def _tile(
    own: Operation, chunk: int, steps: Sequence[int], memory: int, reading: tuple[int, int]
) -> tuple[int, ...]:
    """The largest tiles that follow one another along an axis; `reading` is (axis, threads)."""
    tile, (along, threads) = list(own.y_shape), reading
    order = [own.letters.index(letter) for letter in ("N", *own.axes) if letter in own.letters]

    def fits(axis: int, pixels: int) -> bool:
        tried = [*tile[:axis], pixels, *tile[axis + 1 :]]
        return tile_bytes(own, tried, along, chunk, threads) <= memory

    for generous in (True, False):
        for axis in order:
            letter, most = own.letters[axis], tile[axis]
            if fits(axis, most):
                return tuple(tile)
            floor = 1
            if generous and letter in own.axes:
                taps = own.axes[letter].taps * (1 if axis == along else TAPS_ACROSS)
                floor = min(most, max(steps[axis], taps))
            low, high = floor, most
            while low < high:  # the largest extent that fits, or the floor
                middle = (low + high + 1) // 2
                low, high = (middle, high) if fits(axis, middle) else (low, middle - 1)
            tile[axis] = low - low % steps[axis] if low >= steps[axis] else low
    if not fits(along, tile[along]):
        needed = tile_bytes(own, tile, along, chunk, threads)
        raise ShapeError(
            f"memory is {memory} bytes, but the smallest tile, of shape {tuple(tile)}, needs "
            f"{needed}; pass memory={needed} or more, or fewer threads than {threads}"
        )
    return tuple(tile)


def chunks_of(array: Any, rank: int) -> tuple[int, ...]:
    """The chunks, or shards, of an array on disk; 1 along each axis for one without."""
    chunks = getattr(array, "shards", None) or getattr(array, "chunks", None)
    if chunks is None or len(chunks) != rank or not all(isinstance(n, int) for n in chunks):
        return (1,) * rank
    return tuple(chunks)
