"""The recorder of debug builds: it stores every executed load, to be compared with the plan.

A record array is ``[count, capacity, then the FIELDS of each load]``. Kernels that are built
without recording contain no code of this.
"""

from typing import Any

import numpy as np

from implicit_conv.kernels.cpu.emit import memory

ACTIVATION, FILTER = 0, 1  # values of the field "operand"
FIELDS = ("operand", "n", "d", "h", "w", "c", "w_offset", "w_halo", "buffer", "rows", "bytes")
HEADER = 2  # words before the first load


class Recording:
    """A record array with room for `capacity` loads."""

    def __init__(self, capacity: int) -> None:
        self._words = np.zeros(HEADER + capacity * len(FIELDS), np.int64)
        self._words[1] = capacity
        self.address = self._words.ctypes.data

    def loads(self) -> list[tuple[int, ...]]:
        """The recorded loads as tuples of FIELDS, in the order of execution.

        Raises
        ------
        RuntimeError
            If more loads were executed than the array has room for.
        """
        count, capacity = self._words[:HEADER]
        if count > capacity:
            raise RuntimeError(
                f"{count} loads were executed, but the recording has room for {capacity}: "
                "give it a larger capacity"
            )
        return list(map(tuple, self._words[HEADER:].reshape(-1, len(FIELDS))[:count].tolist()))


def _record(
    record: int,
    operand: int,
    where: tuple[int, int, int, int, int],
    w_offset: int,
    w_halo: int,
    buffer: int,
    rows: int,
    size: int,
) -> None:
    """Append one load; loads past the capacity are counted but not stored."""
    at = memory.fetch_add(record, 1)
    if at >= memory.read(record + 8):
        return
    to = record + 8 * (HEADER + at * len(FIELDS))
    n, d, h, w, c = where
    for value in (operand, n, d, h, w, c, w_offset, w_halo, buffer, rows, size):
        memory.write(to, value)
        to += 8


def _ignore(
    record: int,
    operand: int,
    where: tuple[int, int, int, int, int],
    w_offset: int,
    w_halo: int,
    buffer: int,
    rows: int,
    size: int,
) -> None:
    """Record nothing, in builds without recording."""


def recorder(recording: bool) -> Any:
    """The recorder of a debug build, or one that does nothing."""
    return _record if recording else _ignore
