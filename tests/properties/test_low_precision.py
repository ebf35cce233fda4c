"""float16 and bfloat16: summed in float32, rounded once, whatever the CPU has for them."""

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sampling import examples
from ways import BFLOAT16, DOT_PRODUCTS, NARROW, arch_of

import implicit_conv as ic
from implicit_conv.arrays.arrays import numpy_dtype
from implicit_conv.cpu.engines.executed_loads import executed_loads
from implicit_conv.cpu.machine.arch import BFLOAT16_FEATURES, cpu_arch, cpu_features
from implicit_conv.cpu.machine.costs import EPYC
from implicit_conv.cpu.methods.transposed_gemm import TransposedGemm
from implicit_conv.kernels import schedule
from implicit_conv.testing import Case, error_units, plan_of, to_nchw

UNITS = 16  # of eps * sum|x||w|, eps = 2^-24, besides the one rounding to 16 bits
DTYPES = ("float16", "bfloat16")
PATHS = (*BFLOAT16, *NARROW, "soft float16")


def machine(path):
    """This machine, held to one way of computing."""
    if path == "soft float16":
        return replace(cpu_arch(), f16c=False)
    return replace(arch_of(path), costs=EPYC)  # whose dot products of pairs are fast


def compute(case, x, w, path, *, bias=None, residual=None, out=None, **options):
    """The convolution on `path`; axes N, K, P, Q."""
    arrays = case.arrange(x, w)
    plan = plan_of(case, machine(path), **{"precision": "strict", **options})
    return to_nchw(plan(*arrays, bias, residual=residual, out=out), case.layout)


@st.composite
def cases(draw):
    kernel = draw(st.sampled_from([(1, 1), (3, 3), (2, 5)]))
    low = st.integers(0, 2)
    return Case(
        N=draw(st.integers(1, 3)),
        C=draw(st.sampled_from([1, 2, 3, 4, 7, 8, 15, 16, 17, 33, 64, 67])),
        K=draw(st.sampled_from([1, 5, 16, 17, 32, 40, 65])),
        groups=draw(st.sampled_from([1, 1, 1, 2, 3])),
        size=(draw(st.integers(3, 9)), draw(st.integers(5, 40))),
        kernel=kernel,
        stride=draw(st.sampled_from([(1, 1), (2, 2), (1, 3)])),
        dilation=(1, draw(st.sampled_from([1, 1, 2]))) if kernel != (2, 5) else (1, 1),
        padding=((draw(low), draw(low)), (draw(low), draw(low))),
        layout=draw(st.sampled_from(["NCHW", "NHWC"])),
        weight_layout=draw(st.sampled_from(["KCRS", "KRSC", "RSCK"])),
        dtype=draw(st.sampled_from(DTYPES)),
    )


@pytest.mark.parametrize("path", PATHS)
@examples(12, 150, 35)
@given(case=cases(), seed=st.integers(0, 2**31))
def test_integers_are_exact(path, case, seed):
    x, w = case.inputs(seed, integers=True)
    expected = case.reference(x, w)
    np.testing.assert_array_equal(compute(case, x, w, path, out_dtype="float32"), expected)
    y = compute(case, x, w, path)
    assert y.dtype == numpy_dtype(case.dtype)
    np.testing.assert_array_equal(y.astype(float), case.rounded(expected))


