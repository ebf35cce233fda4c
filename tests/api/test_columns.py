"""im2col and col2im, and the convolution made of them."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from sampling import examples

from implicit_conv import (
    DTypeError,
    PlanError,
    ShapeError,
    col2im,
    config,
    conv2d,
    im2col,
    plan_conv2d,
)
from implicit_conv.testing import Case, error_units, from_nchw, to_nchw


@st.composite
def cases(draw):
    one = st.tuples(st.integers(1, 3), st.integers(1, 3))
    pad = st.tuples(st.integers(-2, 4), st.integers(-2, 4))
    case = Case(
        N=draw(st.integers(0, 3)),
        C=draw(st.integers(0, 5)),
        K=draw(st.integers(1, 7)),
        groups=draw(st.integers(1, 3)),
        size=draw(st.tuples(st.integers(1, 9), st.integers(1, 9))),
        kernel=draw(one),
        stride=draw(one),
        dilation=draw(one),
        padding=(draw(pad), draw(pad)),
        layout=draw(st.sampled_from(["NCHW", "NHWC"])),
        weight_layout=draw(st.sampled_from(["KCRS", "KRSC", "RSCK"])),
        dtype=draw(st.sampled_from(["float32", "float64"])),
    )
    assume(min(case.output) >= 1)
    return case


def window_options(case):
    names = ("stride", "padding", "dilation", "layout")
    return {name: case.options[name] for name in names}


def test_rows_are_windows_and_columns_their_pixels():
    """Entry by entry, from the definition."""
    x = np.arange(2 * 3 * 5 * 6).reshape(2, 3, 5, 6) + 1
    columns = im2col(x, (2, 3), stride=(2, 1), padding=((1, 0), (0, 2)), dilation=(1, 2))
    P, Q = 3, 4
    assert columns.shape == (2 * P * Q, 3 * 2 * 3)
    for n, p, q, c, r, s in np.ndindex(2, P, Q, 3, 2, 3):
        h, w = 2 * p + r - 1, q + 2 * s
        expected = x[n, c, h, w] if 0 <= h < 5 and 0 <= w < 6 else 0
        assert columns[(n * P + p) * Q + q, (c * 2 + r) * 3 + s] == expected


@examples(100, 300)
@given(case=cases(), seed=st.integers(0, 2**31))
def test_columns_times_filters_are_the_convolution(case, seed):
    x, w = case.inputs(seed, integers=True)
    options = window_options(case)
    assume(case.groups == 1)
    columns = im2col(from_nchw(x, case.layout), case.kernel, **options)
    assert columns.dtype == x.dtype
    y = (columns @ w.reshape(case.K, -1).T).reshape(case.N, *case.output, case.K)
    np.testing.assert_array_equal(y.transpose(0, 3, 1, 2), case.reference(x, w))


@examples(100, 300)
@given(case=cases(), seed=st.integers(0, 2**31))
def test_col2im_is_the_adjoint(case, seed):
    """Sum of im2col(x) * c = sum of x * col2im(c), exactly for small integers."""
    x = from_nchw(case.inputs(seed, integers=True)[0], case.layout)
    options = window_options(case)
    columns = im2col(x, case.kernel, **options)
    cotangent = np.random.default_rng(seed).integers(-4, 5, columns.shape).astype(case.dtype)
    back = col2im(cotangent, x.shape, case.kernel, **options)
    assert (back.shape, back.dtype) == (x.shape, x.dtype)
    assert (columns * cotangent).sum() == (x * back).sum()


def test_they_take_any_dtype_and_images_without_a_batch():
    x = (np.arange(24).reshape(2, 3, 4) + 1j).astype(np.complex64)
    columns = im2col(x, 2)
    np.testing.assert_array_equal(columns, im2col(x[None], 2))
    assert columns.dtype == x.dtype
    counts = col2im(np.ones(columns.shape, np.int8), x.shape, 2)  # windows that hold each pixel
    np.testing.assert_array_equal(counts, [np.outer([1, 2, 1], [1, 2, 2, 1])] * 2)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda x: im2col(x, 0), ShapeError, "kernel is 0"),
        (lambda x: im2col(x, (1, 2, 3, 4)), ShapeError, "kernel has 4 values"),
        (lambda x: im2col(x, 9), ShapeError, "no pixels along H"),
        (lambda x: im2col(x, 2, layout="CHW"), ShapeError, "here it is .NCHW."),
        (lambda x: im2col(x[0, 0], 2), ShapeError, "x has 2 axes"),
        (lambda x: im2col("x", 2), DTypeError, "array of numbers"),
        (lambda x: col2im(x, x.shape, 2), ShapeError, r"N\*P\*Q x C\*R\*S = \(16, 8\)"),
    ],
)
def test_errors_say_what_is_wrong(call, error, words):
    with pytest.raises(error, match=words):
        call(np.zeros((1, 2, 5, 5), np.float32))


def convolve(case, x, w, **options):
    return to_nchw(
        conv2d(*case.arrange(x, w), **case.options, algorithm="gemm_im2col", **options), case.layout
    )


@examples(100, 300)
@given(case=cases(), seed=st.integers(0, 2**31))
def test_the_algorithm_is_exact_on_small_integers(case, seed):
    x, w = case.inputs(seed, integers=True)
    np.testing.assert_array_equal(convolve(case, x, w), case.reference(x, w))


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("activation", [None, "relu", "gelu", ("leaky_relu", 0.5)])
def test_epilogue_packed_filter_and_error(activation, layout):
    case = Case(N=2, C=20, K=6, groups=2, size=(9, 8), padding=((1, 1), (1, 1)), layout=layout)
    rng = np.random.default_rng(0)
    x, w = case.arrange(*case.inputs(0))
    shape = to_nchw(np.empty((2, 12, 9, 8)), "NCHW").shape
    residual = from_nchw(rng.standard_normal(shape).astype(np.float32), layout)
    bias = rng.standard_normal(12).astype(np.float32)
    options = {**case.options, "activation": activation}
    plan = plan_conv2d(x.shape, w.shape, **options, algorithm="gemm_im2col")
    expected = conv2d(x, w, bias, residual=residual, **options)
    y = plan(x, plan.pack(w), bias, residual=residual)
    np.testing.assert_allclose(y, expected, rtol=0, atol=1e-4)
    np.testing.assert_array_equal(plan(x, w, bias, residual=residual), y)


def test_errors_stay_within_the_bound_of_a_direct_sum():
    case = Case(C=64, K=40, size=(12, 12), padding=((1, 1), (1, 1)))
    x, w = case.inputs(0)
    reference, scale = (case.reference(x, w, magnitude) for magnitude in (False, True))
    assert error_units(convolve(case, x, w), reference, scale, case.dtype) <= 16


def test_it_is_planned_by_name_alone_and_says_what_it_costs():
    shapes = (1, 64, 28, 28), (64, 64, 3, 3)
    text = plan_conv2d(*shapes).explain()
    assert "refused  gemm_im2col: it is a baseline for comparison" in text
    plan = plan_conv2d(*shapes, algorithm="gemm_im2col")
    assert plan.workspace_bytes == 26 * 26 * (64 * 9 + 64) * 4
    threads = plan.engine.best.threads
    kib = plan.workspace_bytes / threads / 1024
    assert f"{kib:.0f} KiB of scratch memory per thread" in plan.explain()
    assert plan.trace() == []
    with pytest.raises(PlanError, match="its order of sums is not that of"):
        plan_conv2d(*shapes, algorithm="gemm_im2col", precision="strict")
    with pytest.raises(PlanError, match="keeps subnormal"), config(subnormals="flush"):
        plan_conv2d(*shapes, algorithm="gemm_im2col")
    with pytest.raises(ShapeError, match="another problem"):
        plan(np.zeros(shapes[0], np.float32), plan_conv2d(*shapes).pack(np.zeros(shapes[1], "f")))
