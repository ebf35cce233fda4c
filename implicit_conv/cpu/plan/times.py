"""Times that were measured on this machine: a call of ours, and a neighbour's of the same result.

They are kept in memory and on disk, and found again for the same CPU and the same versions of all
that runs. Sizes of one kind are kept together, since what was measured for some of them serves the
others.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import NamedTuple

from implicit_conv.cache import cached_property
from implicit_conv.cpu.machine.arch import cpu_arch
from implicit_conv.cpu.machine.compiler import compiled_target
from implicit_conv.kernels.disk import store
from implicit_conv.kernels.disk_folder import TIMES
from implicit_conv.kernels.preparation import first
from implicit_conv.kernels.sources import digest, kernels_hash

KIND_DIGITS, SIZE_DIGITS = 12, 32  # of digests, in names


class Times(NamedTuple):
    """Seconds of a call of ours and of the neighbour's."""

    ours: float
    theirs: float


class Table:
    """Times by kind of call and size.

    Parameters
    ----------
    neighbour : object
        What tells the neighbour's versions, by its repr.
    """

    def __init__(self, neighbour: object) -> None:
        self._neighbour = neighbour
        self._kinds: dict[str, dict[str, Times]] = {}  # by digests of kinds, and of sizes

    def of_kind(self, kind: object) -> dict[str, Times]:
        """What was measured for sizes of a kind, by `size_name`; the caller may add to it."""
        name = digest((self._machine, kind))[:KIND_DIGITS]
        if name not in self._kinds:
            self._kinds[name] = dict(_on_disk(name))
        return self._kinds[name]

    def save(self, kind: object, size: str, times: Times) -> None:
        """Keep times for later processes too; a disk that cannot be written is logged."""
        name = digest((self._machine, kind))[:KIND_DIGITS]
        self.of_kind(kind)[size] = times
        store().save(f"{name}-{size}{TIMES}", json.dumps(times).encode())

    def forget(self) -> None:
        """Forget what this process has read or measured."""
        self._kinds.clear()

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
    return digest(size)[:SIZE_DIGITS]


def forget() -> int:
    """Remove the times that all processes have saved; returns of how many calls there were."""
    return len(store().remove(TIMES))


def _on_disk(kind: str) -> list[tuple[str, Times]]:
    """The sizes of a kind and their times, as other processes saved them."""
    found = []
    for file in store().files(TIMES):
        if file.name.startswith(f"{kind}-"):
            payload = store().load(file.name)
            if payload is not None:
                size = file.name.removeprefix(f"{kind}-").removesuffix(TIMES)
                found.append((size, Times(*json.loads(bytes(payload)))))
    return found
