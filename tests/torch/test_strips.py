"""Chains of convolutions by strips of rows, against the model in float64 and the program without
strips.
"""

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch_graphs import BOUNDS, check, randomize  # noqa: E402

from implicit_conv import config  # noqa: E402
from implicit_conv.operators import pipeline  # noqa: E402
from implicit_conv.operators.strips import Strips  # noqa: E402

CHANNELS = 48
ROWS = 41  # which no number of strips divides
# The depthwise one's taps, stride, padding and dilation. Windows of 1 with a stride of 3 skip rows,
# the last ones keep more rows than they add.
WINDOWS = [(3, 1, 1, 1), (3, 2, 1, 1), (5, 2, 2, 1), (1, 3, 0, 1), (3, 1, 4, 2), (5, 1, 2, 1)]
FIRST = {"1x1": (1, 1, 0), "3x3": (3, 1, 1), "3x3/2": (3, 2, 2)}


@pytest.fixture(autouse=True)
def made(monkeypatch):
    """The strips that are made, for a CPU with a small L2."""
    torch._dynamo.reset()
    found, arch, steps = [], pipeline.cpu_arch(1), Strips.steps
    small = replace(arch, l2_bytes=160 << 10)
    monkeypatch.setattr(pipeline, "cpu_arch", lambda threads: replace(small, threads=threads or 2))
    monkeypatch.setattr(
        Strips, "steps", lambda self, *given: found.append(self) or steps(self, *given)
    )
    yield found
    torch._dynamo.reset()


def parts(first="1x1", window=WINDOWS[0]):
    taps, stride, padding, dilation = window
    size, step, pad = FIRST[first]
    depthwise = nn.Conv2d(
        CHANNELS, CHANNELS, taps, stride, padding, dilation, groups=CHANNELS, bias=False
    )
    return (
        *(nn.Conv2d(16, CHANNELS, size, step, pad), nn.SiLU()),
        *(depthwise, nn.BatchNorm2d(CHANNELS), nn.ReLU6()),
    )


def chain(*given):
    return randomize(nn.Sequential(*parts(*given)))


class Block(nn.Module):
    """That of MobileNetV2, with the sum."""

    def __init__(self):
        super().__init__()
        self.branch = nn.Sequential(*parts(), nn.Conv2d(CHANNELS, 16, 1), nn.BatchNorm2d(16))

    def forward(self, x):
        return x + self.branch(x)


@pytest.mark.parametrize(
    ("first", "window"),
    [
        *(("1x1", each) for each in WINDOWS),
        *zip(FIRST, WINDOWS[:3], strict=True),
        ("3x3", WINDOWS[5]),
    ],
)
def test_windows(window, first, made):
    scale = FIRST[first][1]
    x = torch.randn(2, 16, scale * ROWS, scale * 37)
    with config(num_threads=1):
        check(chain(first, window), x, [2])
    assert made
    assert all(len(each.strips) > 1 for each in made)


@pytest.mark.parametrize("dtype", BOUNDS)
def test_dtypes(dtype, made):
    with config(num_threads=1):
        check(chain().to(dtype), torch.randn(1, 16, 3 * ROWS, 20).to(dtype), [2])
    assert made


@pytest.mark.parametrize(
    ("shape", "last"),
    [
        ((1, 16, ROWS, 37), torch.contiguous_format),
        ((3, 16, ROWS, 37), torch.channels_last),
        ((12, 16, 9, 8), torch.channels_last),
        ((13, 16, 9, 8), torch.contiguous_format),
    ],
)
def test_blocks(shape, last, made):
    """Three convolutions, and the sum of x: by strips of an image, and by some images at once."""
    model = randomize(nn.Sequential(Block(), Block()))
    with config(num_threads=1):
        check(model, torch.randn(shape).to(memory_format=last), [6], times=5)
    assert [len(each.strips[0]) for each in made] == [3, 3]
    assert made[0].samples == {12: 4}.get(shape[0], 1)


def test_same_bits(made, monkeypatch):
    x, model = torch.randn(2, 16, ROWS, 37), randomize(nn.Sequential(Block(), Block()))
    with config(num_threads=1), torch.no_grad():
        y = torch.compile(model, backend="implicit_conv")(x)
        assert made
        made.clear()
        torch._dynamo.reset()
        monkeypatch.setattr(pipeline, "in_strips", lambda parts, arch: dict(parts))
        plain = torch.compile(model, backend="implicit_conv")(x)
    assert not made
    assert torch.equal(y, plain)


def test_calls_that_come_again(made):
    """With new values at new addresses."""
    with config(num_threads=1):
        check(randomize(Block()), torch.randn(3, 16, ROWS, 37), [3], times=40)
    assert made


def test_two_threads_hold_twice_as_much(made):
    with config(num_threads=2):
        check(chain(), torch.randn(1, 16, ROWS, 37), [2])
    assert {len(each.strips) for each in made} == {len(each.strips[0]) for each in made} == {1}


def test_other_readers(made):
    """The image between is read a second time."""

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Conv2d(16, 48, 1), nn.Conv2d(48, 48, 3, 1, 1, groups=48)

        def forward(self, x):
            y = self.first(x)
            return y + self.second(y)

    with config(num_threads=1):
        check(randomize(Model()), torch.randn(1, 16, ROWS, 37), [2])
    assert not made
