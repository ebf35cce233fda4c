"""The families of GPU kernels: how each loads and multiplies, and what has been shown of it.

A step is claimed only because a test shows it: tests/gpu/test_assemble.py links every kernel of
every row, tests/gpu/test_interpreter.py runs the linked PTX of every row against the float64
oracle, and an entry of `HARDWARE` records a run of ``pytest -m gpu`` on that GPU.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import NamedTuple

from implicit_conv.gpu.cuda.arch import KNOWN
from implicit_conv.gpu.plan.direct import direct_variant
from implicit_conv.gpu.plan.rows import rows_variant
from implicit_conv.kernels.gpu.sizes import VECTOR_BYTES
from implicit_conv.kernels.gpu.targets import supports, target_name
from implicit_conv.kernels.gpu.variant import Rows, Strip, Variant
from implicit_conv.kernels.gpu.wgrad_variant import WgradVariant

CHANNELS_LAST = (("NHWC", "KRSC"),)
ANY_LAYOUT = (("NHWC", "KRSC"), ("NCHW", "KCRS"), ("NHWC", "RSCK"), ("NCHW", "KRSC"))

# One target of each generation; sm_86, 89, 103 and 121 run the code of the one before.
GENERATIONS = (80, 90, 100, 120)
# Problems of a family on a target, each of two tiles along gemm_m and gemm_n.
INTERPRETED_PROBLEMS = 8

NOT_RUN = "not yet run"
# (family, target) -> GPU, driver, date and what was compared there: by ``pytest -m gpu``, or first
# layers of whole batches with cuDNN's float32 results on integers
HARDWARE = {
    (family, "sm_90a"): "H100, driver 580.159, 2026-11-26: 100 problems exact"
    for family in (
        *("cp_async-mma", "elements-mma", "folded-mma", "fma", "direct", "tma-mma", "tma-wgmma"),
        *("tma-wgmma-registers", "tma-w-wgmma-registers", "tma-w-wgmma"),
    )
} | {("rows-mma", "sm_90a"): "H200, driver 580.159, 2026-11-28: 5 layers in 24 kernels exact"}

# Columns of the page's table: what has been shown comes first, since windows cut a wide table.
HEAD = tuple("kernel target hardware interpreted assembled loads multiplies".split())
LINKED = "by CI"  # tests/gpu/test_assemble.py links each row of the table


@dataclass(frozen=True)
class Family:
    """One way to load and to multiply.

    Attributes
    ----------
    loads, multiplies : str
        Instructions that load and multiply, for tables.
    device : str
        The target that tests plan for.
    variants : tuple of Variant
        Tiles small enough for the interpreter, all of one least target.
    layouts : tuple of (layout, weight layout)
        What the family can load.
    groups : tuple of int
        Numbers of groups that it can load.
    """

    name: str
    loads: str
    multiplies: str
    device: str
    variants: tuple[Variant, ...]
    layouts: tuple[tuple[str, str], ...] = CHANNELS_LAST
    groups: tuple[int, ...] = (1,)

    @property
    def target(self) -> str:
        """The least target of its kernels."""
        return self.variants[0].target


_BF, _HALF, _FLOAT = "bfloat16", "float16", "float32"
_FAMILIES = (
    Family(
        "cp_async-mma",
        "cp.async, computed addresses",
        "mma.sync",
        "sm_80",
        (
            Variant("im2col", "cp_async", "mma", _BF, 32, 32, 64, 2, 1),
            Variant(
                "im2col", "cp_async", "mma", _HALF, 32, 64, 128, 1, 2, linear=True, packed=True
            ),
        ),
        groups=(1, 2),
    ),
    Family(
        "cp_async-words",
        "cp.async of 4 or 8 bytes, also folded columns",
        "mma.sync or float32 fma",
        "sm_80",
        (
            Variant("im2col", "cp_async", "mma", _BF, 32, 32, 64, 2, 1, copy_bytes=4, packed=True),
            Variant("im2col", "cp_async", "mma", _HALF, 32, 32, 128, 1, 1, copy_bytes=8),
            Variant("im2col", "cp_async", "fma", _FLOAT, 32, 32, 64, 1, 1, copy_bytes=4),
            Variant("im2col", "cp_async", "mma", _BF, 32, 32, 64, 2, 1, folded=True, copy_bytes=4),
        ),
        groups=(1, 2),
    ),
    Family(
        "elements-mma",
        "element by element",
        "mma.sync",
        "sm_80",
        (
            Variant("im2col", "elements", "mma", _BF, 32, 32, 64, 2, 1),
            Variant("im2col", "elements", "mma", _HALF, 32, 32, 128, 1, 1),
        ),
        layouts=ANY_LAYOUT,
        groups=(1, 2),
    ),
    Family(
        "folded-mma",
        "element by element, folded columns",
        "mma.sync",
        "sm_80",
        (
            Variant("im2col", "elements", "mma", _BF, 32, 32, 64, 2, 1, folded=True, packed=True),
            Variant("im2col", "elements", "mma", _HALF, 32, 32, 128, 1, 1, folded=True),
        ),
    ),
    Family(
        "fma",
        "cp.async or elements",
        "float32 fma",
        "sm_80",
        (
            Variant(
                "im2col", "cp_async", "fma", _FLOAT, 32, 32, 64, 2, 1, linear=True, packed=True
            ),
            Variant("im2col", "elements", "fma", _FLOAT, 32, 32, 64, 1, 1),
        ),
        groups=(1, 2),
    ),
    Family(
        "direct",
        "16 bytes or elements, to registers",
        "float32 fma, without a GEMM",
        "sm_80",
        (
            direct_variant("vectors", _BF, Strip(4, 3, 1, 1, 1, 1), 16, 2),
            direct_variant("vectors", _HALF, Strip(2, 2, 2, 3, 4, 4), 16, 1),
            direct_variant("elements", _BF, Strip(2, 3, 2, 1, 3, 2), 8, 1),
            direct_variant("vectors", _FLOAT, Strip(3, 1, 1, 1, 2, 8), 16, 2),
            direct_variant("elements", _FLOAT, Strip(1, 1, 1, 1, 2, 1), 1, 1),
            direct_variant("vectors", _BF, Strip(2, 1, 1, 1, 4, 1), 64, 4),
        ),
        layouts=ANY_LAYOUT,
    ),
    Family(
        "rows-mma",
        "rows of pixels, planes or elements, padded",
        "mma.sync, overlapping windows",
        "sm_80",
        (
            replace(rows_variant("vectors", _BF, Rows(2, 3, (7, 7), (2, 2)), 1, 64), packed=True),
            rows_variant("planes", _HALF, Rows(2, 3, (3, 3), (2, 2)), 2, 32),
            replace(rows_variant("vectors", _HALF, Rows(1, 4, (2, 3), (1, 1)), 2, 32), packed=True),
            rows_variant("elements", _BF, Rows(2, 2, (3, 5), (1, 2)), 1, 32),
            replace(rows_variant("vectors", _BF, Rows(1, 1, (4, 4), (4, 4)), 1, 96), packed=True),
            rows_variant("planes", _BF, Rows(4, 3, (2, 9), (3, 3)), 2, 32),
        ),
        layouts=ANY_LAYOUT,
    ),
    Family(
        "tma-mma",
        "TMA im2col",
        "mma.sync",
        "sm_120",
        (
            Variant("im2col", "tma", "mma", _BF, 32, 32, 64, 2, 1, linear=True, packed=True),
            Variant("im2col", "tma", "mma", _HALF, 32, 32, 128, 1, 1),
        ),
    ),
    Family(
        "tma-w-mma",
        "TMA im2col::w",
        "mma.sync",
        "sm_120",
        (
            Variant("w", "tma", "mma", _BF, 32, 32, 64, 2, 1),
            Variant("w", "tma", "mma", _HALF, 32, 32, 128, 1, 1, packed=True),
        ),
    ),
    Family(
        "tma-wgmma",
        "TMA im2col",
        "wgmma, descriptors",
        "sm_90",
        (
            Variant("im2col", "tma", "wgmma", _BF, 64, 32, 64, 4, 1, descriptors=True),
            Variant("im2col", "tma", "wgmma", _HALF, 64, 32, 128, 4, 1, descriptors=True),
        ),
    ),
    Family(
        "tma-wgmma-registers",
        "TMA im2col",
        "wgmma, A by ldmatrix",
        "sm_90",
        (
            Variant("im2col", "tma", "wgmma", _BF, 64, 32, 64, 4, 1, linear=True, packed=True),
            Variant("im2col", "tma", "wgmma", _HALF, 64, 64, 128, 4, 1),
        ),
    ),
    Family(
        "tma-w-wgmma-registers",
        "TMA im2col, permuted axes",
        "wgmma, A by ldmatrix",
        "sm_90",
        (
            Variant("w", "tma", "wgmma", _BF, 64, 32, 64, 4, 1, permuted=True),
            Variant("w", "tma", "wgmma", _HALF, 64, 32, 128, 4, 1, permuted=True),
        ),
    ),
    Family(
        "tma-w-wgmma",
        "TMA im2col, permuted axes",
        "wgmma, shifted descriptors",
        "sm_90",
        (Variant("w", "tma", "wgmma", _BF, 64, 32, 64, 4, 1, permuted=True, descriptors=True),),
    ),
    Family(
        "volume-mma",
        "cp.async or elements, computed addresses",
        "mma.sync",
        "sm_80",
        (
            Variant(
                *("im2col", "cp_async", "mma", _BF, 32, 32, 64, 2, 1), packed=True, volume=True
            ),
            Variant("im2col", "elements", "mma", _HALF, 32, 32, 128, 1, 1, volume=True),
            Variant(
                *("im2col", "cp_async", "mma", _BF, 32, 32, 64, 2, 1),
                copy_bytes=4,
                linear=True,
                volume=True,
            ),
            Variant("im2col", "elements", "mma", _BF, 32, 32, 64, 2, 1, folded=True, volume=True),
        ),
        layouts=(("NDHWC", "KTRSC"), ("NCDHW", "KCTRS"), ("NDHWC", "TRSCK")),
        groups=(1, 2),
    ),
    Family(
        "volume-fma",
        "cp.async or elements, computed addresses",
        "float32 fma",
        "sm_80",
        (
            Variant("im2col", "cp_async", "fma", _FLOAT, 32, 32, 64, 2, 1, volume=True),
            Variant("im2col", "elements", "fma", _FLOAT, 32, 32, 64, 1, 1, volume=True),
        ),
        layouts=(("NDHWC", "KTRSC"),),
        groups=(1, 2),
    ),
    Family(
        "volume-tma-mma",
        "TMA im2col of five axes",
        "mma.sync",
        "sm_120",
        (
            Variant(
                *("im2col", "tma", "mma", _BF, 32, 32, 64, 2, 1),
                linear=True,
                packed=True,
                volume=True,
            ),
            Variant("im2col", "tma", "mma", _HALF, 32, 32, 128, 1, 1, volume=True),
        ),
        layouts=(("NDHWC", "KTRSC"),),
    ),
    Family(
        "volume-tma-wgmma",
        "TMA im2col of five axes",
        "wgmma, descriptors",
        "sm_90",
        (
            Variant(
                *("im2col", "tma", "wgmma", _BF, 64, 32, 64, 4, 1), descriptors=True, volume=True
            ),
            Variant(
                *("im2col", "tma", "wgmma", _HALF, 64, 64, 128, 4, 1), descriptors=True, volume=True
            ),
        ),
        layouts=(("NDHWC", "KTRSC"),),
    ),
)
FAMILIES = {family.name: family for family in _FAMILIES}


class GradFamily(NamedTuple):
    """One way to load and to multiply for weight gradients; fields as of `Family`."""

    name: str
    loads: str
    multiplies: str
    variants: tuple[WgradVariant, ...]

    @property
    def target(self) -> str:
        """The least target of its kernels."""
        return self.variants[0].target


_LOADS, _SMALL = "cp.async or elements, computed addresses", (64, 64, 2, 2, 16)
_GRADIENTS = (
    GradFamily(
        "wgrad-wgmma",
        "TMA im2col",
        "wgmma, transposed descriptors",
        (
            WgradVariant("tma", _BF, 64, 128, 4, 1, 16),
            WgradVariant("tma", _HALF, 128, 64, 8, 1, 32),
        ),
    ),
    GradFamily(
        "wgrad-mma",
        _LOADS,
        "mma.sync, transposed fragments",
        (
            WgradVariant("cp_async", _BF, *_SMALL),
            WgradVariant("elements", _HALF, *_SMALL),
            WgradVariant("cp_async", _HALF, *_SMALL, copy_bytes=4),
            WgradVariant("cp_async", _BF, *_SMALL, copy_bytes=8),
        ),
    ),
    GradFamily(
        "wgrad-fma",
        _LOADS,
        "float32 fma, transposed fragments",
        (WgradVariant("cp_async", _FLOAT, *_SMALL), WgradVariant("elements", _FLOAT, *_SMALL)),
    ),
)
GRADIENTS = {family.name: family for family in _GRADIENTS}


def family_name(v: Variant | WgradVariant) -> str:
    """The name of the family that a kernel belongs to."""
    if isinstance(v, WgradVariant):
        return f"wgrad-{v.consumer}"
    if v.volume:
        return f"volume-{'tma-' if v.producer == 'tma' else ''}{v.consumer}"
    if v.copy_bytes < VECTOR_BYTES:
        return "cp_async-words"
    if v.consumer in ("fma", "direct"):
        return v.consumer
    if v.band or v.folded:
        return "rows-mma" if v.band else "folded-mma"
    walk = "-w" if v.wide else ""
    registers = "-registers" if v.consumer == "wgmma" and not v.descriptors else ""
    return f"{v.producer}{walk}-{v.consumer}{registers}"


def hardware(family: str, target: str) -> str:
    """The record of a run on that target, or that there was none."""
    return HARDWARE.get((family, target), NOT_RUN)


class Rung(NamedTuple):
    """What has been shown of a family on a target."""

    family: str
    loads: str
    multiplies: str
    target: str
    assembled: str
    interpreted: str
    hardware: str


def evidence_of(v: Variant | WgradVariant, target: str) -> str:
    """What has been shown of a kernel's family on a target, as a clause for `explain`."""
    number = max(n for n in GENERATIONS if n <= int(re.findall(r"\d+", target)[0]))
    code, family = target_name(KNOWN[number].cc), family_name(v)
    rung = next((rung for rung in ladder() if (rung.family, rung.target) == (family, code)), None)
    if rung is None:
        return f"nothing has been shown of {family} on {code}"
    ran = hardware(family, target)
    return (
        f"{family} is assembled for {code} {rung.assembled}, its PTX is "
        f"interpreted on {rung.interpreted}; "
        + (f"{ran} on hardware" if ran == NOT_RUN else f"run on {ran}")
    )


