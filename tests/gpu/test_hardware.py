"""What only a GPU can show; each check is a process of its own (implicit_conv.gpu.check)."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from implicit_conv.gpu.testing import FAMILIES

pytestmark = pytest.mark.gpu
ROOT = Path(__file__).parents[2]
SECONDS = 240
UNPROVEN = ("tma-w-wgmma", "tma-w-wgmma-registers")  # permuted axes, shifted descriptors
PROBLEMS = 80  # of a family: more than 500 in all on sm_90a
REDUCED = ("cp_async-mma", "elements-mma", "tma-mma", "tma-w-mma", "tma-wgmma")


def check(*arguments, prefix=()):
    """Output of a check that passed; skipped where it cannot run, failed with its report else."""
    command = [*prefix, sys.executable, "-m", "implicit_conv.gpu.check", *arguments]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=SECONDS, check=False
    )
    report = done.stdout + done.stderr
    if done.returncode == 2:
        pytest.skip(report.strip().splitlines()[-1])
    assert done.returncode == 0, report
    return report


@pytest.mark.parametrize("name", [name for name in FAMILIES if name not in UNPROVEN])
def test_family_equals_oracle(name):
    check("family", name, str(PROBLEMS))


def test_layers_of_a_network():
    check("layers")


def test_arrays_of_other_libraries():
    check("arrays")


def test_copies_deliver_what_tma_says():
    """Walks, fills and swizzles; on sm_90 the permuted-axes walk row by row."""
    check("copies")


def test_driver_takes_our_maps():
    check("maps")


def test_permuted_axes():
    """The im2col::w walk through plain im2col on sm_90, A from registers."""
    check("family", "tma-w-wgmma-registers", str(PROBLEMS))


def test_shifted_descriptors():
    """wgmma descriptors that start at any row, base offset 0."""
    check("family", "tma-w-wgmma", str(PROBLEMS))


@pytest.mark.parametrize("tool", ["memcheck", "racecheck"])
@pytest.mark.parametrize("name", REDUCED)
def test_sanitizer(name, tool):
    sanitizer = shutil.which("compute-sanitizer")
    if sanitizer is None:
        pytest.skip("compute-sanitizer is not on the path")
    check("family", name, "2", prefix=(sanitizer, "--tool", tool, "--error-exitcode", "1"))
