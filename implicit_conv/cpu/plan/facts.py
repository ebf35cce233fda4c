"""A choice as facts: names, numbers and lists of them, which `explain` says in words."""

from __future__ import annotations

from typing import Any, NamedTuple, cast

from implicit_conv.cpu.candidates.candidate import Candidate, Choice
from implicit_conv.cpu.machine.arch import CpuArch
from implicit_conv.cpu.machine.peak import FLOPS, clock, tile_rate

Facts = dict[str, Any]


class Clock(NamedTuple):
    """What turns cycles into time: cycles a second, as measured here, or the nominal ones of a CPU
    that is not here.
    """

    hertz: float
    is_measured: bool

    @classmethod
    def of(cls, arch: CpuArch) -> Clock:
        """That of the CPU of a plan."""
        measured = clock(arch)
        return cls(measured or arch.hertz, measured is not None)

    def milliseconds(self, c: Candidate, cycles: float) -> float:
        """The time that so many cycles of one core take on the threads of a candidate."""
        return 1e3 * cycles / c.threads / self.hertz

    def peak(self, c: Candidate) -> float:
        """Operations a second of a direct sum at most, on one core, for the dtypes of `c`."""
        most = c.most_work
        rate = tile_rate() if most.method.multiplier == "amx" else None
        if rate is not None:
            return rate
        return FLOPS * most.lanes * most.method.channels * self.hertz


def facts_of(problem: str, choice: Choice) -> Facts:
    """The facts of `Plan.facts`; `problem` is the text of the problem.

    The first call in a process measures the rate of FMAs, for some milliseconds.
    """
    c, packed, clock = choice.best, choice.best_packed, Clock.of(choice.best.arch)
    return {
        "problem": problem,
        "device": "cpu",
        "algorithm": c.algorithm,
        "kernel": c.name,
        "asked": choice.query.request.algorithm != "auto",
        "tuned": choice.tuned,
        "threads": c.threads,
        "milliseconds": clock.milliseconds(c, c.cycles),
        "flops": c.problem.flops,
        "bytes": c.problem.bytes,
        "peak": c.threads * clock.peak(c),
        "peak_is_measured": clock.is_measured,
        "packed": {
            "kernel": packed.name,
            "milliseconds": clock.milliseconds(packed, packed.packed_cycles),
        },
        "candidates": [
            {
                "kernel": each.name,
                "milliseconds": clock.milliseconds(each, each.cycles),
                "needs": each.method.needs,
            }
            for each in choice.candidates
        ],
        "refused": [{"kernel": name, "reason": reason} for name, reason in choice.refusals],
        "parts": [
            facts_of(cast("Any", c.method).part_text(part.query.problem), part) for part in c.parts
        ],
    }
