"""Checks that need a GPU, each in its own process (implicit_conv.verify.check)."""

import functools
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from implicit_conv.gpu.families import FAMILIES

pytestmark = pytest.mark.gpu
ROOT = Path(__file__).parents[2]
SECONDS = 240
PROBLEMS = 100  # of a family: at least 500 in all on every generation since sm_90
REDUCED = ("cp_async-mma", "elements-mma", "tma-mma", "tma-w-mma", "tma-wgmma")


def run(*arguments, prefix=()):
    """Run a check and return its finished process."""
    command = [*prefix, sys.executable, "-m", "implicit_conv.verify.check", *arguments]
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=SECONDS, check=False
    )


@functools.cache
def missing():
    """The reason why nothing can run here, or an empty string; cached."""
    done = run("here")
    if done.returncode == 2:
        return done.stdout.strip().splitlines()[-1]
    assert done.returncode == 0, done.stdout + done.stderr
    return ""


def check(*arguments, prefix=()):
    """Run a check: skip if it cannot run here, fail with its report if it fails."""
    if missing():
        pytest.skip(missing())
    done = run(*arguments, prefix=prefix)
    report = done.stdout + done.stderr
    if done.returncode == 2:
        pytest.skip(report.strip().splitlines()[-1])
    assert done.returncode == 0, report
    print(report)


@pytest.mark.parametrize("name", FAMILIES)
def test_family_equals_oracle(name):
    """The two opt-in families with permuted axes run as well: this is their proof."""
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


@pytest.mark.parametrize("tool", ["memcheck", "racecheck"])
@pytest.mark.parametrize("name", REDUCED)
def test_sanitizer(name, tool):
    sanitizer = shutil.which("compute-sanitizer")
    if sanitizer is None:
        pytest.skip("compute-sanitizer is not on the path")
    check("family", name, "2", prefix=(sanitizer, "--tool", tool, "--error-exitcode", "1"))
