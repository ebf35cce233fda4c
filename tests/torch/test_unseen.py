"""What our kernels do inside torch is unseen: by Dynamo, by function modes and by lazy clones."""

import contextlib

import pytest

torch = pytest.importorskip("torch", minversion="2.13", reason="pip install '.[torch]'")

import implicit_conv.torch as door  # noqa: E402
from implicit_conv import clear_plan_cache  # noqa: E402

F = torch.nn.functional
X, W = torch.randn(1, 16, 9, 9), torch.randn(16, 16, 3, 3)


def gradients(dy, x, w):
    options = [1, 1], [0, 0], [1, 1], False, [0, 0], 1
    return torch.ops.aten.convolution_backward(dy, x, w, None, *options, [True, True, False])


@contextlib.contextmanager
def block():
    yield


@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")  # its own
@pytest.mark.parametrize("is_known", [False, True])
def test_dynamo_traces_no_frame_of_ours(is_known, ours):
    """Where a graph breaks inside a block, Dynamo looks at every Python frame below."""

    def broken(x, w):
        with block():
            torch._dynamo.graph_break()
            return F.conv2d(x, w)

    def gradient(x, w):
        with block():
            torch._dynamo.graph_break()
            return gradients(torch.ones(1, 16, 7, 7), x, w)[1]

    def frames(function):
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        y = torch.compile(function, backend="eager")(X, W.clone())
        torch.testing.assert_close(y, expected, rtol=1e-4, atol=1e-4)
        return torch._dynamo.utils.counters["frames"]["total"]

    clear_plan_cache()
    for function in (broken, gradient):
        expected = function(X, W.clone())
        alone = frames(function)
        with door.enable():
            if is_known:
                function(X, W.clone())
            ours.clear()
            assert frames(function) == alone
            assert ours


class Names(torch.overrides.TorchFunctionMode):
    """The names of the functions that a mode sees."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_function__(self, function, types, args=(), kwargs=None):
        self.names.append(getattr(function, "__name__", str(function)))
        return function(*args, **(kwargs or {}))


@pytest.mark.filterwarnings("ignore:.*torch.jit.script")
def test_function_modes_see_what_they_see_without_us(ours):
    """A script calls operators beneath the mode, where Python would have left it."""
    script = torch.jit.script(torch.nn.Conv2d(16, 8, 3))
    parameter = torch.nn.Parameter(torch.randn(8, 16, 3, 3))

    def seen():
        with Names() as mode:
            y = script(X)
            torch.autograd.grad(y.sum(), script.weight)
            with torch.no_grad():
                F.conv2d(X, parameter)
        return mode.names

    clear_plan_cache()
    alone = seen()
    with door.enable():
        assert seen() == seen() == alone
    assert ours


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_lazy_clones_stay_lazy(dtype, ours, monkeypatch):
    """What is only read is not copied: images, filters, a bias, packed and plain, gradients."""
    monkeypatch.setattr("implicit_conv.torch.steps.COMPARED_PER_CYCLE", float("inf"))
    clear_plan_cache()
    shapes = (2, 64, 9, 9), (64, 64, 3, 3), (64,)
    lazy = [torch._lazy_clone(torch.randn(shape).to(dtype)) for shape in shapes]
    x, w, bias = lazy
    with torch.no_grad(), door.enable():
        F.conv2d(x, w, bias)
        F.conv2d(x[1:], torch.nn.Parameter(w), bias)
        F.conv_transpose2d(x, w, stride=2)
        gradients(torch.randn(2, 64, 7, 7).to(dtype), x, w)
    assert len(ours) == 5
    assert all(map(torch._C._is_cow_tensor, lazy))


def test_memory_that_was_freed_is_the_error_of_torch(ours):
    """As FSDP frees that of parameters: there is no address to read."""
    freed = W.clone()
    freed.untyped_storage().resize_(0)
    with door.enable():
        for w in (freed, torch.nn.Parameter(freed)):
            with torch.no_grad(), pytest.raises(RuntimeError, match="not allocated"):
                F.conv2d(X, w)
        bias = torch.ones(16)
        bias.untyped_storage().resize_(0)
        for added in (bias, torch.ones(16), torch.ones(16), bias):  # first and known calls
            raises = pytest.raises(RuntimeError, match="not allocated")
            with raises if added is bias else contextlib.nullcontext():
                F.conv2d(X, W, added)
