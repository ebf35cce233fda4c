"""Launches whose work items run one by one, to see what each of them writes: no element of y is
written by two items. Otherwise an item computes what belongs to others, in vain or in a race.
"""

import copy
from contextlib import contextmanager

import numpy as np
import pytest

from implicit_conv.kernels.cpu.runtime.call import WORDS
from implicit_conv.kernels.cpu.runtime.launch import Launch
from implicit_conv.kernels.cpu.runtime.repeated import paused

# Bytes of y before an item, by the bytes of an element: no result has them. Of 16 bits it is a NaN
# that no sum makes, since floats of 16 bits have few values.
FILLS = {2: 0xFF, 4: 0xA5, 8: 0xA5}
ITEM, ITEMS = WORDS.index("item"), WORDS.index("items")


@contextmanager
def items_alone():
    """In a block, launches run item by item, in one thread, and count what each writes."""
    run = Launch.run

    def each(launch, x, w, y, panels=0, sums=None, residual=None, scaling=None):
        if y is w:  # it packs a filter
            run(launch, x, w, y, panels, sums, residual, scaling)
            return
        filled = launch._filled(sums, residual, scaling)
        words = y.view(f"u{y.itemsize}")
        fill = words.dtype.type(int.from_bytes([FILLS[y.itemsize]] * y.itemsize, "little"))
        written, result = np.zeros(y.shape, np.int64), words.copy()
        for item in range(int(filled[ITEMS])):
            alone = copy.copy(launch)
            alone._threads, alone._blob = 1, filled.copy()
            alone._blob[[ITEM, ITEMS]] = item, item + 1
            words[...] = fill
            run(alone, x, w, y, panels)
            stored = words != fill
            result[stored] = words[stored]
            written += stored
        words[...] = result
        twice = np.argwhere(written > 1)
        assert not len(twice), (
            f"{len(twice)} of {y.size} elements of y are written by two work items or more; the "
            f"first, with the axes of the launch, is {twice[0].tolist()}"
        )

    with pytest.MonkeyPatch.context() as patch, paused():
        patch.setattr(Launch, "run", each)
        yield
