"""Programs: the places of arrays, the parts of the room, and copies by Python and by words."""

import random

import numpy as np
import pytest

import implicit_conv as ic
from implicit_conv.kernels.cpu.runtime.active_threads import ADDRESS
from implicit_conv.kernels.cpu.runtime.launch import Launch
from implicit_conv.kernels.cpu.runtime.program import (
    Copied,
    Program,
    Room,
    W,
    X,
    Y,
    address_of,
    array_at,
    copied,
    placed,
)
from implicit_conv.kernels.cpu.runtime.repeated import run
from implicit_conv.operators.programs import make_words

DTYPES = ("u1", "u2", "f4", "f8", "c16")


def like(place, array):
    """A placed array with the shape, dtype and strides of this one."""
    return placed(place, array.shape, array.dtype, array.strides)


def drawn(dice, shape, dtype):
    """An array of this shape with axes in any order, gaps, and elements in any direction."""
    order = dice.sample(range(len(shape)), len(shape))
    gaps = [dice.randint(1, 2) for _ in shape]
    whole = np.zeros([shape[axis] * gaps[axis] for axis in order], dtype)
    whole[...] = np.arange(whole.size).reshape(whole.shape) % 250
    view = whole.transpose(np.argsort(order))
    ends = [dice.choice([-1, 1, 1]) for _ in shape]
    return view[tuple(slice(None, None, gap * end) for gap, end in zip(gaps, ends, strict=True))]


def run_both(program, x, y):
    """What Python and compiled code write to y."""
    for compiled in (False, True):
        y[...] = 0
        if compiled:
            assert run(ADDRESS, program.words.address, x.ctypes.data, 0, 0, 0, y.ctypes.data)
        else:
            program.run(x.ctypes.data, 0, y.ctypes.data)
        yield y


def test_an_array_without_elements_begins_somewhere():
    """numpy 2.3 makes no array of the address 0."""
    empty = array_at(0, (0, 3), np.dtype("f4"), (12, 4))
    assert empty.shape == (0, 3) and address_of(empty) == 0
    assert empty.__array_interface__["data"][0] != 0


@pytest.mark.parametrize("dtype", DTYPES)
def test_copies_of_any_strides(dtype):
    """In blocks too, where axes are in another order and have multiples of 4 elements."""
    for number in range(80):
        dice = random.Random(number)
        shape = tuple(dice.choice((1, 2, 3, 5, 8, 16, 36)) for _ in range(dice.randint(1, 5)))
        while np.prod(shape) > 4000:
            shape = tuple(-(-extent // 2) for extent in shape)
        x, y = drawn(dice, shape, dtype), drawn(dice, shape, dtype)
        room, steps = Room(), []
        between = copied(like(X, x), room, steps)
        steps.append(Copied(between, like(Y, y)))
        for found in run_both(Program(steps, room), x, y):
            np.testing.assert_array_equal(found, x)


def test_a_conversion_is_for_python():
    x, y = np.arange(6, dtype="f4"), np.zeros(6)
    step = Copied(like(X, x), like(Y, y))
    program = Program([step], Room())
    assert program.words is None
    program.run(x.ctypes.data, 0, y.ctypes.data)
    np.testing.assert_array_equal(y, x)


def test_a_step_that_is_moved_reads_and_writes_elsewhere():
    x, y = np.arange(6, dtype="f4"), np.zeros(6, "f4")
    step = Copied(placed(X, (2,), x.dtype, (4,)), placed(Y, (2,), y.dtype, (4,)))
    Program([step.moved({X: 8, Y: 12})], Room()).run(x.ctypes.data, 0, y.ctypes.data)
    np.testing.assert_array_equal(y, [0, 0, 0, 2, 3, 0])


def test_parts_of_a_call_are_copied_apart():
    """A fold writes rows, and copies them to pixels with channels last."""
    rng = np.random.default_rng(0)
    x = rng.integers(-3, 4, (2, 64, 5, 5)).astype("f4")
    w = rng.integers(-3, 4, (64, 32, 4, 4)).astype("f4")
    expected = ic.conv_transpose2d(x, w, stride=2)
    y = np.full(expected.transpose(0, 2, 3, 1).shape, np.nan, "f4").transpose(0, 3, 1, 2)
    plan = ic.plan_conv_transpose2d(x.shape, (64, 16, 4, 4), stride=2)
    at_w, at_y = like(W, w), like(Y, y)
    parts = [(like(X, x), at_w[:, own], at_y[:, own]) for own in (slice(16), slice(16, 32))]
    words = make_words(plan, parts)
    assert run(ADDRESS, words.address, x.ctypes.data, w.ctypes.data, 0, 0, y.ctypes.data)
    np.testing.assert_array_equal(y, expected)


def test_doors_copy_filters():
    x, w = np.ones((1, 8, 5, 5), "f4"), np.ones((8, 2, 4, 4), "f4")
    plan = ic.plan_conv_transpose2d(x.shape, w.shape, stride=2, groups=4)
    with pytest.raises(ic.PlanError, match="the filter is copied"):
        make_words(plan, [(like(X, x), like(W, w), like(Y, plan(x, w)))], copies_filter=False)


def test_parts_of_a_room_that_begin_and_end_alike_are_one():
    room = Room()
    first = room.take(100)
    end = room.end
    second = room.take(8)
    room.end = end
    assert room.take(8) == second != first
    room.end = end
    assert room.take(9) != second
    assert room.size == 128 + 9


def test_grouped_transposed_convolutions_run_compiled():
    """Their filter is copied."""
    x, w = np.ones((1, 8, 5, 5), "f4"), np.ones((8, 2, 4, 4), "f4")
    plan = ic.plan_conv_transpose2d(x.shape, w.shape, stride=2, groups=4)
    y = plan(x, w)
    (call,) = plan.engine.calls.values()
    assert call.program.words is not None
    for _ in range(50):
        np.testing.assert_array_equal(plan(x, w), y)


def test_each_run_finds_the_function_of_launches_anew(monkeypatch):
    """Guard pages replace it, for programs that have run before too."""
    plan = ic.plan_conv2d((1, 4, 6, 6), (4, 4, 3, 3))
    x, w, found = np.ones((1, 4, 6, 6), "f4"), np.ones((4, 4, 3, 3), "f4"), []
    plan(x, w)
    run = Launch.run
    monkeypatch.setattr(Launch, "run", lambda *given: (found.append(given[0]), run(*given)))
    plan(x, w)
    assert found
