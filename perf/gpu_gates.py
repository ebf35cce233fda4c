"""Registers, spills and instructions of one GPU kernel of each family on each target.

The kernels are compiled and linked, which needs the compilers' wheels but no GPU. The counts are
valid only for the versions of these compilers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from importlib import metadata
from importlib.util import find_spec
from typing import Any

from implicit_conv.gpu.arch import KNOWN
from implicit_conv.gpu.evidence import targets
from implicit_conv.gpu.families import FAMILIES, family_name
from implicit_conv.gpu.planner import variants
from implicit_conv.kernels.activation import CLAMP
from implicit_conv.kernels.gpu.variant import Variant
from implicit_conv.options import GPU_DTYPES
from implicit_conv.problem import Problem
from implicit_conv.verify.assembly import sass, tool

COMPILERS = ("numba-cuda", "nvidia-nvvm", "nvidia-nvjitlink", "nvidia-cuda-nvdisasm")
MATRIX = ("HGMMA", "HMMA", "FFMA")


def compiler() -> str | None:
    """Versions of all tools that turn a kernel into SASS; None if one is missing."""
    if find_spec("numba_cuda") is None or tool("nvdisasm") is None:
        return None
    found = []
    for name in COMPILERS:
        try:
            found.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            return None  # a toolkit outside wheels, whose version cannot be found
    return ", ".join(found)


def kernels() -> Iterator[tuple[str, Variant, tuple[int, int, str]]]:
    """(name and target, variant of the largest tile, capability) of each family and target."""
    by_name: dict[str, Variant] = {}
    for dtype in ("bfloat16", "float32"):
        for v in variants(problem(dtype), CLAMP, plain=False):
            by_name.setdefault(family_name(v), v)
    # The planner prefers descriptors, so it never chooses this one: A from registers, im2col loads.
    by_name["tma-wgmma-registers"] = replace(by_name["tma-wgmma"], descriptors=False)
    for family in FAMILIES.values():
        for target in targets(family):
            number = int(target.strip("sm_a"))
            yield f"{family.name} {target}", by_name[family.name], KNOWN[number].cc


def problem(dtype: str) -> Problem:
    """A 3x3 convolution that every kernel can compute, large enough for the largest tiles."""
    return Problem.parse(
        (32, 28, 28, 128),
        (256, 3, 3, 128),
        dtype,
        padding=1,
        layout="NHWC",
        weight_layout="KRSC",
        dtypes=GPU_DTYPES,
    )


def compiled(v: Variant, cc: tuple[int, int, str]) -> Any:
    """The linked kernel."""
    from implicit_conv.kernels.gpu.blob import signature
    from implicit_conv.kernels.gpu.compile import compile_kernel
    from implicit_conv.kernels.gpu.fprop import make_fprop

    return compile_kernel(make_fprop(v), signature(), cc, v.threads)


def counts(kernel: Any) -> dict[str, Any]:
    """The resources and instructions of a linked kernel."""
    found = sass(kernel.cubin)
    return {
        "registers": kernel.registers,
        "spill_bytes": kernel.spills,
        "stack_bytes": kernel.stack,
        "instructions": len(found),
        "matrix": sum(name.startswith(MATRIX) for name in found),
        "tensor_copies": sum(name.startswith("UTMALDG") for name in found),
    }


def measure() -> dict[str, Any]:
    """The counts of all kernels; empty if a compiler is missing."""
    versions = compiler()
    if versions is None:
        return {}
    return {
        "gpu compiler": versions,
        "gpu": {name: counts(compiled(v, cc)) for name, v, cc in kernels()},
    }