@pytest.mark.parametrize("path", PATHS)
@examples(10, 150, 20)
@given(case=cases(), seed=st.integers(0, 2**31))
def test_normal_data_stays_within_the_bound(path, case, seed):
    """In float32 as float32 data would, and after one rounding more in 16 bits."""
    x, w = case.inputs(seed)
    expected, scale = case.reference(x, w), case.reference(x, w, True)
    sums = compute(case, x, w, path, out_dtype="float32")
    assert error_units(sums, expected, scale, "float32") <= UNITS
    y = compute(case, x, w, path)
    assert error_units(y, expected, scale, case.dtype) <= UNITS
    np.testing.assert_array_equal(y, sums.astype(y.dtype))  # the sums themselves, rounded once


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("algorithm", ["implicit_gemm", "winograd_f2", "depthwise"])
def test_the_epilogue_is_in_float32(dtype, layout, algorithm):
    """The bias keeps its 24 bits, the residual is of x's dtype, and only the end is rounded."""
    groups = 40 if algorithm == "depthwise" else 1
    channels = {"C": 1, "K": 1} if groups > 1 else {"C": 20, "K": 40}
    case = Case(
        N=2,
        **channels,
        groups=groups,
        size=(9, 20),
        padding=((1, 1), (1, 1)),
        layout=layout,
        dtype=dtype,
    )
    x, w = case.inputs(0, integers=True)
    rng = np.random.default_rng(1)
    bias = (rng.integers(-(2**17), 2**17, 40) / 2**12).astype(np.float32)  # sums stay exact
    residual = rng.integers(-9, 9, (2, 40, 9, 20)).astype(numpy_dtype(dtype))
    sums = case.reference(x, w) + bias[:, None, None]
    arrays = case.arrange(x, w)
    options = {**case.options, "algorithm": algorithm}
    plain = to_nchw(ic.conv2d(*arrays, bias, activation="relu", **options), layout)
    np.testing.assert_array_equal(plain.astype(float), case.rounded(np.maximum(sums, 0)))
    if layout == "NHWC":
        residual = residual.transpose(0, 2, 3, 1).copy()
    options |= {"residual": residual, "activation": ("leaky_relu", 0.5)}
    y = ic.conv2d(*arrays, bias, **options)
    kept = ic.conv2d(*arrays, bias, out_dtype="float32", **options)
    sums = sums + to_nchw(residual, layout).astype(float)
    expected = np.where(sums < 0, sums / 2, sums)
    np.testing.assert_array_equal(to_nchw(y, layout).astype(float), case.rounded(expected))
    np.testing.assert_array_equal(to_nchw(kept, layout), expected)


def test_a_bias_may_have_the_dtype_of_x():
    x, w = np.ones((1, 2, 3, 3), np.float16), np.ones((1, 2, 1, 1), np.float16)
    y = ic.conv2d(x, w, np.array([0.5], np.float16))
    np.testing.assert_array_equal(y, np.full((1, 1, 3, 3), 2.5, np.float16))


def test_sums_past_the_range_of_float16_become_infinite_only_in_the_end():
    x, w = np.full((1, 64, 4, 4), 256, np.float16), np.full((1, 64, 1, 1), 256, np.float16)
    y = ic.conv2d(x, w, out_dtype="float32")
    np.testing.assert_array_equal(y, np.full((1, 1, 4, 4), 2.0**22, np.float32))
    assert np.isposinf(ic.conv2d(x, w)).all()
    halved = ic.conv2d(x, w, activation=("clamp", 0, 1000))
    np.testing.assert_array_equal(halved, np.full((1, 1, 4, 4), 1000, np.float16))


@pytest.mark.parametrize("path", (*BFLOAT16, "float16"))
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("channels", [3, 17])
@pytest.mark.parametrize("end", [0, -1])
def test_nan_and_inf_reach_their_receptive_field_only(path, layout, channels, end):
    """An infinity stays one, also in the pair that a zero completes."""
    dtype, path = ("float16", "widen") if path == "float16" else ("bfloat16", path)
    case = Case(
        C=channels, K=33, size=(9, 30), padding=((1, 1), (1, 1)), layout=layout, dtype=dtype
    )
    x, w = case.inputs(0, integers=True)
    w[w == 0] = 1
    for value, is_such in ((np.nan, np.isnan), (np.inf, np.isinf)):
        x[0, end, 5, 7] = value
        y = compute(case, x, w, path).astype(np.float32)[0]
        assert is_such(y[:, 4:7, 6:9]).all()
        assert np.isfinite(y).sum() == y.size - 33 * 9


