"""Arrays on disk as tasks carry them: other processes open the file again, nothing is copied."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from implicit_conv.arrays.arrays import Array
from implicit_conv.process.preparation import imported
from implicit_conv.scale.mapped import placed


class FileArray:
    """An array of a file, which a pickle opens again instead of copying it.

    Parameters
    ----------
    array : array with numpy's indexing
    opened : function, optional
        It opens the array in another process, when it is called with `place`; without one a pickle
        has the array's own, as zarr arrays open themselves.
    place : tuple
    """

    def __init__(
        self, array: Any, opened: Callable[..., Any] | None = None, place: tuple[Any, ...] = ()
    ) -> None:
        self.array, self._opened, self._place = array, opened, place
        self.shape, self.dtype = tuple(array.shape), array.dtype

    def __getitem__(self, index: Any) -> Any:
        return self.array[index]

    def __reduce__(self) -> tuple[Any, ...]:
        if self._opened is None:
            return FileArray, (self.array,)
        return _reopened, (self._opened, self._place)


@functools.lru_cache(64)  # files that a worker keeps open
def _reopened(opened: Callable[..., Any], place: tuple[Any, ...]) -> FileArray:
    return FileArray(opened(*place), opened, place)


def file_array(x: Any) -> FileArray | None:
    """`x` as tasks carry it, if it can be sliced on disk; None for arrays in memory."""
    if isinstance(x, np.ndarray):
        return _memmap(x)
    h5py = imported("h5py")
    if h5py is not None and isinstance(x, h5py.Dataset):
        return FileArray(x, _open_hdf5, (x.file.filename, x.name))
    if hasattr(x, "dask") or not all(
        hasattr(x, name) for name in ("shape", "dtype", "__getitem__")
    ):
        return None
    return FileArray(x)


def _memmap(x: Array) -> FileArray | None:
    """A memory-mapped array or a view of one; None for other arrays, and for private copies."""
    place = placed(x) if isinstance(x, np.memmap) else None
    if place is None:
        return None
    file, first, _ = place
    return FileArray(x, _open_memmap, (file, first, x.dtype.str, x.shape, x.strides))


def _open_memmap(
    filename: str, offset: int, dtype: str, shape: tuple[int, ...], strides: tuple[int, ...]
) -> Array:
    content = np.memmap(filename, np.uint8, "r")
    return np.ndarray(shape, dtype, content, offset, strides)


def _open_hdf5(filename: str, name: str) -> Any:
    import h5py

    return h5py.File(filename, "r")[name]
