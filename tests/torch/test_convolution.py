"""Convolutions and their gradients under `enable`, against torch's own kernels in float64."""

import functools
import warnings

import pytest

torch = pytest.importorskip("torch", minversion="2.13", reason="pip install '.[torch]'")

import implicit_conv.torch as door  # noqa: E402

F = torch.nn.functional

EPS = {torch.float64: 1e-13, torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
CONVOLUTIONS = {False: (F.conv1d, F.conv2d, F.conv3d)}
CONVOLUTIONS[True] = F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d
# (C, K, groups, size, taps, options), each with its reason
WINDOWS = {
    "1x1": (6, 10, 1, 5, 1, {}),
    "same": (8, 8, 1, 7, 3, {"padding": 1}),
    "stride": (4, 6, 2, 9, 3, {"stride": 2, "padding": 1}),
    "dilation": (3, 5, 1, 9, 2, {"dilation": 3, "padding": 2}),
    "depthwise": (6, 6, 6, 6, 3, {"padding": 1}),
    "multiplied depthwise": (4, 8, 4, 6, 3, {}),
}
# Pairs that take a second each are slow, but one of each rank and of each dtype.
QUICK = (1, torch.float16), (2, torch.bfloat16), (2, torch.float32), (3, torch.float64)
KINDS = [
    pytest.param(rank, dtype, marks=[] if (rank, dtype) in QUICK else [pytest.mark.slow])
    for rank in (1, 2, 3)
    for dtype in EPS
]


def channels_last(tensor):
    """The tensor with its channels adjacent, for any number of axes."""
    last = (0, *range(2, tensor.dim()), 1)
    back = (0, tensor.dim() - 1, *range(1, tensor.dim() - 1))
    return tensor.permute(last).contiguous().permute(back)


def results(function, tensors, dtype):
    """y and the gradients of all tensors, for an exact gradient of y."""
    given = [t.detach().to(dtype).requires_grad_() for t in tensors]
    y = function(*given)
    dy = (torch.arange(y.numel(), dtype=torch.float64) % 5 - 2).reshape(y.shape).to(dtype)
    return [y.detach(), *torch.autograd.grad(y, given, dy)]


def check(function, tensors, dtype):
    """Compare with torch in float64, and strides with those of torch in `dtype`."""
    exact, own = (results(function, tensors, kind) for kind in (torch.float64, dtype))
    with door.enable():
        found = results(function, tensors, dtype)
    for ours, reference, theirs in zip(found, exact, own, strict=True):
        scale = reference.abs().max() + 1e-30
        assert ours.dtype == dtype and ours.shape == theirs.shape
        assert ((ours.double() - reference).abs().max() / scale) < EPS[dtype]
        if 1 not in ours.shape:  # the stride of one element has no meaning
            assert ours.stride() == theirs.stride()


@pytest.mark.parametrize("last", [False, True], ids=["contiguous", "channels_last"])
@pytest.mark.parametrize("transposed", [False, True], ids=["conv", "conv_transpose"])
@pytest.mark.parametrize(("rank", "dtype"), KINDS)
def test_results_and_gradients(dtype, rank, transposed, last, ours):
    for C, K, groups, size, taps, options in WINDOWS.values():
        filters = (C, K // groups) if transposed else (K, C // groups)
        x, w = torch.randn(2, C, *[size] * rank), torch.randn(*filters, *[taps] * rank)
        if last:
            x, w = channels_last(x), channels_last(w)
        more = {"output_padding": 1} if transposed and options.get("stride") == 2 else {}
        convolve, before = CONVOLUTIONS[transposed][rank - 1], len(ours)

        function = functools.partial(convolve, groups=groups, **options, **more)
        check(function, (x, w, torch.randn(K)), dtype)
        assert len(ours) - before == 3, "y, dx and dw are ours"


@pytest.mark.parametrize("of_x", [0, 1, 2])
@pytest.mark.parametrize("of_w", [0, 1])
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_strides_of_results_are_those_of_torch(rank, of_w, of_x):
    """x and w: contiguous, channels last, or every other element of a larger tensor."""
    x, w = torch.randn(2, 4, *[6] * rank), torch.randn(6, 4, *[3] * rank)
    x = (x, channels_last(x), torch.randn(2, 4, *[6] * rank, 2)[..., 1])[of_x]
    w = (w, channels_last(w))[of_w]
    convolve = CONVOLUTIONS[False][rank - 1]
    check(convolve, (x, w), torch.float32)
    dy = torch.ones(()).expand(convolve(x, w).shape)
    arguments = dy, x, w, None, [1] * rank, [0] * rank, [1] * rank, False, [0] * rank, 1
    expected = torch.ops.aten.convolution_backward(*arguments, [True, True, False])
    with door.enable():
        found = torch.ops.aten.convolution_backward(*arguments, [True, True, False])
    for mine, theirs in zip(found[:2], expected, strict=False):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)
    assert found[2] is None


def test_parts_of_the_gradients(ours):
    """What nobody asks for is not computed."""
    x, w = torch.randn(1, 4, 5, 5), torch.randn(6, 4, 3, 3)
    with door.enable():
        y = F.conv2d(x.requires_grad_(), w)
        y.sum().backward()
        assert len(ours) == 2 and w.grad is None
        assert x.grad.shape == x.shape


def test_no_batch_inference_and_parameters(ours):
    conv = torch.nn.Conv2d(4, 6, 3, padding="same")
    x = torch.randn(4, 9, 9)
    expected = conv(x).detach()
    with door.enable():
        for mode in (torch.no_grad, torch.inference_mode, torch.enable_grad):
            with mode():
                y = conv(x)
                torch.testing.assert_close(y.detach(), expected)
                assert y.is_inference() is (mode is torch.inference_mode)
                assert y.requires_grad is (mode is torch.enable_grad)
    assert len(ours) == 3


def test_results_are_memory_of_torch():
    """It can be resized, and kernels of torch that want aligned vectors find them so."""
    with door.enable():
        y = F.conv2d(torch.randn(1, 4, 5, 5), torch.randn(6, 4, 3, 3))
    assert y.data_ptr() % 64 == 0
    assert y.resize_(3, 1000).shape == (3, 1000)


def test_memory_of_the_caller_may_still_be_resized():
    """FSDP frees parameters so; a numpy array of ``tensor.numpy()`` would forbid it for ever."""
    x, conv = torch.randn(1, 4, 5, 5), torch.nn.Conv2d(4, 6, 3)
    with door.enable(), torch.no_grad():
        conv(x)
    for tensor in (x, conv.weight.data, conv.bias.data):
        tensor.untyped_storage().resize_(0)


@pytest.mark.filterwarnings("ignore:`torch.jit")  # jvp's own
def test_transforms_of_functions(ours):
    x, w = torch.randn(3, 2, 4, 6, 6), torch.randn(6, 4, 3, 3)

    def loss(x, w):
        return F.conv2d(x, w, padding=1).square().sum()

    def every_result():
        maps = (
            torch.func.vmap(F.conv2d, (0, None))(x, w),
            torch.func.vmap(F.conv2d, (None, 0))(x[0], torch.stack([w, -w])),
        )
        tangent = torch.func.jvp(F.conv2d, (x[0], w), (x[1], -w))
        return *maps, *torch.func.grad(loss, (0, 1))(x[0], w), *tangent

    expected = every_result()
    with door.enable():
        found = every_result()
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-3)
    assert ours