def test_float16_subnormals_are_preserved():
    x = np.full((1, 1, 4, 20), 2.0**-24, np.float16)
    y = ic.conv2d(x, np.full((1, 1, 1, 1), 3, np.float16))
    np.testing.assert_array_equal(y, np.full(y.shape, 3 * 2.0**-24, np.float16))


@pytest.mark.parametrize("dtype", DTYPES)
def test_any_strides_and_out(dtype):
    case = Case(N=2, C=3, K=5, groups=2, size=(9, 11), padding=((1, 2), (0, 1)), dtype=dtype)
    x, w = case.inputs(0, integers=True)
    expected = case.rounded(case.reference(x, w))
    wide = np.zeros((*x.shape[:-1], 2 * x.shape[-1]), x.dtype)
    wide[..., ::2] = x
    for x_like in (wide[..., ::2], np.asfortranarray(x), x[:, :, ::-1].copy()[:, :, ::-1]):
        for w_like in (w, np.asfortranarray(w)):
            out = np.full(expected.shape, np.nan, x.dtype)
            assert ic.conv2d(x_like, w_like, out=out, **case.options) is out
            np.testing.assert_array_equal(out.astype(float), expected)
    y = ic.conv2d(x, w, out=np.empty(expected.shape), out_dtype="float64", **case.options)
    np.testing.assert_array_equal(y, case.reference(x, w))


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_bits_do_not_depend_on_batch_or_threads(dtype, path):
    case = Case(N=5, C=70, K=33, size=(9, 30), padding=((1, 1), (1, 1)), dtype=dtype)
    x, w = case.inputs(0)

    def strict(x, threads):
        arch = replace(machine(path), threads=threads)
        plan = plan_of(replace(case, N=len(x)), arch, precision="strict")
        return plan(x, w).view(np.uint16)

    whole = strict(x, 1)
    np.testing.assert_array_equal(strict(x, 3), whole)
    for n in range(case.N):
        np.testing.assert_array_equal(strict(x[n : n + 1], 2), whole[n : n + 1])


def swapped(array):
    """Channels, the second axis, filled up to pairs with a zero, and those of each pair swapped."""
    n, c, *rest = array.shape
    filled = np.zeros((n, c + c % 2, *rest), array.dtype)
    filled[:, :c] = array
    return filled.reshape(n, -1, 2, *rest)[:, :, ::-1].reshape(filled.shape)


@pytest.mark.skipif(not cpu_features() >= BFLOAT16_FEATURES, reason="this CPU has no AVX512_BF16")
@pytest.mark.parametrize("weight_layout", ["KCRS", "KRSC", "RSCK"])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("kernel", [(1, 1), (3, 3)])
@pytest.mark.parametrize("channels", [2, 3, 31, 32, 33, 70, 200])
def test_dot_products_are_two_fmas_the_second_channel_first(
    channels, kernel, layout, weight_layout
):
    """To the bit what the float32 kernels sum of the same channels in that order."""
    case = Case(
        N=2,
        C=channels,
        K=37,
        size=(7, 19),
        kernel=kernel,
        stride=(1, 2),
        layout=layout,
        weight_layout=weight_layout,
        dtype="bfloat16",
    )
    x, w = case.inputs(0)
    got = compute(case, x, w, "pairs", out_dtype="float32")
    even = replace(case, C=channels + channels % 2)
    expected = compute(even, swapped(x), swapped(w), "widen", out_dtype="float32")
    np.testing.assert_array_equal(got, expected)


