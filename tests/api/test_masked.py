"""Masked arrays are refused at every place of a call, by the first one and by those that follow."""

import inspect

import numpy as np
import pytest

import implicit_conv as ic

X, W, BIAS = np.ones((1, 2, 6, 6), "f"), np.ones((3, 2, 3, 3), "f"), np.ones(3, "f")
Y = ic.conv2d(X, W)
AGAIN = 40  # calls, of which compiled code makes the last ones
CHANGES = "pass out.data, and set the mask afterwards"


def masked(array):
    return np.ma.masked_array(array.copy(), np.arange(array.size).reshape(array.shape) % 2 == 0)


def calls():
    """The functions with `out`, by their names, and what they take besides it."""
    for rank in (1, 2, 3):
        x, y = np.ones((1, 2, *(6,) * rank), "f"), np.ones((1, 3, *(4,) * rank), "f")
        w = np.ones((3, 2, *(3,) * rank), "f")
        yield f"conv{rank}d", (x, w), {}
        yield f"conv_transpose{rank}d", (y, w), {}
        yield f"conv{rank}d_input_grad", (y, w), {"input_shape": x.shape}
        yield f"conv{rank}d_weight_grad", (x, y), {"weight_shape": w.shape}
    yield "tiles", (X, W), {"progress": False}


def test_these_are_all_functions_that_write_to_an_array_of_the_caller():
    parameters = {
        name: inspect.signature(getattr(ic, name)).parameters
        for name in ic.__all__
        if inspect.isfunction(getattr(ic, name))
    }
    found = {name for name, those in parameters.items() if "out" in those}
    assert found - {"plan_tiles"} == {name for name, *_ in calls()}


@pytest.mark.parametrize(("name", "arrays", "options"), list(calls()))
def test_no_mask_is_written_under(name, arrays, options):
    function = getattr(ic, name)
    y = function(*arrays, **options)  # which is kept
    out = masked(np.zeros_like(y))
    for _ in range(2):
        with pytest.raises(ic.DTypeError, match=f"out is a masked array.*{CHANGES}"):
            function(*arrays, **options, out=out)
    assert not out.data.any()
    assert function(*arrays, **options, out=out.data) is not out
    np.testing.assert_array_equal(out.data, y)


@pytest.mark.parametrize(
    ("x", "w", "options"),
    [
        (X.astype("i2"), W, {"out_dtype": "int16"}),
        (X.astype("i2"), W, {}),
        (X.astype("F"), W.astype("F"), {}),
        (X.astype("u1"), W.astype("i1"), {}),
        (X, W, {"out_dtype": "float64"}),
    ],
)
def test_nor_by_results_that_are_converted(x, w, options):
    out = masked(np.zeros_like(ic.conv2d(x, w, **options)))
    with pytest.raises(ic.DTypeError, match=CHANGES):
        ic.conv2d(x, w, **options, out=out)


def test_nor_by_plans_and_prepared_calls():
    plan = ic.plan_conv2d(X.shape, W.shape)
    for call in (lambda out: plan(X, W, out=out), lambda out: plan.prepare(X, W, out)):
        call(np.empty_like(Y))
        with pytest.raises(ic.DTypeError, match=CHANGES):
            call(masked(Y))


def test_a_call_that_came_often_refuses_them_too():
    plan = ic.plan_conv2d(X.shape, W.shape)
    for function in (ic.conv2d, plan):
        given = {"x": X, "w": W, "bias": BIAS, "residual": Y, "out": np.empty_like(Y)}
        for _ in range(AGAIN):
            function(**given)
            function(X, W)
        for name, array in given.items():
            for first in (given, {"x": X, "w": W}):
                with pytest.raises(ic.DTypeError, match=f"{name} is a masked array"):
                    function(**{**first, name: masked(array)})


def test_streams_refuse_them():
    w = np.ones((3, 2, 4), "f")
    for name in ("w", "bias", "scale"):
        given = {"w": w, "bias": BIAS, "scale": BIAS}
        with pytest.raises(ic.DTypeError, match=rf"{name} is .* {name}\.filled\(0\)"):
            ic.CausalConv1d(**{**given, name: masked(given[name])})
    stream = ic.CausalConv1d(w)
    for call, shape in ((stream.chunk, (1, 2, 5)), (stream.step, (1, 2))):
        with pytest.raises(ic.DTypeError, match=r"x\.filled\(0\)"):
            call(masked(np.ones(shape, "f")))
