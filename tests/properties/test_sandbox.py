"""What a sandbox or a server may take away: executable memory, processes, large stacks."""

import pytest
import seccomp
from processes import ROOT, output_of

SUPPORT = f"""
import sys, threading
sys.path.append({str(ROOT / "tests/support")!r})
import numpy as np
import implicit_conv
from implicit_conv import conv2d

def is_right(filters=33, **options):
    x, w = np.ones((1, 20, 20, 20), np.float32), np.ones((filters, 20, 3, 3), np.float32)
    return bool((conv2d(x, w, **options) == 180).all())
"""
filtered = pytest.mark.skipif(not seccomp.AVAILABLE, reason="filters are for Linux on x86-64")


@filtered
@pytest.mark.parametrize("before", ["", "assert is_right(64)"])
def test_memory_that_may_not_be_executed_is_an_error(before):
    """Code that LLVM loads would end the process. A sandbox may be entered after some calls."""
    out = output_of(
        SUPPORT
        + before
        + """
import numba, seccomp  # libraries are loaded before the filter refuses to map them
plan = implicit_conv.plan_conv2d((1, 20, 20, 20), (33, 20, 3, 3))
seccomp.refuse_executable_memory()
for options in ({}, {"algorithm": "gemm_im2col", "activation": "silu"}):
    try:
        is_right(**options)
    except implicit_conv.PlanError as error:
        print(error)
try:
    plan.pack(np.ones((33, 20, 3, 3), np.float32))
except implicit_conv.PlanError as error:
    print(error)
print(is_right(algorithm="gemm_im2col"), is_right(algorithm="gemm_im2col", activation="relu"))
"""
        + (before and "print(is_right(64))")
    )
    *errors, last = out.splitlines() if not before else out.splitlines()[:-1]
    assert len(errors) == 3
    assert all("MemoryDenyWriteExecute" in error and "gemm_im2col" in error for error in errors)
    assert last == "True True"
    assert not before or out.endswith("\nTrue")  # what was compiled before goes on to run


@filtered
def test_a_fork_that_the_system_refuses_leaves_nothing_locked():
    out = output_of(
        SUPPORT
        + """
import os, seccomp
assert is_right(64)
seccomp.refuse(["clone", "fork", "vfork"], "EAGAIN")  # threads are made by clone3
try:
    os.fork()
except BlockingIOError:
    right = []
    thread = threading.Thread(target=lambda: right.append(is_right()), daemon=True)
    thread.start()
    thread.join(100)
    print(right, is_right(34))
"""
    )
    assert out == "[True] True"


@pytest.mark.slow
@pytest.mark.parametrize("where", ["main", "thread"])
def test_a_small_stack_compiles(where, tmp_path):
    """Servers set a small size for their threads, which LLVM would overflow."""
    out = output_of(
        SUPPORT
        + f"""
threading.stack_size(64 << 10)
if {where == "main"}:
    print(is_right())
else:
    thread = threading.Thread(target=lambda: print(is_right()))
    thread.start()
    thread.join()
print(threading.stack_size())
""",
        IMPLICIT_CONV_CACHE_DIR=tmp_path,
    )
    assert out.split() == ["True", str(64 << 10)]