@pytest.mark.filterwarnings("ignore:`torch.jit")
@pytest.mark.parametrize("transposed", [False, True])
def test_scripts(transposed, ours):
    """They call another operator, ``aten::_convolution``, which also has what we decline."""
    kind = torch.nn.ConvTranspose2d if transposed else torch.nn.Conv2d
    conv, x = kind(4, 6, 3), torch.randn(2, 4, 7, 7)
    traced = torch.jit.trace(conv, x)
    y = conv(x)
    expected = y.detach(), torch.autograd.grad(y.sum(), conv.weight)[0]
    with door.enable():
        y = traced(x)
        found = y.detach(), torch.autograd.grad(y.sum(), conv.weight)[0]
        assert traced(x[:0]).shape == (0, *y.shape[1:])
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-3)
    assert len(ours) == 2


@pytest.mark.parametrize("dtype", EPS)
def test_strided_and_unaligned_biases(dtype, ours):
    x, w = torch.randn(1, 4, 5, 5, dtype=dtype), torch.randn(6, 4, 3, 3, dtype=dtype)
    data = bytearray(1) + bytearray(torch.randn(6, dtype=dtype).view(torch.uint8).numpy())
    shifted = torch.frombuffer(data, dtype=dtype, offset=1)
    for bias in (torch.randn(12, dtype=dtype)[::2], torch.ones((), dtype=dtype).expand(6), shifted):
        expected = F.conv2d(x.double(), w.double(), bias.double())
        with door.enable():
            found = F.conv2d(x, w, bias)
        scale = float(expected.abs().max())
        torch.testing.assert_close(found.double(), expected, rtol=0, atol=EPS[dtype] * scale)
    assert len(ours) == 3


def test_second_derivatives():
    x = torch.randn(1, 2, 4, 4, dtype=torch.float64, requires_grad=True)
    w = torch.randn(4, 1, 2, 2, dtype=torch.float64, requires_grad=True)

    def convolve(x, w):
        return F.conv2d(x, w, stride=2, padding=1, groups=2)

    with door.enable():
        assert torch.autograd.gradcheck(convolve, (x, w))
        assert torch.autograd.gradgradcheck(convolve, (x, w))


