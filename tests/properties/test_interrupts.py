"""Ctrl-C at any moment of a first or a later call: the next call is right."""

import pytest
from processes import output_of, run_python
from sampling import count, sampled

INTERRUPTED = """
import random, signal, sys
import numpy as np
import implicit_conv
from implicit_conv import conv2d

def call(columns):
    x, w = np.ones((1, 20, 20, columns), np.float32), np.ones((40, 20, 3, 3), np.float32)
    assert (conv2d(x, w) == 180).all()

def interrupted(calls, longest):
    \"\"\"Call until an interrupt comes, after `longest` seconds at most; the number of calls.\"\"\"
    try:
        # Again after a second, if Python drops the exception because it comes in a destructor.
        signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-6, longest), 1.0)
        while True:
            call(20 + calls % 3)
            calls += 1
            if calls % 20 == 0:
                implicit_conv.clear_plan_cache()
    except KeyboardInterrupt:
        signal.setitimer(signal.ITIMER_REAL, 0)
        return calls

random.seed(sys.argv[2])
signal.signal(signal.SIGALRM, signal.default_int_handler)  # a timer's signal acts like Ctrl-C
calls, interrupts = 0, int(sys.argv[1])
for number in range(interrupts):
    calls = interrupted(calls, 0.8 if number < interrupts // 2 else 0.05)
    if number == interrupts // 2:
        call(20)  # from here on calls are warm
call(20)
call(23)
print(interrupts, calls)
"""


# What a thread that may be interrupted must not do: each import, and each call of LLVM, made while
# it prepares for itself, with the line that makes it.
WATCHED = """
import importlib, sys, threading, traceback
import llvmlite.binding.ffi as ffi
from implicit_conv.process import preparation
from implicit_conv.testing.check import check
from implicit_conv.testing.draw import Deck

def see(what):
    itself = preparation._task() is preparation.SELF
    if what == "llvm":  # where a step prepares others, which then stop at no checkpoint, too
        itself = not isinstance(threading.current_thread(), preparation._Task)
    if itself and preparation._preparing._is_owned():
        ours = [f for f in traceback.extract_stack() if "implicit_conv" in f.line + f.filename]
        seen[what, ours[-1].filename, ours[-1].lineno] = None

class Finder:
    def find_spec(self, name, path, target=None):
        see(f"import {name}")

def watched(wrapper, *args):
    see("llvm")
    return call(wrapper, *args)

seen = {}
sys.meta_path.insert(0, Finder())
call, ffi._lib_fn_wrapper.__call__ = ffi._lib_fn_wrapper.__call__, watched
for name in sys.argv[2:]:
    importlib.import_module(name)
deck = Deck(0, 2)
for _ in range(int(sys.argv[1])):
    check(deck.deal()[1][0])
print(*seen, sep="\\n")
"""


@pytest.mark.parametrize("imported", [(), ("numba", "implicit_conv.kernels.cpu.runtime.machine")])
def test_no_thread_that_may_be_interrupted_imports_or_asks_llvm(imported):
    """An exception in the middle of either leaves locks, or memory that is freed twice."""
    assert output_of(WATCHED, 25, *imported) == ""


@sampled
@pytest.mark.slow
def test_calls_after_interrupts_are_right(tmp_path):
    """The first half of the interrupts come while kernels are compiled into an empty cache."""
    for seed in range(count(1, 34)):
        cache = {"IMPLICIT_CONV_CACHE_DIR": tmp_path / str(seed)}
        result = run_python("-c", INTERRUPTED, 30, seed, **cache)
        assert result.returncode == 0, result.stderr[-3000:]
        interrupts, calls = map(int, result.stdout.split())
        assert interrupts == 30
        assert calls > 0
