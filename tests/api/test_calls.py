"""Calls that are kept: repeating one gives the same result, and refuses what was refused."""

import numpy as np
import pytest

import implicit_conv as ic
from implicit_conv.cpu.methods.transposed_gemm import TransposedGemm
from implicit_conv.cpu.run import call as repeated
from implicit_conv.process import cache
from implicit_conv.testing import Case, to_nchw


def exact(case):
    """Arrays whose convolution is exact, in the case's layouts, and the answer (N, K, P, Q)."""
    x, w = case.inputs(0, integers=True)
    return *case.arrange(x, w), case.reference(x, w)


@pytest.fixture(autouse=True, params=[1, 1 << 30], ids=["compiled", "by Python"])
def made_again(request, monkeypatch):
    """Who makes repeated calls."""
    repeated.compiled()
    monkeypatch.setattr(repeated, "OFTEN", request.param)
    ic.clear_plan_cache()


CASES = {
    "packed in the launch": Case(C=5, K=20, size=(9, 11), kernel=(3, 3)),
    "packed before": Case(N=40, C=20, K=70, size=(15, 12), kernel=(3, 3), layout="NHWC"),
    "lanes are pixels": Case(C=2, K=3, size=(19, 21), kernel=(3, 3)),
    "depthwise": Case(C=1, K=1, groups=24, size=(9, 11), kernel=(3, 3)),
    "pointwise": Case(N=2, C=24, K=33, size=(7, 9), kernel=(1, 1), layout="NHWC"),
    "transposed GEMM": Case(C=512, K=4, size=(15, 15), kernel=(1, 1)),
    "planes in place": Case(N=2, C=64, K=70, size=(24, 24), kernel=(1, 1)),
    "float64": Case(C=5, K=4, size=(6, 7), kernel=(2, 3), dtype="float64"),
    "float16": Case(C=5, K=4, size=(6, 7), kernel=(2, 3), dtype="float16"),
    "bfloat16": Case(C=6, K=20, size=(6, 7), kernel=(2, 3), dtype="bfloat16", layout="NHWC"),
}


def options_of(name):
    """Options of `conv2d`; only precision "strict" chooses transposed GEMM for this case."""
    strict = {"precision": "strict"} if name == "transposed GEMM" else {}
    return {**CASES[name].options, **strict}


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_a_call_gives_the_same_again(name, biased):
    case, options = CASES[name], options_of(name)
    x, w, expected = exact(case)
    bias = np.arange(case.K * case.groups, dtype=np.float32) if biased else None
    added = 0 if bias is None else bias[:, None, None]
    for again in (x, w), (x, w), (x.copy(), w.copy()):
        y = ic.conv2d(*again, bias, **options)
        np.testing.assert_array_equal(to_nchw(y, case.layout), expected + added)
    plan = ic.plan_conv2d(x.shape, w.shape, x.dtype, **options)
    transposed = isinstance(plan.engine.best.method, TransposedGemm)
    assert transposed == (name == "transposed GEMM")
    assert len(cache.CALLS) == 1


@pytest.mark.parametrize("name", CASES)
def test_a_plan_keeps_its_calls_with_packed_filters(name):
    case, options = CASES[name], options_of(name)
    x, w, expected = exact(case)
    plan = ic.plan_conv2d(x.shape, w.shape, x.dtype, **options)
    packed, bias = plan.pack(w), np.arange(case.K * case.groups, dtype=np.float32)
    for again in x, x, x.copy():
        np.testing.assert_array_equal(to_nchw(plan(again, packed), case.layout), expected)
        y = to_nchw(plan(again, packed, bias), case.layout)
        np.testing.assert_array_equal(y, expected + bias[:, None, None])
    assert len(plan._calls) == 2
    for like in (x[:, :, ::-1], x.astype(x.dtype.newbyteorder()), np.asfortranarray(x)) * 2:
        np.testing.assert_array_equal(plan(like, packed), ic.conv2d(like, w, **options))
    with pytest.raises(ic.ShapeError, match="x has shape"):
        plan(x[:, :, :-1], packed)
    with pytest.raises(ic.DTypeError, match="x is int32"):
        plan(x.astype(np.int32), packed)
    with pytest.raises(ic.ShapeError, match="bias has shape"):
        plan(x, packed, bias[:-1])
    other = ic.plan_conv2d(x.shape, np.concatenate([w, w]).shape, x.dtype, **options)
    with pytest.raises(ic.ShapeError, match="packed in another order"):
        plan(x, other.pack(np.concatenate([w, w])))


