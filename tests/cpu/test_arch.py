"""What the planner takes a CPU for is what Numba compiles for."""

import os
import subprocess
import sys

import pytest

CODE = """
from numba.core.registry import cpu_target
from implicit_conv.cpu.arch import cpu_features
there = {name for name, on in cpu_features().items() if on}
compiled_for = cpu_target.target_context.codegen()._tm_features.split(",")
assert there == {name[1:] for name in compiled_for if name[:1] == "+"}, (there, compiled_for)
"""


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"NUMBA_CPU_NAME": "generic"},
        {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": "+sse2,+avx"},
    ],
    ids=str,
)
def test_features_are_those_numba_compiles_for(environment):
    result = subprocess.run(
        [sys.executable, "-c", CODE],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
