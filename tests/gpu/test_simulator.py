"""Run the tests of tests/gpu/sim in processes that replace hooks by their twins."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent / "sim"
FAMILIES = FOLDER / "test_fprop.py"  # as long as all others
OTHERS = [file for file in sorted(FOLDER.glob("test_*.py")) if file != FAMILIES]


def simulate(*arguments):
    """Run pytest with these arguments where hooks are replaced."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *arguments]
    environment = {**os.environ, "NUMBA_ENABLE_CUDASIM": "1"}
    done = subprocess.run(
        command, env=environment, cwd=FOLDER.parents[2], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("files", [[FAMILIES], OTHERS], ids=["families", "others"])
def test_in_simulator(files):
    simulate(*map(str, files))


@pytest.mark.slow
def test_all_problems_and_tiles_in_simulator():
    simulate("-m", "slow", str(FOLDER))
