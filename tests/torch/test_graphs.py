"""Random functions that the backend of torch.compile takes, against the same ones in float64."""

import copy
import random

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

from implicit_conv.torch import backend as door  # noqa: E402
from implicit_conv.torch.region import BoundProgram  # noqa: E402

CHANNELS = 8  # of all images, but where steps take a part of them
BOUNDS = {torch.float64: 1e-11, torch.float32: 1e-4}
CONVOLUTIONS = {
    "pointwise": lambda c: nn.Conv2d(c, c, 1),
    "plain": lambda c: nn.Conv2d(c, c, 3, padding=1, bias=False),
    "depthwise": lambda c: nn.Conv2d(c, c, 3, padding=1, groups=c),
    "dilated": lambda c: nn.Conv2d(c, c, 3, padding="same", dilation=2),
    "reflected": lambda c: nn.Conv2d(c, c, 3, padding=1, padding_mode="reflect"),
    "smaller": lambda c: nn.Conv2d(c, c, 3, padding=1, stride=2),
    "larger": lambda c: nn.ConvTranspose2d(c, c, 4, padding=1, stride=2),
    "normed": lambda c: nn.Sequential(nn.Conv2d(c, c, 3, padding=1, bias=False), nn.BatchNorm2d(c)),
    "block": lambda c: nn.Sequential(nn.Conv2d(c, c, 1), nn.BatchNorm2d(c), nn.ReLU(inplace=True)),
}
ACTIVATIONS = {
    "relu": torch.relu,
    "relu_": torch.relu_,
    "leaky": lambda x: functional.leaky_relu(x, 0.2),
    "silu": functional.silu,
    "hardswish in place": lambda x: functional.hardswish(x, inplace=True),
    "sigmoid": torch.sigmoid,
    "clamped": lambda x: x.clamp(-1, 1),
    "dropout": lambda x: functional.dropout(x, 0.5, training=False),
}
VIEWS = {
    "transposed": lambda x: x.transpose(2, 3),
    "flipped": lambda x: x.flip(3),
    "flat": lambda x: x.reshape(x.shape[0], -1).view(x.shape),
    "swapped": lambda x: torch.cat(x.chunk(2, 1)[::-1], 1),
    "joined": lambda x: torch.cat([x[:, :3], torch.split(x, [3, x.shape[1] - 3], 1)[1]], 1),
    "rows": lambda x: x[:, :, 1:],
    "every other": lambda x: x[..., ::2] if x.shape[3] > 4 else x,
    "last": lambda x: x.contiguous(memory_format=torch.channels_last),
    "pooled": lambda x: functional.max_pool2d(x, 3, 1, 1),
    "padded": lambda x: functional.pad(x, (1, 0, 0, 1)),
    "gated": lambda x: x * x.mean((2, 3), keepdim=True).sigmoid(),
    "cast": lambda x: torch.tanh(x.double()).to(x.dtype),
}
SUMS = {
    "sum": lambda x, y: x + y,
    "scaled sum": lambda x, y: torch.add(x, y, alpha=2),
    "sum in place": lambda x, y: x.add_(y),
    "own sum": lambda x, y: x.__iadd__(y),
    "product": lambda x, y: x * y.sigmoid(),
    "difference": lambda x, y: x - y,
}
WRITES = {
    "scaled": lambda x: x.mul_(0.5),
    "scaled part": lambda x: x[:, :3].mul_(0.5),
    "item": lambda x: x.__setitem__((slice(None), 0), 1.0),
    "row": lambda x: x[:, :, 0].copy_(x[:, :, -1]),
}


