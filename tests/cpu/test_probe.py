"""What the engine learns of a CPU from the answers of systems that this machine is not."""

import ctypes
import os
import signal
from pathlib import Path
from types import SimpleNamespace

import pytest
from processes import output_of

from implicit_conv.cpu.machine import arch, probe
from implicit_conv.cpu.machine.probe import AT_HWCAP, AT_HWCAP2, System

KINDS = ("Data", "Instruction", "Unified")  # of cache/index0, 1 and 2
CPU = "sys/devices/system/cpu/cpu{}/"
SYSCTL = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.c_char_p,
    ctypes.c_void_p,
    ctypes.POINTER(ctypes.c_size_t),
    ctypes.c_void_p,
    ctypes.c_size_t,
)
GETAUXVAL = ctypes.CFUNCTYPE(ctypes.c_ulong, ctypes.c_ulong)


def write(root, path, text):
    """A file as Linux has it."""
    place = root / path
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(f"{text}\n")


def add_cpu(root, cpu, capacity=None, sizes=(), shared=None, siblings=None, khz=None, ways=None):
    """A CPU of Linux with the files that it has there."""
    folder = CPU.format(cpu)
    files = {"cpu_capacity": capacity, "cpufreq/cpuinfo_max_freq": khz}
    files["topology/thread_siblings_list"] = siblings or cpu
    for index, size in enumerate(sizes):
        files[f"cache/index{index}/ways_of_associativity"] = ways and ways[index]
        files[f"cache/index{index}/type"] = KINDS[index]
        files[f"cache/index{index}/level"] = 2 if KINDS[index] == "Unified" else 1
        files[f"cache/index{index}/size"] = size
        files[f"cache/index{index}/shared_cpu_list"] = shared if index == 2 and shared else cpu
    for name, text in files.items():
        if text is not None:
            write(root, folder + name, text)


def linux(root, hwcap=0, hwcap2=0):
    """Linux on 64-bit Arm with the files in `root`."""
    words = {AT_HWCAP: hwcap, AT_HWCAP2: hwcap2}
    library = SimpleNamespace(getauxval=GETAUXVAL(lambda entry: words.get(entry, 0)))
    return System("Linux", "aarch64", root, library)


