"""Targets: which compute capabilities have which instructions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple


class Target(NamedTuple):
    """A set of GPUs: `holds(number, suffix)` says whether sm_<number><suffix> belongs to it."""

    holds: Callable[[int, str], bool]
    words: str


TARGETS = {
    "sm_80": Target(lambda number, suffix: number >= 80, "sm_80 or later"),
    "sm_90": Target(lambda number, suffix: number >= 90, "sm_90 or later"),
    "sm_90a": Target(
        lambda number, suffix: (number, suffix) == (90, "a"),
        "sm_90a and no other",
    ),
    "sm_90a+": Target(
        lambda number, suffix: number >= 90 and suffix != "",
        "sm_90a or a later a/f variant",
    ),
    "sm_100": Target(lambda number, suffix: number >= 100, "sm_100 or later"),
    "sm_100a": Target(
        lambda number, suffix: number in (100, 103, 107, 110) and suffix != "",
        "an a/f variant of sm_100, 103, 107 or 110",
    ),
}


def supports(target: str, cc: Sequence[Any]) -> bool:
    """Whether compute capability `cc` = (major, minor[, suffix]) has instructions of `target`."""
    suffix = cc[2] if len(cc) > 2 else ""
    return TARGETS[target].holds(10 * cc[0] + cc[1], suffix)


def requirement(target: str) -> str:
    """The GPUs that have instructions of `target`, in words."""
    return TARGETS[target].words


def target_name(cc: Sequence[Any]) -> str:
    """The name by which ptxas knows a compute capability: sm_90a."""
    return f"sm_{10 * cc[0] + cc[1]}{cc[2] if len(cc) > 2 else ''}"
