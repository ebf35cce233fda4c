"""The CPU's vector width, caches and threads, found by feature and never by CPU name."""

from __future__ import annotations

import ctypes
import functools
import math
import os
import platform
from dataclasses import dataclass, field

from implicit_conv.cpu.machine.compiler import check_target, compiled_target
from implicit_conv.cpu.machine.costs import AVX2, EPYC, INTEL_AVX2, NARROW, XEON, Costs
from implicit_conv.cpu.machine.probe import (
    HWCAPS,
    System,
    arm_features,
    cache_bytes,
    cache_ways,
    clock_hertz,
    fast_cpus,
    fastest,
)
from implicit_conv.kernels.cpu.runtime.active_threads import usable_cpus
from implicit_conv.kernels.cpu.runtime.layout import LINE
from implicit_conv.process.preparation import checkpoint

BFLOAT16 = {
    "widen": "widening to float32",
    "pairs": "dot products of pairs of channels (AVX512_BF16, or BFDOT of Arm)",
    "matrices": "products of matrices, two pixels by two filters (BFMMLA of Arm)",
    "amx": "tiles of pairs of channels (AMX)",
}
INT8 = {
    "widen": "widening to {}",
    "quads": "dot products of four channels (AVX512_VNNI or AVX_VNNI)",
}
AMX_ROWS = 16  # rows of an AMX tile: pixels, or pairs of channels
AMX_PIXELS = 2 * AMX_ROWS  # pixels of the largest register tile of AMX
ARCH_PRCTL, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA = 158, 0x1023, 18  # Linux on x86-64
# Pixels of the largest register tile of "matrices". With 12 pixels LLVM 22 spills sums.
MATRIX_PIXELS = 10
DEFAULT_L1, DEFAULT_L2 = 32 << 10, 512 << 10  # bytes, if the system does not tell
DEFAULT_WAYS = 8  # of L1, if the system does not tell
DEFAULT_HERTZ = 3e9  # nominal clock in Hz, if the system does not tell


