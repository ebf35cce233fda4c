"""What has been shown of each family of GPU kernels: linked, interpreted, run.

A step is claimed only because a test shows it: tests/gpu/test_assemble.py links every kernel of
every row, tests/gpu/test_interpreter.py runs the linked PTX of every row against the float64
oracle, and an entry of `HARDWARE` records a run of ``pytest -m gpu`` on that GPU.
"""

from __future__ import annotations

import re

from implicit_conv.gpu.cuda.arch import KNOWN
from implicit_conv.gpu.plan.families import FAMILIES, Family, family_name
from implicit_conv.kernels.gpu.targets import supports, target_name
from implicit_conv.kernels.gpu.variant import Variant

# One target of each generation; sm_86, 89, 103 and 121 run the code of the one before.
GENERATIONS = (80, 90, 100, 120)
# Problems of a family on a target, each of two tiles along gemm_m and gemm_n.
INTERPRETED_PROBLEMS = 8

NOT_RUN = "not yet run"
# (family, target) -> GPU, driver, date, error, TFLOP/s, ratio to cuDNN
HARDWARE: dict[tuple[str, str], str] = {}

HEAD = tuple("kernel loads multiplies opt-in target assembled interpreted hardware".split())
LINKED = "by CI"  # tests/gpu/test_assemble.py links each row of the table


def hardware(family: str, target: str) -> str:
    """The record of a run on that target, or that there was none."""
    return HARDWARE.get((family, target), NOT_RUN)


def evidence_of(v: Variant, target: str) -> str:
    """What has been shown of a kernel's family on a target, as a clause for `explain`."""
    number = max(n for n in GENERATIONS if n <= int(re.findall(r"\d+", target)[0]))
    code, family = target_name(KNOWN[number].cc), family_name(v)
    row = next((row for row in ladder() if (row[0], row[4]) == (family, code)), None)
    if row is None:
        return f"nothing has been shown of {family} on {code}"
    *_, assembled, interpreted, _ = row
    ran = hardware(family, target)
    return (
        f"{family} is assembled for {code} {assembled}, its PTX is "
        f"interpreted on {interpreted}; "
        + (f"{ran} on hardware" if ran == NOT_RUN else f"run on {ran}")
    )


def targets(family: Family) -> list[str]:
    """The targets that a family has kernels for."""
    capabilities = (KNOWN[number].cc for number in GENERATIONS)
    return [target_name(cc) for cc in capabilities if supports(family.target, cc)]


def ladder() -> list[tuple[str, ...]]:
    """Rows of the table, one for each family and target, under `HEAD`."""
    return [
        (
            family.name,
            family.loads,
            family.multiplies,
            family.opt_in,
            target,
            LINKED,
            f"{INTERPRETED_PROBLEMS} problems",
            hardware(family.name, target),
        )
        for family in FAMILIES.values()
        for target in targets(family)
    ]


def markdown() -> str:
    """The table of docs/gpu.md."""
    return _table([HEAD, *ladder()])


def _table(rows: list[tuple[str, ...]]) -> str:
    lines = [rows[0], ("---",) * len(rows[0]), *rows[1:]]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def lines() -> list[str]:
    """The table for the terminal, a line for each family and target."""
    return [
        f"{name:23}{target:9}assembled {linked}; PTX interpreted on {interpreted}; hardware {ran}"
        for name, _, _, _, target, linked, interpreted, ran in ladder()
    ]
