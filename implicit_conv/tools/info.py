"""``implicit-conv info``: what the engine knows of this machine, and the settings."""

from __future__ import annotations

import argparse
import os
import platform
from dataclasses import asdict
from importlib import metadata

from implicit_conv.errors import install
from implicit_conv.settings import PREFIX, VARIABLES, current
from implicit_conv.tools.kernel_cache import size_of

ISSUES = "https://github.com/implicit-conv/implicit_conv/issues"  # where bugs are reported


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the command line."""
    parser = commands.add_parser(
        "info",
        help="print CPU features, threads, cache folder, GPU and settings",
        description="Print what the engine knows of this machine, and the settings in force.",
    )
    parser.add_argument(
        "--gpu", action="store_true", help="also print what was shown of each GPU kernel"
    )
    parser.set_defaults(run=lambda options: print(describe(options.gpu)))


def describe(gpu_kernels: bool = False) -> str:
    """The lines that `info` prints, those of GPU kernels only on demand."""
    from implicit_conv.cpu.machine.arch import BFLOAT16, cpu_arch, cpu_features
    from implicit_conv.kernels.cpu.runtime.active_threads import borrowed_name, cpu_count
    from implicit_conv.process.disk import store
    from implicit_conv.process.disk_folder import KERNEL

    arch, features, kernels = cpu_arch(current().num_threads), cpu_features(), store()
    trouble, parts = kernels.trouble(), kernels.files(KERNEL)
    rows = {
        "versions": _versions(),
        "system": f"{platform.system()} {platform.machine()}, Python {platform.python_version()}",
        "CPU": f"{cpu_name()}, {', '.join(sorted(features)) or 'baseline'}",
        "vectors": f"{arch.vector_bits} bits, register tiles of at most {arch.tile_pixels} pixels "
        "x 2 vectors",
        "bfloat16": f"multiplied by {BFLOAT16[arch.bfloat16]}",
        "caches": f"{arch.l1_bytes >> 10} KiB L1, {arch.l2_bytes >> 10} KiB L2",
        "threads": f"{arch.threads} for a call; at most {cpu_count()} run at once in a process; "
        f"they are {borrowed_name() or 'our own'}",
        "kernel cache": f"none, so every process compiles its kernels: {trouble}"
        if trouble
        else f"{kernels.folder} ({len(parts)} compiled parts, {size_of(parts)} of at most "
        f"{kernels.limit:,})",
        **_objects(),
        "GPU": _gpu(),
        "settings": _settings(),
        "bugs": ISSUES,
    }
    return "\n".join(
        [
            *(f"{name:13}{value}" for name, value in rows.items()),
            *(_kernels() if gpu_kernels else ()),
        ]
    )


def _objects() -> dict[str, str]:
    """A row where compiled code cannot read the objects of this Python."""
    from implicit_conv.kernels.cpu.runtime.objects import differing, sentence

    return {"objects": sentence(differing())} if differing() else {}


def _kernels() -> list[str]:
    """What was shown of each GPU kernel."""
    from implicit_conv.gpu.plan.families import lines

    return ["GPU kernels", *(f"  {line}" for line in lines())]


def _settings() -> str:
    """The settings in force, and the environment variables that are set."""
    settings = {"num_threads": "all", "device": "cpu"}
    settings |= {name: value for name, value in asdict(current()).items() if value is not None}
    found = [PREFIX + name for name in VARIABLES if os.environ.get(PREFIX + name)]
    variables = ", ".join(f"{name}={os.environ[name]}" for name in found) or f"no {PREFIX}* is set"
    return f"{', '.join(f'{name} {value}' for name, value in settings.items())}; {variables}"


def _versions() -> str:
    found = []
    for name in ("implicit-conv", "numpy", "numba", "llvmlite", "numba-cuda", "torch"):
        try:
            found.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            continue
    return ", ".join(found)


def cpu_name() -> str:
    """The name of the CPU, for display only: some virtual machines hide all but its family and
    model.
    """
    found: dict[str, str] = {}
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            for line in lines:
                name, _, value = line.partition(":")
                found.setdefault(name.strip(), value.strip())
    except OSError:
        pass
    name = found.get("model name") or platform.processor() or "unknown CPU"
    if "cpu family" in found and "model" in found:
        return f"{name} (family {found['cpu family']}, model {found['model']})"
    return name


def _gpu() -> str:
    """The first GPU, if the CUDA bindings are installed; no CUDA context is created."""
    try:
        from cuda.bindings import driver  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        return f"not searched: cuda-bindings is missing: {install('cuda-bindings>=13,<14')}"
    try:
        status, *_ = driver.cuInit(0)
    except RuntimeError as error:  # the bindings are installed, the driver is not
        return f"none: {error}"
    if int(status) != 0:
        return f"none: cuInit returned {status.name}"
    _, count = driver.cuDeviceGetCount()
    if not count:
        return "none"
    _, name = driver.cuDeviceGetName(128, 0)
    return f"{count} x {name.split(bytes(1))[0].decode()}"
