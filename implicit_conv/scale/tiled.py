"""Convolve arrays larger than memory in one process, or plan how: what users call."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from implicit_conv.arrays.arrays import numpy_dtype
from implicit_conv.errors import ShapeError
from implicit_conv.scale.operation import Operation, operation
from implicit_conv.scale.tile_sizes import chunks_of, largest_tile, parse_bytes
from implicit_conv.scale.tiling import RESUME, Progress, Tiling
from implicit_conv.timing import show


def plan_tiles(
    x: Any,
    w: Any,
    bias: Any = None,
    *args: Any,
    out: Any = None,
    memory: object = "2 GB",
    operator: str | None = None,
    threads: int = 2,
    **options: Any,
) -> Tiling:
    """Plan how `tiles` computes these arrays, of which it reads shapes, dtypes and chunks alone.

    Parameters
    ----------
    x, w, bias, *args, out, memory, operator, threads, **options
        As in `tiles`.

    Returns
    -------
    plan : Tiling
        ``plan.explain()`` says what it reads and how long it takes, ``len(plan)`` is the number of
        tiles, and ``plan.run(x, out, start)`` computes them.

    Raises
    ------
    ShapeError, DTypeError, PlanError
        As in `tiles`.

    Examples
    --------
    >>> import numpy as np
    >>> from implicit_conv import plan_tiles
    >>> x = np.zeros((1, 4096, 4096), np.float32)
    >>> w = np.ones((1, 1, 5, 5), np.float32)
    >>> plan = plan_tiles(x, w, padding=2, memory="32 MB")
    >>> plan.bytes_read == x.nbytes
    True
    """
    name = operator or f"conv{max(1, np.ndim(w) - 2)}d"
    own = operation(name, x, w, bias, *args, **options)
    _check_out(own, x, out)
    if threads < 1:
        raise ShapeError(f"threads is {threads}; at least one reads")
    limit, rank = parse_bytes(memory), len(own.x_shape)
    chunks = chunks_of(x, rank)
    steps = chunks_of(out, rank)
    tile, along = largest_tile(own, chunks, steps, limit, threads)
    return Tiling(own, tile, along, chunks[along], limit, threads)


def _check_out(own: Operation, x: Any, out: Any) -> None:
    """Raise an error for an output that does not have the shape and dtype of the result."""
    if out is None:
        return
    if tuple(out.shape) != own.y_shape or np.dtype(out.dtype) != numpy_dtype(own.y_dtype):
        raise ShapeError(
            f"out has shape {tuple(out.shape)} and dtype {out.dtype}; the result has shape "
            f"{own.y_shape} and dtype {own.y_dtype}"
        )
    arrays = isinstance(x, np.ndarray) and isinstance(out, np.ndarray)
    if x is out or (arrays and np.may_share_memory(x, out)):
        raise ShapeError("out shares memory with x, of which later tiles read; pass another array")


def tiles(
    x: Any,
    w: Any,
    bias: Any = None,
    *args: Any,
    out: Any = None,
    memory: object = "2 GB",
    operator: str | None = None,
    start: int | str = 0,
    threads: int = 2,
    progress: Progress | bool = True,
    **options: Any,
) -> Any:
    """Convolve an array that does not fit in memory, tile by tile.

    Parameters
    ----------
    x : numpy.memmap, zarr array, h5py dataset, or another array with numpy's indexing
    w : array
        The filter, in memory.
    bias, *args, **options
        As in `operator`; blocks have neither residual nor device.
    out : array of the output's shape and dtype, optional
        The result is written to it, and it is returned; by default it is a new numpy array.
    memory : int or str
        Bytes that tiles in memory may take, as in "2 GB".
    operator : str, optional
        "conv1d", "conv_transpose2d" or another; by default the convolution that `w` fits.
    start : int or "resume"
        The index of the first tile to compute; a TileError says which one failed. "resume" goes on
        after the tiles that a call with the same arguments has written before it was stopped, which
        a file beside `out` says; without that file it computes all tiles, and where the file is
        damaged those from there on, with a warning. `out` is then a numpy.memmap or a zarr array of
        a folder. It is read again up to there, x is not.
    threads : int
        Threads that read ahead, each a tile. The arithmetic has all threads of the settings.
    progress : bool or function of (tiles done, tiles)
        True shows the tiles done if standard error is a terminal.

    Returns
    -------
    out : array

    Raises
    ------
    ShapeError, DTypeError, PlanError
        As in `operator`; or `out` does not fit, or memory does not hold the smallest tile; or the
        file beside `out` is of another computation; or slices of x have masked elements.
    TileError
        A tile could not be read, computed or written, the file of x or `out` is shorter than the
        array, or the disk has no room for `out`, which is reserved first (a RuntimeError).

    Examples
    --------
    >>> import numpy as np
    >>> from implicit_conv import conv2d, tiles
    >>> x = np.ones((1, 1, 300, 300), np.float32)
    >>> w = np.ones((1, 1, 3, 3), np.float32)
    >>> y = tiles(x, w, padding=1, memory="200 kB")
    >>> bool((y == conv2d(x, w, padding=1)).all())
    True
    """
    given: dict[str, Any] = {"memory": memory, "operator": operator, "threads": threads}
    plan = plan_tiles(x, w, bias, *args, out=out, **given, **options)
    if out is None:
        out = np.empty(plan.operation.y_shape, numpy_dtype(plan.operation.y_dtype))
    with _shown(len(plan), start, progress) as show:
        plan.run(x, out, start, show)
    return out


@contextmanager
def _shown(count: int, start: int | str, progress: Progress | bool) -> Iterator[Progress | None]:
    """What shows progress: a line of a terminal, a function of the caller's, or None."""
    if not isinstance(progress, bool):
        yield progress
        return
    if not progress:
        yield None
        return
    try:
        show(f"tile {0 if start == RESUME else start} of {count}")
        yield lambda done, _: show(f"tile {done} of {count}")
    finally:
        show("")