def targets(family: Family | GradFamily) -> list[str]:
    """The targets that a family has kernels for."""
    capabilities = (KNOWN[number].cc for number in GENERATIONS)
    return [target_name(cc) for cc in capabilities if supports(family.target, cc)]


def ladder() -> list[Rung]:
    """What has been shown of each family on each target."""
    each: list[Family | GradFamily] = [*FAMILIES.values(), *GRADIENTS.values()]
    return [
        Rung(
            family.name,
            family.loads,
            family.multiplies,
            target,
            LINKED,
            f"{INTERPRETED_PROBLEMS} problems",
            hardware(family.name, target),
        )
        for family in each
        for target in targets(family)
    ]


def markdown() -> str:
    """The table of docs/how-to/gpu.md: targets of a family share a row where all else is equal."""
    shared: dict[tuple[str, ...], list[str]] = {}
    for rung in ladder():
        shown = rung.hardware, rung.interpreted, rung.assembled, rung.loads, rung.multiplies
        shared.setdefault((rung.family, *shown), []).append(rung.target)
    rows = [(name, ", ".join(targets), *row) for (name, *row), targets in shared.items()]
    head = [HEAD, ("---",) * len(HEAD)]
    return "\n".join(f"| {' | '.join(row)} |" for row in [*head, *rows])


def lines() -> list[str]:
    """The table for the terminal, a line for each family and target."""
    return [
        f"{rung.family:23}{rung.target:9}assembled {rung.assembled}; PTX interpreted on "
        f"{rung.interpreted}; hardware {rung.hardware}"
        for rung in ladder()
    ]