class RandomGraph(nn.Module):
    """A function of an image that takes random steps, and has one result or two."""

    def __init__(self, seed):
        super().__init__()
        dice = self.dice = random.Random(seed)
        self.convs, self.steps = nn.ModuleList(), []
        for _ in range(dice.randint(3, 14)):
            kind = dice.choices(("conv", "act", "view", "sum", "write", "one"), (9, 5, 3, 5, 1, 1))[
                0
            ]
            tables = {"act": ACTIVATIONS, "view": VIEWS, "sum": SUMS, "write": WRITES}
            name = dice.choice([*tables.get(kind, CONVOLUTIONS)])
            if kind == "one":  # an image without a batch
                name = "pointwise"
            if kind in ("conv", "one"):
                self.convs.append(CONVOLUTIONS[name](CHANNELS))
            # Most steps read what the last one computed.
            of = [-dice.choice((1, 1, 1, 1, 2, 3)), -dice.choice((1, 2, 2, 3, 4))]
            self.steps.append((kind, name, *of))
        self.two = dice.random() < 0.3
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for name, each in (*self.named_parameters(), *self.named_buffers()):
                if name.endswith("var"):
                    each.uniform_(0.5, 2, generator=generator)
                elif each.is_floating_point():
                    each.normal_(0, 0.3, generator=generator)
        self.eval()

    def forward(self, x):
        images, convs = [x * 1], iter(self.convs)
        for kind, name, first, second in self.steps:
            a = images[max(first, -len(images))]
            b = images[max(second, -len(images))]
            if kind == "conv":
                y = next(convs)(a)
            elif kind == "one":
                y = next(convs)(a[0]).unsqueeze(0).expand(a.shape)
                y = y.clone()
            elif kind == "act":
                y = ACTIVATIONS[name](a)
            elif kind == "view":
                y = VIEWS[name](a)
            elif kind == "write":
                WRITES[name](a)
                y = a
            elif a.shape == b.shape:
                y = SUMS[name](a, b)
            else:
                continue
            images.append(y)
        return (images[-1], images[len(images) // 2]) if self.two else (images[-1],)


FORMS = {
    "plain": lambda x: x,
    "last": lambda x: x.to(memory_format=torch.channels_last),
    "sliced": lambda x: functional.pad(x, (1, 2, 0, 0, 1, 1))[:, 1:-1, :, 1:-2],
    "transposed": lambda x: x.transpose(2, 3),
}


def check(seed, dtype):
    """Compare a random function of several images with its results in float64, and their strides
    with torch's.
    """
    torch._dynamo.reset()
    model = RandomGraph(seed).to(dtype)
    exact = copy.deepcopy(model).double()
    compiled = torch.compile(model, backend=ours, dynamic=model.dice.choice((None, False, True)))
    most = [1.0]
    for module in exact.convs:
        module.register_forward_hook(lambda *given: most.append(float(given[-1].abs().max())))
    for _ in range(3):
        x = torch.randn(model.dice.choice((1, 2)), CHANNELS, 9, 10).to(dtype)
        x = FORMS[model.dice.choice([*FORMS])](x)
        with torch.no_grad():
            own, found, expected = model(x), compiled(x), exact(x.double())
        for theirs, result, true in zip(own, found, expected, strict=True):
            assert (result.shape, result.dtype) == (theirs.shape, theirs.dtype)
            assert result.stride() == theirs.stride()
            bound = BOUNDS[dtype] * max(*most, float(true.abs().max()))
            assert bool(((result.double() - true).abs() <= bound).all()), model.steps
        if dtype is torch.float32:  # autocast leaves float64 as it is
            with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
                for theirs, result in zip(model(x), compiled(x), strict=True):
                    assert torch.equal(theirs, result)


def ours(graph, inputs):
    return door.backend(graph, inputs, options={"choose": "always"})


@pytest.mark.parametrize("seed", range(12))
def test_random_functions(seed):
    check(seed, torch.float32)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", BOUNDS)
def test_many_random_functions(dtype, monkeypatch):
    runs, run = [], BoundProgram.run
    monkeypatch.setattr(BoundProgram, "run", lambda *given: runs.append(1) or run(*given))
    for seed in range(100, 120):
        check(seed, dtype)
    assert len(runs) > 60, "most functions have programs"
