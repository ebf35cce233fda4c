"""Bad input of every operator: the error says what is wrong, in numbers, and how to mend it."""

import operator
import re
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sampling import examples

import implicit_conv as ic
from implicit_conv.arrays.arrays import check_distinct


def ones(*shape, dtype="float32"):
    return np.ones(shape, dtype)


X, W = ones(1, 4, 5, 5), ones(4, 6, 3, 3)  # of a transposed convolution, whose y is 7 x 7
DY, WG, SHAPE = ones(1, 6, 3, 3), ones(6, 4, 3, 3), (1, 4, 5, 5)  # of a gradient

TRANSPOSED = {
    "no axes": ((ones(), W), "x has 0 axes ()"),
    "x of five axes": ((X[None], W), "x has 5 axes (1, 1, 4, 5, 5); NCHW has 4, or 3 without N"),
    "w of three axes": ((X, ones(6, 3, 3)), "w has 3 axes (6, 3, 3); CKRS has 4; add axes of"),
    "w of one axis": ((X, ones(3)), "add axes of extent 1, as in w[None, None, None]"),
    "channels": ((ones(1, 5, 8, 8), W), "x has C=5 but w (CKRS) has C=4; both must have as many"),
    "channels last": ((ones(1, 5, 8, 4), W), "did you mean layout='NHWC'?"),
    "filters first": ((X, WG), "did you mean weight_layout='KCRS'?"),
    "groups": ((X, W, {"groups": 3}), "C=4 is not a multiple of groups=3; pass a divisor of 4"),
    "no groups": ((X, W, {"groups": 0}), "groups is 0; it must be an integer of at least 1"),
    "padding": ((ones(1, 4, 1, 1), W, {"padding": 2}), "make 3, and padding (2, 2) removes 4"),
    "paddings": ((X, W, {"padding": (1, 2, 3)}), "padding has 3 values (1, 2, 3); give one"),
    "padding word": ((X, W, {"padding": "saem"}), "did you mean 'same'?"),
    "another padding word": ((X, W, {"padding": "full"}), "none of valid, same, same_lower"),
    "output padding": ((X, W, {"output_padding": 1}), "H is 1; it must be less than the stride, 1"),
    "output size": ((X, W, {"output_size": 20, "stride": 2}), "is 20; with this stride, padding"),
    "both": ((X, W, {"output_size": 12, "stride": 2, "output_padding": 1}), "give one of them"),
    "empty x": ((ones(1, 4, 0, 5), W), "x has 0 x 5 pixels; it needs at least one"),
    "empty w": ((X, ones(4, 6, 0, 3)), "w has a filter of 0 x 3 (R x S); both must be at least 1"),
    "a large stride": ((X, W, {"stride": 2**31 - 1}), "y has 442721857665950023686 elements"),
    "a large crop": ((X, W, {"dilation": 2**28, "padding": 2**28}), "y without padding has"),
    "phases": (
        (ones(1, 1, 2, 2), ones(1, 1, 130, 130), {"stride": 130, "precision": "strict"}),
        "divide the filter",
    ),
    "bias": (
        (X, W, {"bias": ones(4)}),
        "bias has shape (4,); it must have one value for each of K=6",
    ),
    "scale": (
        (X, W, {"scale": ones(2)}),
        "each of K=6 filters, and so the shape (6,)",
    ),
    "scale of two axes": ((X, W, {"scale": ones(6, 1)}), "scale has shape (6, 1)"),
    "residual": (
        (X, W, {"residual": X}),
        "residual has shape (1, 4, 5, 5) but the output has (1, 6",
    ),
    "out": ((X, W, {"out": X}), "the output has (1, 6, 7, 7); pass an array of that shape"),
    "device": (
        (X, W, {"device": "gpu"}),
        "device 'gpu' is none of None, 'cpu', 'cuda' and 'cuda:N'",
    ),
}
GRADIENT = {
    "input_shape": ((DY, WG, (4, 5)), "has 2 extents (4, 5); the shape of x has 4, or 3 without"),
    "negative": ((DY, WG, (1, 4, -5, 5)), "an extent of input_shape is -5"),
    "absurd": ((DY, WG, (1, 4, 10**30, 5)), "an extent of input_shape is 1000000000"),
    "dy": ((ones(1, 6, 4, 4), WG, SHAPE), "dy has shape (1, 6, 4, 4), but the convolution of x (1"),
    "no batch": ((DY[0], WG, SHAPE), "has an output of shape (1, 6, 3, 3); check input_shape"),
    "channels": ((DY, WG, (1, 5, 5, 5)), "x has C=5 but w (KCRS) expects C/groups=4"),
    "w": ((DY, ones(3, 3), SHAPE), "w has 2 axes (3, 3); KCRS has 4"),
    "kernel": ((DY, ones(6, 4, 7, 7), SHAPE), "5 pixels with padding (0, 0) make 5, but 7 taps"),
    "out": (
        (DY, WG, SHAPE, {"out": DY}),
        "the output has (1, 4, 5, 5); pass an array of that shape",
    ),
}
OTHERS = {
    "conv1d": (
        partial(ic.conv1d, ones(1, 4, 5), ones(6, 4, 9), padding=1),
        "5 pixels with padding (1, 1) make 7, but 9 taps with dilation 1 reach over 9; pad by 2",
    ),
    "conv1d pads": (
        partial(ic.conv1d, ones(1, 4, 5), ones(6, 4, 3), padding=(1, 2)),
        "a (low, high) pair for each, as in ((1, 2),)",
    ),
    "conv3d": (partial(ic.conv3d, X, W), "w has 4 axes (4, 6, 3, 3); KCTRS has 5"),
    "volumes on a GPU": (
        partial(ic.conv_transpose3d, ones(1, 4, 5, 5, 5), ones(4, 6, 3, 3, 3), device="cuda"),
        "pass numpy arrays, and device='cpu'",
    ),
    "im2col": (partial(ic.im2col, X, 9), "5 pixels with padding (0, 0) make 5, but 9 taps"),
    "im2col groups": (partial(ic.im2col, X, 3, groups=3), "C=4 is not a multiple of groups=3"),
    "im2col kernel": (partial(ic.im2col, X, 0), "kernel is 0; it must be an integer of at least 1"),
    "col2im": (partial(ic.col2im, ones(9, 9), SHAPE, 3), "needs N*P*Q x C*R*S = (9, 36)"),
}


