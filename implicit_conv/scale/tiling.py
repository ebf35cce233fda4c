"""Arrays larger than memory in one process: tiles are read ahead, computed and written in turn.

Any source and any output with numpy's indexing will do: numpy.memmap, zarr and h5py, for example.
"""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from implicit_conv.arrays.arrays import Array, check_unmasked_out, numpy_dtype
from implicit_conv.blocks import Block
from implicit_conv.errors import DTypeError, ShapeError, TileError
from implicit_conv.scale.mapped import check_length, reserve
from implicit_conv.scale.operation import Operation, Span, digest, read
from implicit_conv.scale.record import UNKNOWN, Record, record_file
from implicit_conv.scale.tile_sizes import text, tile_bytes

Progress = Callable[[int, int], object]  # of the tiles done, and of all
RESUME = "resume"  # start after the tiles that are written


class Read(NamedTuple):
    """The pixels of x that a tile has in memory.

    Attributes
    ----------
    blocks : list of Block
        What the tile needs, by the axis of x.
    extent : slice or None
        What is read along the axis that tiles follow: `blocks`, up to the end of a chunk of the
        source; None if the pixels of this axis are not one run.
    """

    blocks: list[Block]
    extent: slice | None


Ahead = tuple[tuple[Span, ...], Read, "Future[Array]"]  # a tile that is read, or being read