def mac(answers, bits=32):
    """macOS on 64-bit Arm, which answers sysctls with integers of so many bits."""

    def sysctlbyname(name, value, size, _, new_size):
        if name.decode() not in answers or size[0] < bits // 8 or new_size:
            return -1
        number = answers[name.decode()].to_bytes(bits // 8, "little")
        ctypes.memmove(value, number, len(number))
        size[0] = len(number)
        return 0

    library = SimpleNamespace(sysctlbyname=SYSCTL(sysctlbyname))
    return System("Darwin", "arm64", Path("/no/such/files"), library)


M1 = {
    "hw.l1dcachesize": 65536,  # of the slow cores
    "hw.l2cachesize": 4194304,
    "hw.perflevel0.l1dcachesize": 131072,
    "hw.perflevel0.l2cachesize": 12582912,
    "hw.perflevel0.cpusperl2": 4,
    "hw.perflevel0.logicalcpu": 4,
    "hw.perflevel1.logicalcpu": 4,
    "hw.optional.arm.FEAT_LSE": 1,
    "hw.optional.arm.FEAT_FP16": 1,
    "hw.optional.arm.FEAT_DotProd": 1,
    "hw.optional.arm.FEAT_BF16": 0,
}


def caches(system, cpus):
    cpu = probe.fastest(system, cpus)[0]
    return [probe.cache_bytes(system, level, cpu) for level in (1, 2)]


def clock(system, cpus):
    return probe.clock_hertz(system, probe.fastest(system, cpus)[0])


def test_a_server_has_equal_cores_with_caches_of_their_own(tmp_path):
    for cpu in range(4):
        add_cpu(tmp_path, cpu, 1024, ("64K", "64K", "1024K"), khz=2600000, ways=(4, 2, 8))
    system = linux(tmp_path, 1 << 8 | 1 << 10 | 1 << 20 | 1 << 22, 1 << 13 | 1 << 14)
    assert caches(system, range(4)) == [64 << 10, 1 << 20]
    assert [probe.cache_ways(system, level, 0) for level in (1, 2)] == [4, 8]
    assert probe.fast_cpus(system, range(4)) == 4
    assert clock(system, range(4)) == 2.6e9
    assert probe.arm_features(system) == set(probe.HWCAPS)


def test_slow_cores_beside_fast_ones_do_not_count(tmp_path):
    """cpu0 is a slow core, as on most phones and boards."""
    for cpu in range(4):
        add_cpu(tmp_path, cpu, 414, ("32K", "32K", "128K"), khz=1800000)
    for cpu in range(4, 8):
        add_cpu(tmp_path, cpu, 1024, ("64K", "64K", "2M"), shared="4-7", khz=2400000)
    system = linux(tmp_path, 1 << 8)
    assert caches(system, range(8)) == [64 << 10, 512 << 10]  # four cores share 2 MiB
    assert probe.fast_cpus(system, range(8)) == 4
    assert clock(system, range(8)) == 2.4e9
    assert probe.arm_features(system) == {"lse"}
    assert probe.fast_cpus(system, (1, 2)) == 2  # no fast core may be used
    assert caches(system, (1, 2)) == [32 << 10, 128 << 10]


def test_threads_of_one_core_share_its_cache(tmp_path):
    for cpu in range(4):
        pair = f"{cpu % 2},{cpu % 2 + 2}"
        add_cpu(tmp_path, cpu, None, ("48K", "64K", "2048K"), shared=pair, siblings=pair)
    assert caches(linux(tmp_path), range(4)) == [48 << 10, 2 << 20]


@pytest.mark.parametrize("size", ["", "unknown"])
def test_what_the_system_does_not_tell_is_none(tmp_path, size):
    add_cpu(tmp_path, 0, "?", (size, size, size))
    assert caches(linux(tmp_path), [0]) == [None, None]
    assert probe.cache_ways(linux(tmp_path), 1, 0) is None
    assert probe.cache_ways(mac(M1), 1, 0) is None
    assert clock(linux(tmp_path), [0]) is None
    assert probe.fast_cpus(linux(tmp_path), [0]) == 1
    assert probe.arm_features(linux(tmp_path)) == set()


@pytest.mark.parametrize(("quota", "cpus"), [("150000 100000", 1.5), ("max 100000", 3), ("?", 3)])
def test_a_containers_quota_limits_the_cpus(tmp_path, quota, cpus):
    write(tmp_path, "sys/fs/cgroup/cpu.max", quota)
    assert probe.fast_cpus(linux(tmp_path), range(3)) == cpus


def test_the_current_clock_is_better_than_none(tmp_path):
    write(tmp_path, "proc/cpuinfo", "processor\t: 0\ncpu MHz\t\t: 2599.998")
    assert clock(linux(tmp_path), [0]) == 2599998000.0


@pytest.mark.parametrize("bits", [32, 64])
def test_a_mac_tells_of_its_fast_cores(bits):
    system = mac(M1, bits)
    assert caches(system, range(8)) == [128 << 10, 3 << 20]
    assert probe.fast_cpus(system, range(8)) == 4
    assert probe.arm_features(system) == {"lse", "fullfp16", "dotprod"}
    assert clock(system, range(8)) is None
    later = mac({**M1, "hw.optional.arm.FEAT_BF16": 1}, bits)
    assert probe.arm_features(later) - probe.arm_features(system) == {"bf16"}


def test_a_mac_may_have_cores_of_one_kind():
    one = {name: value for name, value in M1.items() if "perflevel" not in name}
    assert caches(mac(one), range(8)) == [64 << 10, 4 << 20]
    assert probe.fast_cpus(mac(one), range(8)) == 8


def test_this_machine_answers():
    """Whatever it is: the C library and the files are those of the system."""
    system = System()
    cpus = arch.usable_cpus()
    assert 1 <= probe.fast_cpus(system, cpus) <= len(cpus)
    assert {type(size) for size in caches(system, cpus)} <= {int, type(None)}
    assert probe.arm_features(system) <= set(probe.HWCAPS) or not system.is_arm


def test_all_cpus_count_where_a_sandbox_does_not_tell(monkeypatch):
    def refuse(process):
        raise PermissionError("sched_getaffinity")

    monkeypatch.setattr(os, "sched_getaffinity", refuse, raising=False)
    assert list(arch.usable_cpus()) == list(range(os.cpu_count() or 1))


def test_memory_may_be_executed_here():
    assert System().executable()


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="this system has no timer of signals")
def test_interrupts_of_the_probe_for_executable_memory():
    """They arrive as they were sent, wherever they come."""
    interrupts = """
import random, signal
from implicit_conv.cpu.machine.probe import System

signal.signal(signal.SIGALRM, signal.default_int_handler)
for _ in range(1000):
    try:
        signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-6, 2e-5))
        while True:
            System().executable()
    except KeyboardInterrupt:
        pass
"""
    output_of(interrupts)


@pytest.mark.parametrize(
    ("text", "vendor"), [("vendor_id\t: GenuineIntel", "GenuineIntel"), ("", "")]
)
def test_the_maker_of_a_cpu_is_what_cpuid_names(tmp_path, text, vendor):
    write(tmp_path, "proc/cpuinfo", f"processor\t: 0\n{text}\nmodel name\t: a CPU\n")
    assert linux(tmp_path).vendor == vendor
    assert linux(tmp_path / "nowhere").vendor == ""


def test_costs_are_those_of_the_family():
    assert arch.nearest_costs(512, "GenuineIntel").name == "Intel Xeon with AVX-512"
    assert arch.nearest_costs(512, "AuthenticAMD").name == "AMD EPYC with AVX-512"
    assert arch.nearest_costs(512).name == "AMD EPYC with AVX-512"
    assert arch.nearest_costs(256, "GenuineIntel").name == "Intel with AVX2"
    assert arch.nearest_costs(256, "AuthenticAMD").name == "AVX2"
    assert {arch.nearest_costs(128, vendor).name for vendor in ("", "GenuineIntel")} == {"128 bits"}
