"""The way of x: how many files a call leads it through, and how often it comes back to one.

A stay begins when a function gets x, or a view of it, in another file than the function before; a
return is a stay in a file where x has been. All threads count: one that compiles gets no array.
"""

import sys
import threading
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from compiled import forget_code

import implicit_conv as ic

HOME = str(Path(ic.__file__).parent)


class Walk(NamedTuple):
    """The files of all stays, in their order."""

    stays: list[str]

    @property
    def files(self):
        return set(self.stays)

    @property
    def returns(self):
        return len(self.stays) - len(self.files)


def walk_of(function, x):
    """The way of `x` while `function()` runs."""
    stays = []

    def holds(value):
        if isinstance(value, np.ndarray):
            return np.may_share_memory(value, x)
        return isinstance(value, (tuple, list)) and any(map(holds, value))

    def note(frame, event, argument):
        file = frame.f_code.co_filename
        if event == "call" and file.startswith(HOME) and any(map(holds, frame.f_locals.values())):
            if not stays or stays[-1] != file:
                stays.append(file)

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        function()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return Walk(stays)


def winograd(rng):
    x, w = (rng.random(shape, np.float32) for shape in ((1, 64, 30, 30), (64, 64, 3, 3)))
    return x, lambda: ic.conv2d(x, w, padding=1, algorithm="winograd_f2")


def pointwise(rng):
    x, w = rng.random((1, 24, 9, 11), np.float32), rng.random((40, 24, 1, 1), np.float32)
    return x, lambda: ic.conv2d(x, w)


def odd_strides(rng):
    """Pixels of a 1x1 convolution that are no row, so that a fallback runs."""
    x = rng.random((1, 24, 13, 22), np.float32)[..., ::2]
    w = rng.random((40, 24, 1, 1), np.float32)
    return x, lambda: ic.conv2d(x, w)


CASES = {"Winograd": winograd, "1x1": pointwise, "odd strides": odd_strides}


@pytest.mark.parametrize("compiled", [False, True], ids=["to load", "loaded"])
@pytest.mark.parametrize("case", CASES)
def test_few_files_see_x(case, compiled):
    """Code that is to be loaded takes the way of code to be compiled: another thread does both."""
    x, call = CASES[case](np.random.default_rng(0))
    call()
    if compiled:
        ic.clear_plan_cache()
    else:
        forget_code()
    first = walk_of(call, x)
    assert len(first.files) <= 8
    assert first.returns <= 5
    kept = walk_of(call, x)
    assert len(kept.files) <= 5
    assert kept.returns == 0
