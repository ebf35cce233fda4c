"""Large results begin on a cache line apart from x, whoever makes them, and are freed with what
holds them.
"""

import gc
import sys
import weakref

import numpy as np
import pytest

from implicit_conv import conv2d, plan_conv2d
from implicit_conv.kernels.cpu.runtime.layout import LINE
from implicit_conv.kernels.cpu.runtime.pool import APART, LEAST_BYTES, PAGE, new_array

OFTEN = 200  # calls, most of which compiled code makes


def begins_apart(y, x):
    """Whether y begins on a cache line, APART from that of x."""
    apart = (y.ctypes.data - x.ctypes.data // LINE * LINE) % PAGE
    return y.ctypes.data % LINE == 0 and apart == APART


@pytest.mark.parametrize("shape", [(3, 4), (1, 8, 57, 57), (LEAST_BYTES // 4,), (0, 3), ()])
@pytest.mark.parametrize("dtype", ["float32", "int8", "float64"])
def test_a_new_array_is_one_of_numpy_and_a_large_one_begins_on_a_line(shape, dtype):
    x = np.empty(5)
    made = new_array(shape, dtype, x.ctypes.data)
    assert type(made) is np.ndarray and (made.shape, made.dtype) == (shape, np.dtype(dtype))
    assert made.flags.c_contiguous and made.flags.writeable and made.flags.aligned
    if made.nbytes >= LEAST_BYTES:
        assert begins_apart(made, x)
    made.fill(3)
    assert (made == 3).all()


@pytest.fixture
def layer():
    rng = np.random.default_rng(0)
    x, w = rng.random((1, 16, 33, 31), np.float32), rng.random((17, 16, 3, 3), np.float32)
    plan = plan_conv2d(x.shape, w.shape, padding=1)
    return plan, x, plan.pack(w), conv2d(x, w, padding=1)


def test_results_of_all_calls_begin_on_a_line(layer):
    plan, x, packed, expected = layer
    assert expected.nbytes >= LEAST_BYTES and begins_apart(expected, x)
    kept = [plan(x, packed) for _ in range(OFTEN)]
    for y in kept:  # at once, so that none has the memory of another
        assert begins_apart(y, x) and y.flags.c_contiguous and y.flags.writeable
        np.testing.assert_array_equal(y, expected)


def test_results_are_freed_with_their_last_reference(layer):
    plan, x, packed, _ = layer
    for _ in range(OFTEN):
        y = plan(x, packed)
    memory = weakref.ref(y.base)
    view = y[0, 1:]
    del y
    assert memory() is not None and view.base is not None
    del view
    gc.collect()
    assert memory() is None


def test_dtypes_are_not_used_up(layer):
    """numpy takes over a reference to a dtype for each array that it makes."""
    plan, x, packed, _ = layer
    dtypes = np.dtype(np.uint8), np.dtype(np.float32)
    for _ in range(OFTEN):
        plan(x, packed)
    before = [sys.getrefcount(dtype) for dtype in dtypes]
    for _ in range(10 * OFTEN):
        plan(x, packed)
    after = [sys.getrefcount(dtype) for dtype in dtypes]
    assert max(abs(b - a) for b, a in zip(before, after, strict=True)) < OFTEN
