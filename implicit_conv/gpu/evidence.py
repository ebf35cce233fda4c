"""What is known of each GPU kernel on each target: assembled, simulated, run on hardware.

Nothing moves up without its test: tests/gpu/test_assemble.py links every kernel, tests/gpu/sim runs
every family against the float64 oracle, and a line in `HARDWARE` is a run of ``pytest -m gpu`` on
that machine.
"""

from __future__ import annotations

from typing import NamedTuple

from implicit_conv.kernels.ptx import supports, target_name

TARGETS = ((8, 0, ""), (9, 0, "a"), (10, 0, "a"), (12, 0, "a"))
SIMULATED_PROBLEMS = (
    50  # of a family, each of two tiles along every axis; tests/gpu/sim/test_fprop.py
)


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


def ladder() -> list[tuple[str, ...]]:
    """Rows of the table, one a kernel family and target, under `HEAD`."""
    return [
        (
            *kernels[:4], target_name(cc), "yes", f"{SIMULATED_PROBLEMS} problems",
            HARDWARE.get((kernels.name, target_name(cc)), NOT_RUN),
        )
        for kernels in KERNELS
        for cc in TARGETS
        if supports(kernels.target, cc)
    ]  # fmt: skip


def markdown() -> str:
    """The table as it stands in docs/gpu.md."""
    rows = [HEAD, ("---",) * len(HEAD), *ladder()]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)
