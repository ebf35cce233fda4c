"""Convolutions of dask arrays: lazy, with exact chunks, and one task for each chunk of the result
where x can be sliced on disk.

An x that is a file, or ``dask.array.from_array`` of one, is read by the tasks themselves, each with
its halo. Of other arrays each task is given the chunks that it reads of, whole; only chunks at a
border of x are padded. A task computes with one thread, as dask runs a task on each thread of a
worker; IMPLICIT_CONV_NUM_THREADS sets another number. The page "Arrays larger than memory" is the
guide.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from implicit_conv.arrays.arrays import Array, check_unmasked, numpy_dtype
from implicit_conv.blocks import ranges
from implicit_conv.errors import DTypeError, ShapeError, install
from implicit_conv.scale import lazy
from implicit_conv.scale.documentation import Door
from implicit_conv.scale.gathered import Gathered, chunks_read
from implicit_conv.scale.operation import Operation, Span, read
from implicit_conv.scale.sources import file_array

try:
    import dask.array as da
    from dask._task_spec import DataNode, Task, TaskRef
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


def _lazy(made: Callable[..., Operation], name: str, x: Any, *args: Any, **kwargs: Any) -> Any:
    """The dask array that the function `name` makes of `x`; `made` is what a task computes."""
    if type(x).__module__.startswith("xarray."):
        raise DTypeError(
            "x is an array of xarray; pass x.data, or keep its dimensions as the page "
            '"Arrays larger than memory" shows'
        )
    check_unmasked("x", x)
    check_unmasked("x", getattr(x, "_meta", None), "dask.array.ma.filled({name}, 0)")
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
    parts = _parts(own, chunks)
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
    axes, places = tuple(range(len(parts))), ArraySliceDep(parts)
    given = (source, None, own.with_filters(None, None, None), None, filters, None)
    layer = blockwise(_read_block, name, axes, places, axes, *given, numblocks={})
    dependencies = {name: set(layers), **{key: set() for key in layers}}
    graph = HighLevelGraph({**layers, name: layer}, dependencies)
    return da.Array(graph, name, parts, meta=_meta(own))


def _parts(own: Operation, chunks: Chunks) -> Chunks:
    """The chunks of the result, of which none is empty; channels are one."""
    parts: list[tuple[int, ...]] = []
    for letter, size, sizes in zip(own.letters, own.y_shape, chunks, strict=True):
        if letter in own.axes:
            parts.append(tuple(n for n in own.axes[letter].chunks(sizes) if n))
        else:
            parts.append((size,) if letter == "C" else tuple(sizes))
    return tuple(parts)


def _is_large(filters: Sequence[Any]) -> bool:
    return bool(sum(part.nbytes for part in filters if part is not None) > SMALL_FILTER)


def _read_block(
    place: tuple[slice, ...], source: Any, own: Operation, filters: tuple[Any, ...]
) -> Array:
    """The task of a chunk of the result at `place` that reads a file."""
    return _block([(part.start, part.stop) for part in place], source, own, filters)


def _block(place: Sequence[Span], source: Any, own: Operation, filters: tuple[Any, ...]) -> Array:
    blocks = own.spans(place)
    x = read(source, blocks, numpy_dtype(own.x_dtype))
    with lazy.task_threads():
        return own.with_filters(*filters).compute(x, blocks)


def _meta(own: Operation) -> Array:
    return np.empty((0,) * len(own.y_shape), numpy_dtype(own.y_dtype))


def _from_chunks(own: Operation, x: Any, name: str) -> Any:
    """A task for each chunk of the result, which is given the chunks of x that it reads."""
    parts = _parts(own, x.chunks)
    layer: dict[Any, Any] = {}
    filters: Any = own.filters
    if _is_large(filters):
        shared = f"filters-{name}"
        layer[shared], filters = DataNode(shared, filters), TaskRef(shared)
    small = own.with_filters(None, None, None)
    axes = [
        [
            (at, span, *_reads(own, axis, span, x.chunks[axis]))
            for at, span in enumerate(ranges(sizes))
        ]
        for axis, sizes in enumerate(parts)
    ]
    for chunk in itertools.product(*axes):
        # An image of one pixel has no axes.
        where, place, needed, starts = zip(*chunk, strict=True) if chunk else [()] * 4
        given = (TaskRef((x.name, *each)) for each in itertools.product(*needed))
        key = (name, *where)
        layer[key] = Task(key, _gather_block, place, starts, small, filters, *given)
    graph = HighLevelGraph.from_collections(name, layer, dependencies=[x])
    return da.Array(graph, name, parts, meta=_meta(own))


def _reads(
    own: Operation, axis: int, span: Span, sizes: Sequence[int]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The chunks of x along an axis that these pixels of the result read; their first pixels."""
    starts = [start for start, _ in ranges(sizes)]
    found = chunks_read(own.block(axis, *span), starts)
    return tuple(found), tuple(starts[chunk] for chunk in found)


def _gather_block(
    place: tuple[Span, ...],
    starts: tuple[tuple[int, ...], ...],
    own: Operation,
    filters: tuple[Any, ...],
    *chunks: Array,
) -> Array:
    """The task of a chunk of the result at `place` that reads these chunks of x."""
    return _block(place, Gathered(starts, chunks), own, filters)


functions = lazy.functions(
    _lazy,
    Door(
        "dask",
        "dask.array as da",
        "dask array, zarr array, h5py dataset, numpy.memmap, or another with numpy's indexing",
        "The input has a mask, or a task reads masked elements.",
    ),
)
