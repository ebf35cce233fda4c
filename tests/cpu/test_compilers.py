"""Both compilers, the translator and Numba, make kernels whose results are equal bit by bit."""

import numpy as np
import pytest
from conformance import DECLARED, Suite
from tight_machine import tight_machine

import implicit_conv as ic
from implicit_conv.cpu.methods.gemm import Gemm
from implicit_conv.cpu.plan.input_gradients import INPUT_GRADIENTS
from implicit_conv.cpu.plan.planner import METHODS
from implicit_conv.cpu.plan.weight_gradients import WEIGHT_GRADIENTS
from implicit_conv.testing.check import compute
from implicit_conv.testing.trial import inputs

every_method = pytest.mark.parametrize(
    "method", (*METHODS, *WEIGHT_GRADIENTS, *INPUT_GRADIENTS), ids=lambda method: method.__name__
)


@pytest.fixture(autouse=True)
def tight():
    """The machine for which the suite has its problems."""
    with tight_machine():
        yield


def assert_equal_bits(trial):
    given = inputs(trial)
    with ic.config(compiler="njit"):
        numbas = np.array(compute(trial, given))
    ours = np.array(compute(trial, given))
    assert ours.dtype == numbas.dtype
    assert ours.tobytes() == numbas.tobytes(), trial


@pytest.mark.slow
@every_method
def test_each_dtype_and_precision_that_a_method_declares(method):
    """Epilogues are the same parts for all methods."""
    for trial in Suite(method).trials(1, DECLARED[:2]):
        assert_equal_bits(trial)


@pytest.mark.slow
def test_each_pair_of_an_activation_and_operands():
    for trial in Suite(Gemm).trials(2, ("activation", "operands")):
        assert_equal_bits(trial)


@pytest.mark.exhaustive
@every_method
def test_each_pair_of_values_that_a_method_declares(method):
    for trial in Suite(method).trials(2):
        assert_equal_bits(trial)
