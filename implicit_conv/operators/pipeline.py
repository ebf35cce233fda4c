"""Operations as one program, in which each reads what earlier ones write."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from implicit_conv.arrays.arrays import Array
from implicit_conv.cpu.machine.arch import cpu_arch
from implicit_conv.kernels.cpu.runtime.layout import round_up
from implicit_conv.kernels.cpu.runtime.program import (
    RESIDUAL,
    Program,
    Room,
    Step,
    W,
    X,
    Y,
    array_at,
    begin_of,
    placed,
)
from implicit_conv.operators.operations import Part
from implicit_conv.operators.strips import in_strips
from implicit_conv.settings import current


class Pipeline:
    """Operations as one program, in which each may read what earlier ones write.

    Images have numbers: those that a run is given, up to three, and then results. The last result
    is that of the program; all others are in its room.
    """

    def __init__(self) -> None:
        self._given = list[Array]()
        self._parts = list[Part]()

    def read(self, shape: tuple[int, ...], dtype: Any, strides: tuple[int, ...]) -> None:
        """Have runs take one more image; strides are in bytes."""
        place = (X, W, RESIDUAL)[len(self._given)]
        self._given.append(placed(place, shape, dtype, strides))

    def add(self, part: Part) -> None:
        """Have one more result."""
        self._parts.append(part)

    def program(self) -> Program:
        """The program of all parts.

        Raises
        ------
        PlanError
            No method takes arrays of these strides.
        """
        first = len(self._given)
        parts = in_strips(dict(enumerate(self._parts, first)), cpu_arch(current().num_threads))
        room, steps, images = Room(), list[Step](), dict(enumerate(self._given))
        for (number, part), place in zip(parts.items(), _places(parts), strict=True):
            at = begin_of(Y)
            if number < first + len(self._parts) - 1:
                room.end = place
                at = room.take(part.bytes)
            images[number] = array_at(at, part.shape, part.dtype, part.strides)
        end = room.end = round_up(room.size)
        for number, part in parts.items():
            read = [images[each] for each in part.images]
            steps += part.operation.steps(read, images[number], room)
            room.end = end
        return Program(steps, room)


def _places(parts: Mapping[int, Part]) -> list[int]:
    """Where in the room each result begins: at the first place that is free from when it is written
    until it is read for the last time. The last one is elsewhere.
    """
    until = {number: now for now, part in enumerate(parts.values()) for number in part.images}
    used, places = list[tuple[int, int, int]](), list[int]()  # (begin, end, last use)
    for now, (number, part) in enumerate(parts.items()):
        size = round_up(part.bytes)
        used = sorted(each for each in used if each[2] >= now)
        begin = 0
        for low, high, _ in used:
            if begin + size <= low:
                break
            begin = max(begin, high)
        places.append(begin)
        used.append((begin, begin + size, until.get(number, now)))
    return places
