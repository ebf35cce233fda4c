"""Both compilers, the translator and Numba, make kernels whose results are equal bit by bit."""

import itertools

import numpy as np
import pytest

import implicit_conv as ic
from implicit_conv.testing.check import compute
from implicit_conv.testing.draw import Deck
from implicit_conv.testing.methods import NAMES, offered
from implicit_conv.testing.trial import inputs

DEALS = 10  # kinds that are drawn for a method at most


def results(trial):
    """The results of a trial by the translator and by Numba."""
    given = inputs(trial)
    with ic.config(compiler="njit"):
        numbas = np.array(compute(trial, given))
    return np.array(compute(trial, given)), numbas


def assert_equal_bits(trial):
    ours, numbas = results(trial)
    assert ours.dtype == numbas.dtype
    assert ours.tobytes() == numbas.tobytes(), trial


def trials_of(name, kinds):
    """The first trial of each dtype and activation that a method computes."""
    deck, seen = Deck(7, 2, methods=(name,)), set()
    for _ in range(kinds):
        _, trials = deck.deal()
        for trial in trials:
            kind = trial.case.dtype, str(trial.activation)
            if kind not in seen and name in offered(trial.plan()):
                seen.add(kind)
                yield trial


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_problem_of_each_method_and_dtype(name):
    dtypes = set()
    for trial in trials_of(name, DEALS):
        if trial.case.dtype not in dtypes:
            dtypes.add(trial.case.dtype)
            assert_equal_bits(trial)
    assert dtypes


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", NAMES)
def test_problems_of_each_method_dtype_and_epilogue(name):
    for trial in itertools.islice(trials_of(name, 20 * DEALS), 200):
        assert_equal_bits(trial)
