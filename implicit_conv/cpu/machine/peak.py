"""The rate of FMAs that this machine reaches, as a clock: what `explain` takes for its estimates.

Systems report a clock that varies, and some CPUs start fewer FMAs of a vector in a cycle than
others. The planner counts cycles of two FMAs; `clock` says how many of them a second has. Tiles of
AMX have a rate of their own.
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
    return prepare(_rate, arch.lanes(4), arch.fma) / (FLOPS * arch.lanes(4))


def tile_rate() -> float | None:
    """Operations a second of one thread on AMX tiles of bfloat16; None if this CPU has none."""
    return prepare(_rate, 0, True, "amx") if cpu_arch().bfloat16 == "amx" else None


def ceiling_of(bfloat16: str) -> str:
    """The multiplier of `Fmas` that is the limit of a way to multiply bfloat16."""
    return {"widen": "", "amx": "amx"}.get(bfloat16, "pairs")


@functools.cache
def _rate(lanes: int, fma: bool, multiplier: str = "") -> float:
    checkpoint()  # it compiles
    from implicit_conv.kernels.cpu.ceilings.operator import Fmas

    fmas = Fmas(lanes, 4, fma, 1, multiplier)
    seconds = []
    for _ in range(RUNS):
        start = time.perf_counter()
        fmas()
        seconds.append(time.perf_counter() - start)
    return float(fmas.flops / min(seconds))
