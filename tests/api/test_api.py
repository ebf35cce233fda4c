"""What conv2d takes, gives back and refuses."""

import copy
import logging
import math
import pickle

import numpy as np
import pytest

import implicit_conv as ic
from implicit_conv.testing import Case, to_nchw

CASE = Case(N=2, C=3, K=5, groups=2, size=(9, 11), padding=((1, 2), (0, 1)))


def exact(case=CASE, seed=0):
    """Arrays whose convolution is exact, in the case's layouts, and the answer (N, K, P, Q)."""
    x, w = case.inputs(seed, integers=True)
    return *case.arrange(x, w), case.reference(x, w)


def strange_strides(x):
    """Arrays equal to x with other strides, alignments and byte orders."""
    wide = np.zeros((*x.shape[:-1], 2 * x.shape[-1]), x.dtype)
    wide[..., ::2] = x
    yield wide[..., ::2]  # every other element
    yield np.asfortranarray(x)
    yield x[:, :, ::-1].copy()[:, :, ::-1]  # negative stride
    yield x.astype(x.dtype.newbyteorder())
    raw = np.zeros(x.nbytes + 1, np.uint8)[1:]
    unaligned = raw.view(x.dtype).reshape(x.shape)
    unaligned[...] = x
    yield unaligned
    readonly = x.copy()
    readonly.flags.writeable = False
    yield readonly


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("kernel", [(3, 3), (1, 1)])
def test_any_strides_and_byte_order(layout, kernel):
    padding = CASE.padding if kernel == (3, 3) else ((0, 0), (0, 0))
    case = Case(
        N=2, C=3, K=5, groups=2, size=(9, 11), kernel=kernel, padding=padding, layout=layout
    )
    x, w, expected = exact(case)
    for x_like in strange_strides(x):
        for w_like in strange_strides(w):
            y = ic.conv2d(x_like, w_like, **case.options)
            np.testing.assert_array_equal(to_nchw(y, layout), expected)


def test_zero_strides_beyond_two_billion_elements():
    """A broadcast image whose offsets would overflow 32 bits costs no memory."""
    pixel = np.arange(4, dtype=np.float32).reshape(1, 4, 1, 1)
    x = np.broadcast_to(pixel, (1, 4, 24000, 24000))
    assert x.size > 2**31
    w = np.ones((1, 4, 1, 1), np.float32)
    y = ic.conv2d(x, w, stride=6000)
    np.testing.assert_array_equal(y, np.full((1, 1, 4, 4), 6.0, np.float32))


def test_unbatched_input():
    x, w, expected = exact()
    y = ic.conv2d(x[0], w, **CASE.options)
    np.testing.assert_array_equal(y, expected[0])


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("kernel", [(1, 1), (3, 3)])
def test_empty_batch(layout, kernel):
    case = Case(N=0, C=3, K=5, size=(9, 11), kernel=kernel, layout=layout)
    x, w, _ = exact(case)
    (p, q), options = case.output, case.options
    shape = (0, 5, p, q) if layout == "NCHW" else (0, p, q, 5)
    assert ic.conv2d(x, w, **options).shape == shape
    plan = ic.plan_conv2d(x.shape, w.shape, **options)
    assert plan(x, plan.pack(w), residual=np.empty(shape, x.dtype)).shape == shape
    assert plan.trace() == []
    assert f"-> y {shape}" in plan.explain()


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("kernel", [(1, 1), (3, 3)])
@pytest.mark.parametrize("stride", [1, 2])
def test_no_filters(layout, kernel, stride):
    case = Case(N=2, C=3, K=0, size=(9, 11), kernel=kernel, stride=(stride,) * 2, layout=layout)
    x, w, expected = exact(case)
    assert ic.conv2d(x, w, **case.options).size == expected.size == 0


def test_no_channels_leaves_bias_and_activation():
    x, w = np.zeros((2, 0, 5, 5), np.float32), np.zeros((4, 0, 3, 3), np.float32)
    y = ic.conv2d(x, w, np.arange(4.0) - 1.5, activation="relu")
    np.testing.assert_array_equal(
        y, np.broadcast_to([[[0.0]], [[0.0]], [[0.5]], [[1.5]]], (2, 4, 3, 3))
    )


