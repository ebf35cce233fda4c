"""What the system says of its CPUs: files of Linux, sysctl of macOS, and the auxiliary vector.

Where cores differ, the fastest ones count: their caches and clock, and how many of them there are.
An answer that the system does not give is None.
"""

from __future__ import annotations

import ctypes
import functools
import math
import mmap
import platform
import re
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# Features of 64-bit Arm by LLVM's names: (entry of the auxiliary vector, bit), as in asm/hwcap.h.
AT_HWCAP, AT_HWCAP2 = 16, 26
HWCAPS = {
    "lse": (AT_HWCAP, 8),
    "fullfp16": (AT_HWCAP, 10),
    "dotprod": (AT_HWCAP, 20),
    "sve": (AT_HWCAP, 22),
    "i8mm": (AT_HWCAP2, 13),
    "bf16": (AT_HWCAP2, 14),
}
# The same features by their names in hw.optional.arm of macOS.
APPLE_FEATURES = {
    "lse": "FEAT_LSE",
    "fullfp16": "FEAT_FP16",
    "dotprod": "FEAT_DotProd",
    "i8mm": "FEAT_I8MM",
    "bf16": "FEAT_BF16",
}
FASTEST = "hw.perflevel0."  # sysctl's prefix for the fastest cores of a Mac with cores of two kinds


@dataclass(frozen=True)
class System:
    """A system that answers; tests give it recorded files and a library of their own."""

    name: str = field(default_factory=platform.system)
    machine: str = field(default_factory=platform.machine)
    root: Path = Path("/")
    library: Any = None  # the C library, by default that of this process

    def read(self, path: str) -> str | None:
        """The text of a file."""
        try:
            return (self.root / path).read_text(encoding="utf-8").strip()
        except (OSError, ValueError):
            return None

    def sysctl(self, name: str) -> int | None:
        """An integer of macOS, of 32 or 64 bits."""
        value, size = ctypes.c_int64(0), ctypes.c_size_t(8)
        given = (name.encode(), ctypes.byref(value), ctypes.byref(size), None, ctypes.c_size_t(0))
        return value.value if self.c.sysctlbyname(*given) == 0 else None

    def auxiliary(self, entry: int) -> int:
        """An entry of Linux's auxiliary vector."""
        ask = self.c.getauxval
        ask.argtypes, ask.restype = [ctypes.c_ulong], ctypes.c_ulong
        return int(ask(entry))

    def executable(self) -> bool:
        """Whether memory may be written first and executed later, as LLVM's loader asks for it."""
        if not hasattr(mmap, "PROT_EXEC"):
            return True  # Windows has no policy that refuses it to all
        writable, executable = mmap.PROT_READ | mmap.PROT_WRITE, mmap.PROT_READ | mmap.PROT_EXEC
        # It is not closed, which would fail after an interrupt that leaves a pointer to it.
        page = mmap.mmap(-1, mmap.PAGESIZE, mmap.MAP_PRIVATE | mmap.MAP_ANON, writable)
        page[0] = 1  # some policies ask whether it was written
        first = ctypes.c_char.from_buffer(page)
        address, size = ctypes.c_void_p(ctypes.addressof(first)), ctypes.c_size_t(len(page))
        return bool(self.c.mprotect(address, size, executable) == 0)

    @property
    def vendor(self) -> str:
        """The maker of the CPU as CPUID names it; "" if the system does not tell."""
        lines = (self.read("proc/cpuinfo") or "").splitlines()
        found = (line.partition(":")[2].strip() for line in lines if line.startswith("vendor_id"))
        return next(found, "")

    @property
    def c(self) -> Any:
        """The C library."""
        return self.library or _c_library()

    @property
    def is_arm(self) -> bool:
        """Whether it is 64-bit Arm."""
        return self.machine in ("aarch64", "arm64")


@functools.cache
def _c_library() -> Any:
    return ctypes.CDLL(None)


def arm_features(system: System) -> frozenset[str]:
    """The features in HWCAPS of a CPU of 64-bit Arm that system and CPU support."""
    if system.name == "Linux":
        words = {entry: system.auxiliary(entry) for entry, _ in HWCAPS.values()}
        found = {name for name, (entry, bit) in HWCAPS.items() if words[entry] >> bit & 1}
    elif system.name == "Darwin":
        asked = APPLE_FEATURES.items()
        found = {name for name, key in asked if system.sysctl(f"hw.optional.arm.{key}")}
    else:
        found = set()
    return frozenset(found)


