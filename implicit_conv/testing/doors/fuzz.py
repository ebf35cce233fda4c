"""Check random programs of a door, each against the library that the door is for."""

from __future__ import annotations

import importlib
import importlib.util
import itertools
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Protocol

from implicit_conv.cpu.candidates.phrases import count
from implicit_conv.errors import UsageError, install
from implicit_conv.testing.families import Dice
from implicit_conv.testing.loop import Source, compute
from implicit_conv.testing.ways import Kinds

DOORS = ("converted", "dask", "jax", "ndimage", "signal", "torch")
PROGRAMS = 40  # of a kind; the others of the kind of one that fails are left out
MOST_SECONDS = 60.0  # of a program; a longer one hangs


class Program(Protocol):
    """What a door draws: a frozen value."""

    @property
    def function(self) -> str:
        """What is counted in the table of a run."""

    def check(self) -> Iterable[str] | None:
        """Run the program; raise an exception if its results are wrong.

        Returns
        -------
        ways : names, or None
            Those that calls took, if it notes them.
        """


def source_of(name: str, seed: int) -> tuple[Source[Program], Counter[str], Kinds]:
    """(the programs of a door, as a seed draws them; counts of their functions, and of ways).

    Parameters
    ----------
    name : one of DOORS
    seed : int

    Raises
    ------
    UsageError
        A package is missing.
    """
    module = importlib.import_module(f"{__package__}.{name}")
    missing = [part for part in module.REQUIRED if importlib.util.find_spec(part) is None]
    if missing:
        raise UsageError(
            f"door {name!r} needs {' and '.join(missing)}, which is not installed: "
            + install(*(module.REQUIRED[part] for part in missing))
        )
    numbers, counts, kinds = itertools.count(), Counter[str](), Kinds()

    def deal() -> tuple[str, Sequence[Program]]:
        drawn = itertools.islice(numbers, PROGRAMS)
        return name, [module.draw(Dice(seed, number)) for number in drawn]

    def program(drawn: Program) -> str:
        imports = f"from math import inf, nan\n\nfrom {module.__name__} import *"
        return f"{imports}\n\n{drawn!r}.check()\n"

    def add(programs: Sequence[Program], ways: Sequence[Iterable[str] | None]) -> None:
        counts.update(program.function for program in programs)
        kinds.add(ways)

    return Source("program", deal, _check, program, add, MOST_SECONDS), counts, kinds


def _check(program: Program) -> Iterable[str] | None:
    return program.check()


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
    source, counts, kinds = source_of(name, seed)
    tally = compute(source, seconds)
    if kinds.counts:
        print(kinds.table())
    print(", ".join(f"{function} {n}" for function, n in sorted(counts.items())))
    outcome = "interrupted" if tally.interrupted else "all right"
    if tally.failed:
        outcome = f"{count(tally.failed, 'program')} failed"
    done = count(tally.computed, "program")
    print(f"{done} of {name} in {tally.seconds:.0f} s, seed {seed}: {outcome}")
    return tally.status