def test_no_channels_where_the_gemm_would_be_transposed():
    x, w = (np.zeros(shape, np.float32)[:, :0] for shape in ((2, 4, 64, 64), (16, 4, 1, 1)))
    plan, bias = ic.plan_conv2d(x.shape, w.shape), np.arange(16)
    expected = np.broadcast_to(bias[:, None, None], plan.problem.output_shape)
    np.testing.assert_array_equal(plan(x, w, bias), expected)
    np.testing.assert_array_equal(plan(x, plan.pack(w), bias), expected)


def test_an_image_of_padding_alone():
    x, w = np.zeros((1, 2, 0, 4), np.float32), np.ones((3, 2, 2, 2), np.float32)
    np.testing.assert_array_equal(ic.conv2d(x, w, padding=1), np.zeros((1, 3, 1, 5), np.float32))


def scipy_free_activations():
    """(activation, the same in float64)."""
    erf = np.vectorize(math.erf)
    return [
        (None, lambda v: v),
        ("relu", lambda v: np.maximum(v, 0)),
        ("relu6", lambda v: np.clip(v, 0, 6)),
        (("leaky_relu", 0.1), lambda v: np.where(v < 0, 0.1 * v, v)),
        ("silu", lambda v: v / (1 + np.exp(-v))),
        ("gelu", lambda v: 0.5 * v * (1 + erf(v / math.sqrt(2)))),
        ("sigmoid", lambda v: 1 / (1 + np.exp(-v))),
        ("tanh", np.tanh),
        ("hardswish", lambda v: v * np.clip(v + 3, 0, 6) / 6),
        (("clamp", -1.0, 2.5), lambda v: np.clip(v, -1.0, 2.5)),
    ]


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("with_residual", [False, True])
@pytest.mark.parametrize(
    ("activation", "expected"),
    scipy_free_activations(),
    ids=lambda v: None if callable(v) else str(v),
)
def test_epilogue(layout, with_residual, activation, expected):
    """y = activation(conv + bias + residual), in every layout, over whole and partial panels."""
    case = Case(N=2, C=3, K=35, size=(5, 9), padding=((1, 1), (1, 1)), layout=layout)
    x, w, y = exact(case)
    x, y = x / 16, y / 16
    rng = np.random.default_rng(1)
    bias = rng.standard_normal(35).astype(np.float32)
    residual = rng.standard_normal(y.shape).astype(np.float32) if with_residual else None
    y = y + bias[:, None, None] + (0 if residual is None else residual)
    if residual is not None and layout == "NHWC":
        residual = np.ascontiguousarray(residual.transpose(0, 2, 3, 1))
    got = ic.conv2d(x, w, bias, residual=residual, activation=activation, **case.options)
    np.testing.assert_allclose(to_nchw(got, layout), expected(y), rtol=2e-6, atol=2e-6)


def test_out_is_written_and_returned_whatever_its_strides():
    x, w, expected = exact()
    for layout_of_out in strange_strides(np.zeros(expected.shape, np.float32)):
        if not layout_of_out.flags.writeable:
            continue
        layout_of_out[...] = np.nan
        y = ic.conv2d(x, w, out=layout_of_out, **CASE.options)
        assert y is layout_of_out
        np.testing.assert_array_equal(y, expected)


def test_out_may_be_the_residual_and_may_overlap_the_input():
    case = Case(C=2, K=2, size=(6, 6), padding=((1, 1), (1, 1)))
    x, w, expected = exact(case)
    residual = np.ones_like(x)
    y = ic.conv2d(x, w, residual=residual, out=residual, **case.options)
    np.testing.assert_array_equal(y, expected + 1)
    ic.conv2d(x, w, out=x, **case.options)
    np.testing.assert_array_equal(x, expected)


