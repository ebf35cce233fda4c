"""Registers, spills and instructions of GPU kernels are the committed ones."""

import json

import pytest

from implicit_conv.gpu.evidence import ladder
from implicit_conv.kernels import ptx
from perf import gates, gpu_gates

EXPECTED = json.loads(gates.EXPECTED.read_text())
KERNELS = {name: (v, cc) for name, v, cc in gpu_gates.kernels()}


def test_every_row_of_the_evidence_has_its_counts():
    assert list(EXPECTED["gpu"]) == [f"{row[0]} {row[4]}" for row in ladder()] == list(KERNELS)


def test_no_committed_kernel_spills():
    for name, counted in EXPECTED["gpu"].items():
        assert counted["spill_bytes"] == counted["stack_bytes"] == 0, name


@pytest.mark.parametrize("name", KERNELS)
def test_counts_are_the_committed_ones(name):
    versions = gpu_gates.compiler()
    if versions is None or ptx.SIMULATED:
        pytest.skip("needs numba-cuda and nvdisasm: pip install 'implicit-conv[cu13,assemble]'")
    if versions != EXPECTED["gpu compiler"]:
        pytest.skip(f"counted for {EXPECTED['gpu compiler']}, this is {versions}")
    assert gpu_gates.counts(*KERNELS[name]) == EXPECTED["gpu"][name], (
        "if this is meant: python -m perf gates --update"
    )
