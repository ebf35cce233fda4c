"""Linear layers of compiled graphs, against the same modules in float64."""

import copy

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch_graphs import ALWAYS, BOUNDS, Graphs, check, compare, programs, randomize  # noqa: E402

from implicit_conv import config  # noqa: E402
from implicit_conv.torch import regions  # noqa: E402

SHAPES = [(7, 24), (2, 5, 24), (2, 3, 4, 24), (1, 24), (1, 1, 24), (3, 1, 24), (1, 5, 1, 24)]


@pytest.fixture(autouse=True)
def compiles(monkeypatch):
    """Small layers count too."""
    monkeypatch.setattr(regions, "LINEAR_FLOPS", 0)
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


class Feedforward(nn.Module):
    """The second half of a transformer's block."""

    def __init__(self, activation=None, bias=False):
        super().__init__()
        self.first, self.second = nn.Linear(24, 40), nn.Linear(40, 24, bias=bias)
        self.activation, self.dropout = activation or nn.GELU(), nn.Dropout(0.1)

    def forward(self, x):
        return x + self.dropout(self.second(self.dropout(self.activation(self.first(x)))))


@pytest.mark.parametrize("shape", SHAPES)
def test_shapes(shape):
    check(randomize(Feedforward()), torch.randn(shape), [2], times=4)


@pytest.mark.parametrize("dtype", BOUNDS)
def test_dtypes(dtype):
    check(randomize(Feedforward(bias=True)).to(dtype), torch.randn(2, 9, 24).to(dtype), [2])


@pytest.mark.parametrize("threads", [1, 2])
def test_calls_that_come_again(threads):
    with config(num_threads=threads):
        check(randomize(Feedforward(nn.SiLU())), torch.randn(3, 50, 24), [2], times=40)


@pytest.mark.parametrize("change", ["in place", "by data", "replaced", "optimiser"])
def test_weights_that_change(change):
    model, graphs = randomize(Feedforward(bias=True)), Graphs()
    compiled, x = torch.compile(model, backend=graphs), torch.randn(2, 9, 24)
    optimiser = torch.optim.Adam(model.parameters(), fused=True)
    for each in model.parameters():
        each.grad = torch.randn_like(each)
    for number in range(6):
        compare(model, compiled, x)
        with torch.no_grad():
            if change == "in place":
                model.first.weight.mul_(0.5)
            elif change == "by data":
                model.second.weight.data = torch.randn(24, 40)
            elif change == "replaced":
                model.first.bias = nn.Parameter(torch.randn(40))
            else:
                optimiser.step()
        if number > 1:
            compare(model, compiled, x)
    assert graphs.regions


class Projection(nn.Module):
    """The image's pixels as tokens, as vision transformers have them."""

    def __init__(self):
        super().__init__()
        self.patches, self.linear = nn.Conv2d(3, 24, 4, 4), nn.Linear(24, 30)

    def forward(self, x):
        tokens = self.patches(x).flatten(2).transpose(1, 2)
        return self.linear(tokens).relu()


def test_behind_a_convolution():
    """Tokens whose channels are not contiguous, in a region of their own."""
    check(randomize(Projection()), torch.randn(1, 3, 16, 12), [1, 1], times=4)


def test_pixels_with_several_distances():
    """Which torch computes."""
    x = torch.randn(4, 6, 5, 24)[:, ::2, ::2]
    model, graphs = randomize(nn.Linear(24, 8)), Graphs()
    compiled = torch.compile(model, backend=graphs)
    for _ in range(3):
        compare(model, compiled, x)
    (function,) = graphs.functions
    assert [each for each in programs(function) if each is not None] == []


class Normed(nn.Module):
    """A batch norm, whose channels are the second axis of what linear layers have last."""

    def __init__(self):
        super().__init__()
        self.linear, self.norm = nn.Linear(24, 9), nn.BatchNorm1d(9)

    def forward(self, x):
        return self.norm(self.linear(x)).relu()


def test_batch_norms_are_none_of_it():
    for shape in (9, 24), (2, 9, 24):
        torch._dynamo.reset()
        check(randomize(Normed()), torch.randn(shape), [1])


class Pair(nn.Module):
    """One weight for two layers, and a result that is read in the middle."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(24, 24)

    def forward(self, x):
        y = self.linear(x)
        return torch.cat([y, self.linear(y.relu()) + y], -1)


def test_shared_weights_and_other_readers():
    check(randomize(Pair()), torch.randn(2, 5, 24), [1, 1], times=4)


def test_dropout_that_drops_is_torchs():
    model = randomize(Feedforward()).train()
    model.dropout.p = 1.0
    check(model, torch.randn(2, 9, 24), [1, 1])


def test_small_layers_are_torchs(monkeypatch):
    monkeypatch.undo()
    check(randomize(Feedforward()), torch.randn(2, 9, 24), [])


def test_many_bytes_of_weights_are_torchs(monkeypatch):
    monkeypatch.setattr(regions, "LINEAR_BYTES", 4 * (24 * 40 + 40 * 24) - 1)
    check(randomize(Feedforward()), torch.randn(2, 9, 24), [])


def test_gradients_are_torchs():
    model, x = Feedforward().eval(), torch.randn(2, 9, 24, requires_grad=True)
    compiled = torch.compile(copy.deepcopy(model), backend="implicit_conv", options=ALWAYS)
    own, theirs = (torch.autograd.grad(each(x).square().sum(), x)[0] for each in (compiled, model))
    torch.testing.assert_close(own, theirs)


def test_sizes_that_change():
    model, graphs = randomize(Feedforward()), Graphs()
    compiled = torch.compile(model, backend=graphs)
    for size in (9, 10, 31, 64, 9, 10):
        compare(model, compiled, torch.randn(2, size, 24))
    assert len(graphs.graphs) <= 2