def test_out_may_overlap_the_filter():
    memory = np.zeros(64 * 64 + 64 * 64, np.float32)
    w = memory[: 64 * 64].reshape(64, 64, 1, 1)
    w[...] = np.random.default_rng(0).integers(-4, 5, w.shape)
    x = np.random.default_rng(1).integers(-4, 5, (1, 8, 8, 64)).astype(np.float32)
    expected = ic.conv2d(x, w.copy(), layout="NHWC")
    out = memory[64:][: 64 * 64].reshape(1, 8, 8, 64)
    np.testing.assert_array_equal(ic.conv2d(x, w, layout="NHWC", out=out), expected)


def test_out_may_overlap_the_bias():
    x, w = np.ones((9, 2, 28, 32), np.float32), np.ones((8, 2, 1, 1), np.float32)
    out = np.empty((9, 8, 28, 32), np.float32)
    bias = out.reshape(-1)[:8]
    bias[...] = added = np.arange(8)
    ic.conv2d(x, w, bias, out=out)
    np.testing.assert_array_equal(out, np.full_like(out, 2) + added[:, None, None])


@pytest.mark.parametrize(
    "clone", [copy.copy, copy.deepcopy, lambda p: pickle.loads(pickle.dumps(p))]
)
def test_a_used_plan_travels_without_addresses_of_its_process(clone):
    x, w, expected = exact()
    plan = ic.plan_conv2d(x.shape, w.shape, **CASE.options)
    plan(x, plan.pack(w))
    other = clone(plan)
    assert other == plan
    assert plan._calls
    assert plan.engine.calls
    assert not other._calls
    assert other.engine is plan.engine or not other.engine.calls
    np.testing.assert_array_equal(other(x, w), expected)


@pytest.mark.parametrize("clone", [copy.deepcopy, lambda f: pickle.loads(pickle.dumps(f))])
def test_a_copied_filter_is_aligned_anew(clone):
    x, w, expected = exact()
    plan = ic.plan_conv2d(x.shape, w.shape, **CASE.options)
    copied = clone(plan.pack(w))
    assert copied.address % 64 == 0
    np.testing.assert_array_equal(plan(x, copied), expected)


def test_a_packed_filter_is_found_in_collections():
    """It equals itself alone; its bytes are not compared."""
    _, w, _ = exact()
    plan = ic.plan_conv2d((2, 6, 9, 11), w.shape, **CASE.options)
    first, second = plan.pack(w), plan.pack(w)
    assert first != second
    assert {first: 1, second: 2}[second] == 2


def test_out_dtype_rounds_the_sum_once():
    x, w, expected = exact()
    y = ic.conv2d(x, w, out_dtype=np.float64, **CASE.options)
    assert y.dtype == np.float64
    np.testing.assert_array_equal(y, expected)


def test_inputs_are_never_written():
    x, w, _ = exact()
    before = x.copy(), w.copy()
    ic.conv2d(x, w, activation="gelu", **CASE.options)
    np.testing.assert_array_equal(x, before[0])
    np.testing.assert_array_equal(w, before[1])


@pytest.mark.parametrize(
    ("padding", "pairs"),
    [
        (2, ((2, 2), (2, 2))),
        ((1, 3), ((1, 1), (3, 3))),
        ([(1, 2), (0, 3)], ((1, 2), (0, 3))),
        (np.array([[1, 2], [0, 3]]), ((1, 2), (0, 3))),
        (-1, ((-1, -1), (-1, -1))),
        ("valid", ((0, 0), (0, 0))),
        ("full", ((4, 4), (2, 2))),
        ("causal", ((4, 0), (2, 0))),
        ("same", ((1, 2), (0, 1))),
        ("same_lower", ((2, 1), (1, 0))),
    ],
    ids=str,
)
def test_padding_forms(padding, pairs):
    """Every form equals the (low, high) pairs it stands for: H = 10, W = 11, reach 4 x 2."""
    options = {"stride": (2, 3), "dilation": (2, 1)}
    case = Case(C=2, K=3, size=(10, 11), padding=pairs, **options)
    x, w, expected = exact(case)
    np.testing.assert_array_equal(ic.conv2d(x, w, padding=padding, **options), expected)


