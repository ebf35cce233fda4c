"""Every method of the planner computes all that it declares: dtypes, precisions and epilogues, in
all layouts and strides; see `conformance`. Methods with a fault do not.
"""

from dataclasses import dataclass, replace

import numpy as np
import pytest
from conformance import DERIVED, DIMENSIONS, Suite, conform
from fft_method import Fft
from tight_machine import tight_machine

from implicit_conv import PlanError, clear_plan_cache, conv2d, plan_conv2d
from implicit_conv.cpu.methods.planar_gemm import PlanarGemm
from implicit_conv.cpu.methods.winograd import LargeWinograd
from implicit_conv.cpu.plan import planner
from implicit_conv.cpu.plan.input_gradients import INPUT_GRADIENTS
from implicit_conv.cpu.plan.planner import METHODS
from implicit_conv.cpu.plan.weight_gradients import WEIGHT_GRADIENTS
from implicit_conv.kernels.geometry import Epilogue

every_method = pytest.mark.parametrize(
    "method", (*METHODS, *WEIGHT_GRADIENTS, *INPUT_GRADIENTS), ids=lambda method: method.__name__
)


@pytest.fixture(autouse=True)
def tight():
    """Small problems have several load tiles, chunks and threads."""
    with tight_machine():
        yield


@every_method
def test_each_value_that_a_method_declares(method):
    conform(Suite(method).trials(1))


@pytest.mark.slow
@every_method
def test_each_variation_of_which_a_method_has_candidates(method):
    """Other strides, dilations, crops, modes of padding, numbers of axes, and empty arrays."""
    conform(Suite(method).trials(1, ("variation",)))


@pytest.mark.slow
@every_method
def test_each_pair_of_values_that_a_method_declares(method):
    conform(Suite(method).trials(2))


@pytest.mark.exhaustive
@every_method
def test_all_combinations_of_values_that_a_method_declares(method):
    conform(Suite(method).trials(len(DIMENSIONS)))


@pytest.mark.exhaustive
@every_method
def test_each_problem_with_each_variation(method):
    conform(Suite(method).trials(2, DERIVED))


@pytest.fixture
def planned(monkeypatch):
    """A function that adds a method to the planner's table for one test."""

    def plan_with(method):
        monkeypatch.setattr(planner, "METHODS", (*planner.METHODS, method))
        names = dict.fromkeys((*planner.ALGORITHMS, *method.algorithms))
        monkeypatch.setattr(planner, "ALGORITHMS", tuple(names))
        clear_plan_cache()
        return method

    yield plan_with
    monkeypatch.undo()
    clear_plan_cache()


def test_a_method_without_kernels_conforms(planned):
    conform(Suite(planned(Fft)).trials(1))


@dataclass(frozen=True)
class IgnoresActivations(Fft):
    """It computes sums, bias, residual and scale alone."""

    def convolve(self, problem, epilogue, *arrays):
        super().convolve(problem, Epilogue(), *arrays)


@dataclass(frozen=True)
class IgnoresNegativeStrides(Fft):
    """It accepts all strides, but takes negative ones for positive ones."""

    def convolve(self, problem, epilogue, x, *others):
        backwards = tuple(slice(None, None, -1 if step < 0 else 1) for step in x.strides)
        super().convolve(problem, epilogue, x[backwards], *others)


@dataclass(frozen=True)
class IgnoresResiduals(Fft):
    """It declares to add a residual, and does not."""

    def convolve(self, problem, epilogue, x, w, y, residual, bias, scale):
        super().convolve(problem, epilogue, x, w, y, None, bias, scale)


@dataclass(frozen=True)
class LargeErrors(LargeWinograd):
    """It declares the precision "standard", which does not allow the errors of F4 and F6."""

    serves = LargeWinograd.serves._replace(precision="standard")


@dataclass(frozen=True)
class AnyOrder(PlanarGemm):
    """It declares the precision "strict", with the order of GEMM, which is not its own."""

    serves = PlanarGemm.serves._replace(precision="strict")


