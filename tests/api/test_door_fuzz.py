"""The fuzz of doors: the same programs every time; faults, crashes and hangs are found and told."""

import importlib
import multiprocessing
import os
import signal as signals
import sys
import time
from collections import Counter
from dataclasses import dataclass
from unittest import mock

import numpy as np
import pytest

from implicit_conv.process import cache
from implicit_conv.testing import loop
from implicit_conv.testing.__main__ import main
from implicit_conv.testing.doors import fuzz as doors
from implicit_conv.testing.doors.data import DifferenceError
from implicit_conv.testing.doors.fuzz import DOORS, Deck, source_of
from implicit_conv.testing.families import Dice


@pytest.fixture(params=DOORS)
def door(request):
    """The name of a door whose library is installed."""
    for package in module(request.param).REQUIRED:
        pytest.importorskip(package, reason="the door needs its library")
    return request.param


def module(name):
    return importlib.import_module(f"implicit_conv.testing.doors.{name}")


def status_of(name, seed, seconds, plant=None):
    """The status of a run with a fault, in a process that forks. XLA's threads, which this one may
    have, survive no fork: JAX's programs are checked by a new one.
    """
    if name != "jax":
        return doors.fuzz(name, seed, seconds)
    process = multiprocessing.get_context("spawn").Process(
        target=begin, args=(name, seed, seconds, plant)
    )
    process.start()
    process.join()
    return process.exitcode


def begin(name, seed, seconds, plant):
    """Run in a new process, with a fault that was planted in the other one."""
    with pytest.MonkeyPatch.context() as patched:
        if plant is not None:
            planted(plant, patched)
        sys.exit(doors.fuzz(name, seed, seconds))


def planted(plant, monkeypatch):
    """Plant a fault; a run ends when it is found."""
    plant(monkeypatch)
    monkeypatch.setattr(loop, "MOST_FAILURES", 1)


def found(name, seed, capfd, seconds=60, plant=None):
    """What a run that must find a fault prints."""
    started = time.monotonic()
    status = status_of(name, seed, seconds, plant)
    output = capfd.readouterr().out
    assert status == 1, output
    assert time.monotonic() - started < seconds + 60  # it ends
    assert "This program repeats it:" in output
    return output


def program(output):
    """The first program that a run prints."""
    head = output.partition("This program repeats it:")[2].lstrip()
    return head[: head.index(".check()\n") + len(".check()\n")]


@pytest.mark.exhaustive
def test_twenty_minutes_of_a_door_are_right(door):
    assert status_of(door, int(time.time()), 20 * 60) == 0


def test_a_seed_gives_the_same_programs(door):
    drawn = [source_of(door, 3)[0].deal()[1] for _ in range(2)]
    assert list(map(repr, drawn[0])) == list(map(repr, drawn[1]))
    assert repr(drawn[0]) != repr(source_of(door, 4)[0].deal()[1])


def test_a_program_is_repeated_by_its_code(door):
    source, *_ = source_of(door, 3)
    drawn = source.deal()[1][0]
    code = source.program(drawn)
    names = {}
    exec(code.rpartition("\n\n")[0], names)
    assert repr(eval(repr(drawn), names)) == repr(drawn)
    exec(code, {})


def test_every_function_is_drawn_often(door):
    counts = Counter(module(door).draw(Dice(1, number)).function for number in range(1000))
    assert set(counts) == set(module(door).FUNCTIONS)
    assert min(counts.values()) >= 5


def test_a_deck_soon_deals_programs_of_every_kind(door):
    deck = Deck(module(door).draw, module(door).KINDS, 3)
    counts = Counter(kind for _ in range(2 * doors.PROGRAMS) for kind in deck.deal().kinds)
    assert set(counts) >= set(module(door).KINDS)
    assert all(counts[kind] >= doors.LEAST for kind in module(door).KINDS)


def test_a_run_with_few_programs_of_a_kind_fails(capfd):
    assert main(["fuzz", "--door", "signal", "--seconds", "0.01", "--seed", "1"]) == 1
    output = capfd.readouterr().out
    assert "too few, 5 of each kind at least: called 1 times" in output
    assert output.endswith("; give it more --seconds\n")


def test_sums_that_uint64_does_not_hold_are_not_drawn():
    """scipy's own functions differ in what becomes of them, in the image's own memory too."""
    ndimage = module("ndimage")
    for number in range(20000):
        call = ndimage.draw(Dice(1, number))
        if call.function in ndimage.SUMS and call.target in ndimage.IN_PLACE:
            special = call.image.special or call.arguments["weights"].special
            assert not special or np.dtype(call.image.dtype) != np.uint64


def test_no_state_is_drawn_that_scipy_leaves_unwritten(monkeypatch):
    """That of a filter with feedback after no sample."""
    signal = module("signal")
    monkeypatch.setattr(signal, "_shape", lambda dice, rank, most: (0,) * rank)
    calls = [signal._filter(Dice(1, number)).arguments for number in range(200)]
    assert any("zi" in arguments for arguments in calls)
    assert all("zi" not in arguments for arguments in calls if len(arguments["a"]) > 1)


