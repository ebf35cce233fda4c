"""Compute random trials in a child process, for some time, and compare them with the reference."""

from __future__ import annotations

import math
import platform
from collections.abc import Iterable, Sequence

from implicit_conv.cpu.candidates.phrases import count as counted
from implicit_conv.cpu.machine.arch import BFLOAT16, cpu_arch
from implicit_conv.testing import loop
from implicit_conv.testing.check import check
from implicit_conv.testing.draw import Deck
from implicit_conv.testing.loop import ROUNDS, Source, Tally
from implicit_conv.testing.trial import Trial

LEAST = 3  # kinds, from which a run proves something


def fuzz(deck: Deck, seconds: float = math.inf, problems: float = math.inf) -> int:
    """Compute the trials of a deck for `seconds`, or `problems` of them, and print what was
    computed; see `compute`. With fewer than LEAST kinds it goes on, up to ROUNDS times as long: how
    many there are depends on the machine and on kernels that are compiled.

    Returns
    -------
    status : int
        0, 1 after a wrong result, an error or a crash, or if too few kinds were computed in the
        time, or 130 after Ctrl-C.
    """
    tally, rounds, few = Tally(), 0, True
    while not rounds or (few and not tally.status and rounds < ROUNDS):
        tally, rounds = tally + compute(deck, seconds, problems - tally.computed), rounds + 1
        few = tally.kinds < LEAST and tally.computed < problems
    outcome = "interrupted" if tally.interrupted else "all right"
    if tally.failed:
        outcome = f"{counted(tally.failed, 'problem')} failed"
    elif few and not tally.interrupted:
        outcome = f"too few, {LEAST} kinds at least say something: give it more --seconds"
    print(deck.coverage.table())
    print(deck.ways.table())
    print(_summary(tally, str(deck), outcome))
    return tally.status or int(few)


def compute(deck: Deck, seconds: float = math.inf, problems: float = math.inf) -> Tally:
    """Compute the trials of a deck for `seconds`, or `problems` of them; see `loop.compute`.

    A trial has no limit: its time depends on what its kernels take to compile.
    """

    def deal() -> tuple[str, Sequence[Trial]]:
        kind, trials = deck.deal()
        if trials[0].guard:
            from implicit_conv.testing import guard

            guard.prepare()  # which all children then have
        return kind.name, trials

    def add(trials: Sequence[Trial], ways: Sequence[Iterable[str] | None]) -> None:
        deck.coverage.add(trials)
        deck.ways.add(ways)

    return loop.compute(Source("trial", deal, check, program, add), seconds, problems)


def program(trial: Trial) -> str:
    """A program that repeats a trial, and fails if the trial does."""
    return (
        "from implicit_conv.testing import Case\n"
        "from implicit_conv.testing.check import check\n"
        "from implicit_conv.testing.trial import Trial\n\n"
        f"check({trial!r})\n"
    )


def _summary(tally: Tally, how: str, outcome: str) -> str:
    arch = cpu_arch()
    done = f"{counted(tally.computed, 'problem')} of {counted(tally.kinds, 'kind')}"
    machine = f"{platform.machine()} with {arch.vector_bits}-bit vectors"
    took = f"in {tally.seconds:.0f} s, {how}"
    return f"{done} {took}; {machine}, bfloat16 by {BFLOAT16[arch.bfloat16]}: {outcome}"
