"""Launches of filters that order elements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from implicit_conv.kernels.cpu.rank.layout import CHECK, LAUNCH, SLOTS, Filter
from implicit_conv.kernels.cpu.runtime import active_threads, launch
from implicit_conv.kernels.cpu.runtime.code import code, python_code
from implicit_conv.kernels.cpu.runtime.layout import round_up
from implicit_conv.kernels.cpu.runtime.pool import POOL


def extreme(dtype: str, smallest: bool) -> tuple[Any, ...]:
    """The part of a level of smallest or largest elements."""
    return ".rank.compiled.extremes:make_extreme_rows", dtype, smallest


def sort_columns(dtype: str, vector: int, height: int) -> tuple[Any, ...]:
    """The part that sorts columns of `height` elements."""
    return ".rank.compiled.selections:make_sorted_columns", dtype, vector, height


def select(dtype: str, vector: int, columns: int, height: int, rank: int) -> tuple[Any, ...]:
    """The part that selects elements of sorted columns."""
    return ".rank.compiled.selections:make_selected_rows", dtype, vector, columns, height, rank


def keys(dtype: str) -> tuple[Any, ...]:
    """The part that makes integers with signs which are ordered as the elements are."""
    return ".rank.compiled.counts:make_key_rows", dtype


def count(dtype: str) -> tuple[Any, ...]:
    """The part that finds elements by counts of smaller ones, of integers from `keys`."""
    return ".rank.compiled.counts:make_counted_rows", dtype


def check(dtype: str, zeros: bool) -> tuple[Any, ...]:
    """The part that finds NaN, and if `zeros` -0.0."""
    return ".rank.compiled.checks:make_checked_rows", dtype, zeros


class RankLaunch:
    """A filter that is ready for images of one shape with these strides."""

    def __init__(
        self,
        parts: Sequence[tuple[Any, ...]],
        check: tuple[Any, ...] | None,
        fields: Filter,
        items: int,
        scratch: int,
        threads: int,
        keep: Any,
    ) -> None:
        """`parts` are those of the levels, `check` that of loaded elements. `scratch` are the bytes
        of a thread, and `keep` owns the memory that addresses point to.

        Raises
        ------
        CompilationError
            This thread must not compile; see `preparation`.
        """
        table = np.zeros(SLOTS, np.int64)
        for slot, part in (*enumerate(parts), (CHECK, check)):
            if part is not None:
                table[slot] = code(*part).address()
        blob = np.zeros(1, LAUNCH)
        call = blob["call"]
        call["kernels"], call["items"] = table.ctypes.data, items
        call["thread_counts"] = active_threads.ADDRESS
        call["scratch"]["bytes"] = scratch
        blob["filter"] = tuple(fields)
        self._blob, self._keep = blob, (table, keep)
        self._entry = code(".rank.compiled.tiles:make_filter").address()
        self._run = python_code(".rank.compiled.tiles:make_run")
        self._threads, self._bytes = threads, round_up(LAUNCH.itemsize) + threads * scratch
        if threads > 1:
            launch.team()  # so that a call starts no threads

    def run(self, x: Any, y: Any) -> bool:
        """Filter arrays, or memory at addresses; returns whether all elements have an order. Where
        they have none, y is not the result.
        """
        block = POOL.take(self._bytes)
        arguments = self._blob, self._entry, x, y, block.address, self._threads
        try:
            return self._run(*arguments, launch.starter_for(self._threads)) == 0
        finally:
            POOL.give(block)
