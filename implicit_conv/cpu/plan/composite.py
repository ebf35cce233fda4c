"""Composite: a method that consists of other convolutions, each of which has a choice of its own.

Its candidates are sorted among those of other methods by the sum of the estimates of their parts.
Its `views` are the arrays of the call, in the axes of the caller, of which its parts take views of
their own.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import ClassVar, TypeAlias

from implicit_conv.arrays.arrays import Array
from implicit_conv.cpu.candidates.candidate import Candidate, Choice, Method, Words
from implicit_conv.cpu.candidates.query import Formats
from implicit_conv.cpu.machine.arch import CpuArch
from implicit_conv.cpu.run.call import Arrays
from implicit_conv.cpu.run.packed import PackedFilter, PackedOrder, packed_parts, part_starts
from implicit_conv.kernels.cpu.runtime.program import address_of
from implicit_conv.problem.options import ALGORITHMS
from implicit_conv.problem.problem import Problem

Derived: TypeAlias = Callable[[Choice, Problem], "Choice | None"]  # that of a near size


class Composite(Method):
    """A method that consists of other convolutions; their choices are the `parts` of candidates."""

    algorithms: ClassVar[tuple[str, ...]] = ALGORITHMS  # those of the parts
    kind: ClassVar[str]  # what its parts are, in keys of packed filters

    def composed(
        self,
        problem: Problem,
        arch: CpuArch,
        parts: Sequence[Choice],
        seconds: float = 0.0,
        packing: float = 0.0,
    ) -> Candidate:
        """The candidate of these parts, which takes so many seconds more than they do, and so many
        more to pack a plain filter.
        """
        best = [part.candidates[0] for part in parts]
        threads = max([c.threads for c in best])
        rate = threads * arch.hertz
        packed = seconds + sum([part.seconds(packed=True) for part in parts])
        plain = seconds + packing + sum([c.seconds for c in best])
        algorithm = max(best, key=attrgetter("cycles")).algorithm
        cycles = plain * rate, (plain - packed) * rate
        return Candidate(
            self, algorithm, problem, problem, arch, threads, *cycles, parts=tuple(parts)
        )

    def packing_parts(self, c: Candidate) -> Sequence[Choice]:
        """The parts whose filters are packed."""
        return c.parts

    @abstractmethod
    def part_arrays(self, problem: Problem, arch: CpuArch) -> list[Arrays]:
        """What each part of a candidate for `problem` takes of contiguous arrays, and is planned
        for: arrays of these strides, without memory.
        """

    @abstractmethod
    def titles(self, c: Candidate) -> list[str]:
        """What each part is, in words."""

    def part_text(self, problem: Problem) -> str:
        """The problem of a part in words."""
        return str(problem)

    def part_formats(self, c: Candidate, formats: Formats) -> Formats:
        """The formats of parts of one with `formats`."""
        return formats

    @abstractmethod
    def resized(self, c: Candidate, problem: Problem, derived: Derived) -> Candidate | None:
        """The candidate for a near size, whose parts are `derived` from those of `c`; None if it
        needs other parts.
        """

    def copied_bytes(self, c: Candidate) -> int:
        """Bytes of the copies that a call makes for its parts."""
        return 0

    def workspace_bytes(self, c: Candidate) -> int:
        """Bytes of scratch memory of the part that needs most, and of copies."""
        return max(part.workspace_bytes for part in c.parts) + self.copied_bytes(c)

    def call_bytes(self, c: Candidate, w: Array | None = None) -> int:
        """Bytes that a call with a plain filter takes besides its arrays: those of the part that
        needs most, and of copies.
        """
        parts = zip(c.parts, self.part_arrays(c.problem, c.arch), strict=True)
        return max(part.call_bytes(arrays) for part, arrays in parts) + self.copied_bytes(c)

    def views(
        self, c: Candidate, arrays: Arrays, filter_axes: tuple[int, ...] | None = None
    ) -> Arrays:
        """The arrays of the call."""
        return arrays

    def packed(self, c: Candidate) -> PackedOrder:
        """The packed filters of the parts, one after another."""
        parts = [part.best_packed.packed for part in self.packing_parts(c)]
        starts = part_starts([part.bytes for part in parts])
        return PackedOrder((self.kind, *(part.key for part in parts)), starts[-1])

    @abstractmethod
    def filters(self, c: Candidate, w: Array) -> list[Array]:
        """What each part that packs takes of the filter `w`."""

    def pack(self, c: Candidate, w: Array, formats: Formats) -> PackedFilter:
        """The packed filters of the parts as one."""
        own = self.part_formats(c, formats)
        parts = zip(self.packing_parts(c), self.filters(c, w), strict=True)
        return packed_parts(self.packed(c), [part.pack(each, own) for part, each in parts])

    def panels(self, c: Candidate, arrays: Arrays) -> list[int]:
        """Where the filters of the parts begin in the packed one of `arrays`."""
        sizes = [part.packed_bytes for part in self.packing_parts(c)]
        return [arrays.panels + start for start in part_starts(sizes)[:-1]]

    def describe(self, c: Candidate) -> Words:
        """Nothing that its parts do not say."""
        return {}


def part_of(w: Array | int, x: Array, y: Array, residual: Array | None = None) -> Arrays:
    """The arrays of a part, whose filter is an array, or a packed one at an address."""
    return Arrays(x, None, y, residual, w) if isinstance(w, int) else Arrays(x, w, y, residual)


def begin(w: Array | int) -> int:
    """Where a filter begins."""
    return w if isinstance(w, int) else address_of(w)
