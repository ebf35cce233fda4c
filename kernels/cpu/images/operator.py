"""Launches of filters of images."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from implicit_conv.kernels.cpu.images.layout import (
    AFTER,
    BEFORE,
    LAUNCH,
    LOAD,
    MIDDLE,
    ROUND,
    SLOTS,
    STORE,
    Filter,
    Order,
)
from implicit_conv.kernels.cpu.runtime import active_threads, launch
from implicit_conv.kernels.cpu.runtime.code import code, python_code
from implicit_conv.kernels.cpu.runtime.layout import round_up
from implicit_conv.kernels.cpu.runtime.pool import POOL


class Kinds(NamedTuple):
    """What parts depend on: the dtypes of x, sums and y, whether products may be added without
    rounding and results are the nearest integers, and the orders of the passes, None for one that
    is none.
    """

    x: str
    sums: str
    y: str
    fma: bool
    nearest: bool
    before: Order | None
    middle: Order | None
    after: Order | None


class ImageLaunch:
    """A filter that is ready for images of one shape with these strides.

    Attributes
    ----------
    in_place : bool
        Whether it may write its results over x.
    """

    def __init__(
        self,
        kinds: Kinds,
        fields: Filter,
        items: int,
        scratch: int,
        threads: int,
        keep: Any,
        in_place: bool,
    ) -> None:
        """`scratch` are the bytes of a thread, and `keep` owns what addresses point to.

        Raises
        ------
        CompilationError
            This thread must not compile; see `preparation`.
        """
        self.in_place = in_place
        table = np.zeros(SLOTS, np.int64)
        parts: dict[int, tuple[Any, ...]] = {
            LOAD: (".images.compiled.elements:make_load_row", kinds.x, kinds.sums),
            ROUND: (".images.compiled.elements:make_round_row", kinds.sums, kinds.y),
            STORE: (".images.compiled.elements:make_store_row", kinds.sums, kinds.y, kinds.nearest),
        }
        size = np.dtype(kinds.sums).itemsize
        for slot, order in ((BEFORE, kinds.before), (MIDDLE, kinds.middle), (AFTER, kinds.after)):
            if order is not None:
                parts[slot] = ".images.compiled.sums:make_sum_rows", order, size, kinds.fma
        for slot, (maker, *arguments) in parts.items():
            if slot != ROUND or fields.rounds:
                table[slot] = code(maker, *arguments).address()
        blob = np.zeros(1, LAUNCH)
        call = blob["call"]
        call["kernels"], call["items"] = table.ctypes.data, items
        call["thread_counts"] = active_threads.ADDRESS
        call["scratch"]["bytes"] = scratch
        blob["filter"] = tuple(
            tuple(value) if isinstance(value, tuple) else value for value in fields
        )
        self._blob, self._keep = blob, (table, keep)
        self._entry = code(".images.compiled.rows:make_filter").address()
        self._run = python_code(".images.compiled.rows:make_run")
        self._threads, self._bytes = threads, round_up(LAUNCH.itemsize) + threads * scratch
        if threads > 1:
            launch.make_once()

    def run(self, x: Any, y: Any) -> None:
        """Filter arrays, or memory at addresses."""
        block = POOL.take(self._bytes)
        try:
            starter = launch.starter_for(self._threads)
            self._run(self._blob, self._entry, x, y, block.address, self._threads, starter)
        finally:
            POOL.give(block)
