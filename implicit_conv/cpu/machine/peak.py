"""The rate of FMAs that this machine reaches, as a clock: what `explain` takes for its estimates.

Systems report a clock that varies, and some CPUs start fewer FMAs of a vector in a cycle than
others. The planner counts cycles of two FMAs; `clock` says how many of them a second has.
"""

from __future__ import annotations

import functools
import time

from implicit_conv.cpu.machine.arch import CpuArch, cpu_arch
from implicit_conv.process.preparation import checkpoint, prepare

RUNS = 5  # of which the fastest counts; each takes 0.3 ms or more
FLOPS = 4  # operations of a lane in a cycle: two FMAs


def clock(arch: CpuArch) -> float | None:
    """Cycles a second of one thread, if each starts two FMAs; None if `arch` has vectors that this
    machine lacks.
    """
    machine = cpu_arch()
    if arch.vector_bits > machine.vector_bits or arch.fma > machine.fma:
        return None
    return prepare(_measured, arch.lanes(4), arch.fma)


@functools.cache
def _measured(lanes: int, fma: bool) -> float:
    checkpoint()  # it compiles
    from implicit_conv.kernels.cpu.ceilings.operator import Fmas

    fmas = Fmas(lanes, 4, fma, 1)
    seconds = []
    for _ in range(RUNS):
        start = time.perf_counter()
        fmas()
        seconds.append(time.perf_counter() - start)
    return fmas.flops / min(seconds) / (FLOPS * lanes)
