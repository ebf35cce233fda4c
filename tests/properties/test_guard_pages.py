"""Guard pages see one element too many, before and after every array, panel and part of scratch.

Each case computes in a forked child, which dies of SIGSEGV if something is planted, and not else.
"""

import ctypes
import faulthandler
import os
import signal
import sys
from dataclasses import replace

import numpy as np
import pytest
from ways import needs_quads

from implicit_conv.cpu.candidates.candidate import Candidate
from implicit_conv.cpu.candidates.kernel_method import best
from implicit_conv.cpu.methods import gemm
from implicit_conv.cpu.run import call as repeated
from implicit_conv.cpu.run.call import OFTEN
from implicit_conv.kernels.cpu.gemm.layout import GemmLayout
from implicit_conv.kernels.cpu.runtime import launch
from implicit_conv.process import cache
from implicit_conv.testing import Case, check, guard
from implicit_conv.testing import trial as trials
from implicit_conv.testing.check import check as check_trial
from implicit_conv.testing.draw import Deck
from implicit_conv.testing.fuzz import fuzz
from implicit_conv.testing.methods import NAMES
from implicit_conv.testing.trial import SIDES, Trial
from implicit_conv.testing.ways import COMPILED

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="children are forked")
CASE = Case(N=2, C=9, K=32, size=(6, 9), padding=((1, 1), (1, 1)))
CONV = Trial(CASE, padding=1, scaled=True, biased=True, added=True, out="contiguous", method="gemm")
SUMS = replace(CONV, scaled=False)  # whose bias is the initial sums
GRADIENT = Trial(CASE, "weight_grad", padding=1, out="contiguous")
LINE = Case(C=8, K=16, size=(5, 4), kernel=(3, 1), padding=((1, 1), (0, 0)), layout="NHWC")
BYTES = Trial(replace(LINE, dtype="int8", w_dtype="int8"), padding=(1, 0), method="gemm")
KEPT = []  # memory whose views do not keep it


@pytest.fixture(autouse=True, scope="module")
def loaded():
    """Children need not load again what their parent has."""
    guard.prepare()
    for trial in (CONV, GRADIENT):
        check_trial(trial)


def ending(trial):
    """The signal that a child dies of which checks a trial; 0 if the trial is right."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            faulthandler.disable()
            cache.clear()  # what is patched here is planned again
            with open(os.devnull, "w") as nowhere:
                os.dup2(nowhere.fileno(), 2)
            check_trial(trial)
            status = 0
        finally:
            os._exit(status)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status <= 0, "an exception"
    return -status


def beyond(array, side):
    """An array like `array` whose first or last element is in an inaccessible page."""
    array = np.ascontiguousarray(array)
    memory = np.empty(array.nbytes - array.itemsize, np.uint8)
    KEPT.append(memory)
    address = memory.ctypes.data - array.itemsize * (side == "begin")
    whole = (ctypes.c_uint8 * array.nbytes).from_address(address)
    return np.frombuffer(whole, array.dtype).reshape(array.shape)


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize(
    ("trial", "name"),
    [
        (CONV, "first"),
        (CONV, "second"),
        (CONV, "scale"),
        (SUMS, "bias"),
        (CONV, "residual"),
        (GRADIENT, "first"),
        (GRADIENT, "second"),
    ],
)
def test_a_read_of_one_element_outside_an_array_is_seen(trial, name, side, monkeypatch):
    trial = replace(trial, guard=side)
    assert ending(trial) == 0
    right = check.compute

    def compute(trial, given, watch):
        return right(trial, given._replace(**{name: beyond(getattr(given, name), side)}), watch)

    monkeypatch.setattr(check, "compute", compute)
    assert ending(trial) == signal.SIGSEGV


@pytest.mark.parametrize("name", ["first", "second", "bias", "residual"])
def test_a_read_by_compiled_code_that_makes_a_call_again_is_seen(name, monkeypatch):
    """Python makes the first calls; those that come after many more have the planted array."""
    trial = replace(CONV, scaled=False, out="", method="", guard="end", times=OFTEN + 8)
    repeated.compiled()  # which another thread would load else, meanwhile
    assert f"function: {COMPILED}" in check_trial(trial)
    right = check.compute

    def compute(trial, given, watch):
        if watch.taken[f"function: {COMPILED}"] > 2:
            given = given._replace(**{name: beyond(getattr(given, name), "end")})
        return right(trial, given, watch)

    monkeypatch.setattr(check, "compute", compute)
    assert ending(trial) == signal.SIGSEGV


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("trial", [CONV, GRADIENT], ids=["y", "dw"])
def test_a_write_of_one_element_outside_out_is_seen(trial, side, monkeypatch):
    trial = replace(trial, guard=side, added=False)
    assert ending(trial) == 0
    right = check.compute

    def compute(trial, given, watch):
        # `out` is the only array that is stored from here on.
        monkeypatch.setattr(trials, "stored", lambda array, *_: beyond(array, side))
        return right(trial, given, watch)

    monkeypatch.setattr(check, "compute", compute)
    assert ending(trial) == signal.SIGSEGV


def test_a_write_to_an_operand_is_seen(monkeypatch):
    trial = replace(CONV, guard="end")
    right = check.compute

    def compute(trial, given, watch):
        given.first.flags.writeable = True
        given.first[(0,) * given.first.ndim] = 1
        return right(trial, given, watch)

    monkeypatch.setattr(check, "compute", compute)
    assert ending(trial) == signal.SIGSEGV


def test_panels_that_are_an_element_short_are_seen(monkeypatch):
    trial = replace(CONV, guard="end", packed=True)
    assert ending(trial) == 0
    size = GemmLayout.group_bytes.fget
    monkeypatch.setattr(GemmLayout, "group_bytes", property(lambda layout: size(layout) - 4))
    assert ending(trial) == signal.SIGSEGV


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("part", ["buffer", "staging"])
def test_scratch_that_is_an_element_short_is_seen(part, threads, monkeypatch):
    """The scratch of each thread, whose last part another thread's follows."""
    trial = replace(CONV, guard="end", threads=threads, packed=True)
    assert ending(trial) == 0
    scratch = GemmLayout.scratch

    def short(layout, packs):
        right = scratch(layout, packs)
        return right._replace(**{part: max(0, getattr(right, part) - 4)})

    monkeypatch.setattr(GemmLayout, "scratch", short)
    assert ending(trial) == signal.SIGSEGV


