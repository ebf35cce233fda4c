"""Training by compiled graphs in which torch expects other strides than its kernels write, against
the same modules in eager torch, in float64.
"""

import copy
import logging

import pytest

torch = pytest.importorskip("torch", minversion="2.13", reason="pip install '.[torch]'")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch_graphs import Graphs  # noqa: E402

pytestmark = pytest.mark.usefixtures("compiles", "one_thread")
HANDED_BACK = "torch computes a graph with gradients: view size is not compatible"


class Tokens(nn.Module):
    """A linear layer of the channels of each pixel, and what `then` computes of the image, whose
    channels are its last axis in memory.
    """

    def __init__(self, then):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)
        self.linear, self.then = nn.Linear(8, 8), then

    def forward(self, x):
        x = self.norm(self.conv(x)).movedim(1, -1).contiguous()
        return self.then(self.linear(x).movedim(-1, 1))


def step(model, x):
    """What a call returns, and its gradients, and the buffers after it."""
    model.zero_grad()
    x = x.detach().requires_grad_()
    results = model(x)
    results = results if isinstance(results, tuple) else (results,)
    of = torch.Generator().manual_seed(3)
    factors = [torch.randn(y.shape, generator=of, dtype=y.dtype) for y in results]
    torch.autograd.backward(results, factors)
    return [*results, x.grad, *(each.grad for each in model.parameters()), *model.buffers()]


def check(model, dynamic):
    """Compare four steps with new values, of which the last is that of another size."""
    model, own = model.double(), copy.deepcopy(model).double()
    compiled = torch.compile(model, backend=Graphs(), dynamic=dynamic)
    for size in (9, 9, 9, 12):
        x = torch.randn(2, 3, size, size + 1, dtype=torch.float64)
        for found, expected in zip(step(compiled, x), step(own, x), strict=True):
            assert torch.allclose(found, expected, rtol=1e-9, atol=1e-9)
            assert found.stride() == expected.stride()


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", ["relu6", "elu", "hardswish"])
def test_gradients_of_which_there_is_no_view(name, dynamic, caplog):
    activation = getattr(functional, name)
    with caplog.at_level(logging.DEBUG, "implicit_conv"):
        check(Tokens(lambda x: activation(x).flatten(1)), dynamic)
    assert HANDED_BACK not in caplog.text  # it stays ours


def once(x):
    return x.roll(1, -1).flatten(1)


def beside_it(x):
    y = x.roll(1, -1)
    return y, y.flatten(1), y.flatten(2)


def written_to_what_may_be_a_view(x):
    y = x.roll(1, -1)
    y.flatten(1).mul_(3)
    return y


def written_before(x):
    y = x.roll(1, -1)
    return y.mul_(2).flatten(1), y.flatten(2).mul_(3)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("then", [once, beside_it, written_to_what_may_be_a_view, written_before])
def test_images_of_which_there_is_no_view(then, dynamic, caplog):
    with caplog.at_level(logging.DEBUG, "implicit_conv"):
        check(Tokens(then), dynamic)
    assert HANDED_BACK in caplog.text
