"""Which rivals a run times: those that are asked for, with vectors as wide as ours.

torch and the engines use the widest vectors of a CPU. Ours has narrower ones where NUMBA_CPU_NAME
and NUMBA_CPU_FEATURES say so, as to measure AVX2 on a CPU with AVX-512.
"""

from __future__ import annotations

import os
from importlib.util import find_spec

from implicit_conv.cpu.machine.arch import cpu_arch
from implicit_conv.cpu.machine.compiler import host_features
from perf.engines import ENGINES

TORCH_AVX2 = {  # its variables, and MKL's, which has its 1x1 layers on Intel
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "MKL_ENABLE_INSTRUCTIONS": "AVX2",
    "ATEN_CPU_CAPABILITY": "avx2",
}


def opponents(chosen: list[str] | None) -> list[str]:
    """Names of the rivals to time; by default, torch if it is installed.

    Raises
    ------
    ValueError
        A rival would use wider or narrower vectors than ours.
    """
    if chosen is None:
        chosen = ["torch"] if find_spec("torch") else []
    against = [name for name in chosen if name != "nothing"]
    if host_features().get("avx512f"):
        require_equal_vectors(against)
    return against


def narrowed() -> bool:
    """Whether ours has narrower vectors than this CPU."""
    return bool(host_features().get("avx512f")) and cpu_arch().vector_bits < 512


def require_equal_vectors(against: list[str]) -> None:
    """Raise unless rivals that know AVX-512 use it exactly if ours does, on a CPU that has it."""
    bits = cpu_arch().vector_bits
    ours = f"ours has vectors of {bits} bits on a CPU with AVX-512"
    told = [name for name, value in TORCH_AVX2.items() if os.environ.get(name) == value]
    if "torch" in against and bits == 512 and told:
        raise ValueError(
            f"{ours}, but torch is limited to AVX2 by {' and '.join(told)}: unset that, or set "
            "NUMBA_CPU_NAME=haswell and an empty NUMBA_CPU_FEATURES, which limit ours, too"
        )
    if bits == 512:
        return
    unset = [f"{name}={value}" for name, value in TORCH_AVX2.items() if name not in told]
    if "torch" in against and unset:
        raise ValueError(f"{ours}: set {' '.join(unset)}, so that torch has no wider ones")
    wide = [name for name in against if name in ENGINES]
    if wide:
        raise ValueError(f"{ours}, and {' and '.join(wide)} cannot be told so: leave it out")
