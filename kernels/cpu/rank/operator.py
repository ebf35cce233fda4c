"""The parts of filters that order elements."""

from __future__ import annotations

from typing import Any

FILTER = ".rank.compiled.tiles:FILTER"  # what makes the entry


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
