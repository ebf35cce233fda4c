"""The committed counts of GPU kernels; test_assemble.py compares linked kernels with them."""

import json

from implicit_conv.gpu.evidence import ladder
from perf import gates, gpu_gates

EXPECTED = json.loads(gates.EXPECTED.read_text())


def test_every_row_of_the_evidence_has_its_counts():
    names = [name for name, _, _ in gpu_gates.kernels()]
    assert list(EXPECTED["gpu"]) == [f"{row[0]} {row[4]}" for row in ladder()] == names


def test_no_committed_kernel_spills():
    for name, counted in EXPECTED["gpu"].items():
        assert counted["spill_bytes"] == counted["stack_bytes"] == 0, name
