"""Programs whose threads have lanes of their own, against the model in float64."""

import logging
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch_graphs import BOUNDS, check, randomize  # noqa: E402

from implicit_conv import config  # noqa: E402
from implicit_conv.kernels.cpu.runtime import active_threads  # noqa: E402
from implicit_conv.kernels.cpu.runtime.code import python_code  # noqa: E402
from implicit_conv.operators import pipeline  # noqa: E402
from implicit_conv.operators.lanes import CHANNELS, ROWS, SAMPLES  # noqa: E402
from implicit_conv.operators.strips import Strips  # noqa: E402
from implicit_conv.torch import switch  # noqa: E402

WIDTH = 48
run_counted = python_code(".runtime.compiled.start:RUN_COUNTED")
THREADS = 2, 3


@pytest.fixture(autouse=True)
def stages(monkeypatch, caplog):
    """The stages of the last program, which has lanes."""
    torch._dynamo.reset()
    found, in_lanes = [], pipeline.in_lanes

    def made(parts, arch):
        found[:] = in_lanes(parts, arch)
        return found

    monkeypatch.setattr(pipeline, "in_lanes", made)
    caplog.set_level(logging.DEBUG, "implicit_conv")
    yield found
    assert not [each for each in caplog.messages if each.startswith("no lanes")]
    torch._dynamo.reset()


