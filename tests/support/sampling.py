"""How many examples tests draw: a few by default, many with ``-m exhaustive``."""

from collections.abc import Callable
from typing import Any

import pytest

Test = Callable[..., Any]
EXHAUSTIVE = False  # set by tests/conftest.py before tests are collected


def count(few: Any, many: Any) -> Any:
    """Examples to draw in this run, or any other value that depends on it."""
    return many if EXHAUSTIVE else few


def sampled(test: Test) -> Test:
    """Mark a test that calls `count`, so that ``-m exhaustive`` runs it."""
    return pytest.mark.exhaustive(test) if EXHAUSTIVE else test


def examples(few: int, many: int) -> Callable[[Test], Test]:
    """Have hypothesis draw `few` examples for a test, or `many`; always the same ones."""
    from hypothesis import HealthCheck, settings  # a GPU machine need not have it

    chosen = settings(
        max_examples=count(few, many),
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    return lambda test: sampled(chosen(test))