def test_a_door_without_its_library_says_what_to_install(monkeypatch, capsys):
    required = {"scipy": "scipy>=1.11", "absent_package": "absent-package>=2"}
    monkeypatch.setattr(module("signal"), "REQUIRED", required)
    with pytest.raises(SystemExit) as ended:
        main(["fuzz", "--door", "signal"])
    assert ended.value.code == 2
    assert 'pip install "absent-package>=2"' in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--guard", "--method=gemm"])
def test_options_of_operators_are_refused(option, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["fuzz", "--door", "signal", option])
    assert ended.value.code == 2
    assert "--door takes neither" in capsys.readouterr().err


@dataclass(frozen=True)
class Planted:
    """A program that ends its process, or does not end, or is right."""

    function: str
    kinds: tuple[str, ...] = ()

    def check(self):
        if self.function == "crash":
            os.kill(os.getpid(), signals.SIGSEGV)
        while self.function == "hang":
            time.sleep(1)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the child has what the test plants")
@pytest.mark.parametrize(
    ("function", "words"),
    [("crash", "the process died of SIGSEGV"), ("hang", "the process had not ended after 1 s")],
)
def test_a_crash_and_a_hang_are_traced_to_their_program(function, words, monkeypatch, capfd):
    """The third program of each kind is planted, and the run goes on with the next kind."""
    functions = iter(["right", "right", function, "right"] * 999)
    monkeypatch.setattr(module("signal"), "draw", lambda dice: Planted(next(functions)))
    monkeypatch.setattr(doors, "PROGRAMS", 4)
    monkeypatch.setattr(doors, "DRAWN", 1)
    monkeypatch.setattr(doors, "MOST_SECONDS", 1.0)
    output = found("signal", 0, capfd, seconds=4)
    assert output.startswith(f"Program 3 of kind 1 (signal) failed:\n\n{words}")
    assert f"Planted(function='{function}', kinds=()).check()" in output
    assert "Program 3 of kind 2 " in output


def exchanged_operands(monkeypatch):
    """A tap that is not finite is multiplied by padding, whichever operand it is of."""
    from implicit_conv.signal import convolutions, filters

    for module in (convolutions, filters):
        monkeypatch.setattr(module, "spreads", lambda taps: False)


def equal_weights(monkeypatch):
    """Weights that differ by a half count as equal."""
    from implicit_conv.ndimage import passes

    monkeypatch.setattr(passes, "EPSILON", 0.5)


def unknown_modes(monkeypatch):
    """The codes of grid-wrap and grid-constant are not those of their synonyms."""
    from implicit_conv.scale import image_operation

    monkeypatch.setattr(image_operation, "SYNONYMS", {})


def chunks_of_one_run(monkeypatch):
    """A chunk that goes round, or to and fro, is given the chunks of its first run alone."""
    from implicit_conv.scale import dask

    def chunks_read(block, starts):
        return right(block._replace(runs=block.runs[:1]), starts)

    right = dask.chunks_read
    monkeypatch.setattr(dask, "chunks_read", chunks_read)


def order_of_buffers(monkeypatch):
    """The taps of a row are summed buffer by buffer, of which few outputs have more."""
    from implicit_conv.cpu.methods import gemm_tilings
    from implicit_conv.problem import schedule

    def geometry(*args, **options):
        g = right(*args, **options)
        return g._replace(remainders_w=g.phases_w if g.step_w > 1 else 1)

    right = schedule.geometry
    monkeypatch.setattr(gemm_tilings, "geometry", geometry)
    cache.clear()


def the_faster_method(monkeypatch):
    """An FFT takes less time where scipy sums directly, and spreads what is not finite."""
    from implicit_conv.signal import choice, convolutions

    def method_of(*arrays):
        return "direct" if choice.is_direct_faster(*arrays, overlapping=False) else "fft"

    monkeypatch.setattr(convolutions, "method_of", method_of)
    monkeypatch.setattr(convolutions, "_known", convolutions._known.__wrapped__)  # it keeps methods


def scipys_first_call(monkeypatch):
    """The first call of a small image is scipy's in every precision, as if all had its bits."""
    from implicit_conv.ndimage import calls

    monkeypatch.setattr(calls, "STRICT", mock.ANY)


def unseen_writes(monkeypatch):
    """Weights at the addresses that they had count as the same, whatever was written to them."""
    from implicit_conv.torch.weight_states import WeightState

    monkeypatch.setattr(WeightState, "holds", lambda state, versions, weights: True)


def joined_in_reverse(monkeypatch):
    """Images are joined in the other order."""
    from implicit_conv.operators.operations import Joined

    right = Joined.steps
    monkeypatch.setattr(
        Joined, "steps", lambda joined, images, *rest: right(joined, images[::-1], *rest)
    )


