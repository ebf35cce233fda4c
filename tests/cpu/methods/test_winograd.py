"""Winograd F2, also at stride 2, F4 and F6: exactness, error bounds, refusals."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sampling import examples, resampled

from implicit_conv import PlanError, conv2d, plan_conv2d
from implicit_conv.arrays.arrays import numpy_dtype
from implicit_conv.cpu.methods.winograd import SMALL_FILTERS, Winograd
from implicit_conv.kernels.cpu.winograd.compiled.transforms import butterflies, matrices
from implicit_conv.problem import reference
from implicit_conv.testing import Case, error_units, to_nchw

# Bounds in units of eps * sum over c of max|x_c| * max|w_c|, the first maximum over the window of
# one output (F2) or over all windows of its box of outputs (F4 and F6). The largest errors of
# random cases were 146 for F4 (45 s) and 1191 for F6 (145 s), of inputs with a few huge elements.
# The absolute values of all coefficients of an output amount to 64, 620 and 4579.
UNITS = {"winograd_f2": 64, "winograd_f2_stride2": 64, "winograd_f4": 160, "winograd_f6": 2400}
# Bounds in units of eps * sum|x||w| for normal and for uniform positive data with 64 channels; the
# largest errors were 22, 17 and 60.
ORDINARY_UNITS = {"winograd_f2": 32, "winograd_f4": 32, "winograd_f6": 96}
# The same of F2 with filters of fewer taps; the largest error was 32, of outputs of 2x2 filters for
# which padding leaves a single tap.
SMALL_UNITS = 40
PRECISION = {
    "winograd_f2": "standard",
    "winograd_f2_stride2": "standard",
    "winograd_f4": "fast",
    "winograd_f6": "fast",
}
BOX = {"winograd_f4": 4, "winograd_f6": 6}  # outputs along an axis that share an error
STRIDE = {name: 2 if name == "winograd_f2_stride2" else 1 for name in UNITS}
# Filters of each algorithm, as (R, S).
FILTERS = {name: SMALL_FILTERS if name == "winograd_f2" else [(3, 3)] for name in UNITS}
F2 = [name for name in UNITS if name not in BOX]


DTYPES = ("float32", "float64", "bfloat16", "float16")


@st.composite
def cases(draw, algorithm, dtypes=DTYPES):
    pad = st.tuples(st.integers(0, 3), st.integers(0, 3))
    kernel = draw(st.sampled_from(FILTERS[algorithm]))
    size = draw(st.tuples(st.integers(kernel[0], 20), st.integers(kernel[1], 34)))
    groups = draw(st.sampled_from([1, 1, 2, 3]))
    least = Winograd(stride=STRIDE[algorithm]).least_channels(kernel) if groups > 1 else 1
    return Case(
        N=draw(st.integers(1, 4)),
        C=draw(st.sampled_from([n for n in (1, 3, 7, 16, 17, 33) if n >= least])),
        K=draw(st.sampled_from([n for n in (1, 5, 16, 17, 32, 40, 65) if n >= least])),
        groups=groups,
        size=size,
        kernel=kernel,
        padding=(draw(pad), draw(pad)),
        stride=(STRIDE[algorithm],) * 2,
        layout=draw(st.sampled_from(["NCHW", "NHWC"])),
        weight_layout=draw(st.sampled_from(["KCRS", "KRSC", "RSCK"])),
        dtype=draw(st.sampled_from(dtypes)),
    )


def compute(case, x, w, algorithm, **options):
    y = conv2d(
        *case.arrange(x, w),
        **case.options,
        **options,
        algorithm=algorithm,
        precision=PRECISION[algorithm],
    )
    return to_nchw(y, case.layout)


KINDS = [(2, 2, 1), (2, 3, 1), (4, 3, 1), (6, 3, 1), (2, 3, 2), (1, 1, 1)]


@pytest.mark.parametrize(("m", "taps", "stride"), KINDS)
def test_the_matrices_make_a_convolution(m, taps, stride):
    """Of any signal with any filter."""
    outputs, filters, inputs = matrices(m, taps, stride)
    rng = np.random.default_rng(0)
    d, g = rng.standard_normal((m - 1) * stride + taps), rng.standard_normal(taps)
    y = outputs @ ((filters @ g) * (inputs @ d))
    np.testing.assert_allclose(y, np.correlate(d, g, "valid")[::stride], atol=1e-13)


@pytest.mark.parametrize(("m", "taps", "stride"), KINDS)
def test_butterflies_are_factors_that_need_fewer_multiplications(m, taps, stride):
    """Rows of the points a and -a share sums; no other rows do."""
    outputs, filters, inputs = matrices(m, taps, stride)
    for matrix in outputs.T, filters, inputs:
        pairs, shared = butterflies(matrix)
        np.testing.assert_allclose(pairs @ shared, matrix, atol=1e-14)
        assert np.count_nonzero(shared) <= np.count_nonzero(matrix)
        assert set(np.unique(pairs)) <= {-1, 0, 1}
        # The points of filters with 3 taps but 0 and infinity are a and -a.
        paired = m if (taps, stride) == (3, 1) else 0
        assert np.count_nonzero(pairs) == len(matrix) + paired


@resampled
@pytest.mark.parametrize("algorithm", F2)
def test_f2_is_exact_on_small_integers(algorithm):
    """The entries of its matrices are 0, 1 and 1/2: nothing is rounded."""

    @examples(40, 300, 100)
    @given(case=cases(algorithm), seed=st.integers(0, 2**31))
    def check(case, seed):
        x, w = case.inputs(seed, integers=True)
        out = np.full((case.N, case.groups * case.K, *case.output), np.nan, numpy_dtype(case.dtype))
        if case.layout == "NHWC":
            out = out.transpose(0, 2, 3, 1).copy()
        compute(case, x, w, algorithm, out=out)
        expected = case.rounded(case.reference(x, w))
        np.testing.assert_array_equal(to_nchw(out, case.layout).astype(float), expected)

    check()


def wild(values, kind, rng):
    """Values of widely different magnitude."""
    if kind == "lognormal":
        return np.exp(rng.normal(0, 4, values.shape)).astype(values.dtype) * np.sign(values)
    if kind == "spike":
        values = values.copy()
        values.flat[rng.integers(values.size)] *= 1e6
    return values


def scale(case, x, w, reach):
    """Sum over c of max|x_c| * max|w_c|; x over the windows of outputs up to `reach` away."""
    padded = np.abs(reference.pad_or_crop(x, case.padding, case.padding_mode)).astype(np.float64)
    padded = np.pad(padded, ((0, 0), (0, 0), (reach, reach), (reach, reach)))
    extents = [taps + 2 * reach for taps in case.kernel]
    windows = np.lib.stride_tricks.sliding_window_view(padded, extents, axis=(2, 3))
    windows = windows[:, :, :: case.stride[0], :: case.stride[1]]
    pixels = windows.max(axis=(4, 5))
    weights = np.abs(w.astype(float)).max(axis=(2, 3))
    groups = zip(np.split(pixels, case.groups, axis=1), np.split(weights, case.groups), strict=True)
    return np.concatenate([np.einsum("nchw,kc->nkhw", *group) for group in groups], axis=1)


@resampled
@pytest.mark.parametrize("algorithm", UNITS)
@pytest.mark.parametrize("kind_of_x", ["normal", "spike", "lognormal"])
@pytest.mark.parametrize("kind_of_w", ["normal", "spike", "lognormal"])
def test_error_bound_on_ordinary_and_wild_inputs(algorithm, kind_of_x, kind_of_w):
    @examples(5, 40, 15)
    # Wild float16 is infinite.
    @given(case=cases(algorithm, DTYPES[:3]), seed=st.integers(0, 2**31))
    def check(case, seed):
        rng = np.random.default_rng(seed)
        x, w = case.inputs(seed)
        x, w = wild(x, kind_of_x, rng), wild(w, kind_of_w, rng)
        y = compute(case, x, w, algorithm)
        bound = scale(case, x, w, reach=BOX.get(algorithm, 1) - 1)
        assert error_units(y, case.reference(x, w), bound, case.dtype) <= UNITS[algorithm]

    check()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    ("algorithm", "kernel", "units"),
    [
        *[(name, (3, 3), units) for name, units in ORDINARY_UNITS.items()],
        *[("winograd_f2", kernel, SMALL_UNITS) for kernel in SMALL_FILTERS[:-1]],
    ],
)
def test_error_on_ordinary_data(algorithm, kernel, units, dtype):
    """The errors that the documentation of `precision` states; other points have larger ones."""
    case = Case(C=64, K=32, size=(56, 56), kernel=kernel, padding=((1, 1), (1, 1)), dtype=dtype)
    rng = np.random.default_rng(0)
    for draw in rng.standard_normal, rng.random:
        x, w = (draw(shape).astype(dtype) for shape in (case.shapes["x"], case.shapes["w"]))
        y = compute(case, x, w, algorithm)
        scale = case.reference(x, w, magnitude=True)
        assert error_units(y, case.reference(x, w), scale, dtype) <= units


@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize(
    ("algorithm", "kernel"),
    [(name, kernel) for name, kernels in FILTERS.items() for kernel in kernels],
)
def test_epilogue_and_packed_filter(algorithm, kernel, groups):
    stride = STRIDE[algorithm]
    case = Case(
        N=3,
        C=33,
        K=40,
        groups=groups,
        size=(13, 15),
        kernel=kernel,
        padding=((1, 1), (1, 1)),
        stride=(stride, stride),
    )
    x, w = case.inputs(0, integers=True)
    rng = np.random.default_rng(0)
    bias = rng.integers(-9, 9, groups * 40).astype(np.float32)
    sums = case.reference(x, w) + bias[:, None, None]
    residual = rng.integers(-9, 9, sums.shape).astype(np.float32)
    options = {
        "padding": 1,
        "stride": stride,
        "groups": groups,
        "algorithm": algorithm,
        "precision": PRECISION[algorithm],
    }
    plan = plan_conv2d(x.shape, w.shape, activation="relu", **options)
    close = {"rtol": 0, "atol": 0 if algorithm in F2 else 0.02}
    np.testing.assert_allclose(plan(x, plan.pack(w), bias), np.maximum(sums, 0), **close)
    y = conv2d(x, w, bias, residual=residual, activation=("leaky_relu", 0.5), **options)
    sums = sums + residual
    np.testing.assert_allclose(y, np.where(sums < 0, sums / 2, sums), **close)


@pytest.mark.parametrize(
    ("changes", "algorithm", "words"),
    [
        ({"precision": "strict"}, "winograd_f2", "strict"),
        ({"precision": "standard"}, "winograd_f4", "fast"),
        ({"precision": "standard"}, "winograd_f6", "fast"),
        ({"stride": 2, "precision": "fast"}, "winograd_f6", "stride 1"),
        ({"stride": 2}, "winograd_f2", "stride 1"),
        ({"groups": 2}, "winograd_f2", "groups of at least 16 channels and filters, not 4 and 4"),
        ({"groups": 2, "stride": 2}, "winograd_f2_stride2", "groups of at least 24 channels"),
        ({"groups": 2, "kernel": (1, 3)}, "winograd_f2", "groups of at least 32 channels"),
        ({"kernel": (1, 1)}, "winograd_f2", "more than one"),
        ({"kernel": (2, 4)}, "winograd_f2", "at most 3x3"),
        ({"kernel": (2, 2), "dilation": 2}, "winograd_f2", "dilation 1"),
        ({"kernel": (2, 2), "precision": "strict"}, "winograd_f2", "strict"),
        ({"kernel": (2, 2), "precision": "fast"}, "winograd_f4", "of 3x3 taps"),
        ({}, "winograd_f2_stride2", "stride 2"),
        ({"stride": (2, 1)}, "winograd_f2_stride2", "stride 2"),
        ({"stride": 2, "precision": "strict"}, "winograd_f2_stride2", "strict"),
    ],
)
def test_unsupported_problems_are_refused(changes, algorithm, words):
    kernel = changes.get("kernel", (3, 3))
    options = {name: value for name, value in changes.items() if name != "kernel"}
    shapes = (1, 8, 9, 9), (8, 8 // changes.get("groups", 1), *kernel)
    with pytest.raises(PlanError, match=words):
        plan_conv2d(*shapes, algorithm=algorithm, **options)


def test_auto_weighs_the_algorithms():
    shapes = (16, 64, 56, 56), (64, 64, 3, 3)
    chosen = {
        p: plan_conv2d(*shapes, padding=1, precision=p) for p in ("strict", "standard", "fast")
    }
    assert [plan.algorithm for plan in chosen.values()] == [
        "implicit_gemm",
        "winograd_f2",
        "winograd_f6",
    ]
    # Tiles of 6 x 6 would run over the image by 4 rows and columns.
    plan = plan_conv2d((1, 256, 14, 14), (256, 256, 3, 3), padding=1, precision="fast")
    assert plan.algorithm != "winograd_f6"
    plan = plan_conv2d((16, 128, 56, 56), (128, 128, 3, 3), padding=1, stride=2)
    assert plan.algorithm == "winograd_f2_stride2"
    # Groups of RegNetY have enough channels to pay for the transforms, those of ResNeXt too few.
    plan = plan_conv2d((1, 28, 28, 192), (192, 64, 3, 3), padding=1, groups=3, layout="NHWC")
    assert plan.algorithm == "winograd_f2"
    plan = plan_conv2d((1, 28, 28, 256), (256, 8, 3, 3), padding=1, groups=32, layout="NHWC")
    assert plan.algorithm != "winograd_f2"