@pytest.mark.skipif(not cpu_features() >= BFLOAT16_FEATURES, reason="this CPU has no AVX512_BF16")
@pytest.mark.parametrize(
    ("channels", "blocks", "blocks_of_pairs"),
    [(1000, 1, 1), (1024, 2, 1), (2048, 3, 2), (5200, 2, 1), (10_300, 3, 2)],
)
def test_sums_of_one_block_have_the_bits_of_float32(channels, blocks, blocks_of_pairs):
    """Larger ones are divided by elements, which are pairs or single channels; so are those whose
    pixels have no way in L1 beside each other, here one of 8 ways and 32 KiB.
    """
    case = Case(C=channels, K=37, size=(3, 20), kernel=(1, 1), layout="NHWC", dtype="bfloat16")
    x, w = case.inputs(0)
    arch = replace(machine("pairs"), l1_bytes=32 << 10, l1_ways=8)
    results, found = [], []
    for dtype in ("bfloat16", "float32"):
        arrays = (x, w) if dtype == "bfloat16" else (swapped(x), swapped(w))
        given = [array.astype(numpy_dtype(dtype)) for array in case.arrange(*arrays)]
        plan = plan_of(replace(case, dtype=dtype), arch, precision="strict", out_dtype="float32")
        found.append(schedule.block_count(plan.engine.best.geometry))
        results.append(plan(*given))
    assert found == [blocks_of_pairs, blocks]
    assert np.array_equal(*results) == (found == [1, 1])


@pytest.mark.parametrize("path", DOT_PRODUCTS)
def test_a_filter_packed_with_a_channel_less_is_refused(path):
    """Of as many pairs, the last one filled up with zeros."""
    cases = [Case(C=c, K=40, size=(9, 9), dtype="bfloat16") for c in (5, 6)]
    plans = [plan_of(case, machine(path)) for case in cases]
    packed = plans[0].pack(np.ones((40, 5, 3, 3), ml_dtypes.bfloat16))
    with pytest.raises(ic.ShapeError, match="packed in another order"):
        plans[1](np.ones((1, 6, 9, 9), ml_dtypes.bfloat16), packed)


@pytest.mark.parametrize("path", DOT_PRODUCTS)
def test_subnormals_count_as_zeros_in_dot_products(path):
    x = np.full((1, 2, 4, 20), 2.0**-130, ml_dtypes.bfloat16)
    w = np.full((1, 2, 1, 1), 2.0**20, ml_dtypes.bfloat16)
    case = Case(C=2, size=(4, 20), kernel=(1, 1), dtype="bfloat16")
    assert (compute(case, x, w, path).astype(float) == 0).all()
    assert (compute(case, x, w, "widen").astype(float) == 2.0**-109).all()


@pytest.mark.parametrize("path", BFLOAT16)
@pytest.mark.parametrize("weight_layout", ["KCRS", "KRSC", "RSCK"])
@pytest.mark.parametrize("kernel", [(1, 1), (3, 3)])
def test_a_nan_in_a_filter_stays_there(kernel, weight_layout, path):
    """An odd number of channels is completed with a zero, not with what follows in memory."""
    case = Case(C=5, K=20, kernel=kernel, weight_layout=weight_layout, dtype="bfloat16")
    x, w = case.inputs(0, integers=True)
    w[7] = np.nan
    finite = np.isfinite(compute(case, x, w, path).astype(np.float32)[0])
    assert not finite[7].any()
    assert np.delete(finite, 7, axis=0).all()


@pytest.mark.parametrize("path", BFLOAT16)
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize(("channels", "groups"), [(6, 1), (7, 1), (6, 2), (7, 2)])
def test_executed_loads_are_the_planned_ones(layout, channels, groups, path):
    """Coordinates count channels, even where an element is a pair of them."""
    case = Case(
        N=2,
        C=channels,
        K=40,
        groups=groups,
        size=(9, 20),
        padding=((1, 1), (1, 1)),
        layout=layout,
        dtype="bfloat16",
    )
    x, w = case.arrange(*case.inputs(0))
    plan = plan_of(case, machine(path), precision="strict")
    assert executed_loads(plan.engine, x, w) == sorted(plan.trace())
    firsts = {load.coords[3] for load in plan.trace() if load.operand == "x"}
    assert firsts == {group * channels for group in range(groups)}


