"""Tensors of torch on the CPU: read in place with their bits resolved, and tensors as results."""

import re
import sys
import warnings
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from small_trials import of_every_operator

import implicit_conv as ic
from implicit_conv.arrays.libraries import as_library_of
from implicit_conv.testing import Case
from implicit_conv.testing.check import verify
from implicit_conv.testing.trial import inputs

torch = pytest.importorskip("torch")

CASE = Case(N=2, C=5, K=7, size=(9, 11))
NAMES = ("float32", "float64", "float16", "bfloat16")


def tensors(dtype="float32", case=CASE):
    """(x, w, the exact result in float64), of small integers."""
    x, w = case.inputs(0, integers=True)
    kind = getattr(torch, dtype)
    return *(torch.from_numpy(a).to(kind) for a in (x, w)), case.reference(x, w)


def in_numpy(tensor):
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return tensor.numpy()


def check(y, expected, dtype="float32"):
    assert type(y) is torch.Tensor and y.dtype == getattr(torch, dtype) and y.device.type == "cpu"
    exact = torch.from_numpy(np.asarray(expected)).to(torch.float32).to(y.dtype)
    assert torch.equal(y, exact)


@pytest.mark.parametrize("dtype", NAMES)
def test_a_result_is_a_tensor_where_x_is_one(dtype):
    x, w, expected = tensors(dtype)
    plan = ic.plan_conv2d(x.shape, w.shape, dtype)
    for filters in (w, in_numpy(w)):
        check(ic.conv2d(x, filters), expected, dtype)
        check(plan(x, filters), expected, dtype)
        check(plan(x, plan.pack(filters)), expected, dtype)


@pytest.mark.parametrize("dtype", NAMES)
def test_a_result_is_an_array_where_x_is_one(dtype):
    x, w, expected = tensors(dtype)
    image, plan = in_numpy(x), ic.plan_conv2d(x.shape, w.shape, dtype)
    expected = expected.astype(np.float32).astype(image.dtype)
    for y in (ic.conv2d(image, w), plan(image, w), plan(image, plan.pack(w))):
        assert type(y) is np.ndarray and y.dtype == image.dtype
        np.testing.assert_array_equal(y, expected)


def test_layouts_dtypes_and_missing_batches_of_results():
    x, w, expected = tensors()
    check(ic.conv2d(x.contiguous(memory_format=torch.channels_last), w), expected)
    check(ic.conv2d(x[0], w), expected[0])
    check(ic.conv2d(x.permute(0, 2, 3, 1), w, layout="NHWC"), expected.transpose(0, 2, 3, 1))
    check(ic.conv2d(x.half(), w.half(), out_dtype="float32"), expected)
    check(ic.conv2d(x[:0], w), expected[:0])


def test_a_result_shares_the_memory_that_was_computed():
    x, y = torch.ones(1), np.ones((2, 3), np.float32)
    assert as_library_of(x, y).data_ptr() == y.ctypes.data
    y = y.astype(ml_dtypes.bfloat16)
    assert as_library_of(x, y).data_ptr() == y.ctypes.data


def test_a_subclass_is_a_tensor():
    class Image(torch.Tensor):
        pass

    x, w, expected = tensors()
    check(ic.conv2d(x.as_subclass(Image), w), expected)


def test_bias_and_residual_may_be_tensors():
    x, w, expected = tensors()
    bias, residual = torch.arange(7.0), torch.ones(expected.shape)
    plan = ic.plan_conv2d(x.shape, w.shape)
    summed = expected + np.arange(7)[:, None, None] + 1
    check(ic.conv2d(x, w, bias, residual=residual), summed)
    check(plan(x, plan.pack(w), bias, residual=residual), summed)


def negative(tensor):
    """A tensor of the same values, whose memory has the opposite sign."""
    bits = torch.complex(torch.zeros_like(tensor), -tensor).conj().imag
    assert bits.is_neg() and torch.equal(bits, tensor)
    return bits


def test_a_negative_bit_counts():
    x, w, expected = tensors()
    bias, residual = torch.arange(7.0), torch.ones(expected.shape)
    plan = ic.plan_conv2d(x.shape, w.shape)
    check(ic.conv2d(negative(x), w), expected)
    check(ic.conv2d(x, negative(w)), expected)
    check(plan(x, plan.pack(negative(w))), expected)
    check(plan(x, w, negative(bias)), expected + np.arange(7)[:, None, None])
    check(plan(x, w, residual=negative(residual)), expected + 1)
    assert torch.equal(ic.im2col(negative(x), 3), ic.im2col(x, 3))


