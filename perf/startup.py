"""The time before a first result: import, and a first call in a new process."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time

from perf.record import ROOT

REPEATS = 5  # processes per measurement; the fastest counts
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
    """Seconds to import beyond numpy, and seconds of a whole process that convolves once.

    The cold process finds no compiled kernels and is run once; warm processes load its kernels. The
    other figures are the least of REPEATS.
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
    """The output of `code` in a new process."""
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        env={**os.environ, "IMPLICIT_CONV_CACHE_DIR": cache},
    ).stdout
