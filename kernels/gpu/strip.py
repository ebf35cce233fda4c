"""Strip: what one thread of a kernel without matrix instructions computes.

A thread has some neighbouring filters and some output pixels along W. The pixels of x that one
filter row needs for them are loaded once and serve all its columns.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Strip:
    """Output pixels of a thread, the filter columns that share its loads, and the sizes of a group.

    With one column each column loads pixels of its own, at the stride and dilation of the launch;
    more are all columns of a filter row, whose stride and dilation are compiled in.
    """

    pixels: int
    columns: int
    stride: int
    dilation: int
    group_c: int
    group_k: int

    @property
    def positions(self) -> tuple[int, ...]:
        """Columns of x that the strip reads, counted from its first one."""
        found = {self.position(q, s) for q in range(self.pixels) for s in range(self.columns)}
        return tuple(sorted(found))

    def position(self, pixel: int, column: int) -> int:
        """The column of x that a filter column reads for an output pixel of the strip."""
        return pixel * self.stride + column * self.dilation

    def channels(self, filters: int) -> int:
        """Number of channels that `filters` neighbouring filters read: those of whole groups."""
        return max(1, filters // self.group_k) * self.group_c


def strip_rules(strip: Strip) -> Iterator[tuple[str, bool]]:
    """(rule, whether the strip keeps it)."""
    yield (
        f"a strip has pixels, columns, channels and filters: {strip}",
        min(vars(strip).values()) > 0,
    )
    yield (
        f"a column of its own has no stride or dilation compiled in: {strip}",
        strip.columns > 1 or strip.stride == strip.dilation == 1,
    )