def test_a_conjugate_bit_counts():
    z = torch.complex(torch.arange(12.0), torch.ones(12)).reshape(1, 1, 3, 4)
    columns = ic.im2col(z.conj(), 2)
    assert torch.equal(columns, ic.im2col(z.conj().resolve_conj(), 2))
    assert torch.equal(columns.imag, -torch.ones(6, 4))


@pytest.mark.parametrize("name", ["x", "w", "bias", "residual"])
def test_gradients_are_refused_by_name(name):
    x, w, expected = tensors()
    given = {"x": x, "w": w, "bias": torch.ones(7), "residual": torch.ones(expected.shape)}
    plan = ic.plan_conv2d(x.shape, w.shape)
    y = ic.conv2d(**given)
    recording = given | {name: torch.nn.Parameter(given[name])}
    for call in (ic.conv2d, plan):
        with pytest.raises(ic.PlanError, match=f"^{name} requires gradients") as caught:
            call(**recording)
        way_out = re.search(r"pass (\w+\.detach\(\))", str(caught.value)).group(1)
        assert torch.equal(call(**recording | {name: eval(way_out, {}, recording)}), y)


def other_tensors():
    """A name, a tensor that is no plain memory, and a part of its message."""
    from torch._subclasses import FakeTensorMode

    x = torch.ones(1, 2, 4, 5)
    yield "sparse", x.to_sparse(), "x is a tensor of layout torch.sparse_coo; pass x.to_dense()"
    yield "mkldnn", x.to_mkldnn(), "x is a tensor of layout torch._mkldnn; pass x.to_dense()"
    yield "meta", x.to("meta"), "x is on device meta"
    yield "float8", x.to(torch.float8_e4m3fn), "x is a Tensor of dtype torch.float8_e4m3fn, which"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch announces the end of quantized and nested tensors
        quantized = torch.quantize_per_tensor(x, 0.1, 0, torch.quint8)
        yield "quantized", quantized, "x is a quantized tensor; pass x.dequantize()"
        yield "nested", torch.nested.nested_tensor([x[0], x[0]]), "x is a Tensor that does not"
    with FakeTensorMode():
        yield "fake", torch.ones(1, 2, 4, 5), "x is a FakeTensor, whose memory is not its own"


@pytest.mark.parametrize(("x", "message"), [pytest.param(*c[1:], id=c[0]) for c in other_tensors()])
def test_tensors_that_are_no_plain_memory_are_refused_by_name(x, message):
    with pytest.raises((ic.DTypeError, ic.PlanError), match=f"^{re.escape(message)}"):
        ic.conv2d(x, np.ones((3, 2, 3, 3), np.float32))
    with pytest.raises((ic.DTypeError, ic.PlanError), match=f"^{re.escape(message)}"):
        ic.im2col(x, 3)


@pytest.mark.parametrize("dtype", [*NAMES, "int8", "uint8", "bool", "complex64"])
def test_columns_of_tensors_are_tensors(dtype):
    x = torch.arange(24).reshape(1, 2, 3, 4).to(getattr(torch, dtype))
    columns = ic.im2col(x, 2)
    assert type(columns) is torch.Tensor and columns.dtype == x.dtype
    exact = ic.im2col(np.arange(24).reshape(1, 2, 3, 4), 2)
    assert torch.equal(columns, torch.from_numpy(exact).to(x.dtype))
    image = ic.col2im(columns, (1, 2, 3, 4), 2)
    assert type(image) is torch.Tensor and image.dtype == x.dtype
    assert type(ic.im2col(in_numpy(x), 2)) is np.ndarray


@pytest.mark.parametrize("dtype", NAMES)
@of_every_operator
def test_operators_take_and_return_tensors(trial, dtype):
    trial = replace(trial, case=replace(trial.case, dtype=dtype))
    given, plan = inputs(trial), trial.plan()
    first, second = (as_tensor(array) for array in (given.first, given.second))
    for y in (trial.call(first, second), plan(first, second), trial.call(first, given.second)):
        assert type(y) is torch.Tensor and y.dtype == first.dtype
        verify(trial, given, in_numpy(y))
    y = trial.call(given.first, second)
    assert type(y) is np.ndarray
    verify(trial, given, y)


def as_tensor(array):
    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def test_out_is_a_numpy_array():
    x, w, expected = tensors()
    out, plan = torch.full(expected.shape, float("nan")), ic.plan_conv2d(x.shape, w.shape)
    for call in (ic.conv2d, plan):
        with pytest.raises(ic.DTypeError, match=r"out must be a numpy array, not Tensor.*out\.nu"):
            call(x, w, out=out)
        view = out.numpy()
        assert call(x, w, out=view) is view
        check(out, expected)


