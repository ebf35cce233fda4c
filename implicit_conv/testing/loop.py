"""Check what a source deals in a child process, for some time, and tell what fails."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from implicit_conv.testing.worker import Worker

INTERRUPTED = 130  # exit status of a program that Ctrl-C ended
MOST_FAILURES = 20  # a run ends after so many
ROUNDS = 8  # so many times as long a run goes on, while it has too few of some kind
Item = TypeVar("Item")


@dataclass(frozen=True)
class Source(Generic[Item]):
    """What a fuzz draws from, in kinds of items.

    Attributes
    ----------
    word : str
        What an item is called.
    deal : function
        It returns the name of the next kind, and its items.
    check : function of an item
        It raises an exception if anything is wrong, in the child process, which imports it by its
        name where it is no fork; its result are the ways that calls took, or None.
    program : function of an item
        A program that repeats the item, and fails if it does.
    add : function of (items, findings)
        It counts those that were computed, and what `check` returned for them.
    limit : float or None
        Seconds of an item, after which it hangs.
    """

    word: str
    deal: Callable[[], tuple[str, Sequence[Item]]]
    check: Callable[[Item], Iterable[str] | None]
    program: Callable[[Item], str]
    add: Callable[[Sequence[Item], Sequence[Iterable[str] | None]], None]
    limit: float | None = None


@dataclass
class Tally:
    """What a run computed."""

    computed: int = 0  # items
    kinds: int = 0
    failed: int = 0  # items
    seconds: float = 0.0
    interrupted: bool = False

    @property
    def status(self) -> int:
        """0, 1 after a failure, or 130 after Ctrl-C."""
        return INTERRUPTED if self.interrupted else int(self.failed > 0)

    def __add__(self, other: Tally) -> Tally:
        return Tally(
            self.computed + other.computed,
            self.kinds + other.kinds,
            self.failed + other.failed,
            self.seconds + other.seconds,
            self.interrupted or other.interrupted,
        )


def compute(source: Source[Item], seconds: float, items: float = math.inf) -> Tally:
    """Check what a source deals for `seconds`, or so many of its `items`.

    A program that repeats it is printed for each one that fails; the others of its kind are left
    out.
    """
    tally, start = Tally(), time.monotonic()
    worker = Worker(source.check, start + seconds, source.limit)
    try:
        name, kind = source.deal()
        while tally.seconds < seconds and tally.computed < items:
            _show_progress(tally, source.word, name)
            worker.begin(kind)
            following = source.deal()  # while the worker computes
            done, error, findings = worker.result()
            source.add(kind[:done], findings)
            tally.computed, tally.kinds = tally.computed + done, tally.kinds + 1
            if error:
                tally.failed += 1
                print(f"{source.word.capitalize()} {done} of kind {tally.kinds} ({name}) failed:")
                print(f"\n{error}\nThis program repeats it:\n")
                print(source.program(kind[done - 1]), flush=True)
                if tally.failed == MOST_FAILURES:
                    break
            name, kind = following
            tally.seconds = time.monotonic() - start
    except KeyboardInterrupt:
        tally.interrupted = True
    worker.end()
    return tally


def _show_progress(tally: Tally, word: str, name: str) -> None:
    if sys.stdout.isatty():
        text = f"{tally.seconds:4.0f} s: {tally.computed} {word}s, now {name}"
        print(f"\r{text:70}", end="\r", flush=True)
