"""Suites and rivals of transposed convolutions, gradients, signals and volumes."""

from dataclasses import replace

import numpy as np
import pytest

from implicit_conv.problem.options import LAYOUTS_OF
from implicit_conv.testing import Case
from implicit_conv.timing import Local
from implicit_conv.tools.rivals import WrongResultError
from perf import operators, outliers
from perf.layers import layers
from perf.rival import function_of, rivals
from perf.run import result_beside_outlier

CASES = {
    1: Case(
        C=3,
        K=4,
        size=(12,),
        kernel=(3,),
        stride=(2,),
        dilation=(1,),
        padding=((1, 1),),
        layout="NCW",
        weight_layout="KCS",
    ),
    2: Case(C=3, K=4, size=(9, 8), stride=(2, 2), padding=((1, 1), (0, 0)), layout="NHWC"),
    3: Case(
        C=2,
        K=4,
        size=(4, 5, 6),
        kernel=(2, 3, 1),
        stride=(1, 2, 1),
        dilation=(1, 1, 1),
        padding=((0, 0), (1, 1), (0, 0)),
        layout="NDHWC",
        weight_layout="KCTRS",
    ),
}


def torch_rival(operator, case):
    function, _ = function_of("torch", operator, case, threads=1)
    return lambda number: {"torch": Local(function)}


@pytest.mark.parametrize("rank", CASES)
@pytest.mark.parametrize("operator", operators.FUNCTIONS)
def test_rivals_agree_and_are_timed(operator, rank):
    pytest.importorskip("torch")
    torch = torch_rival(operator, CASES[rank])
    _, errors, samples = operators.measure_operator(
        operator, CASES[rank], torch, threads=1, rounds=1
    )
    assert set(errors) == {"call", "plan", "torch"}
    assert set(samples) == {*errors, "control"}


@pytest.mark.parametrize("rank", CASES)
@pytest.mark.parametrize("operator", operators.FUNCTIONS)
def test_onnxruntime_agrees(operator, rank):
    """With output padding, and low padding other than high."""
    pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    layout = LAYOUTS_OF[rank][0]
    case = replace(CASES[rank], layout=layout, padding=((1, 0), *CASES[rank].padding[1:]))
    if operator == "wgrad":
        with pytest.raises(ValueError, match="no weight gradients"):
            function_of("onnxruntime", operator, case, threads=1)
        return
    _, y = function_of("onnxruntime", operator, case, threads=1)
    first, second = operators.inputs_of(operator, case)
    np.testing.assert_allclose(y, operators.call_of(operator, case, first, second)(), atol=1e-4)


@pytest.mark.parametrize("change", [{"dtype": "float64"}, {"layout": "NWC"}])
def test_onnxruntime_refuses_another_layout_or_dtype(change):
    with pytest.raises(ValueError, match="float32 NCW and no weight gradients"):
        function_of("onnxruntime", "dgrad", replace(CASES[1], **change), threads=1)


@pytest.mark.parametrize(("channels", "groups"), [(32, 1), (32, 2), (8, 2)])
@pytest.mark.parametrize("precision", ["standard", "fast"])
def test_beside_an_outlier_large_tiles_err(precision, channels, groups):
    """What F6 leaves of a huge pixel drowns the outputs near it; F2, and the direct sums of groups
    of few channels, keep within their windows.
    """
    window = {"size": (24, 24), "kernel": (3, 3), "padding": ((1, 1), (1, 1))}
    case = Case(C=channels, K=channels, groups=groups, **window)
    large = precision == "fast" and channels == 32
    found = outliers.error_of(case, result_beside_outlier(case, precision))
    assert (found > 1000 * outliers.LIMIT_UNITS) == large
    assert (found <= outliers.LIMIT_UNITS) != large


def test_rivals_are_asked_beside_an_outlier():
    pytest.importorskip("torch")
    case = Case(C=4, K=8, size=(9, 8), kernel=(3, 3), padding=((1, 1), (1, 1)), layout="NHWC")
    with rivals(["torch"], 1) as found:
        found.prepare("fprop", case)
        assert 0 < found.errors_beside_outlier(case, ["torch"])["torch"] <= outliers.LIMIT_UNITS


def test_a_wrong_result_is_not_timed():
    pytest.importorskip("torch")
    function, _ = function_of("torch", "dgrad", CASES[2], threads=1)
    wrong = {"torch": Local(lambda: function() + 1)}
    with pytest.raises(WrongResultError, match="torch is"):
        operators.measure_operator("dgrad", CASES[2], lambda number: wrong, 1, 1)


@pytest.mark.parametrize("operator", ["fprop", "dgrad"])
def test_several_sets_of_arrays_take_turns(operator, monkeypatch):
    """A rival is asked for each set; arrays of earlier sets stay, so none has their memory."""
    pytest.importorskip("torch")
    sets, ours = [], operators.ours

    def noted(operator, case, first, second, precision):
        sets.append([array.ctypes.data for array in (first, second)])
        return ours(operator, case, first, second, precision)

    asked = []

    def prepare(number):
        asked.append(number)
        return torch_rival(operator, CASES[2])(number)

    monkeypatch.setattr(operators, "ours", noted)
    measured = operators.measure_operator(operator, CASES[2], prepare, 1, 7)
    assert asked == [0, 1, 2] and len(sets) == 3
    assert len({address for made in sets for address in made}) == 6
    assert {len(samples) for samples in measured.samples.values()} == {7}
    assert set(measured.errors) == {"call", "plan", "torch"}


def test_sets_share_the_rounds():
    found = [operators.shares(rounds) for rounds in (1, 2, 3, 7, 21)]
    assert found == [[1], [1, 1], [1, 1, 1], [3, 2, 2], [7, 7, 7]]


def test_suites_have_the_shapes_of_their_papers():
    rises = layers("transposed")
    assert rises["2x2/2 1024-512 @28x28"].size == (56, 56)
    assert rises["5x5/2 128-3 @32x32"].size == (64, 64)
    assert rises["4/2 64-32 @12800"].size == (25600,)
    signals = layers("conv1d", "NHWC", batch=2)
    assert signals["128 768-768 g16 @49"].problem.input_shape == (2, 49, 768)
    assert signals["3/2 512-512 @3000"].output == (1500,)
    volumes = layers("conv3d")
    assert volumes["3x3x3 128-256 @8x28x28"].problem.output_shape == (1, 256, 8, 28, 28)
    for suite in (rises, signals, volumes):
        assert all(case.is_valid for case in suite.values())
