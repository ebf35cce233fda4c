"""Convolutions of dask arrays: lazy, with exact chunks, and one task for each chunk of the result
where x can be sliced on disk.

An x that is a file, or ``dask.array.from_array`` of one, is read by the tasks themselves, each with
its halo. Other arrays are given their halos by ``dask.array.map_overlap``; only chunks at a border
of x are padded. A task computes with one thread, as dask runs a task on each thread of a worker;
IMPLICIT_CONV_NUM_THREADS sets another number. The page "Arrays larger than memory" is the guide.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from implicit_conv.arrays.arrays import Array, numpy_dtype
from implicit_conv.blocks import Axis, Block, ranges
from implicit_conv.errors import DTypeError, PlanError, ShapeError, install
from implicit_conv.scale import lazy
from implicit_conv.scale.documentation import Door
from implicit_conv.scale.operation import Operation, read
from implicit_conv.scale.sources import file_array

try:
    import dask
    import dask.array as da
    from dask._task_spec import DataNode, TaskRef
    from dask.base import tokenize
    from dask.blockwise import Blockwise, blockwise
    from dask.highlevelgraph import HighLevelGraph, MaterializedLayer
    from dask.layers import ArraySliceDep
except ImportError as error:
    raise ImportError(
        f"implicit_conv.dask needs dask 2025.1 or newer: {install('dask[array]>=2025.1')}"
    ) from error

Chunks = tuple[tuple[int, ...], ...]  # the sizes of the chunks along each axis
SMALL_FILTER = 1 << 14  # bytes of a filter that every task carries; a larger one is a task itself
REACH = "a chunk of the result reads {} pixels before and {} after those of its chunk of x"


def _lazy(made: Callable[..., Operation], name: str, x: Any, *args: Any, **kwargs: Any) -> Any:
    """The dask array that the function `name` makes of `x`; `made` is what a task computes."""
    if type(x).__module__.startswith("xarray."):
        raise DTypeError(
            "x is an array of xarray; pass x.data, or keep its dimensions as the page "
            '"Arrays larger than memory" shows'
        )
    source, chunks, token = _source(x)
    if source is None and not isinstance(x, da.Array):
        x = da.from_array(x)
        chunks, token = x.chunks, x.name
    if any(math.isnan(size) for parts in chunks for size in parts):
        raise ShapeError("chunks of x have unknown sizes; call x.compute_chunk_sizes() first")
    own: Operation = made(name, x, *args, **kwargs)
    result = f"{name}-{tokenize(token, chunks, own.token, own.filters[1:], own.options, own.axes)}"
    if source is not None:
        return _from_source(own, source, chunks, result)
    return _from_chunks(own, x, result)


def _source(x: Any) -> tuple[Any, Chunks, object]:
    """The file that x is, or is a lazy copy of; the chunks of x, and what x is known by."""
    if isinstance(x, da.Array):
        return _copied_file(x), x.chunks, x.name
    source = file_array(x)
    if source is None:
        return None, (), None
    own = getattr(x, "chunks", None)
    chunks = da.core.normalize_chunks("auto", source.shape, dtype=source.dtype, previous_chunks=own)
    return source, chunks, tokenize(x)


def _copied_file(x: Any) -> Any:
    """What ``from_array`` has made `x` of, if it can be sliced and nothing else was done to it: a
    file, or an array in memory, as from_array itself copies a numpy.memmap to memory.
    """
    layer = x.dask.layers.get(x.name)
    if not isinstance(layer, Blockwise) or len(layer.indices) != 2:
        return None
    (array, index), (slices, _) = layer.indices
    if index is not None or not isinstance(layer.io_deps.get(slices), ArraySliceDep):
        return None
    if layer.task.func not in (da.core.getter, da.core.getter_nofancy, da.core.getter_inline):
        return None
    if layer.task.kwargs.get("lock"):  # the caller's lock guards more than these reads, perhaps
        return None
    if isinstance(array, TaskRef):
        array = x.dask.layers[array.key][array.key]
    array = getattr(array, "value", array)
    return array if isinstance(array, np.ndarray) else file_array(array)


def _from_source(own: Operation, source: Any, chunks: Chunks, name: str) -> Any:
    """A task for each chunk of the result, which reads what it needs."""
    parts: list[tuple[int, ...]] = []
    for letter, size, sizes in zip(own.letters, own.y_shape, chunks, strict=True):
        if letter in own.axes:
            parts.append(tuple(n for n in own.axes[letter].chunks(sizes) if n))
        else:
            parts.append((size,) if letter == "C" else tuple(sizes))
    layers: dict[str, Any] = {}

    def shared(word: str, value: Any) -> Any:
        """A value that is no part of the tasks that read it."""
        key = f"{word}-{name}"
        layers[key] = MaterializedLayer({key: value})
        return TaskRef(key)

    if isinstance(source, np.ndarray):
        source = shared("source", source)
    filters: Any = own.filters
    if _is_large(filters):
        filters = shared("filters", DataNode(f"filters-{name}", filters))
    axes, places = tuple(range(len(parts))), ArraySliceDep(tuple(parts))
    given = (source, None, own.with_filters(None, None, None), None, filters, None)
    layer = blockwise(_read_block, name, axes, places, axes, *given, numblocks={})
    dependencies = {name: set(layers), **{key: set() for key in layers}}
    graph = HighLevelGraph({**layers, name: layer}, dependencies)
    return da.Array(graph, name, tuple(parts), meta=_meta(own))


def _is_large(filters: Sequence[Any]) -> bool:
    return bool(sum(part.nbytes for part in filters if part is not None) > SMALL_FILTER)


def _read_block(
    place: tuple[slice, ...], source: Any, own: Operation, filters: tuple[Any, ...]
) -> Array:
    """The task of a chunk of the result at `place`."""
    blocks = own.spans([(part.start, part.stop) for part in place])
    x = read(source, blocks, numpy_dtype(own.x_dtype))
    with lazy.task_threads():
        return own.with_filters(*filters).compute(x, blocks)


def _meta(own: Operation) -> Array:
    return np.empty((0,) * len(own.y_shape), numpy_dtype(own.y_dtype))


class Halo(NamedTuple):
    """What chunks are given along an axis, besides their own pixels.

    Attributes
    ----------
    depth : (before, after)
    round : bool
        Whether the first chunk and the last one are given pixels of each other's.
    chunks : tuple of ints
        The chunks of x.
    outputs : tuple of ints
        The chunks of the result.
    """

    depth: tuple[int, int]
    round: bool
    chunks: tuple[int, ...]
    outputs: tuple[int, ...]

    def first(self, chunk: int) -> int:
        """The position of the first pixel that a chunk is given."""
        inner = self.round or chunk > 0
        return sum(self.chunks[:chunk]) - (self.depth[0] if inner else 0)

    def fault(self) -> str | None:
        """Why these chunks do not do, if they do not."""
        if min(self.outputs) < 1:
            return f"chunk {self.outputs.index(min(self.outputs))} has no pixel of the result"
        if max(self.depth) > min(self.chunks):
            return REACH.format(*self.depth) + f", but the smallest one has {min(self.chunks)}"
        return None


def _halo(axis: Axis, chunks: tuple[int, ...]) -> Halo:
    outputs = axis.chunks(chunks)
    # A single chunk has all pixels that padding repeats.
    around = len(chunks) > 1 and axis.mode == "circular" and max(axis.pad_lo, axis.pad_hi) > 0
    before = after = 0
    for own, place in zip(ranges(chunks), ranges(outputs), strict=True):
        if place[0] == place[1]:
            continue
        if around:
            low, high = axis.span(*place)
        else:
            block = axis.block(*place)
            low, high = block.extent if block.runs else own
        before, after = max(before, own[0] - low), max(after, high - own[1])
    if around:  # dask has no chunks that go round with two depths
        before = after = max(before, after)
    return Halo((before, after), around, chunks, outputs)


def _checked_halo(own: Operation, letter: str, position: int, chunks: tuple[int, ...]) -> Halo:
    """The halo along a spatial axis.

    Raises
    ------
    PlanError
        Chunks are too small, or circular padding also crops.
    """
    axis = own.axes[letter]
    halo = _halo(axis, chunks)
    if halo.round and min(axis.pad_lo, axis.pad_hi) < 0:
        raise PlanError(
            f"padding ({axis.pad_lo}, {axis.pad_hi}) along {letter} crops x and goes round; crop x "
            "by slicing it, and rechunk it"
        )
    fault = halo.fault()
    if fault is None:
        return halo
    for count in range(len(chunks) - 1, 0, -1):  # one chunk always does
        size = -(-axis.size // count)
        parts = (*(size,) * (axis.size // size), *(n for n in (axis.size % size,) if n))
        if _halo(axis, parts).fault() is None or count == 1:
            break
    raise PlanError(
        f"chunks of x along axis {position} are {_short(chunks)}: {fault}; use "
        f"x.rechunk({{{position}: {size}}}), or the file that x is made of"
    )


def _short(chunks: Sequence[int]) -> str:
    if len(chunks) <= 6:
        return str(tuple(chunks))
    return f"({', '.join(map(str, chunks[:3]))}, ..., {chunks[-1]})"


def _from_chunks(own: Operation, x: Any, name: str) -> Any:
    """The result of an array in memory, or of lazy steps: dask gives each chunk its halo."""
    halos: dict[str, Halo] = {}
    depth: dict[int, Any] = {}
    boundary: dict[int, str] = {}
    parts: list[tuple[int, ...]] = []
    for position, (letter, size) in enumerate(zip(own.letters, own.y_shape, strict=True)):
        if letter in own.axes:
            halo = _checked_halo(own, letter, position, x.chunks[position])
            halos[letter], depth[position] = halo, halo.depth
            if halo.round:
                depth[position], boundary[position] = halo.depth[0], "periodic"
            parts.append(halo.outputs)
        elif letter == "C" and len(x.chunks[position]) > 1:
            raise PlanError(
                f"chunks of x along axis {position} are {_short(x.chunks[position])}: a pixel of "
                f"the result sums over all channels; use x.rechunk({{{position}: -1}}), or the "
                "file that x is made of"
            )
        else:
            parts.append((size,) if letter == "C" else x.chunks[position])
    filters: Any = own.filters
    if _is_large(filters):
        filters = dask.delayed(filters, name=f"filters-{name}", traverse=False)
    return da.map_overlap(
        _halo_block,
        x,
        depth={axis: depth.get(axis, 0) for axis in range(x.ndim)},
        boundary={axis: boundary.get(axis, "none") for axis in range(x.ndim)},
        trim=False,
        allow_rechunk=False,
        chunks=tuple(parts),
        dtype=numpy_dtype(own.y_dtype),
        meta=_meta(own),
        name=name,
        own=own.with_filters(None, None, None),
        filters=filters,
        halos=halos,
    )


def _halo_block(
    x: Array,
    own: Operation,
    filters: tuple[Any, ...],
    halos: dict[str, Halo],
    block_id: tuple[int, ...],
) -> Array:
    """The task of a chunk of the result whose pixels, with their halo, are `x`."""
    blocks = []
    for letter, size, chunk in zip(own.letters, x.shape, block_id, strict=True):
        if letter not in halos:
            blocks.append(Block((slice(0, size),), (0, 0)))
            continue
        halo, axis = halos[letter], own.axes[letter]
        start = sum(halo.outputs[:chunk])
        place, first = (start, start + halo.outputs[chunk]), halo.first(chunk)
        if halo.round:
            low, high = axis.span(*place)
            blocks.append(Block((slice(low - first, high - first),), (0, 0)))
        else:
            blocks.append(axis.block(*place).moved(-first))
    with lazy.task_threads():
        return own.with_filters(*filters).compute(read(x, blocks, x.dtype), blocks)


functions = lazy.functions(
    _lazy,
    Door(
        "dask",
        "dask.array as da",
        "dask array, zarr array, h5py dataset, numpy.memmap, or another with numpy's indexing",
        "; or chunks do not do, and the message says which ones do",
    ),
)
