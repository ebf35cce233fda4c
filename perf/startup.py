"""How long users wait before the first result: import, and first calls in fresh processes."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time

from perf.record import ROOT

REPEATS = 5
IMPORT = """
import time
import numpy
start = time.perf_counter()
import implicit_conv
print(time.perf_counter() - start)
"""
FIRST_CALL = """
import numpy as np
from implicit_conv import conv2d
conv2d(np.ones((1, 64, 56, 56), np.float32), np.ones((64, 64, 3, 3), np.float32), padding=1)
"""


def startup() -> dict[str, float]:
    """Seconds: import beyond numpy's own, and a whole process that convolves once.

    The cold process finds no compiled kernels, the warm ones find its. Least of REPEATS, but for
    the cold one, which is run once.
    """
    with tempfile.TemporaryDirectory() as cache:
        cold = _seconds(FIRST_CALL, cache)
        return {
            "import": min(float(_python(IMPORT, cache)) for _ in range(REPEATS)),
            "first_call_cold": cold,
            "first_call_warm": min(_seconds(FIRST_CALL, cache) for _ in range(REPEATS)),
        }


def _seconds(code: str, cache: str) -> float:
    start = time.perf_counter()
    _python(code, cache)
    return time.perf_counter() - start


def _python(code: str, cache: str) -> str:
    """What `code` prints in a process of its own."""
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        env={**os.environ, "IMPLICIT_CONV_CACHE_DIR": cache},
    ).stdout
