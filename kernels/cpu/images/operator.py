"""Launches of filters of images, and the parts of those of sums."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from implicit_conv.kernels.cpu.images.layout import AFTER, BEFORE, LOAD, MIDDLE, ROUND, STORE, Order
from implicit_conv.kernels.cpu.runtime.call import Call, Filter, record_of
from implicit_conv.kernels.cpu.runtime.code import code, python_code
from implicit_conv.kernels.cpu.runtime.launch import Launch
from implicit_conv.kernels.cpu.runtime.layout import LINE, ScratchLayout
from implicit_conv.kernels.cpu.runtime.pool import POOL
from implicit_conv.kernels.geometry import NO_GEOMETRY

Parts = dict[int, tuple[Any, ...]]  # by slot, what makes a part, and the arguments of this

address = python_code(".runtime.compiled.start:ADDRESS")  # of the elements of an array
FILTER = ".images.compiled.rows:FILTER"  # what makes the entry of a filter of sums


def parts_of(
    dtypes: tuple[str, str, str],
    fma: bool,
    nearest: bool,
    orders: Sequence[Order | None],
    rounds: bool,
) -> Parts:
    """The parts of a filter of sums: `dtypes` are those of x, sums and y, and `orders` those of the
    passes, None for one that is none. `fma` says whether products may be added without rounding,
    `nearest` whether results are the nearest integers, and `rounds` whether elements are rounded
    between passes.
    """
    x, sums, y = dtypes
    parts: Parts = {
        LOAD: (".images.compiled.elements:make_load_elements", x, sums),
        STORE: (".images.compiled.elements:make_store_row", sums, y, nearest),
    }
    if rounds:
        parts[ROUND] = ".images.compiled.elements:make_round_row", sums, y
    for slot, order in zip((BEFORE, MIDDLE, AFTER), orders, strict=True):
        if order is not None:
            size = np.dtype(sums).itemsize
            parts[slot] = ".images.compiled.sums:make_sum_rows", order, size, fma
    return parts


def copy(size: int) -> tuple[Any, ...]:
    """The part that loads elements of `size` bytes as they are."""
    return ".images.compiled.tiles:make_copy_elements", size


def launch_of(
    entry: str, parts: Parts, fields: Any, items: int, scratch: int, threads: int, keep: Any
) -> Launch:
    """The launch of items that read `fields`, as `ImageLaunch` has it; a run may have a second
    operand.

    Raises
    ------
    CompilationError
        This thread must not compile; see `preparation`.
    """
    table = np.zeros(1 + max(parts, default=0), np.int64)
    for slot, part in parts.items():
        table[slot] = code(*part).address()
    record = np.array(_nested(fields), record_of(fields))
    call = Call(
        w=Filter(address=1), kernels=table.ctypes.data, image=record.ctypes.data, items=items
    )
    layout, kept = ScratchLayout(scratch), (table, record, keep)
    return Launch(code(entry).address(), NO_GEOMETRY, layout, threads, call, kept)


class ImageLaunch:
    """A filter that is ready for images of one shape with these strides.

    Attributes
    ----------
    in_place : bool
        Whether it may write its results over x.
    """

    def __init__(
        self,
        entry: str,
        parts: Parts,
        fields: Any,
        items: int,
        scratch: int,
        threads: int,
        keep: Any,
        *,
        in_place: bool = False,
        checks: bool = False,
    ) -> None:
        """`entry` is what makes the entry, and `fields` are what items read. `scratch` are the
        bytes of a thread, and `keep` owns what addresses point to. A launch that `checks` elements
        has a cache line for each thread at the address of panels, not zero once a check has failed.

        Raises
        ------
        CompilationError
            This thread must not compile; see `preparation`.
        """
        self.in_place, self._passed = in_place, bytes(checks * threads * LINE)
        self._launch = launch_of(entry, parts, fields, items, scratch, threads, keep)

    def run(self, x: Any, y: Any) -> bool:
        """Filter x into y, arrays; returns False where a check has failed: y is not the result."""
        failed = np.zeros(len(self._passed), np.uint8) if self._passed else None
        block = POOL.take(self._launch.bytes)
        try:
            noted = 0 if failed is None else address(failed)
            self._launch.run(block.address, address(x), 0, address(y), noted)
        finally:
            POOL.give(block)
        return failed is None or failed.tobytes() == self._passed


def _nested(fields: Any) -> tuple[Any, ...]:
    return tuple(_nested(value) if isinstance(value, tuple) else value for value in fields)
