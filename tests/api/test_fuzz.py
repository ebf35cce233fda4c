"""The fuzz that users run: the same trials every time, and a wrong result is found and reported."""

import itertools
import os
import re
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import implicit_conv
from implicit_conv import config
from implicit_conv.cpu.engines.executor import Executor
from implicit_conv.cpu.machine.arch import cpu_arch
from implicit_conv.cpu.run import call as repeated
from implicit_conv.problem import reference
from implicit_conv.problem.options import PADDING_MODES
from implicit_conv.testing import Case, draw
from implicit_conv.testing.__main__ import main
from implicit_conv.testing.check import EXACT, SMOOTH, check
from implicit_conv.testing.coverage import VALUES as DIMENSIONS
from implicit_conv.testing.coverage import Coverage, values_of
from implicit_conv.testing.draw import ROUND, Deck, Dice, draw_kind, trial_of
from implicit_conv.testing.fuzz import fuzz, program
from implicit_conv.testing.loop import Tally
from implicit_conv.testing.methods import NAMES, chosen, offered
from implicit_conv.testing.operators import OPERATORS, function
from implicit_conv.testing.storage import STORAGES, WRITABLE, stored
from implicit_conv.testing.trial import VALUES, Trial, WrongResultError
from implicit_conv.testing.ways import (
    COMPILED,
    FIRST,
    KEPT,
    PREPARED,
    PREPARED_COMPILED,
    TIMES,
    Kinds,
)

ROOT = Path(__file__).parents[2]
DENSE = Case(N=2, C=5, K=20, size=(6, 9), padding=((1, 1), (1, 1)))
PLAIN = Trial(DENSE, padding=1)
GRADIENT = replace(PLAIN, operator="weight_grad")
VOLUME = Case(C=3, K=5, size=(3, 4, 5), kernel=(2, 2, 2), stride=(2, 1, 1), dilation=(1, 1, 1))
VOLUME = replace(VOLUME, padding=((0, 0),) * 3, layout="NCDHW", weight_layout="KCTRS")
EMPTY = Trial(  # an image without pixels, of which all outputs are 0
    replace(
        VOLUME, size=(3, 4, 0), kernel=(1, 3, 3), stride=(1, 1, 1), padding=((0, 0), (1, 1), (2, 2))
    ),
    padding=(0, 1, 2),
    values="normal",
)
COLUMNS = Trial(replace(DENSE, K=5 * 9), "im2col", padding=1)
FLAGS = ("scaled", "biased", "added", "sized", "packed", "unbatched")
# Code that runs first in all processes of a fuzz.
WRONG_REFERENCE = """
from implicit_conv.problem import reference
right = reference.conv
reference.conv = lambda *arguments, **named: right(*arguments, **named) + 1
"""
CRASH = """
import os, signal
from implicit_conv.testing import check as module
calls = []
def check(given):
    calls.append(given)
    if len(calls) == 3:
        os.kill(os.getpid(), signal.SIGSEGV)
module.check = check
"""
ENDLESS = """
import time
from implicit_conv.testing import check as module
def check(given):
    print("begun", flush=True)
    time.sleep(600)
module.check = check
"""


