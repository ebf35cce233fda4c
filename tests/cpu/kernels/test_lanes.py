"""Lanes on threads that come in any order, or not at all."""

import threading
from itertools import pairwise, permutations

import numpy as np
import pytest

from implicit_conv.kernels.cpu.lanes.operator import lane_steps
from implicit_conv.kernels.cpu.runtime import active_threads, launch
from implicit_conv.kernels.cpu.runtime.code import python_code
from implicit_conv.kernels.cpu.runtime.program import Called, Copied, Program, Room, X, Y, placed

LANES, SEGMENTS, SIZE = 3, 5, 64
F32 = np.dtype(np.float32)
run_counted = python_code(".runtime.compiled.start:RUN_COUNTED")


def made():
    """A program that moves the blocks of an array on by one in each segment: a lane reads what
    another one has written. And the array.
    """
    room, strides = Room(), (SIZE * F32.itemsize, F32.itemsize)
    x, y = (placed(place, (LANES, SIZE), F32, strides) for place in (X, Y))
    images = [x, *(room.array((LANES, SIZE), F32) for _ in range(SEGMENTS - 1)), y]
    segments = [
        [[Copied(source[lane], target[(lane + 1) % LANES])] for lane in range(LANES)]
        for source, target in pairwise(images)
    ]
    return Program(lane_steps(segments, room), room), x


class Team:
    """Threads that come one after another, in an order, and those that stay away."""

    name, helpers, starter = "a test", LANES - 1, 0

    def __init__(self, order):
        self.order, self.blobs = order, 0

    def run(self, entry, blob, threads):
        assert threads == LANES
        self.blobs += 1
        for thread in self.order:
            run_counted(entry, blob, thread)


def moved(program):
    """Whether a run moves all blocks by one place for each segment."""
    x, y = np.random.default_rng(5).random((2, LANES, SIZE), np.float32)
    program.run(x.ctypes.data, 0, y.ctypes.data)
    return np.array_equal(y, np.roll(x, SEGMENTS, axis=0))


@pytest.mark.parametrize("order", [(0,), (2,), *permutations(range(LANES))], ids=str)
def test_any_order(order, monkeypatch):
    program, _ = made()
    team = Team(order)
    monkeypatch.setattr(active_threads, "BORROWED", [team])
    assert moved(program)
    assert moved(program)
    assert team.blobs == 2


def test_all_at_once():
    program, _ = made()
    assert all(moved(program) for _ in range(200))


def test_each_task_runs_once():
    """Tasks exchange the halves of a block, so that one that ran twice would undo it."""
    room = Room()
    rows, wide = 2, 4
    x, y = (placed(place, (LANES, rows, wide), F32, (32, 16, 4)) for place in (X, Y))
    spare, own = room.array((LANES, wide), F32), room.array((LANES, rows, wide), F32)

    def exchanged(lane):
        one, two = own[lane]
        return [Copied(one, spare[lane]), Copied(two, one), Copied(spare[lane], two)]

    lanes = range(LANES)
    segments = [
        [[Copied(x[lane], own[lane])] for lane in lanes],
        *[[exchanged(lane) for lane in lanes]] * 51,
        [[Copied(own[lane], y[lane])] for lane in lanes],
    ]
    program = Program(lane_steps(segments, room), room)
    for _ in range(200):
        before, after = np.random.default_rng().random((2, LANES, rows, wide), np.float32)
        program.run(before.ctypes.data, 0, after.ctypes.data)
        assert np.array_equal(after, before[:, ::-1])


def test_compiled_programs():
    """The same by compiled code."""
    program, _ = made()
    launch.make_once()
    run = python_code(".runtime.compiled.program:RUN_PROGRAM")
    words = program.words
    assert words is not None
    for _ in range(40):
        x, y = np.random.default_rng().random((2, LANES, SIZE), np.float32)
        assert run(active_threads.ADDRESS, words.address, *map(address, (x, None, None, None, y)))
        assert np.array_equal(y, np.roll(x, SEGMENTS, axis=0))


def address(array):
    return 0 if array is None else array.ctypes.data


def test_a_thread_that_is_late(monkeypatch):
    """It finds nothing to do, or takes what is left."""
    program, _ = made()

    class Late(Team):
        def run(self, entry, blob, threads):
            others = [
                threading.Thread(target=run_counted, args=(entry, blob, thread))
                for thread in range(1, LANES)
            ]
            for each in others:
                each.start()
            run_counted(entry, blob, 0)
            for each in others:
                each.join()

    monkeypatch.setattr(active_threads, "BORROWED", [Late(())])
    assert all(moved(program) for _ in range(40))


def test_helpers_leave_a_busy_machine(monkeypatch):
    """They take no task that others do while more threads run than there are CPUs."""
    program, _ = made()
    words = active_threads._words
    running = int(words[active_threads.RUNNING // 8])
    words[active_threads.RUNNING // 8] += 1000
    try:
        assert all(moved(program) for _ in range(20))
    finally:
        words[active_threads.RUNNING // 8] -= 1000
    assert int(words[active_threads.RUNNING // 8]) == running


def test_steps_of_python():
    room = Room()
    x = room.array((4,), F32)
    with pytest.raises(ValueError, match="step is one of Python"):
        lane_steps([[[Called(print, (x,))], []]], room)