def call(function, arguments):
    *arrays, options = arguments if isinstance(arguments[-1], dict) else (*arguments, {})
    return partial(function, *arrays, **options)


BAD = [
    *(
        pytest.param(call(ic.conv_transpose2d, a), m, id=f"T {k}")
        for k, (a, m) in TRANSPOSED.items()
    ),
    *(
        pytest.param(call(ic.conv2d_input_grad, a), m, id=f"G {k}")
        for k, (a, m) in GRADIENT.items()
    ),
    *(pytest.param(function, message, id=name) for name, (function, message) in OTHERS.items()),
]


@pytest.mark.parametrize(("bad_call", "message"), BAD)
def test_an_error_says_rule_numbers_and_way_out(bad_call, message):
    with pytest.raises((ValueError, TypeError)) as caught:
        bad_call()
    assert message in str(caught.value)


OPERATORS = {
    "transposed": partial(ic.conv_transpose2d, X, W),
    "gradient": partial(ic.conv2d_input_grad, DY, WG, SHAPE),
}
COMMON = ("stride", "dilation", "padding", "groups")


@pytest.mark.parametrize("value", [-(2**31), 2**31, 2**63, 10**30, 1.5, True, "1", None, [[1, 2]]])
@pytest.mark.parametrize(
    ("operator", "name"),
    [("transposed", "output_padding"), *((word, name) for word in OPERATORS for name in COMMON)],
)
def test_absurd_numbers_are_named(operator, name, value):
    with pytest.raises((ValueError, TypeError), match=name):
        OPERATORS[operator](**{name: value})


@pytest.mark.parametrize("name", ["stride", "dilation"])
@pytest.mark.parametrize("value", [0, -1])
def test_steps_are_positive(name, value):
    signal = partial(ic.conv1d, ones(1, 4, 9), ones(1, 4, 3))
    for function in (*OPERATORS.values(), signal, partial(ic.im2col, X, 3)):
        with pytest.raises(ic.ShapeError, match=f"{name} is {value}; it must be an integer of at"):
            function(**{name: value})


