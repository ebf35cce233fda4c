"""The OpenMP threads of torch as a team that runs our work items.

While `enable` is in force, torch and this package compute in turns. torch's idle threads spin on
the CPUs that our helpers need, so items run on torch's own threads. Nothing is guessed: where it is
not sure which OpenMP library torch uses, items run on our own team.
"""

from __future__ import annotations

import ctypes
import functools
import os
import sys
from pathlib import Path

import torch

from implicit_conv.kernels.cpu.runtime.openmp import OpenMpTeam

SYMBOLS = "GOMP_parallel", "omp_get_thread_num"  # libgomp has them, and so do libiomp5 and libomp
FORKED = 0x40  # PF_FORKNOEXEC of Linux: a process that was forked, and runs its parent's program


def torch_team() -> OpenMpTeam | None:
    """A team of torch's threads; None where it has none of a library that we know.

    A forked child gets none: libgomp hangs there once the parent has used it.
    """
    if sys.platform != "linux" or is_forked():
        return None
    symbols = _symbols()
    if symbols is None:
        return None
    library = _mapped(symbols[0])
    if library is None:
        return None
    name = f"torch's OpenMP threads, by {Path(library).name}"
    return OpenMpTeam(*symbols, torch.get_num_threads, name)


def is_forked() -> bool:
    """Whether this process was forked and has not started another program since."""
    return sys.platform == "linux" and _is_forked(os.getpid())


@functools.cache
def _is_forked(process: int) -> bool:
    """The same of this process, whose number it is."""
    fields = Path("/proc/self/stat").read_text("ascii", "replace").rpartition(")")[2].split()
    return bool(int(fields[6]) & FORKED)  # proc_pid_stat(5): flags is field 9, state is field 3


def _symbols() -> tuple[int, int] | None:
    """The addresses of SYMBOLS in the library that torch calls; None if there is none, or if
    another one that was loaded before, such as by LD_PRELOAD, may stand in its place.
    """
    library = library_of_torch()  # and what it depends on
    if library is None:
        return None
    everything = ctypes.CDLL(None)  # what the process, and so torch, finds first
    found = [_addresses(place) for place in (library, everything)]
    if found[0] is None or (found[1] is not None and found[0] != found[1]):
        return None
    return found[0]


def library_of_torch() -> ctypes.CDLL | None:
    """torch's library for the CPU, as this process has mapped it; None where that is not told."""
    if sys.platform != "linux":
        return None
    path = next((path for _, _, path in _maps() if Path(path).name == "libtorch_cpu.so"), None)
    if path is None:
        return None
    try:
        return ctypes.CDLL(path, mode=os.RTLD_NOLOAD | os.RTLD_NOW)
    except OSError:
        return None


def _addresses(library: ctypes.CDLL) -> tuple[int, int] | None:
    try:
        functions = [getattr(library, symbol) for symbol in SYMBOLS]
    except AttributeError:
        return None
    first, second = (ctypes.cast(function, ctypes.c_void_p).value for function in functions)
    return None if first is None or second is None else (first, second)


def _maps() -> list[tuple[int, int, str]]:
    """The files that this process has mapped, as (first address, end, path)."""
    found = []
    for line in Path("/proc/self/maps").read_text("utf-8", "replace").splitlines():
        parts = line.split(maxsplit=5)
        if len(parts) == 6 and parts[5].startswith("/"):
            first, end = (int(number, 16) for number in parts[0].split("-"))
            found.append((first, end, parts[5]))
    return found


def _mapped(address: int) -> str | None:
    return next((path for first, end, path in _maps() if first <= address < end), None)
