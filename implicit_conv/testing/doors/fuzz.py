"""Check random programs of a door, each against the library that the door is for."""

from __future__ import annotations

import importlib
import importlib.util
import itertools
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, Protocol

from implicit_conv.cpu.candidates.phrases import count
from implicit_conv.errors import UsageError, install
from implicit_conv.testing.families import Dice
from implicit_conv.testing.loop import ROUNDS, Source, Tally, compute
from implicit_conv.testing.ways import Kinds

DOORS = ("converted", "dask", "jax", "ndimage", "signal", "torch")
PROGRAMS = 40  # of a kind; the others of the kind of one that fails are left out
DRAWN = 8  # programs of which one is dealt
LEAST = 5  # programs of each kind of call, and way to run it, from which a run proves something
MOST_SECONDS = 60.0  # of a program; a longer one hangs


class Program(Protocol):
    """What a door draws: a frozen value."""

    @property
    def function(self) -> str:
        """What is counted in the table of a run."""

    @property
    def kinds(self) -> Collection[str]:
        """The kinds of calls that it makes."""

    def check(self) -> Iterable[str] | None:
        """Run the program; raise an exception if its results are wrong.

        Returns
        -------
        ways : names, or None
            The kinds of calls, and the ways that these took.
        """


class Deck:
    """Programs of a seed, one after another. While fewer than LEAST had one of `kinds`, a few are
    drawn, and the one that has most of such kinds is dealt.
    """

    def __init__(self, draw: Callable[[Dice], Program], kinds: Iterable[str], seed: int) -> None:
        self._draw, self._seed, self._numbers = draw, seed, itertools.count()
        self._missing = Counter(dict.fromkeys(kinds, LEAST))

    def deal(self) -> Program:
        """The next program."""
        number, wanted = next(self._numbers), set(+self._missing)
        turns = range(DRAWN if wanted else 1)
        drawn = [self._draw(Dice(self._seed, number, turn)) for turn in turns]
        program = max(drawn, key=lambda program: len(wanted.intersection(program.kinds)))
        self._missing.subtract(program.kinds)
        return program


def source_of(name: str, seed: int) -> tuple[Source[Program], Counter[str], Kinds]:
    """(the programs of a door, as a seed draws them; counts of their functions, and of kinds and
    ways of calls).

    Parameters
    ----------
    name : one of DOORS
    seed : int

    Raises
    ------
    UsageError
        A package is missing.
    """
    module = module_of(name)
    missing = [part for part in module.REQUIRED if importlib.util.find_spec(part) is None]
    if missing:
        raise UsageError(
            f"door {name!r} needs {' and '.join(missing)}, which is not installed: "
            + install(*(module.REQUIRED[part] for part in missing))
        )
    deck, counts, kinds = Deck(module.draw, module.KINDS, seed), Counter[str](), Kinds()

    def deal() -> tuple[str, Sequence[Program]]:
        return name, [deck.deal() for _ in range(PROGRAMS)]

    def program(drawn: Program) -> str:
        imports = f"from math import inf, nan\n\nfrom {module.__name__} import *"
        return f"{imports}\n\n{drawn!r}.check()\n"

    def add(programs: Sequence[Program], ways: Sequence[Iterable[str] | None]) -> None:
        counts.update(program.function for program in programs)
        kinds.add(ways)

    return Source("program", deal, _check, program, add, MOST_SECONDS), counts, kinds


def module_of(name: str) -> Any:
    """The module of a door."""
    return importlib.import_module(f"{__package__}.{name}")


def _check(program: Program) -> Iterable[str] | None:
    return program.check()


def fuzz(name: str, seed: int, seconds: float) -> int:
    """Check programs of a door for `seconds`, and print what was computed.

    While kinds of calls have too few programs it goes on, up to ROUNDS times as long: how many
    programs a second has depends on the machine and on kernels that are compiled.

    Returns
    -------
    status : int
        0, 1 after a wrong result, an error, a crash or a hang, or if too few programs had a kind of
        call or a way that the door is to reach, or 130 after Ctrl-C.

    Raises
    ------
    UsageError
        A package is missing.
    """
    source, counts, kinds = source_of(name, seed)
    module, tally, rounds = module_of(name), Tally(), 0
    few: dict[str, int] = {}
    while not rounds or (few and not tally.status and rounds < ROUNDS):
        tally, rounds = tally + compute(source, seconds), rounds + 1
        few = kinds.few((*module.KINDS, *module.WAYS), LEAST)
    if kinds.counts:
        print(kinds.table())
    print(", ".join(f"{function} {n}" for function, n in sorted(counts.items())))
    outcome = "interrupted" if tally.interrupted else "all right"
    if tally.failed:
        outcome = f"{count(tally.failed, 'program')} failed"
    elif few and not tally.interrupted:
        had = ", ".join(f"{kind} {n}" for kind, n in few.items())
        outcome = f"too few, {LEAST} of each kind at least: {had}; give it more --seconds"
    done = count(tally.computed, "program")
    print(f"{done} of {name} in {tally.seconds:.0f} s, seed {seed}: {outcome}")
    return tally.status or int(bool(few))
