"""Arrays that every operator takes and returns: any strides and byte order, anywhere in memory."""

from dataclasses import replace

import numpy as np
import pytest
from small_trials import of_every_operator

import implicit_conv as ic
from implicit_conv.testing import Case
from implicit_conv.testing.check import check, verify
from implicit_conv.testing.storage import STORAGES, WRITABLE
from implicit_conv.testing.trial import Trial, inputs

FAR = 2**31 + 5  # elements between two blocks: byte and element offsets exceed 32 bits


@of_every_operator
def test_any_storage_of_operands_and_out(trial):
    for number, storage in enumerate(STORAGES):
        for storages in ((storage, "contiguous"), ("contiguous", storage), (storage, storage)):
            out = WRITABLE[number % len(WRITABLE)]
            check(replace(trial, storages=(*storages, storage), out=out, added=trial.made.epilogue))


@pytest.mark.parametrize("operator", ["im2col", "col2im"])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_columns_of_any_storage(operator, layout):
    case = Case(N=2, C=3, K=3 * 4, size=(4, 5), kernel=(2, 2), padding=((1, 1), (1, 1)))
    trial = Trial(replace(case, layout=layout), operator, padding=1)
    for storage in STORAGES:
        check(replace(trial, storages=(storage, "contiguous", "contiguous")))


@of_every_operator
def test_out_may_overlap_either_operand(trial):
    given = inputs(trial)
    expected = trial.call(given.first, given.second)
    for name in ("first", "second"):
        operand = getattr(given, name)
        memory = np.zeros(operand.size + expected.size, operand.dtype)
        shared = memory[3 : 3 + operand.size].reshape(operand.shape)
        shared[...] = operand
        out = memory[: expected.size].reshape(expected.shape)
        assert np.shares_memory(out, shared)
        moved = given._replace(**{name: shared})
        assert trial.call(moved.first, moved.second, out=out) is out
        np.testing.assert_array_equal(out, expected)


class FarMemory:
    """Sparse files, in which blocks of an array are FAR elements apart."""

    def __init__(self, folder):
        self.folder, self.count = folder, 0

    def like(self, array):
        """A copy of a contiguous array whose first axis has a stride of FAR elements."""
        self.count += 1
        length = FAR * (len(array) - 1) + array[0].size
        memory = np.memmap(self.folder / str(self.count), array.dtype, "w+", shape=length)
        strides = (FAR * array.itemsize, *array.strides[1:])
        far = np.lib.stride_tricks.as_strided(memory, array.shape, strides)
        far[...] = array
        return far


@pytest.mark.slow
@of_every_operator
def test_elements_that_are_far_apart(trial, tmp_path):
    given, far = inputs(trial), FarMemory(tmp_path)
    shape = trial.shape(trial.made.result)
    out = far.like(np.full(shape, np.nan, np.float32))
    y = trial.call(far.like(given.first), far.like(given.second), out=out)
    assert y is out
    verify(trial, given, y)


SIDE = {1: 2**31 + 8, 2: 46400, 3: 1300}  # of images with more than 2^31 pixels, by dimensions


def many(rank):
    """(an image of more than 2^31 ones that takes no memory, a stride that leaves few outputs)."""
    x = np.broadcast_to(np.float32(1), (1, 1, *[SIDE[rank]] * rank))
    assert x.size > 2**31
    return x, SIDE[rank] // 3


@pytest.mark.parametrize("rank", SIDE)
def test_more_than_two_billion_elements(rank):
    """Every operator reads a few of the pixels: with a large stride, or since padding removes the
    rest.
    """
    x, stride = many(rank)
    ones = np.ones((1, 1, *[2] * rank), np.float32)
    y = getattr(ic, f"conv{rank}d")(x, ones, stride=stride)
    np.testing.assert_array_equal(y, np.full_like(y, 2**rank))
    dy = np.ones_like(y)
    dw = getattr(ic, f"conv{rank}d_weight_grad")(x, dy, ones.shape, stride=stride)
    np.testing.assert_array_equal(dw, np.full_like(ones, dy.size))
    columns = ic.im2col(x, (2,) * rank, stride=stride)
    np.testing.assert_array_equal(columns, np.ones((dy.size, 2**rank)))
    removed = SIDE[rank] // 2 - 2
    inner = (1, 1, *[SIDE[rank] + 1 - 2 * removed] * rank)
    y = getattr(ic, f"conv_transpose{rank}d")(x, ones, padding=removed)
    np.testing.assert_array_equal(y, np.full(inner, 2**rank))
    dx = getattr(ic, f"conv{rank}d_input_grad")(x, ones, inner, padding=removed)
    np.testing.assert_array_equal(dx, y)
    rows = np.broadcast_to(np.float32(1), (x.size, 2**rank))
    np.testing.assert_array_equal(ic.col2im(rows, inner, (2,) * rank, padding=removed), y)
