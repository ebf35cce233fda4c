"""How many examples tests draw: few, more with ``-m slow``, and many with ``-m exhaustive``."""

from collections.abc import Callable
from typing import Any

import pytest

Test = Callable[..., Any]
# The marks whose tests are asked for; set by tests/conftest.py before tests are collected.
SLOW = EXHAUSTIVE = False


def count(few: Any, many: Any, more: Any = None) -> Any:
    """Examples to draw in this run, or any other value that depends on it; `more` are those of slow
    tests, for a test that is `resampled`.
    """
    if EXHAUSTIVE:
        return many
    return more if SLOW and more is not None else few


def sampled(test: Test) -> Test:
    """Mark a test that calls `count`, so that ``-m exhaustive`` runs it."""
    return pytest.mark.exhaustive(test) if EXHAUSTIVE else test


def resampled(test: Test) -> Test:
    """Mark a test that calls `count` with three values, so that ``-m slow`` runs it too."""
    return pytest.mark.slow(test) if SLOW else sampled(test)


def examples(few: int, many: int, more: int | None = None) -> Callable[[Test], Test]:
    """Have hypothesis draw `few` examples for a test, or `many`, or `more` among slow tests; always
    the same ones.
    """
    from hypothesis import HealthCheck, settings  # a GPU machine need not have it

    chosen = settings(
        max_examples=count(few, many, more),
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    mark = sampled if more is None else resampled
    return lambda test: mark(chosen(test))
