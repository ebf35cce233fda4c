"""Everything that is cached between calls; `clear` empties every store.

A plan also keeps the calls that were prepared with it, for as long as the plan itself exists.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

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


class Recent(Generic[R]):
    """What was used last, by key: at least `limit` results, and at most twice as many.

    Young ones become old when there are `limit` of them, and old ones that are asked for become
    young again: what is in use is not dropped, however many others come and go.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._young: dict[object, R] = {}
        self._old: dict[object, R] = {}

    def get(self, key: object) -> R | None:
        """The result for `key`, or None."""
        found = self._young.get(key)
        if found is None:
            found = self._old.get(key)
            if found is not None:
                self.keep(key, found)
        return found

    def keep(self, key: object, result: R) -> None:
        """Keep a result."""
        if len(self._young) >= self._limit:
            self._young, self._old = {}, self._young
        self._young[key] = result

    def clear(self) -> None:
        """Drop all results."""
        self._young, self._old = {}, {}

    def __len__(self) -> int:
        return len(self._young) + len(self._old)


# Maps what candidates of all sizes have in common to an operator of one size.
SIZED: Recent[Any] = Recent(512)
# Map kinds of problems, with ranges of sizes, to choices, and kinds of calls to engines; see
# `cpu.plan.planner` and `cpu.engines.kinds`.
KINDS: Recent[Any] = Recent(1024)
ENGINES: Recent[Any] = Recent(1024)
SIZES: Recent[Any] = Recent(256)  # maps kinds of calls with one size to engines
IMAGES: Recent[Any] = Recent(512)  # maps filters of images to their launches, and their calls
PREPARED: Recent[bool] = Recent(1024)  # kinds of calls whose kernels are loaded, or will be
CALLS_KEPT = 512  # prepared calls of `conv2d` at most, and those of each plan by their strides

PHASES = Store(8)  # maps input gradients to their stride phases, of which there may be thousands
PLANS = Store(512)  # maps (shapes, dtype, options, settings) to plans, for every engine
OPERATORS = Store(512)  # maps problems on a GPU to choices of kernels
# Fast path of `conv2d`: maps (shapes, strides, dtypes, options, settings) to prepared calls.
CALLS: dict[object, Any] = {}
_older: list[dict[object, Any]] = [{}]  # what CALLS held before it was full


def keep_recent(key: object, call: object) -> None:
    """Keep a call in CALLS; a full dict first becomes the older one, as in `Recent`."""
    if len(CALLS) >= CALLS_KEPT:
        _older[0] = CALLS.copy()  # in one step, whatever other threads do
        CALLS.clear()
    CALLS[key] = call


def older_call(key: object) -> Any:
    """The call for `key` that CALLS held before it was full, which then is in CALLS again; or
    None.
    """
    found = _older[0].pop(key, None)
    if found is not None:
        keep_recent(key, found)
    return found


def keep_call(calls: dict[object, Any], key: object, call: object) -> None:
    """Keep a call under `key`; a full dict is emptied first."""
    if len(calls) >= CALLS_KEPT:
        calls.clear()
    calls[key] = call


# Tables in which compiled code looks up calls, before Python would look into CALLS.
TABLES: list[Any] = []
PLAN_CALLS_KEPT = 4  # repeated calls of a plan, which tries one after another


def keep_first(calls: list[Any], call: object) -> None:
    """Keep a call as the first of a plan's."""
    calls.insert(0, call)
    del calls[PLAN_CALLS_KEPT:]


def clear() -> None:
    """Drop all plans, operators and calls."""
    CALLS.clear()
    _older[0] = {}
    PHASES.clear()
    PLANS.clear()
    OPERATORS.clear()
    SIZED.clear()
    KINDS.clear()
    ENGINES.clear()
    SIZES.clear()
    IMAGES.clear()
    for table in TABLES:
        table.clear()