def cache_bytes(system: System, level: int, cpu: int) -> int | None:
    """Bytes of a data cache of a CPU: a core's share of one that cores share. A Mac does not tell
    CPUs apart, and answers for its fastest ones.
    """
    if system.name == "Darwin":
        name = {1: "l1dcachesize", 2: "l2cachesize"}[level]
        size = system.sysctl(FASTEST + name) or system.sysctl(f"hw.{name}")
        cores = level == 2 and system.sysctl(FASTEST + "cpusperl2")
        return size and size // (cores or 1)
    cache = _data_cache(system, level, cpu)
    size = _bytes(system.read(f"{cache}/size") or "") if cache else None
    if not size:
        return None
    sharers = _length(system.read(f"{cache}/shared_cpu_list"))
    siblings = system.read(f"{_folder(cpu)}/topology/thread_siblings_list")
    return size // max(1, sharers // _length(siblings))


def cache_ways(system: System, level: int, cpu: int) -> int | None:
    """Ways of a data cache of a CPU: the lines that a set of it holds."""
    cache = None if system.name == "Darwin" else _data_cache(system, level, cpu)
    ways = system.read(f"{cache}/ways_of_associativity") if cache else None
    return int(ways) if ways and ways.isdigit() and int(ways) else None


def _data_cache(system: System, level: int, cpu: int) -> str | None:
    """The folder in which Linux describes a data cache of a CPU."""
    for index in range(8):
        cache = f"{_folder(cpu)}/cache/index{index}"
        at_level = system.read(f"{cache}/level") == str(level)
        if at_level and system.read(f"{cache}/type") != "Instruction":
            return cache
    return None


def _folder(cpu: int) -> str:
    """The folder in which Linux describes a CPU."""
    return f"sys/devices/system/cpu/cpu{cpu}"


def fastest(system: System, cpus: Collection[int]) -> list[int]:
    """Those of `cpus` that are at least half as fast as the fastest one, the fastest first."""
    speeds = {}
    for cpu in sorted(cpus):
        capacity = system.read(f"sys/devices/system/cpu/cpu{cpu}/cpu_capacity")
        speeds[cpu] = int(capacity) if capacity and capacity.isdigit() else 0
    least = max(speeds.values()) / 2
    fast = [cpu for cpu, speed in speeds.items() if speed >= least]
    return sorted(fast, key=lambda cpu: -speeds[cpu])


def fast_cpus(system: System, cpus: Collection[int]) -> float:
    """The number of fast ones of `cpus`, or what a container's quota allows if that is less."""
    if system.name == "Darwin":
        return system.sysctl(FASTEST + "logicalcpu") or len(cpus)
    return min(len(fastest(system, cpus)), _quota(system))


def clock_hertz(system: System, cpu: int) -> float | None:
    """The highest clock in Hz of a CPU, else the current one of any CPU."""
    highest = system.read(f"sys/devices/system/cpu/cpu{cpu}/cpufreq/cpuinfo_max_freq")
    if highest and highest.isdigit():
        return int(highest) * 1e3
    for line in (system.read("proc/cpuinfo") or "").splitlines():
        if line.startswith("cpu MHz"):
            return float(line.partition(":")[2]) * 1e6
    return None


def _quota(system: System) -> float:
    """The CPUs that a container's quota allows; infinity without a quota."""
    quota, _, period = (system.read("sys/fs/cgroup/cpu.max") or "max").partition(" ")
    return int(quota) / int(period) if quota.isdigit() and period.isdigit() else math.inf


def _bytes(size: str) -> int | None:
    """The bytes of a size as Linux writes it: 512K."""
    found = re.fullmatch(r"(\d+)([KMG]?)", size)
    return int(found[1]) << {"": 0, "K": 10, "M": 20, "G": 30}[found[2]] if found else None


def _length(cpus: str | None) -> int:
    """The number of CPUs in a list as Linux writes it: 0-3,8. It has one if nothing is listed."""
    ranges = re.findall(r"(\d+)(?:-(\d+))?", cpus or "0")
    return sum(int(last or first) - int(first) + 1 for first, last in ranges)
