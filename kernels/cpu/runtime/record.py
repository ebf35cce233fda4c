"""The debug build's recorder: each executed load is written down, to be held against the plan.

A record array is ``[count, capacity, then FIELDS words a load]``; kernels built without recording
contain none of this.
"""

import numpy as np

from implicit_conv.kernels.cpu.emit import memory
from implicit_conv.kernels.cpu.runtime.cache import kernel

ACTIVATION, FILTER = 0, 1
FIELDS = ("operand", "n", "h", "w", "c", "w_offset", "w_halo", "buffer", "rows", "bytes")
HEADER = 2


class Recording:
    """Room for `capacity` loads, and the loads that were written to it."""

    def __init__(self, capacity):
        self._words = np.zeros(HEADER + capacity * len(FIELDS), np.int64)
        self._words[1] = capacity
        self.address = self._words.ctypes.data

    def loads(self):
        """The recorded loads as tuples of FIELDS, in the order of execution."""
        count, capacity = self._words[:HEADER]
        if count > capacity:
            raise RuntimeError(f"{count} loads were executed but only {capacity} were expected")
        return list(map(tuple, self._words[HEADER:].reshape(-1, len(FIELDS))[:count].tolist()))


@kernel()
def _record(record, operand, where, w_offset, w_halo, buffer, rows, size):
    """Append one load; one past the capacity is counted but not kept."""
    at = memory.fetch_add(record, 1)
    if at >= memory.read(record + 8):
        return
    to = record + 8 * (HEADER + at * len(FIELDS))
    n, h, w, c = where
    for value in (operand, n, h, w, c, w_offset, w_halo, buffer, rows, size):
        memory.write(to, value)
        to += 8


@kernel()
def _ignore(record, operand, where, w_offset, w_halo, buffer, rows, size):
    """What a build without recording does with a load."""


def recorder(recording):
    """The recorder of a debug build, or one that does nothing."""
    return _record if recording else _ignore