def test_dlpack_arrays_are_taken():
    class Foreign:
        """An array of another library, on the CPU."""

        def __init__(self, array):
            self._array = array

        def __dlpack__(self, **options):
            return self._array.__dlpack__(**options)

        def __dlpack_device__(self):
            return self._array.__dlpack_device__()

    x, w, expected = exact()
    np.testing.assert_array_equal(ic.conv2d(Foreign(x), Foreign(w), **CASE.options), expected)


def refused():
    """(changed arguments, error, words its message must hold)."""
    x, w = np.zeros((2, 6, 8, 8), np.float32), np.zeros((4, 3, 3, 3), np.float32)
    ok = {"x": x, "w": w, "groups": 2}
    yield {**ok, "groups": 1}, ic.ShapeError, "C=6 .* C/groups=3 .* groups=1"
    yield {**ok, "groups": 4}, ic.ShapeError, "C=6 is not a multiple of groups=4"
    yield {**ok, "groups": 0}, ic.ShapeError, "groups .* at least 1"
    yield {**ok, "stride": 0}, ic.ShapeError, "stride .* at least 1"
    yield {**ok, "stride": (1, 2, 3)}, ic.ShapeError, "stride has 3 values"
    yield {**ok, "stride": 1.5}, ic.ShapeError, "stride must be an integer"
    yield {**ok, "stride": True}, ic.ShapeError, "stride must be an integer, not True"
    yield {**ok, "padding": 1.0}, ic.ShapeError, "padding must be an integer, not 1.0"
    yield {**ok, "dilation": -1}, ic.ShapeError, "dilation .* at least 1"
    yield {**ok, "dilation": 5}, ic.ShapeError, "no pixels along H: 8 pixels .* pad by 3 more"
    yield {**ok, "padding": "big"}, ic.ShapeError, "valid, same, same_lower, full, causal"
    yield {**ok, "padding": (1, 2, 3)}, ic.ShapeError, r"padding has 3 .* \(low, high\) pair"
    yield {**ok, "layout": "NWHC"}, ic.ShapeError, "NCHW, NHWC"
    yield {**ok, "weight_layout": "KCSR"}, ic.ShapeError, "KCRS, KRSC, RSCK"
    yield {**ok, "x": x[0, 0]}, ic.ShapeError, r"x has 2 axes .* x\[None\]"
    yield {**ok, "w": w[0]}, ic.ShapeError, "w has 3 axes"
    yield {**ok, "w": w[:, :, :0]}, ic.ShapeError, "filter of 0 x 3"
    yield {**ok, "w": w.astype(np.float64)}, ic.DTypeError, "x is float32 but w is float64"
    yield {**ok, "x": x.astype(int), "w": w.astype(int)}, ic.DTypeError, "int64 .* float32"
    yield {**ok, "bias": np.zeros(5, np.float32)}, ic.ShapeError, "K=4"
    yield {**ok, "bias": np.zeros(4, complex)}, ic.DTypeError, "complex128"
    yield {**ok, "residual": np.zeros((2, 4, 8, 8), np.float32)}, ic.ShapeError, "output has"
    yield {**ok, "residual": np.zeros((2, 4, 6, 6))}, ic.DTypeError, "float64"
    yield {**ok, "out": np.zeros((2, 4, 6, 6))}, ic.DTypeError, "pass out_dtype"
    yield {**ok, "out": [0]}, ic.DTypeError, "numpy array"
    yield {**ok, "out_dtype": "float16"}, ic.DTypeError, "float16"
    yield {**ok, "precision": "exact"}, ic.PlanError, "strict, standard, fast"
    yield {**ok, "algorithm": "fft"}, ic.PlanError, "implicit_gemm"
    yield {**ok, "algorithm": "pointwise"}, ic.PlanError, "1x1 filter"
    yield {**ok, "activation": "swish"}, ic.PlanError, "silu"
    yield {**ok, "activation": ()}, ic.PlanError, "silu"
    yield {**ok, "activation": ("clamp", 3, 1)}, ic.PlanError, "low must not exceed high"
    yield {**ok, "activation": ("clamp", "a", 1)}, ic.PlanError, "parameters must be numbers"
    yield {**ok, "activation": ["leaky_relu", 1]}, TypeError, "activation is .* a tuple of these"
    yield {**ok, "precision": ["strict"]}, TypeError, r"precision is \['strict'\]"
    yield {**ok, "algorithm": {"auto"}}, TypeError, "algorithm is {'auto'}"
    yield {**ok, "layout": ["NCHW"]}, TypeError, "layout is"
    yield {**ok, "stride": {}}, TypeError, "stride is {}"
    yield {**ok, "stride": np.float32(1)}, ic.ShapeError, "stride must be an integer"
    yield {**ok, "out_dtype": ">f4"}, ic.DTypeError, "out_dtype >f4 .* use one of float32"
    yield {**ok, "x": np.ma.masked_equal(x, 0)}, ic.DTypeError, r"masked.* x.filled\(0\)"
    mixed = {"x": x.astype("u1"), "w": w.astype("d")}
    yield {**ok, **mixed}, ic.DTypeError, r"uint8 .* x.astype\('float64'\)"
    yield {**ok, "x": None}, ic.DTypeError, "x must be an array of numbers, not NoneType"
    yield {**ok, "device": "tpu"}, ic.PlanError, "tpu"