def test_a_kernel_that_reads_one_pixel_too_far_is_seen(monkeypatch):
    """It takes the images to be one pixel wider than they are."""
    right = launch.blob_of
    monkeypatch.setattr(launch, "blob_of", lambda call, g: right(call, g._replace(W=g.W + 1)))
    assert ending(replace(CONV, guard="end")) == signal.SIGSEGV


@needs_quads
@pytest.mark.parametrize("side", SIDES)
def test_bytes_read_in_place_around_padding_are_seen(side, monkeypatch):
    """Their signs are inverted, so that taps on padding cannot be skipped."""
    given = gemm.Gemm.candidates.__func__

    def candidates(cls, problem, arch, request):
        able = (c for c in given(cls, problem, arch, request) if isinstance(c, Candidate))
        for c in able:
            method = replace(c.method, in_place=True)
            costs = gemm.tilings(c.view, arch, True, method.multiplier)
            yield best(method, c.algorithm, problem, c.view, arch, costs)

    monkeypatch.setattr(gemm.Gemm, "candidates", classmethod(candidates))
    assert ending(replace(BYTES, guard=side)) == signal.SIGSEGV


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_images_without_channels_are_not_read(layout, side):
    assert ending(Trial(replace(CASE, C=0, layout=layout), padding=1, guard=side)) == 0
    spread = Case(C=2, K=3, size=(4, 9), kernel=(1, 1), stride=(1, 2), layout=layout)
    assert ending(Trial(spread, "conv_transpose", guard=side)) == 0


@pytest.mark.parametrize("side", SIDES)
def test_memory_is_aligned_to_its_side(side):
    with guard.guarded(side) as seal:
        array = np.zeros((3, 5), np.int8)
        ends = array.ctypes.data % guard.PAGE, (array.ctypes.data + 15) % guard.PAGE
        assert ends[side == "end"] == 0
        assert np.isnan(np.empty(7)).all()
        seal(array[1:])
    assert array.sum() == 0
    outside = np.empty(1 << 20)
    assert (outside.ctypes.data + outside.nbytes) % guard.PAGE


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", NAMES)
def test_five_thousand_guarded_problems_of_each_method(name, capfd):
    deck = Deck(0, 2, SIDES, (name,))
    assert fuzz(deck, problems=5000) == 0, capfd.readouterr().out


@pytest.mark.exhaustive
def test_a_hundred_thousand_guarded_problems(capfd):
    """At most one pair of values in a hundred that were drawn is left."""
    deck = Deck(0, 2, SIDES)
    assert fuzz(deck, problems=100_000) == 0, capfd.readouterr().out
    assert deck.coverage.missing < deck.coverage.pairs / 100