def start(*arguments, folder=None, code=""):
    """A process of its own with `code` before the program that `arguments` name."""
    path = str(ROOT)
    if code:
        (folder / "sitecustomize.py").write_text(code)
        path = f"{folder}{os.pathsep}{path}"
    # Tests that a shell started in the background ignore Ctrl-C, and so would their processes.
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return subprocess.Popen(
            [sys.executable, *map(str, arguments)],
            env={**os.environ, "PYTHONPATH": path},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
    finally:
        signal.signal(signal.SIGINT, handler)


def run(*arguments, **options):
    """(exit status, output, errors) of such a process."""
    process = start(*arguments, **options)
    output, errors = process.communicate(timeout=300)
    return process.returncode, output, errors


FUZZ = ("-m", "implicit_conv.testing", "fuzz", "--seed", 7)


def dealt(kinds, **options):
    """The trials of so many kinds, all counted as computed, and their coverage."""
    deck = Deck(3, 4, **options)
    trials = []
    for _ in range(kinds):
        trials += deck.deal()[1]
        deck.coverage.add(trials[-1:])
    return trials, deck.coverage


def test_a_seed_gives_the_same_trials_in_every_process():
    code = "from implicit_conv.testing.draw import Deck\n"
    code += "deck = Deck(3, 4)\nfor _ in range(6): trials = deck.deal()[1]\nprint(trials)"
    deck = Deck(3, 4)
    for _ in range(6):
        trials = deck.deal()[1]
    assert run("-c", code)[1].strip() == repr(trials)
    assert eval(repr(trials)) == trials


def test_every_value_of_every_dimension_is_dealt():
    """Planned, not computed."""
    trials, coverage = dealt(60)
    seen = {value for drawn in trials[::2] for value in values_of(drawn)}
    rare = {("dtypes", dtype) for dtype in ("int8", "uint8")}  # integers of columns
    wanted = {(dimension, name) for dimension, names in DIMENSIONS.items() for name in names}
    missing = wanted - seen - rare
    assert {dimension for dimension, _ in missing} <= {"method", "epilogue", "dtypes"}, missing
    words = " ".join(coverage.table().split())
    assert all(f" {name} " in words for names in DIMENSIONS.values() for name in names)


def method_here(name):
    """A method's name; its test is skipped if this CPU lacks what the method needs."""
    lack = NAMES[name].lack(cpu_arch())
    return pytest.param(name, marks=pytest.mark.skipif(bool(lack), reason=lack))


@pytest.mark.parametrize("name", [*map(method_here, NAMES)])
def test_trials_restricted_to_a_method_are_computed_by_it(name):
    plans = [drawn.plan() for drawn in dealt(1, methods=(name,))[0]]
    assert all(name in chosen(plan) or name not in offered(plan) for plan in plans)
    assert sum(name in chosen(plan) for plan in plans) > len(plans) / 2


def test_a_method_that_this_cpu_lacks_is_refused(monkeypatch, capsys):
    narrow = replace(cpu_arch(), vector_bits=128, bfloat16="widen")
    monkeypatch.setattr(draw, "cpu_arch", lambda: narrow)
    for name, words in (("window-gemm", "dot products"), ("planar-weight-grad", "masked loads")):
        with pytest.raises(SystemExit) as ended:
            main(["fuzz", "--method", name, "--seconds", "1"])
        assert ended.value.code == 2
        assert re.search(f"{name} computes nothing here: .*{words}.*; ", capsys.readouterr().err)


def test_a_method_of_which_nothing_is_drawn_ends_the_run(monkeypatch, capsys):
    monkeypatch.setattr(draw, "kind_of", lambda *arguments: None)
    with pytest.raises(SystemExit) as ended:
        main(["fuzz", "--method", "planar-depthwise"])
    assert ended.value.code == 2
    assert "planar-depthwise computed none of 10000 problems" in capsys.readouterr().err


def test_pairs_are_counted_once():
    coverage = Coverage()
    first = coverage.gain([PLAIN])
    values = list(values_of(PLAIN))
    assert first == len(values) * (len(values) - 1) / 2
    coverage.add([PLAIN])
    assert (coverage.gain([PLAIN]), coverage.missing) == (0, 0)
    assert 0 < coverage.gain([replace(PLAIN, biased=True)]) < first
    assert coverage.missing > 0
    assert f"pairs         {first} of the" in coverage.table()


def test_a_round_has_every_operator_in_one_to_three_dimensions():
    kinds = [draw_kind(5, number).trials[0] for number in range(len(ROUND), 2 * len(ROUND))]
    drawn = {(kind.operator, kind.case.rank) for kind in kinds if kind.made.planned}
    assert drawn == {(name, rank) for name, rank in ROUND if rank}
    assert {kind.operator for kind in kinds} == set(OPERATORS)


def test_a_method_is_mostly_asked_for_what_it_computed_before(monkeypatch):
    """Most kinds that are drawn at random are no problems of shifted rows."""
    drawn = []
    kind_of = draw.kind_of
    monkeypatch.setattr(draw, "kind_of", lambda *given: drawn.append(given[:2]) or kind_of(*given))
    deck, counts = Deck(10, 1, methods=("shifted-rows",)), []
    for _ in range(16):
        deck.deal()
        counts.append(len(drawn))
    assert counts[-1] - counts[7] < counts[7] / 2, counts


def test_too_few_kinds_are_no_proof(capsys):
    assert fuzz(Deck(7, 1), seconds=0.0) == 1
    assert (
        "too few, 3 kinds at least say something: give it more --seconds" in capsys.readouterr()[0]
    )


def test_a_run_goes_on_until_it_has_kinds_enough(monkeypatch, capsys):
    """Kernels that take long to compile leave time for one kind in each round."""
    rounds = []

    def compute(deck, seconds, problems):
        rounds.append(problems)
        return Tally(computed=5, kinds=1, seconds=seconds)

    monkeypatch.setattr("implicit_conv.testing.fuzz.compute", compute)
    assert fuzz(Deck(7, 1), seconds=2.0, problems=100) == 0
    assert rounds == [100, 95, 90]
    assert "15 problems of 3 kinds in 6 s" in capsys.readouterr().out


@pytest.mark.slow
def test_trials_have_every_option():
    kinds = [draw_kind(0, number) for number in range(300)]
    trials = [
        trial_of(kind, image, Dice(0, number, i), 3)
        for number, kind in enumerate(kinds)
        for i, image in enumerate(itertools.islice(kind.computed(), 9))
    ]
    every = {
        "values": VALUES,
        "activation": (*EXACT, *SMOOTH),
        "precision": ("strict", "standard", "fast"),
        "out_dtype": (None, "float32", "float64", "int64", "complex64", "complex128"),
        "out": ("", *WRITABLE),
        "threads": (1, 2, 3),
        "subnormals": ("keep", "flush"),
        **dict.fromkeys(FLAGS, (False, True)),
    }
    for name, wanted in every.items():
        assert {getattr(drawn, name) for drawn in trials} == set(wanted), name
    for name, operator in OPERATORS.items():
        own = [drawn for drawn in trials if drawn.operator == name]
        if "padding_mode" in operator.own:
            assert {drawn.case.padding_mode for drawn in own} == set(PADDING_MODES)
        assert {type(drawn.padding) for drawn in own} == {int, str, tuple}, name
        assert ("int16" in {drawn.case.dtype for drawn in own}) == operator.exact
    assert {storage for drawn in trials for storage in drawn.storages} == set(STORAGES)
    assert min(min(drawn.case.output) for drawn in trials) == 1


@pytest.mark.parametrize("storage", STORAGES)
def test_storages(storage):
    array = np.arange(24.0).reshape(2, 3, 4)
    other = stored(array, storage, np.random.default_rng(0))
    assert (other.shape, other.flags.writeable) == (array.shape, storage in WRITABLE)
    if storage == "repeated":
        assert 0 in other.strides
        return
    np.testing.assert_array_equal(other, array)
    same = storage in ("contiguous", "read-only")
    plain = other.flags.c_contiguous and other.flags.aligned and other.dtype.isnative
    assert plain == same


def shifted(y):
    y[(-1,) * y.ndim] += 1
    return y


def unwritten(y):
    y[(0,) * y.ndim] = np.nan
    return y


def rounded(y):
    return (y * 1024).round() / 1024


BUGS = [
    (PLAIN, shifted, "1 of 2160 elements are wrong; the first, "),
    (PLAIN, unwritten, r"the first, \[0, 0, 0, 0\] .* is nan and should be"),
    (replace(PLAIN, values="normal", activation="gelu"), rounded, "elements are wrong"),
    (replace(PLAIN, values="subnormal"), np.zeros_like, "elements are wrong"),
    (replace(PLAIN, values="subnormal", subnormals="flush"), shifted, "1 of 2160"),
    (replace(PLAIN, values="first not finite"), np.nan_to_num, "does not show"),
    (replace(PLAIN, values="first not finite", precision="strict"), np.nan_to_num, "should be"),
    (replace(PLAIN, values="first not finite", precision="fast"), shifted, "elements are wrong"),
    (replace(PLAIN, values="second not finite"), np.nan_to_num, "does not show"),
    (replace(PLAIN, out="strided"), np.copy, "not the array that was given as out"),
    (replace(PLAIN, out_dtype="float64"), np.float32, "float32, but float64"),
    (replace(PLAIN, scaled=True, biased=True, added=True), shifted, "1 of 2160"),
    (Trial(replace(DENSE, dtype="uint8", w_dtype="int16"), padding=1), shifted, "1 of 2160"),
    (Trial(replace(DENSE, dtype="complex64"), padding=1), shifted, "1 of 2160"),
    (Trial(replace(DENSE, dtype="complex64"), padding=1, values="normal"), rounded, "are wrong"),
    (Trial(VOLUME, "conv_transpose", added=True), shifted, "1 of 180"),
    (Trial(VOLUME, "input_grad", values="normal"), rounded, "are wrong"),
    (EMPTY, shifted, "1 of 120 elements are wrong"),
    (GRADIENT, shifted, r"1 of 900 elements are wrong; .*\[19, 4, 2, 2\] in K, C, R, S order"),
    (replace(GRADIENT, values="first not finite"), np.nan_to_num, "should be"),
    (replace(GRADIENT, values="second not finite"), np.nan_to_num, "does not show"),
    (COLUMNS, shifted, "elements are wrong"),
    (replace(COLUMNS, operator="col2im"), shifted, "elements are wrong"),
]


@pytest.mark.parametrize(("given", "bug", "words"), BUGS)
def test_a_wrong_result_is_found(given, bug, words, monkeypatch):
    check(given)
    right = function(given.operator, given.case.rank)
    name = right.__name__
    monkeypatch.setattr(implicit_conv, name, lambda *args, **named: bug(right(*args, **named)))
    with pytest.raises(WrongResultError, match=words):
        check(given)


def test_a_wrong_reference_is_found(monkeypatch):
    right = reference.conv
    monkeypatch.setattr(reference, "conv", lambda *args, **named: right(*args, **named) + 1)
    with pytest.raises(WrongResultError, match="2160 of 2160"):
        check(PLAIN)


def test_settings_of_the_caller_do_not_count():
    with config(device="cuda", algorithm="pointwise", num_threads=1, subnormals="flush"):
        check(replace(PLAIN, values="subnormal"))


def test_a_drawn_trial_is_repeated_by_its_program(capsys):
    exec(program(Deck(0, 2).deal()[1][5]), {})


@pytest.mark.slow
def test_a_fixed_list_of_trials_takes_each_way():
    """The first trials of as many kinds as that takes, 60 at most, called 1 to 4, 33 and 40 times,
    and one 40 times by the function and by a plan, as compiled code makes them.
    """
    repeated.compiled()  # which another thread would load else, meanwhile
    deck, kinds, number = Deck(45, 2), Kinds(), 0
    ways = [f"{who}: {way}" for who in ("function", "plan") for way in (FIRST, KEPT, COMPILED)]
    ways += [f"plan.prepare: {PREPARED_COMPILED}"]
    by_python = f"plan.prepare: {PREPARED}"  # of few programs: others have steps for compiled code
    while number < 60 and (
        min(kinds.counts[way] for way in ways) < 5 or kinds.counts[by_python] < 3
    ):
        number += 1
        trials = deck.deal()[1]
        listed = [replace(one, times=n) for one, n in zip(trials, TIMES, strict=False)]
        plain = replace(trials[0], times=40, storages=("contiguous",) * 3, out="", change="none")
        plain = replace(plain, scaled=False, prepared=False, packed=False, method="")
        listed += plain, replace(plain, packed=plain.made.planned)
        kinds.add(map(check, listed))
    assert number < 60, kinds.table()


@pytest.mark.slow
def test_a_wrong_result_ends_the_run_and_its_program_fails_too(tmp_path):
    status, output, _ = run(*FUZZ, "--seconds", 20, code=WRONG_REFERENCE, folder=tmp_path)
    report, _, rest = output.partition("This program repeats it:")
    assert status == 1
    assert re.search(r"^Trial \d+ of kind \d+ .* failed:.*elements are wrong", report, re.DOTALL)
    assert re.search(r"seed 7.*: \d+ problems? failed$", rest.strip())
    code = re.split(r"^(?:Trial|operator) ", rest, maxsplit=1, flags=re.MULTILINE)[0]
    status, _, errors = run("-c", code, code=WRONG_REFERENCE, folder=tmp_path)
    assert status == 1
    assert "WrongResultError" in errors
    assert run("-c", code)[0] == 0


@pytest.mark.slow
def test_a_crash_is_traced_to_its_trial(tmp_path):
    """Each child dies at its third trial, and the next one goes on with the next kind."""
    status, output, _ = run(*FUZZ, "--seconds", 5, code=CRASH, folder=tmp_path)
    assert status == 1
    assert re.search(r"^Trial 3 of kind 1 .* failed:\n\nthe process died of SIGSEGV", output)
    assert repr(Deck(7, 1).deal()[1][2].case) in output
    assert "Trial 3 of kind 2 " in output


@pytest.mark.slow
def test_ctrl_c_prints_what_was_computed(tmp_path):
    process = start(*FUZZ, code=ENDLESS, folder=tmp_path)
    assert process.stdout.readline() == "begun\n"
    os.killpg(process.pid, signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert output.strip().endswith("interrupted")


@pytest.mark.slow
@pytest.mark.parametrize("options", [(), ("--guard",), ("--method", "gemm,depthwise")])
def test_a_short_run_is_clean(options):
    status, output, errors = run(*FUZZ, "--seconds", 8, *options)
    assert status == 0, output + errors
    assert "seed 7" in output
    assert output.strip().endswith("all right")


@pytest.mark.slow
def test_a_check_of_the_machine_ends_with_a_line_to_report():
    code = "from implicit_conv.testing.machine import check_machine\n"
    code += "if __name__ == '__main__':\n    raise SystemExit(check_machine(7, 2, 4))"
    status, output, errors = run("-c", code)
    assert status == 0, output + errors
    last = output.splitlines()[-1]
    assert re.search("numpy .* seed 7; random problems: .*forks.*cache.*limits.*: all right$", last)


@pytest.mark.slow
def test_a_check_of_a_machine_that_computes_wrongly_fails(tmp_path):
    (tmp_path / "program.py").write_text(
        "from implicit_conv.testing.machine import check_machine\n"
        "if __name__ == '__main__':\n    raise SystemExit(check_machine(7, 2, 4))"
    )
    status, output, _ = run(tmp_path / "program.py", code=WRONG_REFERENCE, folder=tmp_path)
    assert status == 1
    assert output.splitlines()[-1].endswith(": WRONG")


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--seconds", "-1"),
        ("--seconds", "nan"),
        ("--seed", "-1"),
        ("--threads", "0"),
        ("--method", "gemm,gem"),
    ],
)
def test_options_are_checked(option, value):
    status, _, errors = run(*FUZZ, option, value)
    assert status == 2
    assert option in errors


@pytest.mark.slow
def test_a_number_that_a_prepared_call_does_not_hold_is_found(monkeypatch):
    """Others write where the bias was, which was made of a number."""
    prepared = Executor.prepared

    def lost(self, x, w, bias, *arrays):
        call = prepared(self, x, w, bias, *arrays)
        if isinstance(bias, (int, float, complex)):
            call._held[0][2][...] = 77
        return call

    deck = Deck(45, 2)
    drawn = [one for _ in range(36) for one in deck.deal()[1][:3]]
    plain = {"storages": ("contiguous",) * 3, "unbatched": False, "scaled": False, "change": "none"}
    number = {"prepared": True, "numbers": True, "biased": True, "out": "contiguous", "times": 2}
    listed = [replace(one, **plain, **number) for one in drawn if one.made.epilogue]
    assert len(listed) >= 3
    with monkeypatch.context() as patched:
        patched.setattr(Executor, "prepared", lost)
        found = [one for one in listed if is_wrong(one)]
    assert len(found) >= 3
    assert not any(map(is_wrong, found))


def is_wrong(one):
    """Whether the check of a trial finds a wrong result."""
    try:
        check(one)
    except WrongResultError:
        return True
    return False