class Block(nn.Module):
    """That of MobileNetV2 with the gate of EfficientNet, and the sum of x."""

    def __init__(self, *, gated=False, taps=3):
        super().__init__()
        self.before = nn.Sequential(
            *(nn.Conv2d(16, WIDTH, 1, bias=False), nn.BatchNorm2d(WIDTH), nn.SiLU()),
            nn.Conv2d(WIDTH, WIDTH, taps, 1, taps // 2, groups=WIDTH, bias=False),
            *(nn.BatchNorm2d(WIDTH), nn.ReLU6()),
        )
        gate = nn.Conv2d(WIDTH, 8, 1), nn.ReLU(), nn.Conv2d(8, WIDTH, 1), nn.Sigmoid()
        self.gate = nn.Sequential(nn.AdaptiveAvgPool2d(1), *gate) if gated else None
        self.after = nn.Sequential(nn.Conv2d(WIDTH, 16, 1), nn.BatchNorm2d(16))

    def forward(self, x):
        y = self.before(x)
        return x + self.after(y if self.gate is None else y * self.gate(y))


class Stem(nn.Module):
    """Windows of rows, and branches that are joined and added."""

    def __init__(self):
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(16, WIDTH, 3, 2, 1), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
        self.left = nn.Sequential(nn.Conv2d(WIDTH, 24, 3, 1, 1), nn.ReLU())
        self.right = nn.Sequential(nn.AvgPool2d(3, 1, 1), nn.Conv2d(WIDTH, 24, 1), nn.ReLU())
        self.other = nn.Sequential(nn.Conv2d(WIDTH, WIDTH, 1), nn.ReLU())
        self.last = nn.Conv2d(WIDTH, 32, 3, 1, 2, 2)

    def forward(self, x):
        x = self.first(x)
        return self.last(torch.cat([self.left(x), self.right(x)], 1) + self.other(x))


MODELS = {  # and the number of elements of their region
    "blocks": (9, lambda: nn.Sequential(Block(), Block(taps=5), Block())),
    "gates": (14, lambda: nn.Sequential(Block(gated=True), Block(gated=True))),
    "stem": (9, Stem),
    "strides": (
        6,
        lambda: nn.Sequential(
            *(nn.Conv2d(16, 32, 3, 2, 1), nn.Conv2d(32, 32, 3, 2, 1, groups=32), nn.ReLU()),
            *(nn.Conv2d(32, 64, 1), nn.Conv2d(64, 64, 5, 2, 2, groups=2), nn.AdaptiveAvgPool2d(1)),
            nn.Conv2d(64, 10, 1),
        ),
    ),
}
SHAPES = [(1, 16, 41, 37), (2, 16, 33, 20), (3, 16, 29, 31), (4, 16, 40, 32)]


@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", MODELS)
def test_models(name, shape, threads, stages):
    x = torch.randn(shape).to(memory_format=torch.channels_last)
    elements, made = MODELS[name]
    with config(num_threads=threads):
        check(randomize(made()), x, [elements], times=4)
    assert any(stage.tasks for stage in stages)


class OneByOne:
    """Threads of which each runs all that it can before the next one comes."""

    name, helpers, starter, runs = "a test", 1, 0, 0

    def __init__(self, first):
        self.first = first

    def run(self, entry, blob, threads):
        self.runs += 1
        for turn in range(threads):
            run_counted(entry, blob, (self.first + turn) % threads)


@pytest.mark.parametrize("shape", SHAPES[:2])
@pytest.mark.parametrize("first", [0, 2])
@pytest.mark.parametrize("name", MODELS)
def test_lanes_that_are_far_ahead(name, first, shape, monkeypatch):
    """A lane has done all of a segment before another one begins it."""
    team = OneByOne(first)
    monkeypatch.setattr(switch, "torch_team", lambda: team)
    elements, made = MODELS[name]
    with config(num_threads=3), active_threads.paused():
        check(randomize(made()), torch.randn(shape), [elements], times=2)
    assert team.runs


@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("name", MODELS)
def test_dtypes(name, dtype, stages):
    elements, made = MODELS[name]
    x = torch.randn(1, 16, 41, 37).to(dtype)
    with config(num_threads=2):
        check(randomize(made()).to(dtype), x, [elements])
    assert any(stage.tasks for stage in stages)


def test_calls_that_come_again(stages):
    """With new values at new addresses."""
    with config(num_threads=2):
        check(randomize(MODELS["gates"][1]()), torch.randn(3, 16, 21, 17), [14], times=40)
    assert any(stage.tasks for stage in stages)


def axes(stages):
    """The axis along which each stage is shared; None for one that is not."""
    return [stage.tasks[0].y.axis if stage.tasks else None for stage in stages]


def test_axes(stages):
    """Gates are computed by one lane, from means of which each lane has some channels."""
    model = randomize(Block(gated=True))
    with config(num_threads=2):
        check(model, torch.randn(1, 16, 41, 37), [7])
        rows, means, gates = [ROWS] * 2, [CHANNELS], [None] * 2
        assert axes(stages) == [*rows, *means, *gates, ROWS, ROWS]
        torch._dynamo.reset()
        check(model, torch.randn(4, 16, 41, 37), [7])
        assert axes(stages) == [*[SAMPLES] * 3, *gates, *[SAMPLES] * 2]
        torch._dynamo.reset()
        check(model, torch.randn(1, 16, 41, 37), [7], times=2)
    assert [stage.segment for stage in stages] == [0, 1, 2, 3, 4, 5, 5]


def test_samples_wait_for_nobody(stages):
    with config(num_threads=2):
        check(randomize(MODELS["blocks"][1]()), torch.randn(2, 16, 33, 20), [9])
    assert {stage.segment for stage in stages} == {0}


def test_large_filters_are_read_once(stages):
    """All threads share the filters of a layer that has more of them than pixels."""
    layers = [nn.Conv2d(16, 256, 1), nn.Conv2d(256, 256, 3, 1, 1), nn.Conv2d(256, 16, 1)]
    with config(num_threads=2):
        check(randomize(nn.Sequential(*layers)), torch.randn(1, 16, 30, 30), [3])
    assert axes(stages) == [ROWS, None, ROWS]


@pytest.mark.parametrize("threads", [2, 3])
@pytest.mark.parametrize("shape", [(1, 16, 61, 37), (2, 16, 61, 37), (3, 16, 41, 37)])
def test_strips_of_lanes(shape, threads, stages, monkeypatch):
    """Each lane has its own strips, which compute again what they read of another lane's rows."""
    small = replace(pipeline.cpu_arch(1), l2_bytes=128 << 10)
    monkeypatch.setattr(pipeline, "cpu_arch", lambda wanted: replace(small, threads=wanted or 1))
    with config(num_threads=threads):
        check(randomize(MODELS["blocks"][1]()), torch.randn(shape), [9], times=4)
    found = [each for stage in stages for each in stage.tasks if isinstance(each.operation, Strips)]
    assert any(len(each.operation.strips[0]) == 3 for each in found)


def test_same_bits_on_any_number_of_threads():
    model, x = randomize(MODELS["gates"][1]()), torch.randn(1, 16, 41, 37)
    results = []
    for threads in (1, *THREADS):
        torch._dynamo.reset()
        with config(num_threads=threads), torch.no_grad():
            options = {"precision": "strict", "choose": "always"}
            compiled = torch.compile(model, backend="implicit_conv", options=options)
            results.append(compiled(x))
    assert all(torch.equal(each, results[0]) for each in results)
