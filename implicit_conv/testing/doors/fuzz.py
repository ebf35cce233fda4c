"""Check random programs of a door, each against the library that the door is for."""

from __future__ import annotations

import importlib
import importlib.util
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Protocol

from implicit_conv.cpu.candidates.phrases import count
from implicit_conv.errors import UsageError
from implicit_conv.testing.families import Dice
from implicit_conv.testing.loop import compute

DOORS = ("dask", "ndimage", "signal", "torch")
PROGRAMS = 40  # of a kind; the others of the kind of one that fails are left out
MOST_SECONDS = 60.0  # of a program; a longer one hangs


class Program(Protocol):
    """What a door draws: a frozen value."""

    @property
    def function(self) -> str:
        """What is counted in the table of a run."""

    def check(self) -> None:
        """Run the program; raise an exception if its results are wrong."""


class Door:
    """The programs of a seed; compare `loop.Source`.

    Parameters
    ----------
    name : one of DOORS
    seed : int

    Raises
    ------
    UsageError
        A package is missing.
    """

    word = "program"
    limit: float | None = MOST_SECONDS

    def __init__(self, name: str, seed: int) -> None:
        self._name, self._seed, self._number = name, seed, 0
        module = importlib.import_module(f"{__package__}.{name}")
        missing = [part for part in module.REQUIRED if importlib.util.find_spec(part) is None]
        if missing:
            raise UsageError(
                f"door {name!r} needs {' and '.join(missing)}, which is not installed: "
                f"pip install {' '.join(missing)}"
            )
        self._draw: Callable[[Dice], Program] = module.draw
        self.counts: Counter[str] = Counter()

    def deal(self) -> tuple[str, Sequence[Program]]:
        """The next programs."""
        numbers = range(self._number, self._number + PROGRAMS)
        self._number += PROGRAMS
        return self._name, [self._draw(Dice(self._seed, number)) for number in numbers]

    def check(self, program: Program) -> None:
        """Run a program."""
        program.check()

    def program(self, program: Program) -> str:
        """Code that repeats a program."""
        return (
            f"from math import inf, nan\n\nfrom {__package__}.{self._name} import *\n\n"
            f"{program!r}.check()\n"
        )

    def add(self, programs: Sequence[Program]) -> None:
        """Count functions."""
        self.counts.update(program.function for program in programs)


def fuzz(name: str, seed: int, seconds: float) -> int:
    """Check programs of a door for `seconds`, and print what was computed.

    Returns
    -------
    status : int
        0, 1 after a wrong result, an error, a crash or a hang, or 130 after Ctrl-C.

    Raises
    ------
    UsageError
        A package is missing.
    """
    door = Door(name, seed)
    tally = compute(door, seconds)
    print(", ".join(f"{function} {n}" for function, n in sorted(door.counts.items())))
    outcome = "interrupted" if tally.interrupted else "all right"
    if tally.failed:
        outcome = f"{count(tally.failed, 'program')} failed"
    done = count(tally.computed, "program")
    print(f"{done} of {name} in {tally.seconds:.0f} s, seed {seed}: {outcome}")
    return tally.status
