"""Choices that were measured on this machine: which candidate of a plan is the fastest.

`tuning` measures and keeps them, in memory and on disk, and the planner asks for them. An entry is
found again for the same problem, options, CPU and versions; its candidate is named by a digest of
all that its kernels depend on.
"""

from __future__ import annotations

import functools
import json
from dataclasses import replace
from typing import NamedTuple

from implicit_conv.cpu.candidates.candidate import Candidate
from implicit_conv.cpu.candidates.query import Query
from implicit_conv.cpu.machine.compiler import compiled_target
from implicit_conv.kernels.sources import digest
from implicit_conv.process.disk import Store, store
from implicit_conv.process.disk_folder import CHOICE
from implicit_conv.process.preparation import first

DIGITS, KIND_DIGITS = 32, 12  # of digests, in names
TILINGS = 3  # of each variant of a method that are measured, at most
_MEMORY: dict[str, Kept] = {}  # of this process; it also serves where the disk cannot be written


class Kept(NamedTuple):
    """The fastest candidate, as `name_of` names it, and what was measured, in words."""

    candidate: str
    words: str


def entry_of(query: Query) -> str:
    """The name of the entry for a plan, which begins with that of its kind."""
    strides = [a.strides for a in query.arrays[:4] if a is not None] if query.arrays else None
    kind = kind_of(query)
    return kind + digest((kind, query.problem, strides))[: DIGITS - KIND_DIGITS] + CHOICE


def kind_of(query: Query) -> str:
    """How the names of entries begin for problems that differ in their sizes alone."""
    problem, arch, request, _, methods = query
    first("versions")
    from implicit_conv.kernels.cpu.runtime.code import versions

    names = [method.__name__ for method in methods or ()]
    # The clock is left out: some systems report the current one.
    machine = replace(arch, hertz=0.0), compiled_target()
    # Neither an activation nor a compiler changes which method is the fastest.
    options = replace(request, activation="", compiler="", searches=True)
    shared = problem.changed(N=1, size=(1,) * problem.rank)
    return digest((versions(), machine, shared, options, names))[:KIND_DIGITS]


def name_of(c: Candidate) -> str:
    """A name for a candidate: a digest of its method and tiling."""
    return digest((type(c.method).__name__, c.method, c.tiling, c.threads))[:DIGITS]


def load(entry: str) -> Kept | None:
    """The choice that is kept as `entry`, if there is one."""
    if entry in _MEMORY:
        return _MEMORY[entry]
    payload = store().load(entry)
    return None if payload is None else Kept(*json.loads(bytes(payload)))


def has_kind(kind: str) -> bool:
    """Whether a size of a kind was measured, by this process or before it first asked."""
    return kind in _kinds_on(store()) or any(entry.startswith(kind) for entry in _MEMORY)


@functools.cache
def _kinds_on(disk: Store) -> frozenset[str]:
    return frozenset(file.name[:KIND_DIGITS] for file in disk.files(CHOICE))


def save(entry: str, kept: Kept) -> None:
    """Keep a choice as `entry`; a disk that cannot be written is logged."""
    _MEMORY[entry] = kept
    store().save(entry, json.dumps(kept).encode())


def forget() -> int:
    """Remove all choices of all processes; returns how many files there were."""
    _MEMORY.clear()
    return len(store().remove(CHOICE))
