"""The ways that calls ran: a first call plans and prepares; equal ones later skip ever more of it.

A fault of one way is found by no call that runs another one: so a fuzz repeats its calls, notes the
way that each has taken, and prints a table of them.
"""

from __future__ import annotations

import contextlib
import textwrap
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any
from unittest import mock

from implicit_conv.cpu.engines.executor import Executor
from implicit_conv.cpu.run.call import OFTEN, RepeatedArrays
from implicit_conv.cpu.run.prepared import PreparedCall

# Calls of a program: the first, kept, and compiled ways begin at the second call and at the one
# after OFTEN.
TIMES = (1, 2, 3, 4, OFTEN + 1, 40)
FIRST, KEPT, COMPILED = "planned", "kept, by Python", "kept, compiled"
PREPARED, PREPARED_COMPILED = "prepared, by Python", "prepared, compiled"
WAYS = (FIRST, KEPT, COMPILED, PREPARED, PREPARED_COMPILED)


def calls(times: int) -> str:
    """The kind of programs that call so many times."""
    return f"called {times} times"


class Watch:
    """Notes the way of each call, in each thread."""

    def __init__(self) -> None:
        self.taken: Counter[str] = Counter()
        self._here = threading.local()

    def note(self, way: str) -> None:
        """The call under way takes this one, whichever it seemed to take before."""
        self._here.way = way

    def call(self, caller: str, function: Callable[[], Any], unseen: str = COMPILED) -> Any:
        """Call a function, and count its way, which is `unseen` where Python notes none."""
        self._here.way = ""
        result = function()
        self.taken[f"{caller}: {self._here.way or unseen}"] += 1
        return result


@contextlib.contextmanager
def watched() -> Iterator[Watch]:
    """Note the ways of calls of numpy arrays."""
    watch = Watch()
    with contextlib.ExitStack() as stack:
        for kind, name, way in (
            (Executor, "run", FIRST),
            (RepeatedArrays, "again", KEPT),
            (PreparedCall, "compute", PREPARED),
        ):
            stack.enter_context(noted(watch, kind, name, way))
        yield watch


def noted(watch: Watch, place: Any, name: str, way: str) -> Any:
    """A patch of a function, which notes that a call has come to it."""
    return _telling(place, name, lambda: watch.note(way))


def counted(watch: Watch, place: Any, name: str, way: str) -> Any:
    """A patch of a function, each of whose calls is one of the ways."""
    return _telling(place, name, lambda: watch.taken.update([way]))


def _telling(place: Any, name: str, tell: Callable[[], None]) -> Any:
    own = getattr(place, name)

    def function(*arguments: Any, **options: Any) -> Any:
        tell()
        return own(*arguments, **options)

    return mock.patch.object(place, name, function)


class Kinds:
    """How many kinds of programs took each way, or made each kind of call."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._reached: Counter[str] = Counter()

    def add(self, taken: Iterable[Iterable[str] | None]) -> None:
        """Count the ways of programs, each of which is a kind."""
        for ways in taken:
            names = set(ways or ())
            self.counts.update(names)
            self._reached.update({name.rpartition(": ")[2] for name in names})

    def few(self, names: Iterable[str], least: int) -> dict[str, int]:
        """How many programs had each of `names`, of any caller, where fewer than `least` had."""
        return {name: self._reached[name] for name in names if self._reached[name] < least}

    def table(self) -> str:
        """The number of kinds of each way."""
        rows = (f"{way} {count}" for way, count in sorted(self.counts.items()))
        return textwrap.fill(f"ways to run  {'; '.join(rows)}", 100, subsequent_indent=" " * 13)
