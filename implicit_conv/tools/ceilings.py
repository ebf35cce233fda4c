"""What this machine can do at most: floating-point operations and bytes copied in a second."""

from __future__ import annotations

from collections.abc import Callable

from implicit_conv.cpu.arch import cpu_arch
from implicit_conv.tools.timing import interleave, summarise

COPY_BYTES = 128 << 20  # well past the last-level cache of common CPUs


def ceilings(threads: int, dtype: str = "float32") -> dict[str, tuple[Callable[[], None], int]]:
    """What the machine can do at most: name -> (function to time, its work).

    "fma" works in floating-point operations, as float32 or as the CPU multiplies `dtype`, "copy" in
    bytes read and written.
    """
    from implicit_conv.kernels.cpu.ceilings import Copy, Fmas

    arch = cpu_arch(threads)
    pairs = dtype == "bfloat16" and arch.bfloat16 != "widen"
    fmas = Fmas(arch.lanes(4), 4, arch.fma, threads, pairs)
    copy = Copy(COPY_BYTES, threads)
    return {"fma": (fmas, fmas.flops), "copy": (copy, copy.bytes)}


def measure_ceilings(threads: int, rounds: int, dtype: str = "float32") -> dict[str, float]:
    """Floating-point operations and copied bytes a second, medians; see `ceilings`."""
    contenders = ceilings(threads, dtype)
    samples = interleave({name: function for name, (function, _) in contenders.items()}, rounds)
    return {name: work / summarise(samples[name]).median for name, (_, work) in contenders.items()}