def test_other_strides_dtypes_and_alignments_get_calls_of_their_own():
    x, w, expected = exact(CASES["lanes are pixels"])
    unaligned = np.zeros(x.nbytes + 1, np.uint8)[1:].view(x.dtype).reshape(x.shape)
    unaligned[...] = x
    wide = np.zeros((*x.shape[:3], 2 * x.shape[3]), x.dtype)
    wide[..., ::2] = x
    for like in x, unaligned, wide[..., ::2], x.astype(">f4"), np.asfortranarray(x), x:
        np.testing.assert_array_equal(ic.conv2d(like, w), expected)
        np.testing.assert_array_equal(ic.conv2d(like, w), expected)


def test_bad_arguments_are_refused_after_a_good_call_too():
    x, w, _ = exact(CASES["lanes are pixels"])
    ic.conv2d(x, w)
    for stride in 1.0, True, np.float32(1):
        with pytest.raises(ic.ShapeError, match="stride must be an integer"):
            ic.conv2d(x, w, stride=stride)
    with pytest.raises(ic.DTypeError, match="w is float64"):
        ic.conv2d(x, w.astype("float64"))
    with pytest.raises(TypeError, match="activation is"):
        ic.conv2d(x, w, activation=["relu"])
    ic.conv2d(x, w, np.zeros(3, np.float32))
    with pytest.raises(ic.ShapeError, match="bias has shape"):
        ic.conv2d(x, w, np.zeros(4, np.float32))


def test_a_kept_call_is_found_by_exact_options_alone():
    x, w, _ = exact(CASES["lanes are pixels"])
    y = ic.conv2d(x, w, padding=(1, 1))
    padding = [[1, 1], [1, 1]]
    for pads in (1, 1), [1, 1], ((1, 1), (1, 1)), padding, np.array([1, 1]), (np.int64(1), 1):
        for _ in range(2):
            np.testing.assert_array_equal(ic.conv2d(x, w, padding=pads), y)
    assert len(cache.CALLS) == 4  # not of an array, nor of numpy's integers
    for pads in (1, True), (1.0, 1), [1, np.float32(1)], np.array([1.0, 1.0]):
        with pytest.raises(ic.ShapeError, match="padding must be an integer"):
            ic.conv2d(x, w, padding=pads)
    padding[0][0] = 2  # the list of an earlier call
    assert ic.conv2d(x, w, padding=padding).shape[2] == y.shape[2] + 1


def test_settings_and_options_belong_to_a_call():
    x, w = np.full((1, 1, 1, 1), -1, np.float32), np.ones((1, 1, 1, 1), np.float32)
    assert [ic.conv2d(x, w, activation=name).item() for name in (None, "relu", None)] == [-1, 0, -1]
    tiny, one = np.full_like(x, 1e-39), np.ones_like(w)
    assert ic.conv2d(tiny, one).item() != 0
    with ic.config(subnormals="flush"):
        assert ic.conv2d(tiny, one).item() == 0
    assert ic.conv2d(tiny, one).item() != 0


def test_each_result_is_an_array_of_its_own():
    x, w, expected = exact(CASES["lanes are pixels"])
    first, second = ic.conv2d(x, w), ic.conv2d(x, w)
    second[...] = 0
    np.testing.assert_array_equal(first, expected)


def test_calls_and_plans_are_bounded_counted_and_cleared(monkeypatch):
    monkeypatch.setattr(cache, "CALLS_KEPT", 3)
    w = np.ones((1, 1, 1, 1), np.float32)
    for size in range(1, 9):
        ic.conv2d(np.ones((1, 1, 1, size), np.float32), w)
        assert ic.plan_cache_size() == size
        assert 1 <= len(cache.CALLS) <= 3
    ic.clear_plan_cache()
    assert ic.plan_cache_size() == len(cache.CALLS) == 0


def test_outputs_of_other_strides_share_compiled_kernels():
    """Pixels are spread with the stride of each output, also by a call that is prepared already."""
    rng = np.random.default_rng(2)
    x = rng.integers(-3, 4, (1, 5, 6, 20)).astype(np.float32)
    w = rng.integers(-3, 4, (37, 5, 3, 3)).astype(np.float32)
    expected = ic.conv2d(x, w)
    n, k, p, q = expected.shape
    outs = [np.zeros((n, k, p, q * step), np.float32)[..., ::step] for step in (2, 3, 2, 4, 5, 1)]
    for out in outs * 2:
        out[...] = 0
        ic.conv2d(x, w, out=out)
        np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("path", ["call", "packed"])
