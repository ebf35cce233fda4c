"""Integers: every path gives the exact sums, and no sum wraps, whatever the values."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from processes import output_of
from sampling import examples
from ways import QUADS, needs_quads

import implicit_conv as ic
from implicit_conv.cpu.candidates.query import Request
from implicit_conv.cpu.engines import dgrad
from implicit_conv.cpu.engines.executed_loads import executed_loads
from implicit_conv.cpu.machine.arch import REGISTER_PIXELS, cpu_arch
from implicit_conv.cpu.methods.depthwise import Depthwise
from implicit_conv.cpu.methods.gemm import Gemm
from implicit_conv.kernels import schedule
from implicit_conv.operators.plan import Plan
from implicit_conv.problem.options import INTEGER_RANGES, PRECISIONS
from implicit_conv.testing import Case, from_nchw, plan_of, to_nchw

MIXES = list(itertools.product(INTEGER_RANGES, INTEGER_RANGES))
PATHS = ("widest", "widened", "256 bits", "128 bits", "256 bits by four")
SAME = ((1, 1), (1, 1))


def arch_of(path, threads=None):
    """This machine, held to one way of computing."""
    arch = cpu_arch(threads)
    if path == "widest":
        return arch
    if path == "widened":
        return replace(arch, int8="widen")
    bits = int(path[:3])
    tile = REGISTER_PIXELS[bits, 16]
    int8 = arch.int8 if path.endswith("four") else "widen"
    return replace(arch, vector_bits=bits, tile_pixels=tile, int8=int8)


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("taps", [1, 2, 3])
def test_the_default_dtype_of_transposed_sums_counts_all_taps(rank, taps):
    """B = C / groups * R * S * 2^30, whether or not stride phases leave each pixel one tap."""
    function = getattr(ic, f"conv_transpose{rank}d")
    x = np.full((1, 1, *(3,) * rank), -(2**15), np.int16)
    w = np.full((1, 1, *(1,) * (rank - 1), taps), -(2**15), np.int16)
    wanted = np.int32 if taps * 2**30 < 2**31 else np.int64
    for stride, dilation in itertools.product((1, 2, 3, 10), (1, 2)):
        y = function(x, w, stride=stride, dilation=dilation)
        assert y.dtype == wanted
        exact = function(x.astype(float), w.astype(float), stride=stride, dilation=dilation)
        np.testing.assert_array_equal(y, exact)


def test_transposed_sums_that_int32_holds_may_be_asked_for():
    x, w = np.full((1, 1, 3), -(2**15), np.int16), np.full((1, 1, 2), -(2**15), np.int16)
    y = ic.conv_transpose1d(x, w, stride=2, out_dtype="int32")
    assert y.dtype == np.int32 and (y == 2**30).all()


@st.composite
def cases(draw):
    kernel = draw(st.sampled_from([(1, 1), (3, 1), (3, 3), (2, 5), (7, 7)]))
    low = st.integers(-1, 3)
    beside = draw(st.sampled_from([0, 3]))  # padding along W in addition, or along H alone
    x, w = draw(st.sampled_from(MIXES))
    depthwise = draw(st.integers(0, 4)) == 0
    size = draw(st.integers(9, 12)), draw(st.integers(9, 40))
    return Case(
        N=draw(st.integers(1, 3)),
        C=1 if depthwise else draw(st.sampled_from([1, 2, 3, 4, 5, 7, 8, 16, 19, 33, 64])),
        K=1 if depthwise else draw(st.sampled_from([1, 2, 5, 16, 17, 33, 40, 65])),
        groups=draw(st.sampled_from([3, 20, 64]))
        if depthwise
        else draw(st.sampled_from([1, 1, 3])),
        size=size,
        kernel=kernel,
        stride=draw(st.sampled_from([(1, 1), (2, 2), (1, 3)])),
        dilation=(1, draw(st.sampled_from([1, 1, 2, 6]))) if kernel == (3, 3) else (1, 1),
        padding=((draw(low), draw(low)), (draw(low) * (beside > 0) + beside, beside)),
        layout=draw(st.sampled_from(["NCHW", "NHWC"])),
        weight_layout=draw(st.sampled_from(["KCRS", "KRSC", "RSCK"])),
        dtype=x,
        w_dtype=w,
    )


def extreme(case, x, w, which):
    """(x, w) with the extremes of their dtypes instead of random values."""
    return [
        np.full_like(array, INTEGER_RANGES[array.dtype.name][end])
        for array, end in zip((x, w), which, strict=True)
    ]


@pytest.mark.parametrize("path", PATHS)
@examples(6, 4000, 12)
@given(
    case=cases(),
    seed=st.integers(0, 2**31),
    ends=st.none() | st.tuples(st.integers(0, 1), st.integers(0, 1)),
    packed=st.booleans(),
    threads=st.sampled_from([1, 2, 3]),
)
def test_sums_are_exact(path, case, seed, ends, packed, threads):
    x, w = case.inputs(seed)
    x, w = (x, w) if ends is None else extreme(case, x, w, ends)
    expected = case.reference(x, w)
    plan = plan_of(case, arch_of(path, threads))
    x, w = case.arrange(x, w)
    y = to_nchw(plan(x, plan.pack(w) if packed else w), case.layout)
    assert y.dtype == case.problem.sum_dtype
    np.testing.assert_array_equal(y, expected)


@examples(10, 1000)
@given(
    case=cases(),
    seed=st.integers(0, 2**31),
    out_dtype=st.sampled_from([None, "int64", "float32", "float64"]),
    bounds=st.sampled_from([None, "relu", "relu6", ("clamp", -1000, 77_000)]),
    biased=st.booleans(),
    added=st.booleans(),
    precision=st.sampled_from(PRECISIONS),
)
def test_epilogues_are_exact(case, seed, out_dtype, bounds, biased, added, precision):
    """Floats are rounded once: residuals of these sizes leave their sums exact in float64."""
    x, w = case.inputs(seed)
    sums = case.reference(x, w)
    rng = np.random.default_rng(seed)
    dtype = np.dtype(out_dtype or case.problem.sum_dtype)
    bias = rng.integers(-(2**15), 2**15, sums.shape[1]) if biased else None
    sums = sums if bias is None else sums + bias[:, None, None]
    residual = None
    if added:
        residual = rng.integers(-(2**12), 2**12, sums.shape)
        sums = sums + residual if dtype != "float32" else sums.astype(dtype) + residual
        residual = from_nchw(residual.astype(dtype), case.layout)
    low, high = {None: (None, None), "relu": (0, None), "relu6": (0, 6)}.get(bounds, (-1000, 77000))
    expected = sums.astype(dtype)
    if bounds is not None:
        expected = np.clip(expected, low, high)
    options = {"activation": bounds, "out_dtype": out_dtype, "precision": precision}
    y = ic.conv2d(*case.arrange(x, w), bias, residual=residual, **case.options, **options)
    assert y.dtype == dtype
    if dtype == "float32" and added:
        np.testing.assert_allclose(to_nchw(y, case.layout), expected, rtol=1e-6)
    else:
        np.testing.assert_array_equal(to_nchw(y, case.layout), expected)


BOUNDS = {  # the largest number of products whose sums fit into int32
    ("uint8", "uint8"): 33025,
    ("uint8", "int8"): 65793,
    ("int8", "int8"): 131071,
    ("int16", "int8"): 511,
    ("uint8", "int16"): 257,
    ("int16", "int16"): 1,
}


@pytest.mark.parametrize(("dtypes", "most"), BOUNDS.items())
@pytest.mark.parametrize("path", PATHS[:2])
def test_the_shape_decides_between_int32_and_int64(dtypes, most, path):
    """At the bound itself the largest sum is reached, and not wrapped."""
    for terms, expected in ((most, "int32"), (most + 1, "int64")):
        case = Case(C=terms, K=2, size=(1, 2), kernel=(1, 1), layout="NHWC", weight_layout="KRSC")
        case = replace(case, dtype=dtypes[0], w_dtype=dtypes[1])
        plan = plan_of(case, arch_of(path))
        assert f"sums        {expected}, exact" in plan.explain()
        for ends in itertools.product((0, 1), (0, 1)):
            x, w = extreme(case, *case.inputs(0), ends)
            y = plan(*case.arrange(x, w))
            assert y.dtype == expected
            product = int(x.flat[0]) * int(w.flat[0])
            np.testing.assert_array_equal(y, terms * product)


def test_int32_is_refused_where_it_could_overflow():
    shapes = (1, 33026, 1, 1), (1, 33026, 1, 1)
    with pytest.raises(
        ic.DTypeError, match="33026 products of at most 65025 = 2147515650"
    ) as error:
        ic.plan_conv2d(*shapes, "uint8", out_dtype="int32")
    assert "use out_dtype 'int64'" in str(error.value)
    assert ic.plan_conv2d(*shapes, "uint8", out_dtype="int64").engine.out_dtype == "int64"
    assert ic.plan_conv2d(*shapes, "uint8", w_dtype="int8", out_dtype="int32").problem


def test_a_bias_cannot_overflow():
    """A bias is accepted up to the largest one whose sums fit, whatever the sums are."""
    x, w = np.full((1, 4, 1, 1), 255, np.uint8), np.full((1, 4, 1, 1), 255, np.uint8)
    room = 2**31 - 1 - 4 * 255**2
    np.testing.assert_array_equal(ic.conv2d(x, w, np.array([room])), 2**31 - 1)
    for bias in (room + 1, -room - 1, 2**31, 2**62):
        with pytest.raises(ic.DTypeError, match=rf"values of up to {abs(bias)} .* 260100") as error:
            ic.conv2d(x, w, np.array([bias]))
        assert "ask for out_dtype 'int64'" in str(error.value)
        y = ic.conv2d(x, w, np.array([bias]), out_dtype="int64")
        np.testing.assert_array_equal(y, bias + 4 * 255**2)
    with pytest.raises(ic.DTypeError, match="values of up to 9223372036854775807 in size"):
        ic.conv2d(x, w, np.array([2**63 - 1]), out_dtype="int64")
    with pytest.raises(ic.DTypeError, match="does not convert to int32"):
        ic.conv2d(x, w, np.array([0.5]))


def test_a_bias_is_checked_in_every_call():
    x, w = np.ones((1, 1, 2, 2), np.int8), np.ones((1, 1, 1, 1), np.int8)
    plan = ic.plan_conv2d(x.shape, w.shape, "int8")
    packed = plan.pack(w)
    for _ in range(3):
        np.testing.assert_array_equal(plan(x, packed, np.array([5])), 6)
        np.testing.assert_array_equal(ic.conv2d(x, w, np.array([5])), 6)
        for call in (
            lambda: plan(x, packed, np.array([2**31 - 1])),
            lambda: ic.conv2d(x, w, [2**31]),
        ):
            with pytest.raises(ic.DTypeError, match="together more than 2147483647"):
                call()


def test_a_residual_cannot_overflow():
    x, w = np.full((1, 1, 1, 2), -128, np.int8), np.full((1, 1, 1, 1), -128, np.int8)
    room = 2**31 - 1 - 2**14
    residual = np.array([[[[room, -room]]]], np.int32)
    y = ic.conv2d(x, w, residual=residual)
    np.testing.assert_array_equal(y, [[[[2**31 - 1, 2**14 - room]]]])
    with pytest.raises(ic.DTypeError, match=f"residual has values of up to {room + 1} in size"):
        ic.conv2d(x, w, residual=residual + 1)
    with pytest.raises(ic.DTypeError, match=f"residual has values of up to {room} in size"):
        ic.conv2d(x, w, np.array([1]), residual=residual)
    with pytest.raises(ic.DTypeError, match="residual is int8 but the output is int32"):
        ic.conv2d(x, w, residual=residual.astype(np.int8))


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("out_dtype", ["float32", "float64"])
@pytest.mark.parametrize("activation", ["gelu", "silu", "sigmoid", "tanh", "hardswish"])
@pytest.mark.parametrize("groups", [1, 20])
def test_activations_of_floats_apply_to_the_converted_sum(layout, out_dtype, activation, groups):
    size = {"C": 1, "K": 1} if groups > 1 else {"C": 4, "K": 20}
    case = Case(N=2, **size, groups=groups, size=(5, 9), padding=SAME, layout=layout, dtype="int8")
    x, w = case.inputs(0)
    x, w = x % 3 - 1, w % 3 - 1
    sums = case.reference(x, w)
    residual = from_nchw(np.random.default_rng(0).standard_normal(sums.shape), layout)
    residual = residual.astype(out_dtype)
    for added in (None, residual, np.asfortranarray(residual)):
        given = sums.astype(out_dtype) + (0 if added is None else to_nchw(added, layout))
        ones = np.ones((1, 1, 1, 1), out_dtype)
        flat = given.reshape(1, 1, 1, -1).astype(out_dtype)
        expected = ic.conv2d(flat, ones, activation=activation).reshape(sums.shape)
        options = {**case.options, "activation": activation, "out_dtype": out_dtype}
        y = ic.conv2d(*case.arrange(x, w), residual=added, **options)
        np.testing.assert_allclose(to_nchw(y, layout), expected, rtol=1e-6, atol=1e-30)


@pytest.mark.parametrize(
    ("activation", "message"),
    [
        ("gelu", "is not exact for int32; only relu, relu6 and clamp are"),
        (("leaky_relu", 2.0), "is not exact for int32"),
        (("clamp", 0.5, 3), r"0\.5 is no integer of int32"),
        (("clamp", 0, 2**31), "2147483648 is no integer of int32"),
    ],
)
def test_other_activations_are_refused_with_a_way_out(activation, message):
    shapes = (1, 4, 5, 5), (4, 4, 3, 3)
    with pytest.raises(ic.PlanError, match=message) as error:
        ic.plan_conv2d(*shapes, "int8", activation=activation)
    assert "out_dtype='float32'" in str(error.value)
    ic.plan_conv2d(*shapes, "int8", activation=activation, out_dtype="float32")
    with pytest.raises(ic.PlanError, match=str(2**53 + 1)):
        wide = ("clamp", 0, 2**53 + 1)
        ic.plan_conv2d(*shapes, "int8", activation=wide, out_dtype="int64")


@pytest.mark.parametrize(
    ("x", "w", "hint"),
    [
        ("uint8", "float64", "x.astype('float64')"),
        ("float64", "int8", "w.astype('float64')"),
        ("float32", "float64", "w.astype('float32')"),
    ],
)
def test_floats_and_integers_do_not_mix(x, w, hint):
    x, w = np.ones((1, 1, 3, 3), x), np.ones((1, 1, 3, 3), w)
    with pytest.raises(ic.DTypeError, match=r"x is .* but w is") as error:
        ic.conv2d(x, w)
    assert f"as in {hint}" in str(error.value)
    changed = {"x": x, "w": w} | {hint[0]: eval(hint, {"x": x, "w": w})}
    np.testing.assert_array_equal(ic.conv2d(**changed), 9)
    with pytest.raises(ic.DTypeError, match=r"x is .* but w is"):
        ic.plan_conv2d(x.shape, w.shape, x.dtype, w_dtype=w.dtype)


def test_algorithms_that_compute_floats_say_so():
    for algorithm in ("winograd_f2", "winograd_f4", "winograd_f6", "gemm_im2col"):
        with pytest.raises(ic.PlanError, match=r"not integers|not int8"):
            ic.plan_conv2d((1, 8, 9, 9), (8, 8, 3, 3), "int8", algorithm=algorithm)


def test_algorithms_keep_their_names():
    methods = {
        "implicit_gemm": ((1, 8, 9, 9), (8, 8, 3, 3), {}, Gemm),
        "pointwise": ((1, 8, 9, 9), (8, 8, 1, 1), {}, Gemm),
        "depthwise": ((1, 8, 9, 9), (8, 1, 3, 3), {"groups": 8}, Depthwise),
    }
    for algorithm, (x, w, options, method) in methods.items():
        for chosen in (algorithm, "auto"):
            plan = ic.plan_conv2d(x, w, "int8", algorithm=chosen, **options)
            assert (plan.algorithm, type(plan.engine.best.method)) == (algorithm, method)


def test_sums_that_int64_does_not_hold_are_refused():
    shape = (1, 2**34, 1, 1)
    with pytest.raises(ic.DTypeError, match=r"17179869184 products .* convert x and w to float64"):
        ic.plan_conv2d(shape, shape, "int16")


@pytest.mark.parametrize("storage", ["byte-swapped", "unaligned", "negative", "broadcast"])
def test_any_storage(storage):
    case = Case(N=2, C=8, K=9, size=(9, 11), padding=SAME, dtype="int16", w_dtype="int8")
    x, w = case.inputs(0)
    if storage == "byte-swapped":
        x = x.astype(">i2")
    elif storage == "unaligned":
        x = np.frombuffer(b"\0" + x.tobytes(), np.uint8)[1:].view(np.int16).reshape(x.shape)
    elif storage == "negative":
        x = x[:, ::-1, :, ::-1]
    else:
        x = np.broadcast_to(x[:1], x.shape)
    y = ic.conv2d(x, w, **case.options)
    np.testing.assert_array_equal(y, case.reference(x, w))


def test_out_of_any_strides():
    case = Case(N=2, C=8, K=9, size=(9, 11), padding=SAME, dtype="uint8", w_dtype="int8")
    x, w = case.inputs(0)
    expected = case.reference(x, w)
    for dtype in ("int32", "int64", "float32", "float64"):
        wide = np.full((2, 18, 9, 22), -7, dtype)
        for out in (wide[:, ::2, :, ::2], wide[:, 8::-1, ::-1, :11]):
            assert ic.conv2d(x, w, out=out, out_dtype=dtype, **case.options) is out
            np.testing.assert_array_equal(out, expected)
    with pytest.raises(ic.DTypeError, match="out is float32 but the output is int32"):
        ic.conv2d(x, w, out=wide[:, ::2, :, ::2].astype(np.float32), **case.options)


def test_tensors_of_torch():
    torch = pytest.importorskip("torch")
    case = Case(N=2, C=8, K=9, size=(9, 11), padding=SAME, dtype="uint8", w_dtype="int8")
    x, w = case.inputs(0)
    y = ic.conv2d(torch.from_numpy(x), torch.from_numpy(w), **case.options)
    assert y.dtype is torch.int32
    np.testing.assert_array_equal(y.numpy(), case.reference(x, w))


@needs_quads
@pytest.mark.parametrize(("x", "w"), list(itertools.product(("int8", "uint8"), repeat=2)))
def test_bytes_are_multiplied_four_at_a_time(x, w):
    """Also where the signs of x are inverted, and taps read padding."""
    case = Case(C=8, K=40, size=(5, 6), kernel=(5, 5), padding=((4, 4), (4, 4)), dtype=x, w_dtype=w)
    for layout, elements in itertools.product(("NCHW", "NHWC"), (None, 50)):
        laid = replace(case, layout=layout)
        with pytest.MonkeyPatch.context() as patch:
            if elements:  # several channel blocks, each with a head
                patch.setattr("implicit_conv.cpu.methods.gemm_tilings.BLOCK_ELEMENTS", elements)
            plan = plan_of(laid, QUADS)
        assert plan.engine.best.method.channels == 4
        assert "dot products of four channels" in plan.explain()
        arrays = laid.inputs(0)
        y = to_nchw(plan(*laid.arrange(*arrays)), layout)
        np.testing.assert_array_equal(y, case.reference(*arrays))
        assert executed_loads(plan.engine, *laid.arrange(*arrays)) == sorted(plan.trace())


@needs_quads
def test_inverted_signs_multiply_every_tap():
    """Where signs are inverted no column leaves out taps, which a large dilation does elsewhere."""
    case = Case(C=8, K=16, size=(5, 30), dilation=(1, 6), padding=((1, 1), (6, 6)), dtype="int8")
    mixed = replace(case, dtype="uint8", w_dtype="int8")
    for each, skips in ((case, 0), (mixed, 1)):
        plan = plan_of(each, QUADS)
        c, arrays = plan.engine.best, each.inputs(0)
        assert (c.method.channels, c.geometry.skips_w) == (4, skips)
        y = to_nchw(plan(*each.arrange(*arrays)), each.layout)
        np.testing.assert_array_equal(y, each.reference(*arrays))


@needs_quads
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("channels", [4, 8, 32, 60])
@pytest.mark.parametrize(
    ("kernel", "padding"),
    [((3, 1), (1, 0)), ((7, 1), (3, 0)), ((1, 3), (0, 1)), ((3, 3), (1, 1)), ((3, 2), (2, 0))],
    ids=str,
)
def test_inverted_signs_multiply_every_tap_in_padding_of_one_axis(dtype, channels, kernel, padding):
    """Such images may be read in place around their padding, but not where signs are inverted."""
    case = Case(
        C=channels,
        K=16,
        size=(5, 9),
        kernel=kernel,
        padding=tuple((pad, pad) for pad in padding),
        layout="NHWC",
        dtype=dtype,
        w_dtype=dtype,
    )
    x, w = case.inputs(1)
    y = to_nchw(plan_of(case, QUADS)(*case.arrange(x, w)), "NHWC")
    np.testing.assert_array_equal(y, case.reference(x, w))


def leaves_of(c):
    """The candidates with kernels of which a candidate consists."""
    if not c.parts:
        yield c
    for part in c.parts:
        for own in part.candidates:
            yield from leaves_of(own)


@needs_quads
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("size", [(5, 6), (14, 14), (56, 56)], ids=str)
def test_no_candidate_skips_taps_where_signs_are_inverted(dtype, size):
    """A phase of a 3x3 filter with stride 2 has two taps along one axis and one along the other."""
    made = ic.plan_conv_transpose2d((1, *size, 8), (8, 16, 3, 3), dtype, stride=2, layout="NHWC")
    plan = Plan(dgrad.plan(made.problem, QUADS, Request(), dgrad.TransposedEngine))
    leaves = (leaf for c in plan.candidates for leaf in leaves_of(c))
    inverting = [c for c in leaves if getattr(c.layout, "heads", False)]
    assert inverting
    for c in inverting:
        assert not schedule.skips_columns(c.geometry, c.layout.in_place), c.name


@pytest.mark.slow
def test_a_cpu_without_vnni():
    code = """
import numpy as np
import implicit_conv as ic
from implicit_conv.cpu.machine.arch import cpu_arch
assert cpu_arch().int8 == "widen" and cpu_arch().vector_bits == 256
x = np.full((1, 9, 9, 64), 255, np.uint8)
w = np.full((33, 3, 3, 64), -128, np.int8)
y = ic.conv2d(x, w, layout="NHWC", weight_layout="KRSC")
assert (y == -9 * 64 * 255 * 128).all()
"""
    features = "+sse4.2,+avx,+avx2,+fma,+bmi,+bmi2,+popcnt"
    output_of(code, NUMBA_CPU_NAME="x86-64-v3", NUMBA_CPU_FEATURES=features)
