"""Operators that are sums of others: what a plan takes that consists of plans."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from implicit_conv.cpu.candidates.candidate import Candidate
from implicit_conv.cpu.engines.runner import Runner
from implicit_conv.cpu.machine.arch import CpuArch
from implicit_conv.cpu.run.packed import PackedFilter, part_starts
from implicit_conv.problem.schedule import Load


class SumEngine(Runner):
    """The plan of an operator that other plans compute, one after another. `kind` says what they
    are; its packed filter has theirs as parts.
    """

    @property
    @abstractmethod
    def engines(self) -> tuple[Any, ...]:
        """The plans, in the order in which they run; the first one is typical of all."""

    @property
    @abstractmethod
    def copied_bytes(self) -> int:
        """Bytes of the copies that a call makes for them."""

    @property
    def arch(self) -> CpuArch:
        """The machine that the plan is for."""
        return self.engines[0].arch  # type: ignore[no-any-return]

    @property
    def candidates(self) -> tuple[Candidate, ...]:
        """The candidates of the first plan."""
        return self.engines[0].candidates  # type: ignore[no-any-return]

    @property
    def algorithm(self) -> str:
        """The algorithm of the first plan."""
        return self.engines[0].algorithm  # type: ignore[no-any-return]

    @property
    def workspace_bytes(self) -> int:
        """Bytes of scratch memory of the plan that needs most, and of copies."""
        most: int = max(engine.workspace_bytes for engine in self.engines)
        return most + self.copied_bytes

    @property
    def call_bytes(self) -> int:
        """Bytes that the plan which needs most takes besides its arrays, and those of copies."""
        most: int = max(engine.call_bytes for engine in self.engines)
        return most + self.copied_bytes

    @property
    def packed_bytes(self) -> int:
        """Bytes of all packed filters."""
        return self.starts[-1]

    @property
    def starts(self) -> list[int]:
        """Where the filters of the plans begin in a packed one; then its end."""
        return part_starts([engine.packed_bytes for engine in self.engines])

    @property
    def packed_key(self) -> tuple[object, ...]:
        """The kind of the parts, and the keys of the filters that they read."""
        return self.kind, *(engine.packed_key for engine in self.engines)

    def trace(self) -> list[Load]:
        """The loads of all plans, with the coordinates of each one's own arrays."""
        return [load for engine in self.engines for load in engine.trace()]

    @abstractmethod
    def explain(self) -> str:
        """The text of `Plan.explain`."""

    def facts(self) -> dict[str, Any]:
        """The facts of `Plan.facts`: those of all plans, and their sums."""
        parts = [engine.facts() for engine in self.engines]
        longest = max(parts, key=lambda part: float(part["milliseconds"]))
        return {
            **longest,
            "problem": self._problem_text(),
            "algorithm": self.algorithm,
            "threads": max(part["threads"] for part in parts),
            "peak": max(part["peak"] for part in parts),
            "milliseconds": sum(part["milliseconds"] for part in parts),
            "flops": sum(part["flops"] for part in parts),
            "bytes": sum(part["bytes"] for part in parts),
            "packed": None,
            "candidates": [],
            "refused": [],
            "parts": parts,
        }

    def _problem_text(self) -> str:
        """The problem in the words of the operator."""
        return str(self.problem)

    @abstractmethod
    def pack(self, w: object) -> PackedFilter:
        """The packed filters of all plans as one; see `Plan.pack`."""

    @abstractmethod
    def tuned(self, filters: str) -> SumEngine:
        """The plan with the fastest candidates of each; see `Plan.tune`."""