@pytest.mark.parametrize("mode", ["no_grad", "inference_mode"])
def test_parameters_are_read_where_no_gradients_are_recorded(mode):
    x, w, expected = tensors()
    bias = torch.nn.Parameter(torch.arange(7.0))
    layer = torch.nn.Parameter(w)
    with pytest.raises(ic.PlanError, match=r"^w requires gradients.*torch\.no_grad"):
        ic.conv2d(x, layer)
    with getattr(torch, mode)():
        check(ic.conv2d(x, layer, bias), expected + np.arange(7)[:, None, None])


def python_calls(function):
    """How many Python functions a repeated call enters."""
    function()
    function()
    entered = []
    sys.setprofile(lambda frame, event, argument: event == "call" and entered.append(frame))
    try:
        function()
    finally:
        sys.setprofile(None)
    return len(entered)


def test_a_kept_call_costs_at_most_twice_that_of_numpy():
    x, w, _ = tensors()
    bias, image, filters = torch.ones(7), x.numpy(), w.numpy()
    plan = ic.plan_conv2d(x.shape, w.shape)
    packed = plan.pack(w)
    pairs = {
        "conv2d": (lambda: ic.conv2d(x, w), lambda: ic.conv2d(image, filters)),
        "plan": (lambda: plan(x, packed), lambda: plan(image, packed)),
        "bias": (lambda: ic.conv2d(x, w, bias), lambda: ic.conv2d(image, filters, bias.numpy())),
    }
    for name, (ours, theirs) in pairs.items():
        assert python_calls(ours) <= 2 * python_calls(theirs), name
        assert torch.equal(ours(), torch.from_numpy(theirs())), name


@pytest.mark.parametrize("dtype", NAMES)
@pytest.mark.parametrize("compiler", ["translator", pytest.param("njit", marks=pytest.mark.slow)])
def test_kept_calls_see_what_changed(dtype, compiler):
    """Values, memory, a filter, alignment; a bias of each dtype; strides and settings are keys."""
    for K, stride in ((7, 1), (32, 2)):
        case, options = replace(CASE, K=K), {"stride": stride}
        x, w, _ = tensors(dtype, case)
        bias = torch.arange(case.K).to(x.dtype)
        last = x.contiguous(memory_format=torch.channels_last)
        with ic.config(compiler=compiler):
            for image in (x, -x, last, x.clone(), last.clone()):
                for initial in (None, bias, bias.flip(0), torch.stack([bias, bias], 1)[:, 0]):
                    for filters in (w, w + 1, torch.nn.Parameter(w)):
                        exact = torch.nn.functional.conv2d(
                            image.double(),
                            filters.detach().double(),
                            None if initial is None else initial.double(),
                            **options,
                        )
                        with torch.no_grad():
                            y = ic.conv2d(image, filters, initial, **options)
                        check(y, exact.numpy(), dtype)
            if compiler == "njit":
                break


def test_a_kept_call_does_not_serve_what_was_refused():
    x, w, expected = tensors()
    ic.conv2d(x, w)
    check(ic.conv2d(x, w), expected)
    refused = {
        "requires gradients": (x, w.clone().requires_grad_()),
        "is on device meta": (x.to("meta"), w),
        "has layout|of layout": (x.to_sparse(), w),
    }
    for words, operands in refused.items():
        with pytest.raises((TypeError, ValueError), match=words):
            ic.conv2d(*operands)
    lazy = torch.complex(torch.zeros_like(x), -x).conj().imag
    assert lazy.is_neg()
    check(ic.conv2d(lazy, w), expected)
    data = bytearray(1) + bytearray(x.numpy())
    check(ic.conv2d(torch.frombuffer(data, dtype=x.dtype, offset=1).reshape(x.shape), w), expected)


def test_kept_calls_inside_transforms_of_functions():
    """Tensors without memory of their own must not be taken for plain ones."""
    x, w, expected = tensors()
    ic.conv2d(x, w)
    check(torch.func.functionalize(lambda _: ic.conv2d(x, w))(x), expected)
    with pytest.raises(TypeError, match="whose memory is not its own"):
        torch.func.functionalize(lambda image: ic.conv2d(image, w))(x)


def test_results_of_kept_calls_are_memory_of_torch():
    x, w, _ = tensors()
    ic.conv2d(x, w)
    y = ic.conv2d(x, w)
    assert y.resize_(3, 1000).shape == (3, 1000)
    given = x.clone()
    ic.conv2d(given, w)
    given.untyped_storage().resize_(0)
