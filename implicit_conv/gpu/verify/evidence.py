"""What is known of each GPU kernel on each target: assembled, simulated, run on hardware.

Nothing moves up without its test: tests/gpu/test_assemble.py links every kernel, tests/gpu/sim runs
every family against the float64 oracle, and a line in `HARDWARE` is a run of ``pytest -m gpu`` on
that machine.
"""

from __future__ import annotations

from typing import NamedTuple

from implicit_conv.kernels.gpu.ptx import supports, target_name
from implicit_conv.kernels.gpu.variant import Variant

TARGETS = ((8, 0, ""), (9, 0, "a"), (10, 0, "a"), (12, 0, "a"))
SIMULATED_PROBLEMS = 50  # of a family, of two tiles along each axis: tests/gpu/sim/test_fprop.py


class Kernels(NamedTuple):
    """A family of kernels: what loads, what multiplies, what must be asked for, least target."""

    name: str
    loads: str
    multiplies: str
    opt_in: str
    target: str


KERNELS = (
    Kernels("cp_async-mma", "cp.async, computed addresses", "mma.sync", "", "sm_80"),
    Kernels("elements-mma", "element by element", "mma.sync", "", "sm_80"),
    Kernels("fma", "cp.async or elements", "float32 fma", "", "sm_80"),
    Kernels("tma-mma", "TMA im2col", "mma.sync", "", "sm_90"),
    Kernels("tma-w-mma", "TMA im2col::w", "mma.sync", "", "sm_100"),
    Kernels("tma-wgmma", "TMA im2col", "wgmma, descriptors", "", "sm_90a"),
    Kernels("tma-wgmma-registers", "TMA im2col", "wgmma, A by ldmatrix", "", "sm_90a"),
    Kernels(
        "tma-w-wgmma-registers", "TMA im2col, permuted axes", "wgmma, A by ldmatrix",
        "permuted_axes", "sm_90a",
    ),
    Kernels(
        "tma-w-wgmma", "TMA im2col, permuted axes", "wgmma, shifted descriptors",
        "permuted_axes, shifted_descriptors", "sm_90a",
    ),
)  # fmt: skip

NOT_RUN = "not yet run"
# (family, target): GPU, driver, date, error, TFLOP/s, ratio to cuDNN
HARDWARE: dict[tuple[str, str], str] = {}

HEAD = ("kernel", "loads", "multiplies", "opt-in", "target", "assembled", "simulated", "hardware")


def kernel_name(v: Variant) -> str:
    """The family that a kernel belongs to."""
    if v.consumer == "fma":
        return "fma"
    walk = "-w" if v.wide else ""
    registers = "-registers" if v.consumer == "wgmma" and not v.descriptors else ""
    return f"{v.producer}{walk}-{v.consumer}{registers}"


def hardware(kernel: str, target: str) -> str:
    """What a run on that target showed, or that there was none."""
    return HARDWARE.get((kernel, target), NOT_RUN)


def targets(kernels: Kernels) -> list[str]:
    """The targets that a family is for."""
    return [target_name(cc) for cc in TARGETS if supports(kernels.target, cc)]


def ladder() -> list[tuple[str, ...]]:
    """Rows of the table, one a kernel family and target, under `HEAD`."""
    return [
        (
            *kernels[:4], target, "yes", f"{SIMULATED_PROBLEMS} problems",
            hardware(kernels.name, target),
        )
        for kernels in KERNELS
        for target in targets(kernels)
    ]  # fmt: skip


def markdown() -> str:
    """The table as it stands in docs/gpu.md."""
    return _table([HEAD, *ladder()])


def summary() -> str:
    """The table as it stands in README: a column a target, what was shown there in short."""
    names = [target_name(cc) for cc in TARGETS]
    rows: list[tuple[str, ...]] = [("kernel", "loads", "multiplies", *names)]
    for kernels in KERNELS:
        loads = f"{kernels.loads} (opt-in)" if kernels.opt_in else kernels.loads
        cells = (_steps(kernels, name) for name in names)
        rows.append((kernels.name, loads, kernels.multiplies, *cells))
    return _table(rows)


def _steps(kernels: Kernels, target: str) -> str:
    if target not in targets(kernels):
        return "-"
    ran = hardware(kernels.name, target)
    return f"A S, {ran}" if ran == NOT_RUN else f"A S H: {ran}"


def _table(rows: list[tuple[str, ...]]) -> str:
    lines = [rows[0], ("---",) * len(rows[0]), *rows[1:]]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def lines() -> list[str]:
    """The ladder for people, a line a kernel family and target."""
    return [
        f"{name:23}{target:9}assembled; simulated, {problems}; hardware {ran}"
        for name, _, _, _, target, _, problems, ran in ladder()
    ]
