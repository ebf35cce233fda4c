"""Compiled code that several processes cached in one folder works together in another process."""

import os
import platform
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from numba.core import config

from implicit_conv.cpu.arch import cpu_features
from implicit_conv.kernels.cpu.runtime.cache import kernel

COMPUTE = """
import sys
import numpy as np
from implicit_conv import conv2d
from implicit_conv.kernels.cpu.runtime import launch  # first, so variants are numbered alike
from implicit_conv.testing import Case
for dtype in sys.argv[1:]:
    case = Case(C=20, K=9, size=(5, 9), padding=((1, 1), (1, 1)), dtype=dtype)
    x, w = case.inputs(0, integers=True)
    np.testing.assert_array_equal(conv2d(x, w, padding=1), case.reference(x, w), dtype)
"""
COUNT = """
import sys
from implicit_conv.kernels.cpu.runtime import parts as module
parts, entry = [], module.entry
def counted(signature):
    def compile_counted(function):
        parts.append(entry(signature)(function))
        return parts[-1]
    return compile_counted
module.entry = counted
"""
BOTH = ("float32", "float64")
NARROW = "+avx2,+fma" if cpu_features().get("avx512f") else "+sse2"


def compute(cache, features, dtypes, program=COMPUTE):
    environment = {**os.environ, "IMPLICIT_CONV_CACHE_DIR": str(cache)}
    if features:
        environment["NUMBA_CPU_FEATURES"] = features
    result = subprocess.run(
        [sys.executable, "-c", program, *dtypes],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert result.returncode == 0, f"{features} {dtypes} {result.stderr[-2000:]}"
    return result.stdout


@pytest.mark.slow
@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="names x86 features")
def test_processes_of_other_dtypes_and_vectors_share_a_cache(tmp_path):
    """Variants of a function that two processes number alike must not replace each other."""
    for features in ("", NARROW):
        for dtypes in ((), *zip(BOTH), BOTH):
            compute(tmp_path, features, dtypes)
    compute(tmp_path, "", BOTH)
    compute(tmp_path, NARROW, reversed(BOTH))


def test_a_second_process_loads_every_part(tmp_path):
    """Microkernels too, whose templates are generated from their lists of arguments."""
    report = "print(len(parts), sum(part.cache_hits for part in parts))"
    first, second = (
        compute(tmp_path, "", ["float32"], COUNT + COMPUTE + report).split() for _ in range(2)
    )
    assert int(first[0]) > 4
    assert first[1] == "0"
    assert second == [first[0], first[0]]


def test_threads_that_compile_at_once_keep_code_in_one_folder(tmp_path, monkeypatch):
    """Numba has one setting for all threads: ours while we compile, the user's before and after."""

    def slow(path):
        time.sleep(0.01)
        return exists(path)

    def compile_one(number):
        def add(value):
            return value + number

        return kernel("int64(int64)")(add)(1)

    exists, before = os.path.exists, config.CACHE_DIR
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os.path, "exists", slow)  # between Numba's two looks at its folder
    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(compile_one, range(12))) == list(range(1, 13))
    assert config.CACHE_DIR == before
    assert list(tmp_path.iterdir()) == []