@pytest.mark.parametrize("path", BFLOAT16)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("channels", [6, 7, 64])
def test_transposed_gemm(channels, dtype, path, force_method):
    """Plain and packed filters, bias and residual, for images of whole vectors."""
    force_method(TransposedGemm)
    case = Case(N=3, C=channels, K=40, size=(8, 16), kernel=(1, 1), dtype=dtype)
    x, w = case.inputs(0, integers=True)
    plan = plan_of(case, machine(path), precision="strict", algorithm="pointwise")
    bias = np.arange(40, dtype=np.float32) - 20
    residual = np.random.default_rng(1).integers(-9, 9, (3, 40, 8, 16)).astype(x.dtype)
    sums = case.reference(x, w)
    for filters in (w, plan.pack(w)):
        y = plan(x, filters)
        np.testing.assert_array_equal(y.astype(float), case.rounded(sums))
        y = plan(x, filters, bias, residual=residual)
        added = sums + bias[:, None, None] + residual.astype(float)
        np.testing.assert_array_equal(y.astype(float), case.rounded(added))
    assert executed_loads(plan.engine, x, w) == sorted(plan.trace())
    method = plan.engine.best.method
    in_place = method.channels > 1 and channels % 2 == 0  # nothing needs to be copied
    assert isinstance(method, TransposedGemm) == in_place


def test_strides_that_cannot_be_read_in_place_keep_out_dtype():
    case = Case(C=8, K=40, size=(9, 20), kernel=(1, 1), layout="NHWC", dtype="bfloat16")
    x, w = case.inputs(0, integers=True)
    x_here, w_here = case.arrange(x, w)
    wide = np.zeros((*x_here.shape[:-1], 16), x_here.dtype)
    wide[..., ::2] = x_here
    y = ic.conv2d(wide[..., ::2], w_here, out_dtype="float32", layout="NHWC")
    np.testing.assert_array_equal(to_nchw(y, "NHWC"), case.reference(x, w))


def test_a_plan_is_made_by_name_and_packs():
    case = Case(N=2, C=5, K=40, size=(9, 11), dtype="bfloat16")
    x, w = case.inputs(0, integers=True)
    plan = ic.plan_conv2d(x.shape, w.shape, "bfloat16")
    assert plan is ic.plan_conv2d(x.shape, w.shape, "bfloat16")
    y = plan(x, plan.pack(w))
    np.testing.assert_array_equal(y.astype(float), case.rounded(case.reference(x, w)))
    with pytest.raises(ic.DTypeError, match=r"x is float16 .* bfloat16"):
        plan(x.astype(np.float16), w)


def test_dtypes_do_not_mix():
    x, w = np.ones((1, 1, 3, 3), np.float16), np.ones((1, 1, 3, 3), ml_dtypes.bfloat16)
    with pytest.raises(ic.DTypeError, match="x is float16 but w is bfloat16"):
        ic.conv2d(x, w)
    with pytest.raises(ic.DTypeError, match="use one of float16, float32, float64"):
        ic.conv2d(x, x, out_dtype=ml_dtypes.bfloat16)


def test_bfloat16_tensors_are_taken_through_dlpack():
    torch = pytest.importorskip("torch")
    case = Case(N=2, C=5, K=7, size=(9, 11), dtype="bfloat16")
    x, w = case.inputs(0, integers=True)
    tensors = [torch.from_numpy(a.astype(np.float32)).bfloat16() for a in (x, w)]
    tensors[0] = tensors[0].contiguous(memory_format=torch.channels_last)
    y = ic.conv2d(*tensors)
    np.testing.assert_array_equal(y.double(), case.rounded(case.reference(x, w)))
