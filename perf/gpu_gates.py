"""Registers, spills and instructions of one GPU kernel of each family on each target, and traffic.

The kernels are compiled and linked, which needs the compilers' wheels but no GPU. On the first
target of each family the interpreter of PTX runs the kernel on two tiles along gemm_m, and counts
its instructions, the sectors that it touches and the passes of the banks. All counts are valid only
for the versions of these compilers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from importlib import metadata
from importlib.util import find_spec
from typing import Any

import numpy as np

from implicit_conv import ptx
from implicit_conv.gpu.cuda.arch import KNOWN
from implicit_conv.gpu.cuda.cubin import kernel_of
from implicit_conv.gpu.plan.families import (
    FAMILIES,
    GRADIENTS,
    Family,
    GradFamily,
    family_name,
    targets,
)
from implicit_conv.gpu.plan.planner import choose, variants
from implicit_conv.gpu.plan.wgrad import wgrad_variants
from implicit_conv.kernels.geometry import CLAMP
from implicit_conv.kernels.gpu.variant import Variant
from implicit_conv.kernels.gpu.wgrad_variant import WgradVariant
from implicit_conv.problem.options import GPU_DTYPES
from implicit_conv.problem.problem import Problem
from implicit_conv.testing import Case
from implicit_conv.testing.gpu.problems import problem_of, stored
from perf.bringup.interpret import interpret, ptx_of
from perf.bringup.sass import calls, instructions, listing, mainloop, tool

COMPILERS = ("numba-cuda", "nvidia-nvvm", "nvidia-nvjitlink", "nvidia-cuda-nvdisasm")
UNLIMITED = (float(CLAMP), -np.inf, np.inf)  # an activation that changes nothing
MATRIX = ("HGMMA", "HMMA", "FFMA")
SLOW_CONVERSION = "F2F"  # a conversion that does not run on the units of ordinary arithmetic
# Two tiles along gemm_m in all orders of it: 127 pixels are 128 slots of an im2col::w load.
LAST = partial(Case, N=1, layout="NHWC", weight_layout="KRSC")  # channels last
TRAFFIC_CASE = LAST(C=64, K=256, size=(2, 127), kernel=(1, 3), padding=((0, 0), (1, 1)))
# The same pixels as two planes, which a filter of two planes reads.
VOLUME_CASE = replace(
    TRAFFIC_CASE,
    size=(2, 1, 127),
    kernel=(2, 1, 3),
    stride=(1, 1, 1),
    dilation=(1, 1, 1),
    padding=((0, 1), (0, 0), (1, 1)),
    layout="NDHWC",
    weight_layout="KTRSC",
)
# Groups that fill a small part of a matrix instruction, and the family that computed them before
# there were kernels on the CUDA cores.
NARROW_CASES = {
    "3x3 depthwise 64": LAST(C=1, K=1, groups=64, size=(2, 32), padding=((1, 1), (1, 1))),
    "3x3 4-4 in 16 groups": LAST(C=4, K=4, groups=16, size=(2, 32), padding=((1, 1), (1, 1))),
}
# A first layer of 14 output rows.
STEM = LAST(C=3, K=64, size=(28, 224), kernel=(7, 7), stride=(2, 2), padding=((3, 3), (3, 3)))
DIRECT_CASE = replace(NARROW_CASES["3x3 depthwise 64"], size=(8, 48))  # two tiles of the largest
NARROW_FAMILIES = {"direct": "vectors", "elements-mma": "elements"}  # family: producer
ACCESSES = ("ld.global", "st.global", "ld.shared", "st.shared", "ldmatrix", "cp.async to shared")


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


def kernels() -> Iterator[tuple[str, Variant | WgradVariant, tuple[int, int, str]]]:
    """(name and target, variant of the largest tile, capability) of each family and target.

    Those of convolutions add a bias and a residual, those of weight gradients have db or not.
    """
    by_name: dict[str, Variant] = {}
    for dtype in ("bfloat16", "float32"):
        for v in variants(problem(dtype), CLAMP, plain=False):
            by_name.setdefault(family_name(v), replace(v, biased=True, residual=True))
        for v in variants(volume_problem(dtype), CLAMP, plain=False):
            if v.volume:
                by_name.setdefault(family_name(v), replace(v, biased=True, residual=True))
    direct = next(v for v in variants(narrow_problem("bfloat16"), CLAMP, plain=False) if v.strip)
    by_name["direct"] = replace(direct, biased=True, residual=True)
    stem = problem_of(replace(STEM, N=32), "bfloat16")  # enough tiles for all multiprocessors
    rows = choose(stem, KNOWN[90], activation=UNLIMITED).variant
    by_name["rows-mma"] = replace(rows, biased=True, residual=True)
    # The planner prefers descriptors, so it never chooses this one: A from registers, im2col loads.
    by_name["tma-wgmma-registers"] = replace(by_name["tma-wgmma"], descriptors=False)
    # Nor these, because the channels of the problem are a multiple of 16 bytes.
    by_name["folded-mma"] = replace(by_name["elements-mma"], folded=True)
    by_name["cp_async-words"] = replace(by_name["cp_async-mma"], copy_bytes=4)
    largest: dict[str, Variant | WgradVariant] = {**by_name}
    for dtype in ("bfloat16", "float32"):
        for gradient in wgrad_variants(dtype):
            largest.setdefault(family_name(gradient), gradient)
    families: list[Family | GradFamily] = [*FAMILIES.values(), *GRADIENTS.values()]
    for family in families:
        for target in targets(family):
            number = int(target.strip("sm_a"))
            kernel, cc = largest[family.name], KNOWN[number].cc
            yield f"{family.name} {target}", kernel, cc
            if isinstance(kernel, WgradVariant):
                yield f"{family.name} with db {target}", replace(kernel, biased=True), cc


def problem(dtype: str, filters: int = 256, groups: int = 1) -> Problem:
    """A 3x3 convolution that every kernel can compute, large enough for the largest tiles."""
    return Problem.parse(
        (32, 28, 28, 128),
        (filters, 3, 3, 128 // groups),
        dtype,
        padding=1,
        groups=groups,
        layout="NHWC",
        weight_layout="KRSC",
        dtypes=GPU_DTYPES,
    )


def volume_problem(dtype: str) -> Problem:
    """A 3x3x3 convolution that every kernel of volumes can compute."""
    return Problem.parse(
        *((4, 8, 28, 28, 128), (256, 3, 3, 3, 128), dtype),
        padding=1,
        layout="NDHWC",
        weight_layout="KTRSC",
        rank=3,
        dtypes=GPU_DTYPES,
    )


narrow_problem = partial(problem, filters=128, groups=128)  # depthwise


def narrow_variant(family: str, case: str) -> Variant:
    """The kernel of a family that is estimated to be the fastest for one of `NARROW_CASES`.

    It adds a bias and a residual.
    """
    made = choose(problem_of(NARROW_CASES[case], "bfloat16"), KNOWN[80], activation=UNLIMITED)
    kind = family, NARROW_FAMILIES[family]
    able = (c for c in made.candidates if (family_name(c.variant), c.variant.producer) == kind)
    best = min(able, key=lambda candidate: candidate.cycles)
    return replace(best.variant, biased=True, residual=True)


def compiled(v: Variant | WgradVariant, cc: tuple[int, int, str]) -> Any:
    """The linked kernel."""
    from implicit_conv.kernels.gpu.blob import signature
    from implicit_conv.kernels.gpu.compile import compile_kernel

    return compile_kernel(kernel_of(v), signature(), cc, v.threads, v.bound)


def counts(kernel: Any) -> dict[str, Any]:
    """The resources and instructions of a linked kernel."""
    text = listing(kernel.cubin)
    found = instructions(text)
    return {
        "registers": kernel.registers,
        "spill_bytes": kernel.spills,
        "stack_bytes": kernel.stack,
        "instructions": len(found),
        "outside_mainloop": len(found) - mainloop(text, MATRIX),
        "calls": calls(text),
        "slow_conversions": sum(name.split(".")[0] == SLOW_CONVERSION for name in found),
        "matrix": sum(name.startswith(MATRIX) for name in found),
        "tensor_copies": sum(name.startswith("UTMALDG") for name in found),
    }


def first_targets() -> Iterator[tuple[str, Variant, tuple[int, int, str]]]:
    """`kernels` of convolutions on the first target of each family."""
    seen = set()
    for name, v, cc in kernels():
        if isinstance(v, Variant) and v not in seen:
            seen.add(v)
            yield name, v, cc


def traffic(v: Variant, cc: tuple[int, int, str], case: Case | None = None) -> dict[str, Any]:
    """What the interpreter counts while a kernel runs a case, with bias and residual.

    Without one it is `TRAFFIC_CASE`, or a depthwise case or first layer if v is for these. Accesses
    are (warp instructions, sectors or passes, the least number of these).
    """
    usual = VOLUME_CASE if v.volume else TRAFFIC_CASE
    case = case or (DIRECT_CASE if v.strip else STEM if v.band else usual)
    arch = next(arch for arch in KNOWN.values() if arch.cc == cc)
    choice = choose(
        problem_of(case, v.dtype),
        arch,
        variant=v,
        activation=None if v.plain else (float(v.activation), *UNLIMITED[1:]),
    )
    given = case.arrange(*case.inputs(0, integers=True))
    x, w = (stored(array, v.dtype) for array in given)
    bias = stored(np.ones(case.K * case.groups, np.float32), v.dtype)
    residual = stored(np.ones(choice.view.output_shape, np.float32), v.dtype)
    found = ptx.Traffic()
    kernel = ptx.parse(ptx_of(v, cc))
    interpret(choice, kernel, x, w, bias, residual, blocks=1, traffic=found)
    sums = {name: found.total(name) for name in ACCESSES}
    if v.strip:  # of pixels, without the single taps that are staged
        sums["ld.global of 16 bytes"] = found.costs["ld.global", 16]
    return {
        "tiles": int(np.prod(choice.tiles)),
        "instructions": found.instructions,
        **{name: [c.instructions, c.cost, c.least] for name, c in sums.items() if c.cost},
    }


def narrow_traffic() -> dict[str, Any]:
    """`traffic` of narrow groups on the CUDA cores, and on the path that was used before."""
    return {
        f"{case}, {family}": traffic(narrow_variant(family, case), KNOWN[80].cc, NARROW_CASES[case])
        for case in NARROW_CASES
        for family in NARROW_FAMILIES
    }


def measure() -> dict[str, Any]:
    """The counts of all kernels; empty if a compiler is missing."""
    versions = compiler()
    if versions is None:
        return {}
    return {
        "gpu compiler": versions,
        "gpu": {name: counts(compiled(v, cc)) for name, v, cc in kernels()},
        "gpu traffic": {name: traffic(v, cc) for name, v, cc in first_targets()},
        "gpu narrow groups": narrow_traffic(),
    }
