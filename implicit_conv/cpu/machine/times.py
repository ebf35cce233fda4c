"""Times that were measured on this machine: a call of ours, and a neighbour's of the same result.

They are kept in memory and on disk, and found again for the same CPU and the same versions of all
that runs. Sizes of one kind are kept together, since what was measured for some of them serves the
others.
"""

from __future__ import annotations

import json
from collections.abc import Hashable
from dataclasses import replace
from typing import NamedTuple

from implicit_conv.cpu.machine.arch import cpu_arch
from implicit_conv.cpu.machine.compiler import compiled_target
from implicit_conv.kernels.sources import digest, kernels_hash
from implicit_conv.process.cache import cached_property
from implicit_conv.process.disk import store
from implicit_conv.process.disk_folder import TIMES
from implicit_conv.process.preparation import first

DIGITS = 32  # of digests, in names
KINDS = 4096  # that a process keeps in memory; it reads others again


class Times(NamedTuple):
    """Seconds of a call of ours and of the neighbour's."""

    ours: float
    theirs: float


class Table:
    """Times by kind of call and size; those of a kind are one file.

    Parameters
    ----------
    neighbour : object
        What tells the neighbour's versions, by its repr.
    """

    def __init__(self, neighbour: object) -> None:
        self._neighbour = neighbour
        self._kinds: dict[Hashable, dict[str, Times]] = {}  # by kind, and `size_name`

    def of_kind(self, kind: Hashable) -> dict[str, Times]:
        """What was measured for sizes of a kind, by `size_name`; the caller may add to it."""
        if kind not in self._kinds:
            if len(self._kinds) >= KINDS:
                self._kinds.clear()
            payload = store().load(self._name(kind))
            found = {} if payload is None else json.loads(bytes(payload))
            self._kinds[kind] = {size: Times(*times) for size, times in found.items()}
        return self._kinds[kind]

    def save(self, kind: Hashable) -> None:
        """Keep what was measured for a kind for later processes too; a disk that cannot be written
        is logged.
        """
        store().save(self._name(kind), json.dumps(self.of_kind(kind)).encode())

    def _name(self, kind: Hashable) -> str:
        return digest((self._machine, kind))[:DIGITS] + TIMES

    @cached_property
    def _machine(self) -> object:
        """All that times depend on, but the call."""
        first("versions")
        from implicit_conv.kernels.cpu.runtime.code import versions

        # The clock is left out: some systems report the current one.
        machine = replace(cpu_arch(), hertz=0.0), compiled_target()
        return versions(), kernels_hash(), machine, self._neighbour


def size_name(size: object) -> str:
    """A name for a size: a digest."""
    return digest(size)[:DIGITS]


def forget() -> int:
    """Remove the times that all processes have saved; returns of how many kinds of calls."""
    return len(store().remove(TIMES))
