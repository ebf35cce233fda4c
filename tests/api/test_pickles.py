"""A plan that is unpickled on another CPU plans again; copies and pickles on one CPU do not."""

import copy
import pickle
from dataclasses import replace

import numpy as np
import pytest
from processes import output_of
from sampling import count, sampled
from ways import OTHER_BITS

import implicit_conv as ic
from implicit_conv.cpu.engines import engine
from implicit_conv.cpu.machine.arch import cpu_arch
from implicit_conv.testing import Case, plan_of

CLONES = [copy.copy, copy.deepcopy, lambda plan: pickle.loads(pickle.dumps(plan))]
WRITE = """
import pickle, sys
import implicit_conv as ic
from implicit_conv.testing import Case
path, *dtypes = sys.argv[1:]
found = []
for dtype in dtypes:
    case = Case(C=20, K=9, size=(5, 9), dtype=dtype)
    x, w = case.inputs(0, integers=True)
    plan = ic.plan_conv2d(x.shape, w.shape, dtype)
    found.append((case, plan, plan.arch, plan.pack(w)))
with open(path, "wb") as file:
    pickle.dump(found, file)
"""
READ = """
import pickle, sys
import numpy as np
import implicit_conv as ic
from implicit_conv.cpu.machine.arch import cpu_arch
with open(sys.argv[1], "rb") as file:
    found = pickle.load(file)
for case, plan, before, packed in found:
    assert before != cpu_arch() == plan.arch, (before, plan.arch)
    x, w = case.inputs(0, integers=True)
    expected = case.rounded(case.reference(x, w))
    np.testing.assert_array_equal(plan(x, w).astype(float), expected)
    anew, outcome = plan.pack(w), "refused"
    np.testing.assert_array_equal(plan(x, anew).astype(float), expected)
    try:
        np.testing.assert_array_equal(plan(x, packed).astype(float), expected)
        outcome = "taken"
    except ic.ShapeError as error:
        assert "another problem, operator or CPU" in str(error)
        assert "pack it with plan.pack(w)" in str(error)
    assert outcome == ("taken" if packed.order == anew.order else "refused")
    print(outcome)
"""
NARROW = {"NUMBA_CPU_NAME": "generic"}


def move(there, here, bits):
    """Settings of two processes, of which one has vectors of fewer than `bits` bits."""
    reason = f"the settings need vectors of {bits} bits to differ"
    skip = pytest.mark.skipif(cpu_arch().vector_bits < bits, reason=reason)
    return pytest.param(there, here, marks=skip)


# In the first pair a plan with dot products of bfloat16 ended a process without them.
MOVES = [
    move({}, {"NUMBA_ENABLE_AVX": "0"}, 512),
    move({}, NARROW, 256),
    move({}, {"NUMBA_CPU_FEATURES": "+avx2,+fma", **NARROW}, 512),
    move(NARROW, {}, 256),
]


@sampled
@pytest.mark.parametrize(("there", "here"), MOVES[: count(1, len(MOVES))], ids=str)
def test_a_plan_runs_on_another_cpu(tmp_path, there, here):
    dtypes = ("bfloat16", "float16", "float32")
    output_of(WRITE, tmp_path / "plans", *dtypes[: count(1, 3)], **there)
    assert "refused" in output_of(READ, tmp_path / "plans", **here)


@pytest.fixture
def plan():
    return plan_of(Case(C=64, K=64, size=(20, 20), layout="NHWC", dtype="bfloat16"))


@pytest.mark.parametrize("clone", CLONES)
def test_copies_in_one_process_are_equal(plan, clone):
    other = replace(cpu_arch(), vector_bits=OTHER_BITS, tile_pixels=6, bfloat16="widen")
    for made in (plan, plan_of(Case(C=64, K=64), other)):  # of this CPU, and of another one
        assert clone(made) == made
        assert clone(made).engine is not made.engine or clone is copy.copy


@pytest.mark.parametrize(
    "changes",
    [
        {
            "vector_bits": OTHER_BITS,
            "tile_pixels": 6,
            "bfloat16": "widen",
            "rounds_bfloat16": False,
        },
        {"fma": not cpu_arch().fma},
        {"f16c": not cpu_arch().f16c},
        {"l2_bytes": 100 << 10},
    ],
    ids=str,
)
def test_whatever_differs_the_plan_is_the_one_made_here(monkeypatch, plan, changes):
    content, here = pickle.dumps(plan), replace(cpu_arch(), **changes)
    monkeypatch.setattr(engine, "cpu_arch", lambda threads=None: here)
    found = pickle.loads(content)
    assert found == plan_of(Case(C=64, K=64, size=(20, 20), layout="NHWC", dtype="bfloat16"), here)
    assert found != plan


def test_only_the_clock_differs(monkeypatch, plan):
    content, here = pickle.dumps(plan), replace(cpu_arch(), hertz=1.0)
    monkeypatch.setattr(engine, "cpu_arch", lambda threads=None: here)
    assert pickle.loads(content).engine.best == plan.engine.best
    assert pickle.loads(content).arch.hertz == plan.arch.hertz


def test_other_threads_of_this_cpu_keep_the_plan(monkeypatch, plan):
    """So a worker takes the filters that were packed for it, whichever CPUs it may run on."""
    content, here = pickle.dumps(plan), replace(cpu_arch(), threads=64)
    monkeypatch.setattr(engine, "cpu_arch", lambda threads=None: here)
    assert pickle.loads(content) == plan


def test_threads_that_the_caller_chose_stay(monkeypatch):
    there = cpu_arch()
    with ic.config(num_threads=there.threads + 1):
        chosen = ic.plan_conv2d((1, 8, 40, 40), (8, 8, 3, 3))
    every = ic.plan_conv2d((1, 8, 40, 40), (8, 8, 3, 3))
    contents = [pickle.dumps(made) for made in (chosen, every)]
    here = replace(there, l2_bytes=100 << 10, threads=there.threads + 5)
    monkeypatch.setattr(engine, "cpu_arch", lambda n=None: replace(here, threads=n or here.threads))
    found = [pickle.loads(content).arch.threads for content in contents]
    assert found == [there.threads + 1, there.threads + 5]


def test_an_algorithm_that_numpy_computes_moves_too(monkeypatch):
    case = Case(C=3, K=5)
    x, w = case.inputs(0, integers=True)
    plan = plan_of(case, algorithm="gemm_im2col")
    content, packed = pickle.dumps(plan), plan.pack(w)
    here = replace(cpu_arch(), vector_bits=128, tile_pixels=6)
    monkeypatch.setattr(engine, "cpu_arch", lambda threads=None: here)
    np.testing.assert_array_equal(pickle.loads(content)(x, packed), case.reference(x, w))
