"""Vectors compute more lanes than there are elements, and what these read must not be a subnormal.

Their results are never stored, but one subnormal among them can make an instruction of an Intel CPU
take a hundred times as long. The CPU itself says whether an operand was one: it sets a bit of the
control word.
"""

import ctypes
import platform

import numpy as np
import pytest
from compiled import python_function

import implicit_conv as ic
from implicit_conv.kernels.cpu.emit import types
from implicit_conv.kernels.cpu.runtime.compiled import subnormals
from implicit_conv.kernels.cpu.runtime.pool import POOL, Pool

SEEN = 0x3F  # bits of MXCSR that instructions set and nothing clears (Intel SDM vol. 1, 10.2.3)
SUBNORMAL = 1 << 1  # the one of subnormal operands
PATTERN = 0x00010001  # a subnormal in every float format: int64 numbers of tables are such too

pytestmark = pytest.mark.skipif(
    platform.machine() not in subnormals.X86, reason="only x86 keeps such a bit by default"
)

# (channels, filters, groups, size, taps, stride)
PROBLEMS = (
    (3, 8, 1, 9, 3, 1),
    (8, 8, 1, 8, 3, 1),
    (8, 8, 1, 8, 1, 1),
    (18, 18, 1, 24, 3, 1),
    (20, 33, 1, 17, 3, 2),
    (5, 7, 1, 30, 7, 2),
    (1, 6, 1, 28, 5, 1),
    (64, 50, 1, 14, 1, 1),
    (64, 64, 1, 1, 1, 1),
    (24, 24, 24, 14, 3, 1),
    (40, 40, 40, 9, 5, 1),
    (32, 64, 32, 12, 3, 1),
    (32, 32, 4, 12, 3, 1),
)


@pytest.fixture(autouse=True)
def subnormal_scratch(monkeypatch):
    """Scratch memory is full of subnormals when it is taken."""
    take = Pool.take

    def poisoned(pool, size):
        block = take(pool, size)
        if pool is POOL:
            words = ctypes.c_uint32 * (block.size // 4)
            np.ctypeslib.as_array(words.from_address(block.address))[:] = PATTERN
        return block

    monkeypatch.setattr(Pool, "take", poisoned)
    with ic.config(num_threads=1):
        yield


@python_function(types.int64())
def seen():
    """The bits that are set."""
    return subnormals.control_word() & SEEN


@python_function(types.void())
def clear():
    """Clear the bits."""
    subnormals.set_control_word(subnormals.control_word() & ~SEEN)


def reads_subnormals(call):
    """Whether an instruction of the call has a subnormal operand; the first call compiles."""
    call()
    clear()
    call()
    return bool(seen() & SUBNORMAL)


def numbers(shape, dtype="float32"):
    return 1 + np.random.default_rng(0).random(shape).astype(dtype)


def test_the_bit_is_seen():
    x, w = numbers((1, 8, 8, 8)), numbers((8, 8, 3, 3))
    x[0, 0, 0, 0] = 1e-40
    assert reads_subnormals(lambda: ic.conv2d(x, w))


def options_of(groups, taps, stride):
    return {"stride": stride, "padding": taps // 2, "groups": groups}


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("algorithm", ["auto", "implicit_gemm", "winograd_f2"])
@pytest.mark.parametrize(("c", "k", "groups", "size", "taps", "stride"), PROBLEMS)
def test_no_lane_reads_what_other_launches_left(
    algorithm, layout, c, k, groups, size, taps, stride
):
    if algorithm == "winograd_f2" and (taps != 3 or stride > 1 or groups > 1):
        algorithm = "auto"
    shape = (1, c, size, size) if layout == "NCHW" else (1, size, size, c)
    x, w = numbers(shape), numbers((k, c // groups, taps, taps))
    options = {**options_of(groups, taps, stride), "layout": layout}
    plan = ic.plan_conv2d(x.shape, w.shape, algorithm=algorithm, **options)
    packed = plan.pack(w)
    assert not reads_subnormals(lambda: plan(x, packed)), plan.candidates[0].name
    assert not reads_subnormals(lambda: plan(x, w)), plan.candidates[0].name


@pytest.mark.parametrize(("c", "k", "groups", "size", "taps", "stride"), PROBLEMS)
def test_no_lane_of_a_gradient_reads_what_other_launches_left(c, k, groups, size, taps, stride):
    x, w = numbers((1, c, size, size)), numbers((k, c // groups, taps, taps))
    options = options_of(groups, taps, stride)
    dy = ic.conv2d(x, w, **options)
    assert not reads_subnormals(lambda: ic.conv2d_input_grad(dy, w, x.shape, **options))
    assert not reads_subnormals(lambda: ic.conv2d_weight_grad(x, dy, w.shape, **options))
