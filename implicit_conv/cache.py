"""Everything that is cached between calls; `clear` empties every store.

A plan also keeps the calls that were prepared with it, for as long as the plan itself exists.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


if TYPE_CHECKING:
    cached_property = functools.cached_property
else:

    class cached_property(functools.cached_property):  # noqa: N801  # a decorator, like its base
        """functools.cached_property without the lock that it has before Python 3.12: a child forked
        while another thread holds that lock could wait for ever.
        """

        def __get__(self, instance, owner=None):
            """The value of the property, computed on first use."""
            if instance is None:  # of the class, as documentation tools ask for it
                return self
            value = instance.__dict__[self.attrname] = self.func(instance)
            return value


class Store:
    """Cached results: ``@store`` keeps the last `limit` results of each function it decorates."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._functions: list[functools._lru_cache_wrapper[object]] = []

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """Decorate a function whose arguments are hashable."""
        kept = functools.lru_cache(self._limit)(function)
        self._functions.append(kept)
        return kept  # type: ignore[return-value]

    def __len__(self) -> int:
        return sum(kept.cache_info().currsize for kept in self._functions)

    def clear(self) -> None:
        """Drop all results."""
        for kept in self._functions:
            kept.cache_clear()


CALLS_KEPT = 512  # prepared calls of `conv2d` at most, and those of each plan by their strides

PLANS = Store(512)  # maps (shapes, dtype, options, settings) to plans, for every engine
OPERATORS = Store(512)  # maps (candidate, formats) to compiled kernels with their tables
# Fast path of `conv2d`: maps (shapes, strides, dtypes, options, settings) to prepared calls.
CALLS: dict[object, Any] = {}


def keep_call(calls: dict[object, Any], key: object, call: object) -> None:
    """Keep a call under `key`; a full dict is emptied first."""
    if len(calls) >= CALLS_KEPT:
        calls.clear()
    calls[key] = call


PLAN_CALLS_KEPT = 4  # repeated calls of a plan, which tries one after another


def keep_first(calls: list[Any], call: object) -> None:
    """Keep a call as the first of a plan's."""
    calls.insert(0, call)
    del calls[PLAN_CALLS_KEPT:]


def clear() -> None:
    """Drop all plans, operators and calls."""
    CALLS.clear()
    PLANS.clear()
    OPERATORS.clear()
