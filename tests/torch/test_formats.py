"""Training by compiled graphs, in which images have their channels last, against float64."""

import copy
import gc
import weakref

import pytest

torch = pytest.importorskip("torch", minversion="2.13", reason="pip install '.[torch]'")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch_graphs import Graphs  # noqa: E402

from implicit_conv.torch import backend as door  # noqa: E402
from implicit_conv.torch.formats import put_channels_last  # noqa: E402
from implicit_conv.torch.steps import Step  # noqa: E402

pytestmark = pytest.mark.usefixtures("compiles")
SHAPE = 2, 3, 26, 22
CLONE = torch.ops.aten.clone.default


@pytest.fixture
def copies(monkeypatch):
    """The numbers of images that graphs copy, in the order in which they were compiled."""
    found = []

    def counted(graph):
        put_channels_last(graph)
        found.append(sum(node.target is CLONE for node in graph.nodes))

    monkeypatch.setattr(door, "put_channels_last", counted)
    return found


class Network(nn.Module):
    """A stem, and what `then` computes of its image."""

    def __init__(self, then, **options):
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, padding=1)
        self.norm, self.pool = nn.BatchNorm2d(16, **options), nn.MaxPool2d(3, 2, 1)
        self.conv, self.gate = nn.Conv2d(16, 16, 3, padding=1, groups=2), nn.Conv2d(16, 16, 1)
        self.up, self.last = nn.ConvTranspose2d(16, 16, 2, 2), nn.BatchNorm2d(16)
        self.group, self.line = nn.GroupNorm(4, 16), nn.Linear(16, 8)
        self.then = then

    def forward(self, x):
        return self.then(self, self.pool(functional.relu(self.norm(self.stem(x)))))


def residual(net, x):
    y = functional.relu(net.last(net.conv(x)) + x, inplace=True)
    return net.line(functional.adaptive_avg_pool2d(y, 1).flatten(1))


def image(net, x):
    return net.last(net.conv(x))


def images_and_views(net, x):
    y = net.last(net.conv(x))
    return x, y.flatten(1), y, y.transpose(1, 3), y[:, 2:5]


def read_after_written(net, x):
    y = net.conv(x)
    z = functional.relu_(y)
    return net.last(y), z.mean(1), y.sum((0, 2, 3))


def concatenated(net, x):
    y = torch.cat([functional.avg_pool2d(x, 2), net.pool(net.conv(x))[:, :, :6, :5]], 1)
    return functional.hardswish(y), functional.interpolate(y, scale_factor=2.0)


def gated(net, x):
    gate = torch.sigmoid(net.gate(functional.adaptive_avg_pool2d(x, 1)))
    return functional.silu(net.last(net.conv(x * gate)))


def grouped_norms(net, x):
    return net.line(net.group(net.up(x)).permute(0, 2, 3, 1)), net.group(net.last(x))


def positions(net, x):
    y, at = functional.max_pool2d(net.last(x), 2, return_indices=True)
    return y, functional.max_unpool2d(y, at, 2, output_size=x.shape), y * at


THEN = residual, image, images_and_views, read_after_written, concatenated, gated
THEN += grouped_norms, positions


def step(model, x):
    """What a call returns, and all gradients of a sum of it, and the buffers after it."""
    model.zero_grad()
    x = x.detach().requires_grad_()
    results = model(x)
    results = results if isinstance(results, tuple) else (results,)
    of = torch.Generator().manual_seed(3)
    factors = [torch.randn(y.shape, generator=of).to(y.dtype) for y in results]
    sum((y * factor).sum() for y, factor in zip(results, factors, strict=True)).backward()
    of_weights = [each.grad for each in model.parameters() if each.grad is not None]
    return results, [x.grad, *of_weights, *model.buffers()]


def compare(compiled, model, x):
    """Compare a step of a compiled model with that of the model itself in float64. In float32 a
    rounding may switch an element of a ReLU on or off.
    """
    exact, bound = copy.deepcopy(model).double(), 1e-9 if x.dtype is torch.float64 else 0.02
    results, gradients = step(compiled, x)
    own, of_own = step(exact, x.double())
    for found, expected in zip([*results, *gradients], [*own, *of_own], strict=True):
        error = torch.linalg.vector_norm(found.double() - expected.double())
        assert error <= bound * (1 + torch.linalg.vector_norm(expected.double()))
    assert [y.stride() for y in results] == [y.stride() for y in own]
    return results


@pytest.mark.parametrize("then", THEN)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("form", [torch.contiguous_format, torch.channels_last])
def test_networks(then, dtype, form, copies):
    model = Network(then).to(dtype)
    compiled = torch.compile(model, backend=Graphs())
    for _ in range(2):
        compare(compiled, model, torch.randn(SHAPE, dtype=dtype).contiguous(memory_format=form))
    assert len(copies) == 1
    assert copies[0] > 0 or form is torch.channels_last


@pytest.mark.parametrize("calls", [1, 2, 3, 4, 33, 40])
def test_calls_that_come_again(calls, copies):
    """Each with new values, at new addresses."""
    model = Network(residual).double()
    compiled, held = torch.compile(model, backend=Graphs()), []
    for _ in range(calls):
        held.append(torch.randn(SHAPE, dtype=torch.float64))
        held += compare(compiled, model, held[-1])
    assert copies == [3]  # the image, its gradient, and that of the mean


def test_sizes_that_are_known_later_stay_contiguous(copies):
    model = Network(residual)
    compiled = torch.compile(model, backend=Graphs(), dynamic=True)
    for size in (26, 20):
        compare(compiled, model, torch.randn(2, 3, size, size))
    assert copies == [0]


class Apart(nn.Module):
    """Batch norms between operators that look at strides."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16)

    def forward(self, x):
        y = self.conv(x).roll(1, -1)
        return self.norm(y).roll(1, -1)


class Heavy(nn.Module):
    """Images that are small beside a filter, if they have 8 x 8 pixels."""

    def __init__(self):
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 128, 1), nn.BatchNorm2d(128)
        self.conv = nn.Conv2d(128, 128, 3, padding=1)

    def forward(self, x):
        y = functional.max_pool2d(self.norm(self.stem(x)), 2)
        return self.conv(y).mean((2, 3))


@pytest.mark.parametrize(
    ("made", "shape", "expected"),
    [
        (Apart, SHAPE, 0),
        (Heavy, (2, 3, 8, 8), 0),
        (Heavy, (2, 3, 16, 16), 3),
    ],
)
def test_copies_that_take_longer_than_they_save(made, shape, expected, copies):
    model = made()
    compare(torch.compile(model, backend=Graphs()), model, torch.randn(shape))
    assert copies == [expected]


@pytest.mark.usefixtures("seen_calls")
def test_images_are_freed_while_gradients_are_computed(monkeypatch):
    """Each after its last use, so that gradients are written where it was."""
    run, images, left = Step.__call__, [], []

    def watched(step, a, b, *others):
        y = run(step, a, b, *others)
        if y.dim() == 4 and y.shape[0] == len(x):
            images.append(weakref.ref(y))
        left.append(sum(image() is not None for image in images))
        return y

    monkeypatch.setattr(Step, "__call__", watched)
    x = torch.randn(8, 3, 26, 22)
    y = torch.compile(Network(residual), backend=Graphs())(x)
    assert len(images) == left[-1] == 2
    y.sum().backward()
    gc.collect()
    assert len(left) == 5  # two convolutions, one gradient of an image, and two of filters
    assert left[-1] < 2