def kept_filters(monkeypatch):
    """Gradients of images are computed with the filter of the first call."""
    from implicit_conv.torch import steps

    def backward(dy, x, w, *rest):
        def first(dy, w):
            return of_x(dy, kept)

        of_x, of_w = right(dy, x, w, *rest)
        if of_x is None:
            return None, of_w
        kept, first.plan = w.clone(), of_x.plan
        return first, of_w

    right = steps.backward
    monkeypatch.setattr(steps, "backward", backward)


def windows_before(monkeypatch):
    """The windows of a pool begin one pixel before where they should."""
    from implicit_conv.torch.channelwise import Strided

    right = Strided.table
    monkeypatch.setattr(
        Strided,
        "table",
        lambda axis, extent: [(max(0, n - 1), *rest) for n, *rest in right(axis, extent)],
    )


def exchanged_squares(monkeypatch):
    """Channels become the pixels of a square with its rows as columns."""
    from implicit_conv.operators import operations

    def copied(source, target):
        if source.ndim == 6:
            target = target.transpose(0, 1, 4, 3, 2, 5)
        return right(source, target)

    right = operations.Copied
    monkeypatch.setattr(operations, "Copied", copied)


def exchanged_padding(monkeypatch):
    """Pixels are padded behind an image whose pixels are dilated, instead of in front of it."""
    from implicit_conv.jax import lowering

    def program_key(buffers, axes, window, *rest):
        if window.reverses_taps:
            padding = tuple((high, low) for low, high in window.padding)
            window = window._replace(padding=padding)
        return right(buffers, axes, window, *rest)

    right = lowering.program_key
    monkeypatch.setattr(lowering, "program_key", program_key)


def the_first_filter(monkeypatch):
    """A convolution of JAX that is compiled keeps the filter of its first call."""
    import jax

    from implicit_conv.jax import lowering

    def call_of(*arguments):
        call, kept = right(*arguments), []

        def first(w):
            kept.append(np.array(w))
            return kept[0]

        def called(x, w):
            return call(x, jax.pure_callback(first, jax.ShapeDtypeStruct(w.shape, w.dtype), w))

        return called

    right = lowering.call_of
    monkeypatch.setattr(lowering, "call_of", call_of)


def unseen_masks(monkeypatch):
    """Chunks are read without a look at their masks."""
    from implicit_conv.scale import dask, gathered, image_operation, operation

    for module in (dask, image_operation, operation):
        monkeypatch.setattr(module, "check_unmasked", lambda *arguments: None)
    for module in (gathered, operation):
        monkeypatch.setattr(module, "unmasked", lambda part: part)


def zeros_under_masks(monkeypatch):
    """Masked elements are filled with zeros, unasked."""
    from implicit_conv.scale import gathered, operation

    unseen_masks(monkeypatch)
    for module in (gathered, operation):
        monkeypatch.setattr(module, "unmasked", lambda part: np.ma.filled(part, 0))


def masked_results(monkeypatch):
    """Results have masks, under which they are right."""
    from implicit_conv.scale import dask

    def block(*arguments):
        y = right(*arguments)
        return np.ma.masked_array(y, y > 0)

    right = dask._block
    monkeypatch.setattr(dask, "_block", block)


PLANTS = [
    ("converted", unseen_writes, "should be"),
    ("converted", joined_in_reverse, "should be"),
    ("converted", kept_filters, "should be"),
    ("converted", windows_before, "should be"),
    ("converted", exchanged_squares, "should be"),
    ("dask", unseen_masks, "DifferenceError"),
    ("dask", zeros_under_masks, "expected DTypeError"),
    ("dask", masked_results, "with a mask"),
    ("jax", exchanged_padding, "should be"),
    ("jax", the_first_filter, "should be"),
    ("signal", exchanged_operands, "DifferenceError"),  # also where a warning is missing
    ("signal", the_faster_method, "DifferenceError"),  # also where there is one
    ("ndimage", equal_weights, "should be"),
    ("ndimage", scipys_first_call, "should be"),
    ("dask", unknown_modes, "KeyError"),
    ("dask", chunks_of_one_run, "DifferenceError"),
    ("dask", order_of_buffers, "should be"),
]


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="the child has what the test plants")
@pytest.mark.parametrize(("name", "plant", "words"), PLANTS)
def test_a_planted_fault_is_found_within_a_minute(name, plant, words, monkeypatch, capfd):
    for package in module(name).REQUIRED:
        pytest.importorskip(package, reason="the door needs its library")
    with monkeypatch.context() as patched:
        planted(plant, patched)
        output = found(name, 1, capfd, plant=plant)
        assert words in output
        with pytest.raises(DifferenceError):
            exec(program(output), {})
    cache.clear()  # plans that the fault has made
    exec(program(output), {})
