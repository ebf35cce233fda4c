"""Prepared calls: they compute anew from the arrays that they keep, and refuse changed ones."""

import gc
import weakref

import numpy as np
import pytest

import implicit_conv as ic
from implicit_conv.testing import Case

CASES = {
    "in place": Case(C=24, K=32, size=(7, 9), kernel=(1, 1)),
    "packed in the launch": Case(C=5, K=20, size=(9, 11), kernel=(3, 3)),
    "packed before": Case(N=40, C=20, K=70, size=(15, 12), kernel=(3, 3), layout="NHWC"),
    "depthwise": Case(C=1, K=1, groups=24, size=(9, 11), kernel=(3, 3)),
    "float64": Case(C=5, K=4, size=(6, 7), kernel=(2, 3), dtype="float64"),
    "float16": Case(C=5, K=4, size=(6, 7), kernel=(2, 3), dtype="float16", layout="NHWC"),
    "int8": Case(C=8, K=20, size=(6, 7), kernel=(3, 3), dtype="int8"),
    "reflect": Case(C=5, K=4, size=(6, 7), kernel=(3, 3), padding=((1, 1), (1, 1))),
}


def arranged(name):
    """A plan, and exact x and w, with what NCHW they mean."""
    case = CASES[name]
    plain = case.inputs(0, integers=True)
    x, w = case.arrange(*plain)
    options = {**case.options, "padding_mode": "reflect"} if name == "reflect" else case.options
    return ic.plan_conv2d(x.shape, w.shape, x.dtype, **options), x, w, options


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "packed"])
@pytest.mark.parametrize("name", CASES)
def test_a_prepared_call_reads_its_arrays_anew(name, packed):
    plan, x, w, options = arranged(name)
    out = np.empty_like(ic.conv2d(x, w, **options))
    call = plan.prepare(x, plan.pack(w) if packed else w, out)
    assert call.out is out
    for _ in range(3):
        x[...] = np.roll(x, 1, axis=-1)
        out[...] = 99
        assert call() is out
        np.testing.assert_array_equal(out, ic.conv2d(x.copy(), w, **options))
    if not packed:
        w[...] = 0
        np.testing.assert_array_equal(call(), 0)


@pytest.mark.parametrize("name", ["in place", "packed in the launch", "packed before", "float64"])
def test_a_bias_is_copied_and_a_residual_is_read_anew(name):
    plan, x, w, options = arranged(name)
    plain = ic.conv2d(x, w, **options)
    bias = np.arange(CASES[name].K, dtype=x.dtype)
    added = bias if CASES[name].layout == "NHWC" else bias[:, None, None]
    residual, out = np.ones_like(plain), np.empty_like(plain)
    call = plan.prepare(x, plan.pack(w), out, bias, residual=residual)
    expected = plain + added
    bias[:] = 77
    for value in (1, 5):
        residual[...] = value
        np.testing.assert_array_equal(call(), expected + value)


def test_arrays_outlive_those_who_prepared():
    plan, x, w, _ = arranged("packed in the launch")
    expected = ic.conv2d(x, w)
    bias = np.arange(20, dtype=np.float32)
    call = plan.prepare(x.copy(), plan.pack(w), np.empty_like(expected), bias)
    del bias
    gc.collect()
    hold = [np.full_like(expected, 7) for _ in range(20)]
    np.testing.assert_array_equal(call(), expected + np.arange(20)[:, None, None])
    assert hold


VECTORS = {
    "none": lambda K: None,
    "a number": lambda K: 2.5,
    "a list": lambda K: [float(k) for k in range(K)],
    "an array": lambda K: np.arange(K, dtype=np.float32),
    "another dtype": lambda K: np.arange(K, dtype=np.int16),
    "strides": lambda K: np.arange(2 * K, dtype=np.float32)[::-2],
}


PAIRS = [(each, "none") for each in VECTORS] + [("none", each) for each in VECTORS]
PAIRS += [("a number", "a number"), ("strides", "another dtype")]


@pytest.mark.parametrize("packed, added", [(False, True), (True, False)])
@pytest.mark.parametrize("bias, scale", PAIRS)
@pytest.mark.parametrize("name", ["in place", "packed in the launch"])
def test_it_holds_all_that_it_reads(name, bias, scale, packed, added):
    """Whatever else had memory is freed, and what takes its place is full of other numbers."""
    plan, x, w, _ = arranged(name)
    count = CASES[name].K
    own = [VECTORS[each](count) for each in (bias, scale)]
    sums = ic.conv2d(x, w).astype(np.float64)
    shift, factor = (
        np.full(count, neutral) if each is None else np.broadcast_to(each, count)
        for each, neutral in zip(own, (0.0, 1.0), strict=True)
    )
    expected = factor[:, None, None] * sums + shift[:, None, None] + 3.0 * added
    residual = np.full_like(sums, 3, dtype=np.float32) if added else None
    filters = plan.pack(w.copy()) if packed else w.copy()
    out = np.empty_like(sums, dtype=np.float32)
    call = plan.prepare(x.copy(), filters, out, own[0], scale=own[1], residual=residual)
    del own, filters, residual
    gc.collect()
    for _ in range(3):
        full = [
            np.full(size, 7e7, np.float32) for size in (1, count, x.size, w.size) for _ in range(20)
        ]
        out[...] = np.nan
        np.testing.assert_array_equal(call(), expected)
        del full