@dataclass(frozen=True, eq=False)
class Tiling:
    """How an operator is computed tile by tile; `plan_tiles` makes it.

    Attributes
    ----------
    operation : Operation
    tile : tuple of ints
        The shape of a tile of the output.
    along : int
        The axis that tiles follow one another along; each pixel of it is read once.
    chunk : int
        The pixels of a chunk of the source along this axis.
    memory : int
        Bytes that the tiles in memory may take.
    threads : int
        Threads that read ahead.
    """

    operation: Operation
    tile: tuple[int, ...]
    along: int
    chunk: int
    memory: int
    threads: int

    def __len__(self) -> int:
        return math.prod(map(len, self._spans()))

    def _spans(self) -> list[list[Span]]:
        return [
            [(start, min(start + step, size)) for start in range(0, size, step)]
            for size, step in zip(self.operation.y_shape, self.tile, strict=True)
        ]

    def places(self) -> Iterator[tuple[Span, ...]]:
        """The tiles in the order in which they are computed."""
        spans = self._spans()
        axes = sorted(range(len(spans)), key=lambda axis: axis == self.along)
        for place in itertools.product(*(spans[axis] for axis in axes)):
            yield tuple(span for _, span in sorted(zip(axes, place, strict=True)))

    def read_of(self, place: Sequence[Span]) -> Read:
        """What the tile at this place needs."""
        blocks = self.operation.spans(place)
        runs = blocks[self.along].runs
        if len(runs) != 1:
            return Read(blocks, None)
        size = self.operation.x_shape[self.along]
        end = min(size, -(-runs[0].stop // self.chunk) * self.chunk)
        return Read(blocks, slice(runs[0].start, end))

    @property
    def bytes_read(self) -> int:
        """Bytes that are read of x."""
        pixels = 1
        for axis, spans in enumerate(self._spans()):
            along, found, last = axis == self.along, 0, 0
            for span in spans:
                place = [(0, 1)] * len(self.tile)
                place[axis] = span
                needed = self.read_of(place)
                if along and needed.extent is not None:
                    found += max(0, needed.extent.stop - max(last, needed.extent.start))
                    last = needed.extent.stop
                else:
                    found += sum(Block((run,), (0, 0)).pixels for run in needed.blocks[axis].runs)
                    last = 0
            pixels *= found
        return int(pixels * numpy_dtype(self.operation.x_dtype).itemsize)

    @property
    def tile_bytes(self) -> int:
        """Bytes of the tiles in memory at a time: those read ahead, and one that is written."""
        return tile_bytes(self.operation, self.tile, self.along, self.chunk, self.threads)

    def explain(self, bytes_per_second: float = 1e9) -> str:
        """A text for people: the tiles, what they read, and the time that this takes.

        Parameters
        ----------
        bytes_per_second : float
            The rate at which the source is read and the output is written.
        """
        own = self.operation
        whole = math.prod(own.x_shape) * numpy_dtype(own.x_dtype).itemsize
        written = math.prod(own.y_shape) * numpy_dtype(own.y_dtype).itemsize
        moved = (self.bytes_read + written) / bytes_per_second
        middle = [spans[len(spans) // 2] for spans in self._spans()]
        computed = len(self) * own.seconds(own.spans(middle))
        letter = own.letters[self.along]
        return "\n".join(
            (
                f"{own.name}: x {own.x_shape} {own.x_dtype} -> y {own.y_shape} {own.y_dtype}",
                f"tiles:  {len(self)} of y {self.tile}, one after another along {letter}",
                f"memory: {text(self.tile_bytes)} of {text(self.memory)}, "
                f"{self.threads} tiles read ahead",
                f"reads:  {text(self.bytes_read)}, {self.bytes_read / whole:.3f} times x",
                f"writes: {text(written)}",
                f"time:   {max(moved, computed):.1f} s: {moved:.1f} s of reading and writing at "
                f"{text(bytes_per_second)}/s, beside {computed:.1f} s of arithmetic (estimated)",
            )
        )

    def run(self, x: Any, out: Any, start: int | str = 0, progress: Progress | None = None) -> None:
        """Compute the tiles from index `start` on, or those that are left; see `tiles`."""
        check_unmasked_out(out)
        count, record = len(self), self._record(out)
        known = not isinstance(start, str) and 0 <= start <= count
        if not (known or (start == RESUME and record is not None)):
            raise ShapeError(
                f"start is {start!r}, but there are {count} tiles; pass 0 to {count}, or "
                f"{RESUME!r} where out is a numpy.memmap or a zarr array of a folder"
            )
        try:
            check_length(x, "x")
            reserve(out)
        except OSError as error:
            raise TileError(
                f"no tile was computed: {error}; the same call with start={start!r} does the rest"
            ) from error
        written = self._written(out, record, start)
        done = len(written)
        direct = np.asarray(out) if isinstance(out, np.ndarray) else None
        with ThreadPoolExecutor(self.threads) as pool, ThreadPoolExecutor(1) as writer:
            pending: Future[Record | None] | None = None
            ahead = self._ahead(x, itertools.islice(self.places(), done, None), pool)
            try:
                kept = record if record is not None and record.begin(written) else None
                for place, needed, buffer in ahead:
                    index = _index(place)
                    view = self._needed(needed, buffer.result())
                    target = None if direct is None else direct[index]
                    y = self.operation.compute(view, needed.blocks, target)
                    if pending is not None:
                        kept = pending.result()
                        done = self._count(done, count, progress)
                    given = None if direct is not None else out
                    pending = writer.submit(_write, given, index, y, kept)
                if pending is not None:
                    pending.result()
                    done = self._count(done, count, progress)
            except DTypeError:  # of masked elements, which the same call would meet again
                raise
            except Exception as error:
                raise TileError(
                    f"after {done} of {count} tiles were written one failed: {error!r}; the same "
                    f"call with start={done} does the rest"
                ) from error
            except KeyboardInterrupt:
                logging.getLogger("implicit_conv").warning(
                    "stopped before tile %d of %d; the same call with start=%d does the rest",
                    *(done, count, done),
                )
                raise
            finally:
                ahead.close()
        if record is not None:
            record.end()

    def _record(self, out: Any) -> Record | None:
        """The file beside an output on disk."""
        file = record_file(out)
        return None if file is None else Record(file, self._computation())

    def _computation(self) -> dict[str, str]:
        """What the tiles are made of, but the content of x."""
        own = self.operation
        return {
            "operator": own.name,
            "x": f"{own.x_shape} {own.x_dtype}",
            "out": f"{own.y_shape} {own.y_dtype}",
            **{
                name: f"{value.shape} {value.dtype} {digest(value)}"
                for name, value in zip(("w", "bias", "scale"), own.filters, strict=True)
                if value is not None
            },
            "padding": repr([(axis.pad_lo, axis.pad_hi) for axis in own.axes.values()]),
            "options": repr(sorted(own.options.items())),
            "tiles (memory, threads)": f"{self.tile} along {self.along}",
        }

    def _written(self, out: Any, record: Record | None, start: int | str) -> list[str]:
        """A checksum for each tile that is written."""
        if record is None or start != RESUME:
            return [UNKNOWN] * int(start)
        return record.intact(np.asarray(out[_index(place)]) for place in self.places())

    @staticmethod
    def _count(done: int, count: int, progress: Progress | None) -> int:
        if progress is not None:
            progress(done + 1, count)
        return done + 1

    def _ahead(
        self, x: Any, places: Iterator[tuple[Span, ...]], pool: ThreadPoolExecutor
    ) -> Generator[Ahead, None, None]:
        """Each tile with its pixels, of which those of the next `threads` tiles are being read."""
        queue: list[Ahead] = []
        before: tuple[Read, Future[Array]] | None = None
        try:
            for place in places:
                needed = self.read_of(place)
                buffer = pool.submit(self._load, x, needed, before)
                before = needed, buffer
                queue.append((place, needed, buffer))
                if len(queue) > self.threads:
                    yield queue.pop(0)
            while queue:
                yield queue.pop(0)
        finally:
            for *_, buffer in queue:
                buffer.cancel()

    def _load(self, x: Any, needed: Read, before: tuple[Read, Future[Array]] | None) -> Array:
        """The pixels of a tile; those that the tile before has read are taken from there."""
        dtype = numpy_dtype(self.operation.x_dtype)
        if needed.extent is None:
            return np.array(read(x, needed.blocks, dtype))
        start, end = needed.extent.start, needed.extent.stop
        shape = [block.pixels for block in needed.blocks]
        shape[self.along] = end - start
        buffer, fresh = np.empty(shape, dtype), start
        blocks, along = list(needed.blocks), self.along
        if before is not None and _continues(before[0], needed, along):
            fresh = min(max(start, _stop(before[0])), end)
        blocks[along] = Block((slice(fresh, end),), (0, 0))
        if fresh < end:
            buffer[_along(along, slice(fresh - start, None))] = read(x, blocks, dtype)
        if fresh > start and before is not None:
            offset = start - before[0].extent.start  # type: ignore[union-attr]
            source = before[1].result()[_along(along, slice(offset, offset + fresh - start))]
            buffer[_along(along, slice(0, fresh - start))] = source
        return buffer

    def _needed(self, needed: Read, buffer: Array) -> Array:
        """The part of a buffer that a tile needs: without the rest of a chunk."""
        view: Array = buffer[_along(self.along, slice(0, needed.blocks[self.along].pixels))]
        return view


def _continues(before: Read, needed: Read, along: int) -> bool:
    """Whether a tile begins among pixels that the tile before it has read."""
    if before.extent is None or needed.extent is None:
        return False
    rest = [
        (a.runs, b.runs)
        for axis, (a, b) in enumerate(zip(before.blocks, needed.blocks, strict=True))
        if axis != along
    ]
    inside = before.extent.start <= needed.extent.start < before.extent.stop
    return inside and all(a == b for a, b in rest)


def _stop(needed: Read) -> int:
    assert needed.extent is not None
    return int(needed.extent.stop)


def _along(axis: int, part: slice) -> tuple[slice, ...]:
    return (*(slice(None) for _ in range(axis)), part)


def _index(place: Sequence[Span]) -> tuple[slice, ...]:
    return tuple(slice(*span) for span in place)


def _write(out: Any, index: tuple[slice, ...], y: Array, record: Record | None) -> Record | None:
    """Write a tile; the record that those after it are kept in."""
    if out is not None:
        out[index] = y
    return record if record is not None and record.add(y) else None
