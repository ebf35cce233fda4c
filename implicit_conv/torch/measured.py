"""The choice between our kernel and torch's, by times of both that were measured in turn.

It is made when a call of new shapes comes first, and kept: each process gives equal calls equal
bits. Equal calls of another process may run the other kernel, and so differ by rounding.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Hashable
from typing import Any

import numpy as np
import torch

from implicit_conv.cpu.machine.times import Table, Times, size_name

# Calls below this work are not measured: what there is to gain is less than the time of a call in
# Python, and noise would decide.
LEAST_FLOPS, LEAST_BYTES = 1 << 21, 1 << 18
# A pair of calls is repeated until one is clearly faster, at most ROUNDS times, and no longer than
# SECONDS but for the first LEAST pairs: one alone, of a call that other work has delayed, would
# have the wrong kernel run for ever.
CLEAR, ROUNDS, LEAST, SECONDS = 1.5, 7, 3, 0.02
SIZES = 4  # of a kind that are measured; the others follow their sum
# Torch's kernel replaces ours if it takes less than this share of its time.
GAIN = 0.98
# Memory that is written between two calls, which else would find the filter in L2, where a network
# has others: bytes, as many as the L2 of most cores.
EVICTED = 2 << 20

# How far both results may be apart, relative to their norm; the rounding of Winograd is far below.
TOLERANCES = {torch.float64: 1e-6, torch.float32: 1e-2, torch.float16: 0.1, torch.bfloat16: 0.2}
KNOWN = "torch 2.13 is wrong for some grouped filters with permuted strides"

LOG = logging.getLogger("implicit_conv")
RULES = "results compared"  # what a race is: times of others are not read

Call = Callable[[], Any]


class Choices:
    """What runs for calls of each kind and size."""

    def __init__(self) -> None:
        isa = torch.backends.cpu.get_cpu_capability(), os.environ.get("ONEDNN_MAX_CPU_ISA")
        self.table = Table((torch.__version__, isa, RULES))
        self._lines = np.zeros(EVICTED // 8)
        self.renew_lock()

    def renew_lock(self) -> None:
        """Forget a lock that another thread may hold, which a forked child does not have."""
        self._lock = threading.RLock()  # held while calls are measured; a signal may enter again

    def times(
        self, kind: Hashable, size: object, ours: Call, theirs: Call, *, grouped: bool = False
    ) -> Times | None:
        """The times by which to choose: those of this size, or where `SIZES` others of its kind
        were measured, the sums of theirs. None if `ours` returned None, since it did not run.

        Parameters
        ----------
        kind, size : values whose reprs tell the call
            `size` is what differs between calls of one kind.
        ours, theirs : functions without parameters
            The two calls. An error of theirs counts as an infinite time.
        grouped : bool
            Whether there are groups, of which faults of torch are known.
        """
        with self._lock:
            measured, name = self.table.of_kind(kind), size_name(size)
            if name not in measured:
                if len(measured) >= SIZES:
                    return Times(*map(sum, zip(*measured.values(), strict=True)))
                result = ours()
                if result is None:
                    return None
                measured[name], is_sure = self._measure(result, ours, theirs, grouped)
                if is_sure:
                    self.table.save(kind)
            return measured[name]

    def _measure(self, result: Any, ours: Call, theirs: Call, grouped: bool) -> tuple[Times, bool]:
        """The least times of both calls, and whether one was faster in all pairs or, of more than
        LEAST, in all but one. `result` is that of ours.

        Where torch's differs by more than rounding, no time tells which one should run: then ours
        does, as it would without a choice.
        """
        try:
            other_result = theirs()
        except RuntimeError:  # a shape that torch's kernel does not take
            return Times(0.0, float("inf")), True
        if differs(result, other_result):
            why = f": {KNOWN}" if grouped else " by more than rounding"
            LOG.warning("ours runs: torch's kernel of a convolution differs from ours%s", why)
            return Times(0.0, float("inf")), False
        del result, other_result
        own, other = list[float](), list[float]()
        until = time.perf_counter() + SECONDS
        while len(own) < LEAST or (len(own) < ROUNDS and time.perf_counter() < until):
            for call, seconds in ((ours, own), (theirs, other)):
                self._lines.fill(0.0)
                seconds.append(_seconds(call))
            faster = min(own) / min(other)
            if len(own) > 1 and not 1 / CLEAR < faster < CLEAR:
                break
        wins = sum(a < b for a, b in zip(own, other, strict=True))
        doubts = min(wins, len(own) - wins)
        return Times(min(own), min(other)), doubts <= (len(own) > LEAST)


def differs(own: Any, theirs: Any, slack: Any = 0.0) -> bool:
    """Whether finite results differ by more than rounding, or by `slack` more; torch's may be a
    tuple of gradients, of which one is not None.
    """
    if isinstance(theirs, tuple):
        (theirs,) = (each for each in theirs if each is not None)
    apart = torch.linalg.vector_norm(own - theirs, dtype=torch.float64)
    size = torch.linalg.vector_norm(theirs, dtype=torch.float64)
    return bool(apart > TOLERANCES[own.dtype] * size + slack)


def worth_measuring(plan: Any) -> bool:
    """Whether a plan's call takes so long that a choice matters."""
    return bool(plan.flops > LEAST_FLOPS or plan.bytes > LEAST_BYTES)


def ours_is_faster(times: Times) -> bool:
    """Whether our kernel stays: torch's would have to be clearly faster."""
    return times.theirs > GAIN * times.ours


def _seconds(call: Call) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


CHOICES = Choices()  # of this process
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=CHOICES.renew_lock)
