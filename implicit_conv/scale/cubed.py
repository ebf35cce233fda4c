"""Convolutions and filters of cubed arrays: lazy, and within the memory that a task may take.

A task is given the pixels that its chunk of the result needs, and no more, which count towards the
memory that cubed projects; it computes with one thread, if no other number is set.
The page "Arrays larger than memory" is the guide.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from implicit_conv.arrays.arrays import Array, numpy_dtype
from implicit_conv.blocks import Block, ranges
from implicit_conv.errors import install
from implicit_conv.scale import lazy
from implicit_conv.scale.documentation import Door
from implicit_conv.scale.operation import Operation, Span, read

try:
    from cubed.core.ops import map_selection
except ImportError as error:
    raise ImportError(
        f"implicit_conv.cubed needs cubed 0.27 or newer: {install('cubed>=0.27')}"
    ) from error


class Chunks:
    """What the tasks of a result compute.

    Parameters
    ----------
    own : Operation
    spans : sequence of sequences of (start, stop)
        The chunks of the result along each axis.
    """

    def __init__(self, own: Operation, spans: Sequence[Sequence[Span]]) -> None:
        self._own, self._spans = own, spans

    def blocks(self, chunk: Sequence[int]) -> list[Block]:
        """What a chunk of the result needs."""
        place = [spans[at] for spans, at in zip(self._spans, chunk, strict=True)]
        return self._own.spans(place)

    def selected(self, key: Any) -> tuple[slice, ...]:
        """The part of x that the chunk with this key reads."""
        return tuple(slice(*block.extent) for block in self.blocks(key.coords))

    def largest(self) -> tuple[int, ...]:
        """The most pixels of x that a chunk reads along each axis."""
        found = []
        for axis, spans in enumerate(self._spans):
            chunk = [0] * len(self._spans)
            extents = []
            for chunk[axis] in range(len(spans)):
                first, end = self.blocks(chunk)[axis].extent
                extents.append(end - first)
            found.append(max(extents))
        return tuple(found)

    def compute(self, x: Array, block_id: tuple[int, ...]) -> Array:
        """A chunk of the result from the part of x that it reads."""
        blocks = [block.moved(-block.extent[0]) for block in self.blocks(block_id)]
        with lazy.task_threads():
            return self._own.compute(read(x, blocks, x.dtype), blocks)


def _lazy(made: Callable[..., Any], name: str, x: Any, *args: Any, **kwargs: Any) -> Any:
    """The cubed array that the function `name` makes of `x`; `made` is what a task computes."""
    own, sizes = made(name, x, *args, **kwargs), []
    for letter, size, out, chunk in zip(
        own.letters, own.x_shape, own.y_shape, x.chunksize, strict=True
    ):
        step = out if letter == "C" else -(-out * chunk // size)  # cubed has chunks of one size
        sizes.append(tuple(min(step, out - start) for start in range(0, out, step)))
    chunks = Chunks(own, [ranges(parts) for parts in sizes])
    pixels = chunks.largest()
    touched = [
        min(count, (most - 2) // size + 2)
        for most, size, count in zip(pixels, x.chunksize, x.numblocks, strict=True)
    ]
    filters = sum(part.nbytes for part in own.filters if part is not None)
    return map_selection(
        chunks.compute,
        chunks.selected,
        x,
        shape=own.y_shape,
        dtype=numpy_dtype(own.y_dtype),
        chunks=tuple(sizes),
        max_num_input_blocks=math.prod(touched),
        extra_projected_mem=2 * math.prod(pixels) * x.dtype.itemsize + 2 * filters,
    )


functions = lazy.functions(
    _lazy,
    Door(
        "cubed",
        "cubed.array_api as xp",
        "cubed array",
        "The input is a masked array. cubed drops masks itself: fill before `cubed.from_array`.",
    ),
)