FUNCTIONS = {
    "conv3d": (ic.conv3d, "x", ones(1, 2, 4, 4, 4), ones(3, 2, 2, 2, 2)),
    "conv_transpose2d": (ic.conv_transpose2d, "x", X, W),
    "conv2d_input_grad": (partial(ic.conv2d_input_grad, input_shape=SHAPE), "dy", DY, WG),
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize(
    "dtypes",
    [("float32", "float64"), ("int8", "float64"), ("float32", "uint8"), ("float32", "float16")],
)
def test_a_mix_of_dtypes_gets_a_conversion_that_works(name, dtypes):
    function, first_name, first, w = FUNCTIONS[name]
    arrays = {first_name: first.astype(dtypes[0]), "w": w.astype(dtypes[1])}
    with pytest.raises(ic.DTypeError) as caught:
        function(*arrays.values())
    assert f"{first_name} is {dtypes[0]} but w is {dtypes[1]}" in str(caught.value)
    hint = re.search(r"as in ((\w+)\.astype\('\w+'\))", str(caught.value))
    arrays[hint[2]] = eval(hint[1], arrays)
    function(arrays[first_name], arrays["w"])


@pytest.mark.parametrize("dtype", ["int32", "bool", "object", "U1", "datetime64[s]"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_dtypes_that_are_not_supported_are_named(name, dtype):
    function, first_name, first, w = FUNCTIONS[name]
    blank = np.zeros(first.shape, dtype)
    with pytest.raises(ic.DTypeError, match=rf"{first_name} (is|must be an array of numbers)"):
        function(blank, w.astype(dtype) if dtype in ("int32", "bool") else w)


def test_gradients_of_integers_get_a_conversion_that_works():
    arrays = {"dy": DY.astype("int8"), "w": WG.astype("int8")}
    with pytest.raises(ic.DTypeError, match=r"as in dy\.astype\('float32'\)"):
        ic.conv2d_input_grad(arrays["dy"], arrays["w"], SHAPE)
    ic.conv2d_input_grad(DY, WG, SHAPE)


@pytest.mark.parametrize(
    ("function", "shape"),
    [
        (partial(ic.conv_transpose2d, X, W), (1, 6, 7, 7)),
        (partial(ic.conv2d_input_grad, DY, WG, SHAPE), SHAPE),
    ],
)
def test_out_has_the_dtype_that_was_asked_for(function, shape):
    out = np.zeros(shape)
    with pytest.raises(ic.DTypeError, match="out is float64 but the output is float32; convert it"):
        function(out=out)
    assert function(out=out, out_dtype="float64") is out
    with pytest.raises(
        ic.DTypeError, match="out_dtype 'foo' cannot be read as a data type; use one of"
    ):
        function(out_dtype="foo")
    out.flags.writeable = False
    with pytest.raises(ic.ShapeError, match="out is read-only; pass a writable array"):
        function(out=out, out_dtype="float64")


def overlapping(y):
    """Arrays like `y`, some of whose elements share memory: equal channels, and rows that
    overlap.
    """
    for steps in ((0, 0, *y.strides[2:]), (*y.strides[:-2], y.itemsize, y.itemsize)):
        yield np.lib.stride_tricks.as_strided(np.zeros_like(y), y.shape, steps)


@pytest.mark.parametrize(
    "function",
    [
        partial(ic.conv2d, X, WG),
        partial(ic.conv2d, X * 1j, WG * 1j),
        partial(ic.conv_transpose2d, X, W),
        partial(ic.conv2d_input_grad, DY, WG, SHAPE),
        partial(ic.conv2d_weight_grad, np.ones(SHAPE, np.float32), DY, WG.shape),
    ],
)
def test_out_has_distinct_elements(function):
    y = function()
    for out in overlapping(y):
        with pytest.raises(ic.ShapeError, match="share memory; pass an array whose elements"):
            function(out=out)


@examples(300, 20_000)
@given(
    axes=st.lists(st.tuples(st.integers(1, 4), st.integers(-40, 40)), min_size=1, max_size=4),
    dtype=st.sampled_from(["int8", "float32"]),
)
def test_overlaps_are_found_by_strides(axes, dtype):
    shape, strides = zip(*axes, strict=True)
    memory = np.zeros(2000, np.int8)[1000:].view(dtype)
    array = np.lib.stride_tricks.as_strided(memory, shape, strides)
    offsets = [sum(map(operator.mul, index, strides)) for index in np.ndindex(shape)]
    touched = [offset + byte for offset in offsets for byte in range(array.itemsize)]
    if len(set(touched)) == len(touched):
        check_distinct("out", array)
    else:
        with pytest.raises(ic.ShapeError):
            check_distinct("out", array)


def test_scaled_integers_become_floats():
    x, w, scale = X.astype("int8"), W.astype("int8"), np.full(6, 0.5)
    with pytest.raises(ic.DTypeError, match="ask for out_dtype 'float32' or 'float64'"):
        ic.conv_transpose2d(x, w, scale=scale)
    assert ic.conv_transpose2d(x, w, scale=scale, out_dtype="float64").dtype == "float64"


def test_packed_filters_of_another_operator():
    forward = ic.plan_conv2d((1, 6, 5, 5), (4, 6, 3, 3))
    backward = ic.plan_conv_transpose2d(X.shape, W.shape)
    with pytest.raises(ic.ShapeError, match="for another problem, operator or CPU"):
        backward(X, forward.pack(W))
    with pytest.raises(ic.ShapeError, match="for another problem, operator or CPU"):
        forward(ones(1, 6, 5, 5), backward.pack(W))
    with pytest.raises(ic.ShapeError, match="w is packed already; pass it to the plan"):
        forward.pack(forward.pack(W))
    with pytest.raises(
        ic.ShapeError, match=r"x has shape \(1, 4, 6, 5\) but the plan was made for"
    ):
        backward(ones(1, 4, 6, 5), W)
    other = ic.plan_conv_transpose2d(X.shape, W.shape, stride=2)
    with pytest.raises(ic.ShapeError, match="packed in another order than this plan reads"):
        other(X, backward.pack(W))


@pytest.mark.parametrize("dtype", [",", "f4,f4,;", "foo", 3.5, np.float32(1), object()])
def test_what_is_no_dtype_is_a_type_error(dtype):
    with pytest.raises(TypeError, match="data type"):
        ic.plan_conv2d(X.shape, WG.shape, dtype)
    if not isinstance(dtype, np.float32):
        with pytest.raises(ic.DTypeError, match="cannot be read as a data type; use one of"):
            ic.plan_conv2d(X.shape, WG.shape, out_dtype=dtype)