def test_a_kept_call_with_out_checks_the_memory_of_each_out(path):
    """The first call binds; later ones with the same strides write to other arrays, or refuse."""
    rng = np.random.default_rng(0)
    size = 8 * 300 * 64
    memory = rng.integers(-4, 5, 3 * size).astype(np.float32)
    x, free, shared = (
        memory[start : start + size].reshape(1, 300, 64, 8) for start in (0, 2 * size, 2000)
    )
    w = rng.integers(-4, 5, (8, 8, 3, 3)).astype(np.float32)
    options = {"layout": "NHWC", "padding": 1}
    plan = ic.plan_conv2d(x.shape, w.shape, **options)
    packed = plan.pack(w)

    def compute(out, bias=None):
        if path == "packed":
            return plan(x, packed, bias, out=out)
        return ic.conv2d(x, w, bias, out=out, **options)

    for _ in range(3):
        expected = ic.conv2d(x.copy(), w, **options)
        free[...] = np.nan
        assert compute(free) is free
        np.testing.assert_array_equal(free, expected)
    bias = free[0, 0, 0]
    bias[...] = np.arange(8)
    expected = ic.conv2d(x.copy(), w, bias.copy(), **options)
    np.testing.assert_array_equal(compute(free, bias), expected)
    free.flags.writeable = False
    with pytest.raises(ic.ShapeError, match="read-only"):
        compute(free)
    expected = ic.conv2d(x.copy(), w, **options)
    assert compute(shared) is shared  # it overlaps with x
    np.testing.assert_array_equal(shared, expected)


@pytest.mark.parametrize("path", ["call", "packed"])
def test_a_kept_call_with_out_does_not_overwrite_a_bias_that_is_no_numpy_array(path):
    """Numpy reads a memoryview in place: here a bias for whole panels lies in a pixel of out."""
    rng = np.random.default_rng(0)
    x = rng.integers(-4, 5, (1, 30, 40, 8)).astype(np.float32)
    w = rng.integers(-4, 5, (32, 8, 3, 3)).astype(np.float32)
    out = np.zeros((1, 30, 40, 32), np.float32)
    plan = ic.plan_conv2d(x.shape, w.shape, layout="NHWC", padding=1)
    packed = plan.pack(w)
    expected = plan(x, w, np.arange(32, dtype=np.float32))
    for _ in range(2):
        out[0, 0, 0] = np.arange(32)
        bias = memoryview(out[0, 0, 0])
        if path == "packed":
            plan(x, packed, bias, out=out)
        else:
            ic.conv2d(x, w, bias, out=out, layout="NHWC", padding=1)
        np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("path", ["call", "packed"])
def test_a_repeated_call_of_integers_checks_the_values_of_each_bias(path):
    x, w = np.ones((1, 4, 5, 5), np.int8), np.ones((3, 4, 3, 3), np.int8)
    plan = ic.plan_conv2d(x.shape, w.shape, x.dtype)
    packed = plan.pack(w)

    def compute(bias):
        return plan(x, packed, bias) if path == "packed" else ic.conv2d(x, w, bias)

    for value in (5, 7, 5):
        np.testing.assert_array_equal(compute(np.full(3, value, np.int32)), 36 + value)
    with pytest.raises(ic.DTypeError, match="bias"):
        compute(np.full(3, 2**31 - 1, np.int32))
    assert len(plan._calls if path == "packed" else cache.CALLS) == 1


@pytest.mark.parametrize("path", ["call", "packed"])
def test_an_out_of_foreign_byte_order_is_written_in_its_order(path):
    x, w, expected = exact(CASES["lanes are pixels"])
    plan, out = ic.plan_conv2d(x.shape, w.shape), np.zeros(expected.shape, ">f4")
    packed = plan.pack(w)
    for _ in range(3):
        out[...] = 0
        plan(x, packed, out=out) if path == "packed" else ic.conv2d(x, w, out=out)
        np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("path", ["call", "packed"])
def test_strides_of_an_out_that_is_written_by_a_copy_need_no_memory(path):
    """The result for an out that overlaps with x goes through contiguous memory; no candidate with
    so little scratch memory takes the strides of out itself.
    """
    memory = np.random.default_rng(0).integers(-4, 5, 2 * 16 * 10).astype(np.float32)
    w = np.ones((5, 4, 1), np.float32)
    options = {"layout": "NWC", "max_workspace": 1000}
    x, out = memory[: 2 * 16 * 4].reshape(2, 16, 4), memory.reshape(2, 16, 10)[..., :5]
    out = out[:, ::-1]
    expected = ic.conv1d(x.copy(), w, **options)
    plan = ic.plan_conv1d(x.shape, w.shape, **options)
    y = plan(x, plan.pack(w), out=out) if path == "packed" else ic.conv1d(x, w, out=out, **options)
    assert y is out
    np.testing.assert_array_equal(out, expected)
