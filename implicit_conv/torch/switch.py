"""Which calls of `enable` are in force, and whether torch's dispatcher has our kernels.

A change is made by another thread, which holds the lock of `preparation`: neither a fork nor an
exception of a signal handler, such as that of Ctrl-C, cuts it in two.
"""

from __future__ import annotations

import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Any, NamedTuple, TypeAlias

import torch

from implicit_conv.kernels.cpu.runtime.active_threads import use as use_team
from implicit_conv.process.preparation import checkpoint, prepare
from implicit_conv.torch.allocator import keep_freed_memory
from implicit_conv.torch.openmp import torch_team
from implicit_conv.torch.packed import FILTERS

Kernels: TypeAlias = Mapping[str, Mapping[str, Callable[..., Any]]]  # by dispatch key and operator
LIBRARY: Any = torch.library.Library  # which has no types

# For how long a kernel that was unregistered is kept, in seconds of the clock and of this process's
# CPU time, whichever takes longer (a stopped process takes none). A thread that has found it in the
# dispatcher waits for the GIL with its plain address, and gets it thousands of times sooner, but
# nothing tells when. (Kernels that stay registered and hand on to torch's own would make a small
# call take 51 us instead of 4.6: torch 2.13, AMD EPYC beside other work, 2026-11.)
GRACE_SECONDS = 10.0


class Settings(NamedTuple):
    """The arguments of `enable`."""

    keep_packed: int
    precision: str
    choose: str


DEFAULTS = (
    "standard",
    "measured",
)  # what the operator of `op` follows where `enable` is not in force


class Claim:
    """A call of `enable`, or with no settings a block in which torch's own kernels run.

    It ends with its `holder`, unless it stays: who loses the holder to an exception, before or in
    its block, loses the claim too.
    """

    def __init__(self, holder: object, settings: Settings | None) -> None:
        self.settings, self.stays = settings, False
        self._holder = weakref.ref(holder)

    @property
    def holds(self) -> bool:
        """Whether it is still in force."""
        return self.stays or self._holder() is not None


class Switch:
    """The claims, of which the last one's settings are in force, and the kernels registered for
    them.

    Attributes
    ----------
    precision, choose : str
        Those of the settings in force, or else DEFAULTS.
    """

    def __init__(
        self,
        kernels: Kernels,
        told: Callable[[str, str], None] | None = None,
    ) -> None:
        """`kernels` are those to register; `told` is called with the precision and the choice in
        force.
        """
        self._told = told or (lambda precision, choose: None)
        self.precision, self.choose = DEFAULTS
        self._told(*DEFAULTS)
        self._kernels, self._claims = kernels, list[Claim]()
        self._registered: Registered | None = None
        self._borrowers = weakref.WeakSet[Any]()  # of torch's threads, without a claim
        self._retired: deque[Registered] = deque()

    @property
    def claims(self) -> int:
        """The number of claims."""
        return len(self._claims)

    @property
    def is_on(self) -> bool:
        """Whether torch's dispatcher has our kernels."""
        return self._registered is not None

    def add(self, claim: Claim) -> None:
        """Have a claim in force; one that is in force keeps its place."""
        self._change(lambda claims: claims if claim in claims else [*claims, claim])

    def has(self, claim: Claim) -> bool:
        """Whether a claim is in force."""
        return claim in self._claims

    def discard(self, claim: Claim) -> None:
        """End a claim, unless `clear` has."""
        self._change(lambda claims: [other for other in claims if other is not claim])

    def lend(self, borrower: Any) -> None:
        """Have calls run on torch's threads while `borrower` lives, also without a claim."""
        prepare(self._lend, borrower)

    def _lend(self, borrower: Any) -> None:
        checkpoint()
        keep_freed_memory()
        if self._registered is None:
            use_team(torch_team())
        self._borrowers.add(borrower)

    def end_loans(self, borrowers: Iterable[Any]) -> None:
        """Undo `lend`."""
        prepare(self._end_loans, set(borrowers))

    def _end_loans(self, borrowers: set[Any]) -> None:
        checkpoint()
        lent = bool(self._borrowers & borrowers)
        self._borrowers -= borrowers
        if lent and not self._borrowers and self._registered is None:
            use_team(None)

    def clear(self) -> None:
        """End all claims."""
        self._change(lambda claims: [])

    def _change(self, change: Callable[[list[Claim]], list[Claim]]) -> None:
        prepare(self._changed, change)

    def _changed(self, change: Callable[[list[Claim]], list[Claim]]) -> None:
        checkpoint()  # which has another thread do this, since signal handlers run in the main one
        claims = [claim for claim in change(self._claims) if claim.holds]
        settings = [claim.settings for claim in claims]
        self._follow(None if None in settings or not settings else settings[-1])
        self._claims = claims  # last: an error above leaves those that were in force

    def _follow(self, settings: Settings | None) -> None:
        """Have settings in force; None gives torch its own kernels back."""
        self.precision, self.choose = DEFAULTS if settings is None else settings[1:]
        self._told(self.precision, self.choose)
        if settings is not None:
            keep_freed_memory()
            if self._registered is None:
                team = torch_team()
                self._registered = Registered(self._kernels)
                use_team(team)
        elif self._registered is not None:
            if not self._borrowers:
                use_team(None)
            self._registered.destroy()
            self._retired.append(self._registered)
            self._registered = None
        while self._retired and self._retired[0].age() > GRACE_SECONDS:
            self._retired.popleft()
        FILTERS.shrink(0 if settings is None else settings.keep_packed)


class Registered:
    """Kernels in torch's dispatcher: all, or after an error none."""

    def __init__(self, kernels: Kernels) -> None:
        self._library, self._kept = LIBRARY("aten", "IMPL"), list[Any]()
        self._destroyed = 0.0, 0.0
        try:
            for key, named in kernels.items():
                for name, kernel in named.items():
                    self._library.impl(name, kernel, key, with_keyset=True)
                    self._kept.append(torch.library.get_kernel(f"aten::{name}", key))
        except BaseException:
            self.destroy()
            raise

    def destroy(self) -> None:
        """Take them out; threads may still be in them, so they live as long as this object."""
        self._library._destroy()
        self._destroyed = time.monotonic(), time.process_time()

    def age(self) -> float:
        """Seconds since they were taken out, of the clock or of CPU time, whichever are fewer."""
        clock, cpu = self._destroyed
        return min(time.monotonic() - clock, time.process_time() - cpu)


class Held:
    """A claim that this object holds, and the ``with`` block of it."""

    def __init__(self, switch: Switch, settings: Settings | None) -> None:
        self._switch, self._claim = switch, Claim(self, settings)

    def __enter__(self) -> Any:
        """In force again, if it was undone: a second block of one object is like the first."""
        self._claim.stays = False
        if not self._switch.has(self._claim):
            self._switch.add(self._claim)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._switch.discard(self._claim)


class Suspended(Held):
    """A block in which torch's own kernels run, in all threads."""

    def __init__(self, switch: Switch) -> None:
        super().__init__(switch, None)


class Enabled(Held):
    """`enable` in force: leaving a ``with`` block of it undoes that call."""

    def __init__(self, switch: Switch, settings: Settings) -> None:
        super().__init__(switch, settings)
        try:
            switch.add(self._claim)
        except BaseException:
            switch.discard(self._claim)
            raise
        self._claim.stays = True  # last: until here the claim ends with this object

    def __repr__(self) -> str:
        words = repr(self._claim.settings).replace("Settings", "enable")
        ends = "until its with block ends or disable() is called"
        return f"<{words}, {f'in force {ends}' if self._switch.has(self._claim) else 'undone'}>"
