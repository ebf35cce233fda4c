"""Launches whose work items run one by one, to see what each of them writes: no element of y is
written by two items. Otherwise an item computes what belongs to others, in vain or in a race.
"""

import copy
from contextlib import contextmanager
from weakref import WeakKeyDictionary

import numpy as np
import pytest

from implicit_conv.kernels.cpu.operator import Operator
from implicit_conv.kernels.cpu.runtime.active_threads import paused
from implicit_conv.kernels.cpu.runtime.call import WORDS
from implicit_conv.kernels.cpu.runtime.launch import Launch
from implicit_conv.kernels.cpu.runtime.program import array_at
from implicit_conv.kernels.cpu.wgrad.operator import WeightGrad

# Bytes of y before an item, by the bytes of an element: no result has them. Of 16 bits it is a NaN
# that no sum makes, since floats of 16 bits have few values.
FILLS = {2: 0xFF, 4: 0xA5, 8: 0xA5}
ITEM, ITEMS = WORDS.index("item"), WORDS.index("items")
WRITTEN = WeakKeyDictionary()  # what a launch was prepared to write: an array like it


def noting(prepare):
    """A function that prepares launches, and notes what they write."""

    def noted(operator, operands, *others, **more):
        prepared = prepare(operator, operands, *others, **more)
        for launch in prepared if isinstance(prepared, tuple) else (prepared,):
            if launch is not None:
                WRITTEN[launch] = operands.dw if hasattr(operands, "dw") else operands.y
        return prepared

    return noted


Operator.prepare = noting(Operator.prepare)
WeightGrad.prepare_gradient = noting(WeightGrad.prepare_gradient)


@contextmanager
def items_alone():
    """In a block, launches run item by item, in one thread, and count what each writes."""
    run = Launch.run

    def each(launch, scratch, x, w, to, panels=0, residual=0, sums=None, scaling=None):
        if to == w:  # it packs a filter
            run(launch, scratch, x, w, to, panels, residual, sums, scaling)
            return
        filled, like = launch._filled(residual, sums, scaling), WRITTEN[launch]
        y = array_at(to, like.shape, like.dtype, like.strides)
        words = y.view(f"u{y.itemsize}")
        fill = words.dtype.type(int.from_bytes([FILLS[y.itemsize]] * y.itemsize, "little"))
        written, result = np.zeros(y.shape, np.int64), words.copy()
        for item in range(int(filled[ITEMS])):
            alone = copy.copy(launch)
            alone.threads, alone._blob = 1, filled.copy()
            alone._blob[[ITEM, ITEMS]] = item, item + 1
            alone._address = alone._blob.ctypes.data
            words[...] = fill
            run(alone, scratch, x, w, to, panels)
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
