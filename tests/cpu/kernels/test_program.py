"""Programs: the places of arrays, and the parts of the room."""

import numpy as np

from implicit_conv.kernels.cpu.runtime.program import (
    Copied,
    Program,
    Room,
    X,
    Y,
    address_of,
    array_at,
    copied,
    placed,
)

FLOAT = np.dtype("f4")


def test_an_array_without_elements_begins_somewhere():
    """numpy 2.3 makes no array of the address 0."""
    empty = array_at(0, (0, 3), FLOAT, (12, 4))
    assert empty.shape == (0, 3) and address_of(empty) == 0
    assert empty.__array_interface__["data"][0] != 0


def test_copies_go_through_the_room():
    """With strides of any sign, and into another dtype."""
    x, y = np.arange(12, dtype=FLOAT).reshape(3, 4)[:, ::-1], np.zeros((3, 4))
    room, steps = Room(), []
    between = copied(placed(X, x.shape, x.dtype, x.strides), room, steps)
    steps.append(Copied(between, placed(Y, y.shape, y.dtype, y.strides)))
    program = Program(steps, room)
    program.run(x.ctypes.data, 0, y.ctypes.data)
    np.testing.assert_array_equal(y, x)
    assert program.words is None  # Python converts


def test_a_step_that_is_moved_reads_and_writes_elsewhere():
    x, y = np.arange(6, dtype=FLOAT), np.zeros(6, FLOAT)
    step = Copied(placed(X, (2,), FLOAT, (4,)), placed(Y, (2,), FLOAT, (4,)))
    Program([step.moved({X: 8, Y: 12})], Room()).run(x.ctypes.data, 0, y.ctypes.data)
    np.testing.assert_array_equal(y, [0, 0, 0, 2, 3, 0])


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
