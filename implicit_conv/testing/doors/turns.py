"""Calls of a program that come again: with new values in new arrays, and one change among them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np

import implicit_conv
from implicit_conv.cpu.run.call import MODULE, OFTEN
from implicit_conv.testing import Array
from implicit_conv.testing.doors.data import Data, check_bits
from implicit_conv.testing.families import Dice
from implicit_conv.testing.trial import SIDES
from implicit_conv.testing.ways import TIMES, calls

CHANGES = ("none", "in place", "storage", "threads", "subnormals", "another door")
KINDS_OF_TURNS = (*map(calls, TIMES), *CHANGES[1:])
CONVOLUTIONS = (implicit_conv.conv1d, implicit_conv.conv2d, implicit_conv.conv3d)  # by rank


class Turn(NamedTuple):
    """One of the calls: its number, from 0 on, and how it differs from the others."""

    number: int
    change: str

    def data(self, value: Data) -> Data:
        """An array of the program as this call has it."""
        storage = value.storage
        if self.change == "storage":
            storage = "strided" if storage != "strided" else "contiguous"
        return replace(value, seed=value.seed + self.number, storage=storage)

    def settings(self) -> AbstractContextManager[Any]:
        """The settings of this call."""
        if self.change == "threads":
            return implicit_conv.config(num_threads=1)
        if self.change == "subnormals":
            return implicit_conv.config(subnormals="flush")
        return nullcontext()

    def placed(self, new: dict[str, Any], before: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of this call: `new` ones, or arrays of the call `before` with their values.
        Another door convolves the first image in between.
        """
        arrays = {name: each for name, each in new.items() if isinstance(each, np.ndarray)}
        if self.change == "in place":
            for name, array in arrays.items():
                old = before.get(name)
                if isinstance(old, np.ndarray) and old.flags.writeable and old.size:
                    old[...] = array
                    new[name] = old
        if self.change == "another door" and arrays:
            _convolve(next(iter(arrays.values())))
        return new


def _convolve(array: Array) -> None:
    """Convolve an image, along three axes at most, by a window whose middle tap is the only one."""
    if array.dtype.char not in "fd" or not array.ndim or not array.size:
        return
    array = array[(0,) * (array.ndim - 3)]
    x = np.nan_to_num(array)[None, None]
    w = np.zeros((1, 1, *(3,) * array.ndim), array.dtype.newbyteorder("="))
    w[(0, 0, *(1,) * array.ndim)] = 1
    y = CONVOLUTIONS[array.ndim - 1](x, w, padding=1, precision="strict")
    check_bits(x, y)


@dataclass(frozen=True)
class Turns:
    """How often a program calls.

    Attributes
    ----------
    times : int
    change : one of CHANGES
        How the call in the middle differs from the others.
    guard : one of SIDES, or ""
        The side of all memory on which there are inaccessible pages.
    """

    times: int = 1
    change: str = "none"
    guard: str = ""

    def each(self) -> Iterator[Turn]:
        """The calls, one after another."""
        if self.times > OFTEN:
            import_module(MODULE)  # else another thread does, and compiled code comes later
        for number in range(self.times):
            is_middle = number == max(1, self.times // 2)
            yield Turn(number, self.change if is_middle else "none")

    def guarded(self, *, scratch: bool = False) -> AbstractContextManager[Any]:
        """Guard the arrays of this thread, and scratch memory if there is one call; see
        `guard.guarded`. Arrays that other threads make are not guarded.
        """
        if not self.guard:
            return nullcontext()
        from implicit_conv.testing.guard import guarded  # it imports Numba

        return guarded(self.guard, scratch=scratch and self.times == 1)

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of calls; see KINDS_OF_TURNS."""
        number = calls(self.times)
        return (number, self.change) if self.times > 1 and self.change != "none" else (number,)


ONCE = Turns()


class Repeated:
    """A program whose calls come again as its `turns` say."""

    turns: Turns

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of calls that it makes."""
        return self.turns.kinds


def forget(arguments: Mapping[str, Any]) -> None:
    """Write to arrays that no call may read any more."""
    for array in arguments.values():
        if isinstance(array, np.ndarray) and array.flags.writeable:
            array[...] = 99


def called(function: Callable[..., Any], call: Callable[..., Any]) -> Callable[..., Any]:
    """A function of keywords that makes its call by `call`, which notes its way."""
    return lambda **named: call(lambda: function(**named))


def draw_turns(dice: Dice) -> Turns:
    """Once or twice, so that many kinds are drawn in a minute, and one of eight often."""
    times = dice.pick(*TIMES[2:]) if dice.happens(8) else dice.pick(1, 1, 2)
    return Turns(times, dice.pick(*CHANGES), dice.pick(*SIDES) if dice.happens(4) else "")
