"""Repeated calls that compiled code makes: their results, what they hold, and when Python does."""

import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import implicit_conv as ic
from implicit_conv.cpu.run import call as repeated
from implicit_conv.kernels.cpu.runtime import active_threads, launch
from implicit_conv.kernels.cpu.runtime import repeated as compiled

BUILTIN = type(len)


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    ic.clear_plan_cache()
    monkeypatch.setattr(repeated, "OFTEN", 1)


def exact(channels=8, size=12, filters=8):
    """x, w and their convolution with padding 1, whose sums are exact, by numpy alone."""
    rng = np.random.default_rng(0)
    x = rng.integers(-4, 5, (2, channels, size, size)).astype(np.float32)
    w = rng.integers(-4, 5, (filters, channels, 3, 3)).astype(np.float32)
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))
    return x, w, np.einsum("nchwrs,kcrs->nkhw", windows, w)


def repeat(plan, *arguments, **options):
    """The first call, and the one that compiled code is made after."""
    for _ in range(2):
        plan(*arguments, **options)
    assert isinstance(plan._calls[0].again, BUILTIN)


def test_another_thread_loads_compiled_code():
    """A process makes many calls: none waits, and a later one is made by compiled code."""
    code = """
import time
import numpy as np
import implicit_conv as ic
from implicit_conv.cpu.run import call as repeated
from implicit_conv.process import preparation

threads = []
imports = repeated.compiled
repeated.compiled = lambda: (threads.append(preparation._task()), imports())[1]
x, w = np.ones((1, 4, 5, 5), np.float32), np.ones((4, 4, 3, 3), np.float32)
plan = ic.plan_conv2d(x.shape, w.shape)
deadline = time.monotonic() + 60
plan(x, w)
while "again" not in vars(plan._calls[0]):
    assert (plan(x, w) == 36).all()
    assert time.monotonic() < deadline
assert isinstance(threads[0], preparation._Later), threads
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


@pytest.mark.parametrize("threads", [1, 2])
def test_threads_that_call_at_once_get_results_of_their_own(threads):
    x, w, expected = exact(size=40)
    with ic.config(num_threads=threads):
        plan = ic.plan_conv2d(x.shape, w.shape, padding=1)
    packed, start = plan.pack(w), threading.Barrier(4)
    repeat(plan, x, packed)

    def calls(factor):
        start.wait()
        return [plan(x * factor, packed) for _ in range(30)]

    with ThreadPoolExecutor(4) as pool:
        for factor, found in zip(range(1, 5), pool.map(calls, range(1, 5)), strict=True):
            for y in found:
                np.testing.assert_array_equal(y, expected * factor)


def test_references_are_neither_lost_nor_kept():
    x, w, _ = exact()
    plan, out = ic.plan_conv2d(x.shape, w.shape, padding=1), np.empty_like(x)
    packed, bias = plan.pack(w), np.ones(8, np.float32)
    repeat(plan, x, packed, bias)
    repeat(plan, x, packed, bias, out=out)
    objects = x, packed.panels, bias, out, x.dtype, out[:1].base
    before = [sys.getrefcount(held) for held in objects]
    y = np.empty(1)
    alone = sys.getrefcount(y)  # 2, or since Python 3.14, whose calls borrow a local name, 1
    for _ in range(1000):
        y = plan(x, packed, bias)
        assert sys.getrefcount(y) == alone
        assert plan(x, packed, bias, out=out) is out
        for call in plan._calls:  # of other arrays, or none
            assert call.again(w, packed.panels, bias, None, None, packed) is None
    assert y.flags.owndata
    assert y.base is None
    del y
    for held, count in zip(objects, before, strict=True):
        assert abs(sys.getrefcount(held) - count) < 10  # other threads may hold a dtype, too


def test_a_dropped_plan_leaves_its_compiled_call_whole():
    """What a call takes from it belongs to the call: a program, its launches, a record."""
    x, w, expected = exact()
    plan = ic.plan_conv2d(x.shape, w.shape, padding=1)
    repeat(plan, x, w)
    again = plan._calls[0].again
    del plan
    ic.clear_plan_cache()
    hold = [np.full(200, 7) for _ in range(1000)]
    np.testing.assert_array_equal(again(x, w, None, None, None, w), expected)
    assert hold


def test_python_makes_calls_while_they_are_paused():
    x, w, expected = exact()
    plan = ic.plan_conv2d(x.shape, w.shape, padding=1)
    repeat(plan, x, w)
    prepared = plan.prepare(x, w, np.empty_like(expected))
    again = plan._calls[0].again
    with active_threads.paused():
        assert again(x, w, None, None, None, w) is None
        np.testing.assert_array_equal(plan(x, w), expected)
        np.testing.assert_array_equal(prepared(), expected)
    np.testing.assert_array_equal(again(x, w, None, None, None, w), expected)


@pytest.mark.parametrize(
    "kept",
    [
        {"bias": np.ones(16, np.float32)[::2]},
        {"bias": np.ones(8, np.float64)},
    ],
    ids=["bias with strides", "bias of another dtype"],
)
def test_what_no_program_adds_is_left_to_python(kept):
    x, w, expected = exact()
    plan = ic.plan_conv2d(x.shape, w.shape, padding=1)
    for _ in range(4):
        np.testing.assert_array_equal(plan(x, w, **kept), expected + 1)
    assert len(plan._calls) <= 1
    assert not any(isinstance(call.again, BUILTIN) for call in plan._calls)


def test_large_scratch_memory_is_left_to_python(monkeypatch):
    x, w, expected = exact()
    monkeypatch.setattr(compiled, "LARGEST", 4)
    plan = ic.plan_conv2d(x.shape, w.shape, padding=1)
    for _ in range(4):
        np.testing.assert_array_equal(plan(x, w), expected)
    assert not isinstance(plan._calls[0].again, BUILTIN)


@pytest.mark.skipif(sys.platform != "linux", reason="compiled code starts threads on Linux alone")
def test_a_forked_child_makes_a_team_for_calls_of_its_parent():
    x, w, expected = exact(size=60)
    with ic.config(num_threads=2):
        plan = ic.plan_conv2d(x.shape, w.shape, padding=1, algorithm="implicit_gemm")
    assert plan.engine.best.threads == 2
    repeat(plan, x, w)
    child = os.fork()
    if not child:
        right = all(np.array_equal(plan(x, w), expected) for _ in range(3))
        own = [team.starter for team in launch._teams]
        os._exit(0 if right and own == [active_threads.starter()] else 1)
    assert os.waitpid(child, 0)[1] == 0
    np.testing.assert_array_equal(plan(x, w), expected)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_each_call_reads_its_own_bias_and_residual(layout):
    x, w, expected = exact(filters=24)
    axes = (0, 1, 2, 3) if layout == "NCHW" else (0, 2, 3, 1)
    x, expected = (np.ascontiguousarray(each.transpose(axes)) for each in (x, expected))
    plan = ic.plan_conv2d(x.shape, w.shape, padding=1, layout=layout)
    packed, bias = plan.pack(w), np.zeros(24, np.float32)
    repeat(plan, x, packed, bias, residual=expected)
    for value in range(3):
        bias, residual = np.full(24, value, np.float32), expected * value
        found = plan(x, packed, bias, residual=residual)
        np.testing.assert_array_equal(found, expected * (1 + value) + value)
        prepared = plan.prepare(x, packed, np.empty_like(found), bias, residual=residual)
        np.testing.assert_array_equal(prepared(), found)


# Less memory than that of calls which Python makes.
PACKED = {"layout": "NHWC", "weight_layout": "RSCK", "algorithm": "implicit_gemm"}


@pytest.mark.parametrize(
    ("name", "shapes", "options"),
    [
        ("conv2d", ((4, 40, 40, 64), (3, 3, 64, 64)), PACKED),
        ("conv_transpose2d", ((2, 64, 5, 5), (64, 16, 4, 4)), {"stride": 2}),
    ],
    ids=["a packed filter", "a fold of two images"],
)
def test_programs_of_several_steps_add_residuals(name, shapes, options):
    """New values at new addresses, by Python and then by compiled code."""
    rng = np.random.default_rng(0)
    plan = getattr(ic, f"plan_{name}")(*shapes, **options)
    w = rng.integers(-2, 3, shapes[1]).astype(np.float32)
    for _ in range(40):
        x = rng.integers(-2, 3, shapes[0]).astype(np.float32)
        sums = plan(x, w)
        residual = rng.integers(-9, 10, sums.shape).astype(np.float32)
        np.testing.assert_array_equal(plan(x, w, residual=residual), sums + residual)
    found = [call for call in plan._calls if isinstance(call.again, BUILTIN)]
    assert len(found) == 2 and all(len(call.call.program.steps) > 1 for call in found)
