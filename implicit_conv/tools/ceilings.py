"""Ceilings of this machine: its rates of floating-point operations and of copying memory."""

from __future__ import annotations

from collections.abc import Callable

from implicit_conv.cpu.machine.arch import cpu_arch
from implicit_conv.cpu.machine.peak import ceiling_of
from implicit_conv.timing import Local, interleave, summarise

COPY_BYTES = 128 << 20  # larger than the last-level cache of common CPUs


def ceilings(threads: int, dtype: str = "float32") -> dict[str, tuple[Callable[[], None], int]]:
    """Functions whose rates are ceilings: name -> (function to time, its work).

    The work of "fma" is floating-point operations, in float32 or as the CPU multiplies `dtype`;
    that of "copy" is bytes read and written.
    """
    from implicit_conv.kernels.cpu.ceilings.operator import Copy, Fmas

    arch = cpu_arch(threads)
    multiplier = ceiling_of(arch.bfloat16) if dtype == "bfloat16" else ""
    fmas = Fmas(arch.lanes(4), 4, arch.fma, threads, multiplier)
    copy = Copy(COPY_BYTES, threads)
    return {"fma": (fmas, fmas.flops), "copy": (copy, copy.bytes)}


def measure_ceilings(threads: int, rounds: int, dtype: str = "float32") -> dict[str, float]:
    """Floating-point operations and copied bytes per second, as medians; see `ceilings`."""
    functions = ceilings(threads, dtype)
    local = {name: Local(function) for name, (function, _) in functions.items()}
    samples = interleave(local, rounds)
    return {name: work / summarise(samples[name]).median for name, (_, work) in functions.items()}