@dataclass(frozen=True)
class Float64(Fft):
    """It declares a dtype for which it has no candidates."""

    serves = Fft.serves._replace(dtypes=("float32", "float64"))

    @classmethod
    def candidates(cls, problem, arch, request):
        return super().candidates(problem, arch, request) if problem.dtype == "float32" else ()


@dataclass(frozen=True)
class OneThread(PlanarGemm):
    """It never has more than one thread."""

    @classmethod
    def candidates(cls, problem, arch, request):
        return super().candidates(problem, replace(arch, threads=1), request)


@dataclass(frozen=True)
class Nothing(Fft):
    """It has no candidates at all."""

    @classmethod
    def candidates(cls, problem, arch, request):
        return ()


FAULTS = {
    IgnoresActivations: "elements are wrong",
    IgnoresNegativeStrides: "elements are wrong",
    IgnoresResiduals: "elements are wrong",
    LargeErrors: "elements are wrong",
    AnyOrder: "bits of precision 'strict'",
    Float64: "declares dtype 'float64', but computes no problem",
    OneThread: "more than one chunk of filter panels or thread with OneThread",
    Nothing: "no problem of the suite has a candidate of Nothing",
}


@pytest.mark.parametrize("method", FAULTS, ids=lambda method: method.__name__)
def test_a_method_with_a_fault_does_not_conform(method, planned):
    planned(method)
    with pytest.raises(AssertionError, match=FAULTS[method]), np.errstate(all="ignore"):
        conform(Suite(method).trials(1))


@dataclass(frozen=True)
class DividesByPixels(Fft):
    """It accepts images without pixels, of which it raises an error of Python."""

    def steps(self, c, given):
        return super().steps(c, given) if 1 // c.problem.size[-1] < 2 else []


@dataclass(frozen=True)
class ReadsNextTaps(Fft):
    """It reads wrong pixels where filters are dilated, of some problems alone."""

    def convolve(self, problem, epilogue, x, *others):
        is_wrong = problem.dilation[-1] > 1 and problem.C == problem.groups
        super().convolve(problem, epilogue, x + is_wrong, *others)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "among", "message"),
    [
        (DividesByPixels, DERIVED[:1], "ZeroDivisionError"),
        (ReadsNextTaps, DERIVED, "elements are wrong"),
    ],
    ids=["pixels", "taps"],
)
def test_variations_find_faults_that_no_value_shows(method, among, message, planned):
    planned(method)
    conform(Suite(method).trials(1))
    with pytest.raises(AssertionError, match=message):
        conform(Suite(method).trials(len(among), among))


@dataclass(frozen=True)
class NoOperands(Fft):
    """It computes no operand of an epilogue, and says so."""

    serves = Fft.serves._replace(operands=())


def test_what_a_method_does_not_serve_it_is_not_given(planned):
    """The planner says why, and so does `explain`; a call says what it lacks."""
    planned(NoOperands)
    shapes, fft = ((1, 2, 5, 6), (3, 2, 3, 3)), {"algorithm": "fft"}
    assert plan_conv2d(*shapes, **fft, activation="relu").algorithm == "fft"
    for options, reason in (
        ({"activation": "gelu"}, "of the activations it supports clamp and leaky_relu, not gelu"),
        ({"dtype": "float64"}, "it supports float32, not float64"),
        ({"precision": "strict"}, "its order of sums is not that of precision 'strict'"),
    ):
        with pytest.raises(PlanError, match=reason):
            plan_conv2d(*shapes, **fft, **options)
        assert f"FFT: {reason}" in " ".join(plan_conv2d(*shapes, **options).explain().split())
    x, w = (np.ones(shape, np.float32) for shape in shapes)
    for name, operand in ("bias", np.ones(3)), ("residual", np.ones((1, 3, 3, 4), np.float32)):
        with pytest.raises(PlanError, match="no method takes x and w"):
            conv2d(x, w, **fft, **{name: operand})
        np.testing.assert_array_equal(conv2d(x, w, **{name: operand}), 19)
