"""All that is kept between calls, with one owner: `clear` empties every store.

A plan also keeps the calls made with it, in a dict of its own that goes when the plan goes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


class Store:
    """Results of functions: ``@store`` keeps the last `limit` results of each one it decorates."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._functions: list[functools._lru_cache_wrapper[object]] = []

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """Decorate a function of hashable arguments."""
        kept = functools.lru_cache(self._limit)(function)
        self._functions.append(kept)
        return kept  # type: ignore[return-value]

    def __len__(self) -> int:
        return sum(kept.cache_info().currsize for kept in self._functions)

    def clear(self) -> None:
        """Drop all results."""
        for kept in self._functions:
            kept.cache_clear()


CALLS_KEPT = 512  # calls of `conv2d`, and of each plan

PLANS = Store(512)  # by shapes and options, for every engine
OPERATORS = Store(512)  # compiled kernels with their tables, by candidate and number formats
CALLS: dict[object, Any] = {}  # calls of `conv2d`, ready to run, by arrays and options


def keep_call(calls: dict[object, Any], key: object, call: object) -> None:
    """Keep a call; where there is no room, all others go first."""
    if len(calls) >= CALLS_KEPT:
        calls.clear()
    calls[key] = call


def clear() -> None:
    """Drop all plans, operators and calls."""
    CALLS.clear()
    PLANS.clear()
    OPERATORS.clear()