@pytest.mark.parametrize(("arguments", "error", "words"), list(refused()))
def test_errors_give_the_rule_the_values_and_the_way_out(arguments, error, words):
    with pytest.raises(error, match=words):
        ic.conv2d(arguments.pop("x"), arguments.pop("w"), **arguments)


@pytest.mark.parametrize("shape", [(-1, 1, 5, 5), (1, 1, 5.5, 5), "1155"])
def test_shapes_are_checked(shape):
    ic.plan_conv2d((1, 1, 5, 5), (1, 1, 3, 3), stride=1)  # what is cached must not vouch for them
    with pytest.raises(ic.ShapeError, match="an extent of x"):
        ic.plan_conv2d(shape, (1, 1, 3, 3), stride=1)


def test_arrays_in_place_of_shapes():
    x, w, _ = exact()
    with pytest.raises(TypeError, match=r"x_shape must be a shape, .* pass \(2, 6, 9, 11\)"):
        ic.plan_conv2d(x, w)


def test_a_read_only_out_is_refused():
    x, w, expected = exact()
    out = np.zeros(expected.shape, np.float32)
    out.flags.writeable = False
    with pytest.raises(ic.ShapeError, match="read-only"):
        ic.conv2d(x, w, out=out, **CASE.options)


def test_errors_are_the_builtin_kinds():
    assert issubclass(ic.ShapeError, ValueError)
    assert issubclass(ic.PlanError, ValueError)
    assert issubclass(ic.DTypeError, TypeError)


def test_a_plan_is_called_with_plain_and_packed_filters():
    x, w, expected = exact()
    plan = ic.plan_conv2d(x.shape, w.shape, **CASE.options)
    packed = plan.pack(w)
    np.testing.assert_array_equal(plan(x, w), expected)
    np.testing.assert_array_equal(plan(x, packed), expected)
    bias = np.arange(10)
    np.testing.assert_array_equal(plan(x, packed, bias), expected + bias[:, None, None])
    out = np.empty(expected.shape, np.float32)
    assert plan(x, packed, out=out) is out
    other = ic.plan_conv2d(x.shape, (20, *w.shape[1:]), **CASE.options)
    with pytest.raises(ic.ShapeError, match="another problem"):
        other(x, packed)
    with pytest.raises(ic.ShapeError, match="plan was made for"):
        plan(x[:1], packed)


def test_the_plan_explains_itself(caplog):
    with caplog.at_level(logging.DEBUG, logger="implicit_conv"):
        shapes = (1, 64, 56, 57), (64, 64, 3, 3)
        plan = ic.plan_conv2d(*shapes, stride=2, padding=1, precision="strict")
    text = " ".join(plan.explain().split())
    for words in ("implicit_gemm", "w_offset 0 halo 1; w_offset 1 halo 0", "pointwise", "KiB"):
        assert words in text
    assert "implicit_gemm" in caplog.text