def test_default_devices_and_dtypes_change_nothing():
    x, w = torch.randn(1, 4, 5, 5), torch.randn(6, 4, 3, 3)
    expected = F.conv2d(x, w)
    torch.set_default_dtype(torch.float64)
    try:
        with door.enable(), torch.device("meta"):
            y = F.conv2d(x, w)
    finally:
        torch.set_default_dtype(torch.float32)
    torch.testing.assert_close(y, expected)


X, W = torch.randn(1, 4, 5, 5), torch.randn(6, 4, 3, 3)
WRONG = {
    "channels": lambda: F.conv2d(X, torch.randn(6, 3, 3, 3)),
    "groups": lambda: F.conv2d(X, W, groups=3),
    "axes": lambda: F.conv2d(torch.randn(1, 1, 4, 5, 5), W),
    "dtypes": lambda: F.conv2d(X, W.double()),
    "bias": lambda: F.conv2d(X, W, torch.zeros(5)),
    "bias dtype": lambda: F.conv2d(X, W, torch.zeros(6, dtype=torch.float64)),
    "bias axes": lambda: F.conv2d(X, W, torch.zeros(1, 6)),
    "large filter": lambda: F.conv2d(X, torch.randn(6, 4, 7, 7)),
    "negative padding": lambda: F.conv2d(X, W, padding=-1),
    "zero stride": lambda: F.conv2d(X, W, stride=0),
    "zero dilation": lambda: F.conv2d(X, W, dilation=0),
    "output padding": lambda: F.conv_transpose2d(X, torch.randn(4, 6, 3, 3), output_padding=1),
    "no groups": lambda: F.conv2d(X, W, groups=0),
}


@pytest.mark.parametrize("name", WRONG)
def test_errors_are_those_of_torch(name, ours):
    with pytest.raises(Exception) as expected:  # whichever torch raises
        WRONG[name]()
    with door.enable(), pytest.raises(type(expected.value)) as found:
        WRONG[name]()
    assert str(found.value) == str(expected.value)
    assert not ours


REFUSED = {
    "integers": lambda: F.conv2d(X.to(torch.int64), W.to(torch.int64)),
    "mkldnn": lambda: F.conv2d(X.to_mkldnn(), W).to_dense(),
    "mkldnn filter": lambda: F.conv2d(X.to_mkldnn(), W.to_mkldnn()).to_dense(),
    "empty batch": lambda: F.conv2d(X[:0], W),
    "no channels": lambda: F.conv2d(X[:, :0], W[:, :0]),
    "meta": lambda: torch.empty(F.conv2d(X.to("meta"), W.to("meta")).shape).zero_(),
    "few strides": lambda: torch.convolution(X, W, None, [1], [0], [1], False, [0], 1),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_ours_runs_the_kernel_of_torch(name, ours):
    expected = REFUSED[name]()
    with door.enable():
        assert torch.equal(REFUSED[name](), expected)
    assert not ours


def test_complex_numbers(ours):
    """torch computes them by three real convolutions, which are ours."""
    x, w = torch.randn(1, 4, 5, 5) * (1 + 2j), torch.randn(6, 4, 3, 3) * (2 - 1j)
    expected = F.conv2d(x, w)
    with door.enable():
        torch.testing.assert_close(F.conv2d(x, w), expected, rtol=1e-4, atol=1e-4)
    assert len(ours) == 3


def test_unaligned_memory(ours):
    """Compiled code reads aligned elements; the step is known from aligned tensors."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the bytes are not writable
        whole = torch.frombuffer(X.numpy().tobytes() + bytes(4), dtype=torch.uint8)
        shifted = torch.frombuffer(bytes(1) + X.numpy().tobytes(), dtype=torch.float32, offset=1)
    assert whole.numel() and shifted.data_ptr() % 4
    expected = F.conv2d(X, W)
    with door.enable():
        F.conv2d(X, W)
        torch.testing.assert_close(F.conv2d(shifted.reshape(X.shape), W), expected)
    assert len(ours) == 1


def test_negated_and_expanded_tensors():
    """Lazy negation is resolved before a kernel is called; strides of zero are read in place."""
    z = torch.randn(1, 4, 5, 5, dtype=torch.complex64)
    lazy = z.conj().imag
    assert lazy.is_neg()
    for x in (lazy, torch.randn(1, 1, 5, 5).expand(3, 4, 5, 5)):
        check(F.conv2d, (x, W), torch.float32)


def test_threads_follow_torch(ours):
    before = torch.get_num_threads()
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            with door.enable():
                F.conv2d(torch.randn(1, 64, 40, 40), torch.randn(64, 64, 3, 3))
    finally:
        torch.set_num_threads(before)
    assert next(step.plan.arch.threads for step in ours) == 1
