"""The CPU's vector width, caches and threads, found by feature and never by CPU name."""

from __future__ import annotations

import ctypes
import functools
import math
import os
import platform
from dataclasses import dataclass
from pathlib import Path

BFLOAT16 = {
    "widen": "widening to float32",
    "pairs": "dot products of pairs of channels (AVX512_BF16)",
    "amx": "tiles of pairs of channels (AMX)",
}
AMX_ROWS = 16  # rows of an AMX tile: pixels, or pairs of channels
AMX_PIXELS = 2 * AMX_ROWS  # pixels of the largest register tile of AMX
ARCH_PRCTL, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA = 158, 0x1023, 18  # Linux on x86-64
DEFAULT_L1, DEFAULT_L2 = 32 << 10, 512 << 10  # bytes, if the system does not tell
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
    hertz: float = DEFAULT_HERTZ  # nominal clock in Hz: estimates divide cycles by it

    def lanes(self, itemsize: int) -> int:
        """Elements of a vector, where an element has `itemsize` bytes."""
        return self.vector_bits // (8 * itemsize)


# Pixels of a register tile, by (vector bits, vector registers). Its 2 x pixels accumulators, two
# filter vectors and a broadcast must fit in the registers: 32 with AVX-512 and on 64-bit Arm, 16
# otherwise. 14 x 2 is the largest tile that does not spill with AVX-512 (measured).
REGISTER_PIXELS = {(512, 32): 14, (256, 16): 6, (128, 16): 6, (128, 32): 12}


@functools.cache
def cpu_features() -> dict[str, bool]:
    """The features of the CPU that Numba compiles for.

    They are those in NUMBA_CPU_FEATURES; or none if NUMBA_CPU_NAME is "generic"; or those of this
    machine.
    """
    chosen = os.environ.get("NUMBA_CPU_FEATURES")
    if chosen is None and os.environ.get("NUMBA_CPU_NAME", "").lower() == "generic":
        chosen = ""
    if chosen is not None:
        return {f[1:]: f[0] == "+" for f in chosen.replace(" ", "").split(",") if f}
    import llvmlite.binding as llvm

    return dict(llvm.get_host_cpu_features())


@functools.cache
def amx_granted() -> bool:
    """Whether the system lets this process, its threads and children use AMX's tile registers.

    Only Linux is asked, and it grants them to a process that asks.
    """
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        return False
    return bool(ctypes.CDLL(None).syscall(ARCH_PRCTL, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0)


def _cache_bytes(level: int, default: int) -> int:
    base = Path("/sys/devices/system/cpu/cpu0/cache")
    try:
        for index in sorted(base.glob("index*")):
            kind = (index / "type").read_text().strip()
            if kind != "Instruction" and (index / "level").read_text().strip() == str(level):
                text = (index / "size").read_text().strip()
                return int(text[:-1]) << {"K": 10, "M": 20}[text[-1]]
    except (OSError, ValueError, KeyError):
        pass
    return default


def _cgroup_cpus() -> float:
    """The CPUs that a container's quota allows; infinity without a quota."""
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return math.inf if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError):
        return math.inf


def _clock_hertz() -> float:
    """The highest clock in Hz that the system reports, else the current one."""
    try:
        path = Path("/sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq")
        return int(path.read_text()) * 1e3
    except (OSError, ValueError):
        pass
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            for line in lines:
                if line.startswith("cpu MHz"):
                    return float(line.partition(":")[2]) * 1e6
    except (OSError, ValueError):
        pass
    return DEFAULT_HERTZ


@functools.cache
def available_threads() -> int:
    """The number of threads: NUMBA_NUM_THREADS, or what affinity mask and container quota allow."""
    chosen = os.environ.get("NUMBA_NUM_THREADS")
    if chosen and chosen.isdigit():
        return max(1, int(chosen))
    affinity = getattr(os, "sched_getaffinity", None)
    count = len(affinity(0)) if affinity else os.cpu_count() or 1
    return max(1, math.ceil(min(count, _cgroup_cpus())))


def _bfloat16(features: dict[str, bool]) -> str:
    """How a CPU with 512-bit vectors multiplies bfloat16."""
    if not features.get("avx512bf16"):
        return "widen"
    tiles = features.get("amx-tile") and features.get("amx-bf16")
    return "amx" if tiles and amx_granted() else "pairs"


@functools.cache
def cpu_arch(threads: int | None = None) -> CpuArch:
    """The CPU of this process, with `threads` threads (all that are available by default)."""
    features = cpu_features()
    arm = platform.machine() in ("aarch64", "arm64")  # every 64-bit Arm CPU has NEON
    if features.get("avx512f"):
        bits = 512
    elif features.get("avx2") or features.get("avx"):
        bits = 256
    else:
        bits = 128
    registers = 32 if bits == 512 or arm else 16
    return CpuArch(
        vector_bits=bits,
        fma=bits == 512 or features.get("fma", False) or arm,
        l1_bytes=_cache_bytes(1, DEFAULT_L1),
        l2_bytes=_cache_bytes(2, DEFAULT_L2),
        threads=threads or available_threads(),
        tile_pixels=REGISTER_PIXELS[bits, registers],
        f16c=bits == 512 or features.get("f16c", False) or arm,
        bfloat16=_bfloat16(features) if bits == 512 else "widen",
        rounds_bfloat16=bits == 512 and features.get("avx512bf16", False),
        hertz=_clock_hertz(),
    )