def test_beside_a_scale_a_residual_is_read_in_place_or_refused():
    plan, x, w, _ = arranged("packed in the launch")
    out = np.empty_like(ic.conv2d(x, w))
    residual = np.asfortranarray(np.ones_like(out))
    np.testing.assert_array_equal(
        plan.prepare(x, w, out, scale=2, residual=residual.copy("C"))(), 2 * ic.conv2d(x, w) + 1
    )
    for arguments in ((out, residual), (np.asfortranarray(out), residual)):
        with pytest.raises(ic.PlanError, match="beside a scale residual and out are contiguous"):
            plan.prepare(x, w, arguments[0], scale=2, residual=arguments[1])


def test_changed_arrays_are_refused_by_their_names():
    plan, x, w, _ = arranged("packed in the launch")
    x, out = x.copy(), np.empty_like(ic.conv2d(x, w))
    residual = np.ones_like(out)
    packed = plan.pack(w)

    def prepared():
        return plan.prepare(x, packed, out, residual=residual)

    call, shape = prepared(), x.shape
    x.resize((1, 5, 9, 12), refcheck=False)
    with pytest.raises(ic.PlanError, match=r"^x has been resized.*prepare it again"):
        call()
    x.resize(shape, refcheck=False)
    call = prepared()
    out.flags.writeable = False
    with pytest.raises(ic.PlanError, match=r"^out has been resized"):
        call()
    out.flags.writeable = True
    assert call() is out
    residual.resize((2 * residual.size,), refcheck=False)
    with pytest.raises(ic.PlanError, match=r"^residual has been"):
        call()


def test_what_cannot_be_used_in_place_is_refused():
    plan, x, w, _ = arranged("packed in the launch")
    out = np.empty_like(ic.conv2d(x, w))
    wide = np.empty((1, 20, 7, 18), np.float32)[..., ::2]
    assert plan.prepare(x, w, wide)() is wide
    memory = np.empty(out.size + x.size, np.float32)
    over = memory[-x.size - 4 : -4].reshape(x.shape)
    over[...] = x
    for arguments in (
        (x.astype(">f4"), w, out),
        (x, w, out.astype(">f4")),
        (over, w, memory[-out.size :].reshape(out.shape)),
    ):
        with pytest.raises(ic.PlanError, match="in place can be prepared"):
            plan.prepare(*arguments)
    with pytest.raises(ic.ShapeError, match="x has shape"):
        plan.prepare(x[:, :, 1:], w, out)
    with pytest.raises(ic.DTypeError, match="out must be a numpy array"):
        plan.prepare(x, w, None)
    integers, x, w, _ = arranged("int8")
    out = integers(x, w)
    np.testing.assert_array_equal(
        integers.prepare(x, w, out.copy(), np.ones(20, np.int32))(), out + 1
    )
    with pytest.raises(ic.PlanError, match="integers have no residual"):
        integers.prepare(x, w, out.copy(), residual=out)


def test_gradients_and_transposed_convolutions_are_prepared_too():
    rng = np.random.default_rng(0)
    dy, w = (rng.integers(-3, 4, s).astype("f4") for s in ((2, 6, 5, 7), (6, 4, 3, 3)))
    x = rng.integers(-3, 4, (2, 4, 9, 13)).astype("f4")
    plan = ic.plan_conv_transpose2d(dy.shape, w.shape, stride=2)
    out = np.empty_like(plan(dy, w))
    packed = plan.pack(w)
    kept, prepared = weakref.ref(packed), plan.prepare(dy, packed, out)
    del packed
    gc.collect()
    assert kept() is not None
    np.testing.assert_array_equal(prepared(), plan(dy, w))
    plan = ic.plan_conv2d_weight_grad(x.shape, dy.shape, w.shape, stride=2, padding=1)
    out = np.empty_like(plan(x, dy))
    np.testing.assert_array_equal(plan.prepare(x, dy, out)(), plan(x, dy))


def test_a_repeated_call_takes_a_residual():
    """The second call is the first one again; each reads the residual that it gets."""
    plan, x, w, _ = arranged("packed in the launch")
    packed, plain = plan.pack(w), ic.conv2d(x, w)
    for value in (1, 2, 3):
        residual = np.full_like(plain, value)
        np.testing.assert_array_equal(plan(x, packed, residual=residual), plain + value)
        np.testing.assert_array_equal(ic.conv2d(x, w, residual=residual), plain + value)
    assert len(plan._calls) == 1
