"""Steps as programs: a second call runs without arrays of numpy, with the bits of the first."""

import threading

import pytest

torch = pytest.importorskip("torch", minversion="2.13", reason="pip install '.[torch]'")

import implicit_conv.torch as door  # noqa: E402
from implicit_conv.cpu.run.call import compiled  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")
F = torch.nn.functional


@pytest.fixture
def programs(monkeypatch, seen_calls):
    """The programs that were run."""
    found, run = [], compiled().run

    def counted(*arguments):
        found.append(arguments)
        return run(*arguments)

    monkeypatch.setattr(compiled(), "run", counted)
    return found


def twice(call):
    """The results of the first and the second call, which are equal bits."""
    with door.enable(choose="always"):
        first, second = call(), call()
    for one, other in zip(first, second, strict=True):
        assert torch.equal(one, other) and one.stride() == other.stride()
    return first


CASES = {  # x, w, keywords
    "3x3": ((2, 5, 9, 9), (7, 5, 3, 3), {"padding": 1}),
    "Winograd": ((1, 32, 14, 14), (33, 32, 3, 3), {"padding": 1}),
    "1x1": ((1, 40, 7, 7), (23, 40, 1, 1), {}),
    "one pixel": ((1, 40, 1, 1), (23, 40, 1, 1), {}),
    "strided": ((1, 5, 11, 12), (6, 5, 3, 2), {"stride": (2, 3)}),
    "depthwise": ((1, 20, 9, 9), (20, 1, 3, 3), {"groups": 20, "padding": 1}),
    "groups": ((2, 12, 9, 9), (15, 4, 3, 3), {"groups": 3, "dilation": 2, "padding": 2}),
    "signal": ((2, 6, 50), (9, 6, 5), {"padding": 2}),
    "volume": ((1, 3, 4, 5, 6), (4, 3, 2, 3, 3), {"padding": 1}),
}


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_convolutions(name, dtype, biased, programs):
    x, w, options = CASES[name]
    x, w = torch.randn(x, dtype=dtype), torch.randn(w, dtype=dtype)
    bias = torch.randn(w.shape[0], dtype=dtype) if biased else None
    convolve = (F.conv1d, F.conv2d, F.conv3d)[x.dim() - 3]
    (found,) = twice(lambda: [convolve(x, w, bias, **options)])
    exact = convolve(x.double(), w.double(), None if bias is None else bias.double(), **options)
    near = {"rtol": 2e-2, "atol": 0.2} if dtype is torch.bfloat16 else {"rtol": 1e-3, "atol": 1e-3}
    torch.testing.assert_close(found.double(), exact, **near)
    assert len(programs) == 1


def test_images_with_channels_last(programs):
    x = torch.randn(2, 8, 9, 9).to(memory_format=torch.channels_last)
    w = torch.randn(20, 8, 3, 3).to(memory_format=torch.channels_last)
    twice(lambda: [F.conv2d(x, w, torch.ones(20))])
    twice(lambda: [F.conv2d(x, w, torch.ones(20))])
    assert len(programs) == 3


def test_strided_tensors(programs):
    """Elements that are apart, an offset, and a bias whose elements are apart."""
    x, w = torch.randn(2, 10, 12, 24)[:, ::2, 1:, ::2], torch.randn(8, 7, 3, 3)[2:, :5]
    bias = torch.randn(12)
    with door.enable(choose="always"):
        for added in (bias[3:9], bias[::2]):
            for _ in range(2):
                found = F.conv2d(x, w, added)
                exact = F.conv2d(x.double(), w.double(), added.double())
                torch.testing.assert_close(found.double(), exact, rtol=1e-3, atol=1e-3)
    assert len(programs) == 6  # of float32, and of float64, but the first


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("groups", [1, 2])
def test_transposed_convolutions_and_gradients(groups, biased, programs):
    """Those whose filters are copied, or whose fold adds the bias, run as before."""
    x = torch.randn(1, 6, 7, 7, requires_grad=True)
    w = torch.randn(6, 4, 4, 4, requires_grad=True)
    bias = torch.randn(4 * groups) if biased else None

    def call():
        y = F.conv_transpose2d(x, w, bias, 2, 1, groups=groups)
        return [y.detach(), *torch.autograd.grad(y.square().sum(), (x, w))]

    found = twice(call)
    x, w = x.detach().double().requires_grad_(), w.detach().double().requires_grad_()
    bias = None if bias is None else bias.double()
    for own, exact in zip(found, call(), strict=True):
        torch.testing.assert_close(own.double(), exact, rtol=1e-3, atol=1e-2)
    assert programs


def test_threads_at_once():
    """Each run has a block of memory of its own."""
    x, w, bias = torch.randn(1, 24, 20, 20), torch.randn(40, 24, 3, 3), torch.randn(40)
    wrong = []
    with door.enable(choose="always"):
        expected = F.conv2d(x, w, bias)

        def work():
            for _ in range(100):
                if not torch.equal(F.conv2d(x, w, bias), expected):
                    wrong.append(1)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not wrong


def test_without_memory_a_call_runs_as_before(monkeypatch):
    x, w = torch.randn(1, 4, 6, 6), torch.randn(3, 4, 3, 3)
    monkeypatch.setattr(compiled(), "run", lambda *arguments: False)
    twice(lambda: [F.conv2d(x, w)])