@dataclass(frozen=True)
class CpuArch:
    """A CPU as the planner sees it."""

    vector_bits: int
    fma: bool
    l1_bytes: int
    l2_bytes: int
    threads: int
    tile_pixels: int  # output pixels of the largest register tile, which has 2 vectors of filters
    f16c: bool = True  # whether an instruction converts float16
    rounds_bfloat16: bool = False  # whether an instruction rounds float32 to bfloat16
    bfloat16: str = "widen"  # how bfloat16 is multiplied, see BFLOAT16
    int8: str = "widen"  # how integers of 8 bits are multiplied, see INT8
    l1_ways: int = DEFAULT_WAYS  # lines of a set of L1
    # Nominal clock in Hz: estimates divide cycles by it. Systems report a clock that varies.
    hertz: float = field(default=DEFAULT_HERTZ, compare=False)
    costs: Costs = field(default=None)  # type: ignore[assignment]  # of its family, if None is given

    def __post_init__(self) -> None:
        if self.costs is None:
            object.__setattr__(self, "costs", nearest_costs(self.vector_bits))

    def lanes(self, itemsize: int) -> int:
        """Elements of a vector, where an element has `itemsize` bytes."""
        return self.vector_bits // (8 * itemsize)

    def kept_lines(self, pitch: int) -> int:
        """The number of lines `pitch` bytes apart that L1 holds at once.

        If the pitch is a multiple of a high power of two, they share few sets.
        """
        period = self.l1_bytes // self.l1_ways  # bytes between addresses with the same set
        return min(period // LINE, period // math.gcd(period, pitch)) * self.l1_ways


TABLES = (EPYC, XEON, AVX2, INTEL_AVX2, NARROW)
INTEL = {512: XEON, 256: INTEL_AVX2}
OTHERS = {512: EPYC, 256: AVX2}


def nearest_costs(vector_bits: int, vendor: str = "") -> Costs:
    """The table of the family that a CPU with such vectors and `System.vendor` is most like."""
    families = INTEL if vendor == "GenuineIntel" else OTHERS
    return families.get(vector_bits, NARROW)


# Pixels of a register tile, by (vector bits, vector registers). Its 2 x pixels accumulators, two
# filter vectors and a broadcast must fit in the registers: 32 with AVX-512 and on 64-bit Arm, 16
# otherwise. 14 x 2 is the largest tile that does not spill with AVX-512 (measured).
REGISTER_PIXELS = {(512, 32): 14, (256, 16): 6, (128, 16): 6, (128, 32): 12}


# Features of x86 CPUs that decide which code is emitted, or that `implicit-conv info` shows.
FEATURES = (
    "avx",
    "avx2",
    "fma",
    "f16c",
    "avx512f",
    "avx512dq",
    "avx512vl",
    "avx512bf16",
    "avx512vnni",
    "avxvnni",
    "amx-tile",
    "amx-bf16",
)
# What the instructions of bfloat16 need together with those that classify values.
BFLOAT16_FEATURES = frozenset(("avx512bf16", "avx512dq", "avx512vl"))
AMX_FEATURES = frozenset(("amx-tile", "amx-bf16"))


@functools.cache
def cpu_features() -> frozenset[str]:
    """The features of the CPU that Numba compiles for, of those in FEATURES or HWCAPS.

    Raises
    ------
    PlanError
        Settings of Numba ask for features that this CPU lacks.
    """
    checkpoint()
    target = compiled_target()
    if target.is_x86:
        check_target(target)
        return target.supported(FEATURES)
    system = System()
    # LLVM does not look for all of them in the CPU itself, but derives them from its name.
    return target.supported(HWCAPS) & arm_features(system) if system.is_arm else frozenset()


@functools.cache
def amx_granted() -> bool:
    """Whether the system lets this process, its threads and children use AMX's tile registers.

    Only Linux is asked, and it grants them to a process that asks.
    """
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        return False
    return bool(ctypes.CDLL(None).syscall(ARCH_PRCTL, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0)


@functools.cache
def available_threads() -> int:
    """The number of threads: NUMBA_NUM_THREADS, or what affinity mask and container quota allow.

    Slow cores beside fast ones are not counted.
    """
    chosen = os.environ.get("NUMBA_NUM_THREADS")
    if chosen and chosen.isdigit():
        return max(1, int(chosen))
    return max(1, math.ceil(fast_cpus(System(), usable_cpus())))


def bfloat16_ways(features: frozenset[str]) -> tuple[str, ...]:
    """The ways in which a CPU can multiply bfloat16, of those in BFLOAT16, the best one first."""
    amx = features >= BFLOAT16_FEATURES | AMX_FEATURES and amx_granted()
    has = {"amx": amx, "matrices": "bf16" in features, "pairs": rounds_bfloat16(features)}
    return (*(way for way, is_there in has.items() if is_there), "widen")


def rounds_bfloat16(features: frozenset[str]) -> bool:
    """Whether a CPU has instructions for bfloat16: on 64-bit Arm one feature has all of them."""
    return features >= BFLOAT16_FEATURES or "bf16" in features


def int8_ways(features: frozenset[str], vector_bits: int) -> tuple[str, ...]:
    """The ways in which a CPU can multiply integers of 8 bits, of those in INT8, in vectors of
    `vector_bits`, the best one first.
    """
    quads = "avxvnni" in features and vector_bits == 256
    if "avx512vnni" in features:
        quads = vector_bits == 512 or "avx512vl" in features
    return ("quads", "widen") if quads else ("widen",)


@functools.cache
def cpu_arch(threads: int | None = None) -> CpuArch:
    """The CPU of this process, with `threads` threads (all that are available by default).

    Raises
    ------
    PlanError
        Settings of Numba ask for features that this CPU lacks.
    """
    features, system = cpu_features(), System()
    cpu = fastest(system, usable_cpus())[0]
    arm = system.is_arm  # every 64-bit Arm CPU has NEON
    bits = 512 if "avx512f" in features else 256 if "avx" in features else 128
    registers = 32 if bits == 512 or arm else 16
    return CpuArch(
        vector_bits=bits,
        fma="fma" in features or arm,
        l1_bytes=cache_bytes(system, 1, cpu) or DEFAULT_L1,
        l2_bytes=cache_bytes(system, 2, cpu) or DEFAULT_L2,
        threads=threads or available_threads(),
        tile_pixels=REGISTER_PIXELS[bits, registers],
        f16c="f16c" in features or arm,
        bfloat16=bfloat16_ways(features)[0],
        int8=int8_ways(features, bits)[0],
        rounds_bfloat16=rounds_bfloat16(features),
        l1_ways=cache_ways(system, 1, cpu) or DEFAULT_WAYS,
        hertz=clock_hertz(system, cpu) or DEFAULT_HERTZ,
        costs=nearest_costs(bits, system.vendor),
    )
