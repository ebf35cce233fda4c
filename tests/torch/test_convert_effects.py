"""Converted models have the effects that they had, and everyday code has programs."""

import collections
import copy
import functools
import itertools
import random
import types

import numpy as np
import pytest

torch = pytest.importorskip("torch", minversion="2.13", reason="pip install '.[torch]'")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

import implicit_conv.torch as door  # noqa: E402

pytestmark = [
    pytest.mark.usefixtures("compiles"),
    pytest.mark.filterwarnings("ignore:Dynamo "),  # which says what it leaves to Python
]

LAST = {}
COUNT = 0
STREAM = random.Random(0)
halves = functools.partial(STREAM.uniform, 0.0, 0.5)


class Model(nn.Module):
    """Has what the effects below write to."""

    calls = 0

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.space = types.SimpleNamespace(value=0)
        self.window = collections.deque()  # torch 2.13 lets bounded ones grow
        self.nested, self.groups = {"a": {"b": []}}, {"seen": set()}
        self.iterator, self.numbers = itertools.count(), [[0]]
        self.noise = np.random.default_rng(0)


def store(self, y):
    self.space.value += 1
    return y * self.space.value


def append(self, y):
    self.window.append(y.shape[1])
    return y * len(self.window)


def add_in_place(self, y):
    numbers = self.numbers[0]
    numbers += [1]
    return y * len(numbers)


def write_class(self, y):
    type(self).calls += 1
    return y * type(self).calls


def write_global(self, y):
    global COUNT  # noqa: PLW0603
    COUNT += 1
    return y * COUNT


def write_dict(self, y):
    LAST["calls"] = LAST.get("calls", 0) + 1
    return y * LAST["calls"]


def draw(self, y):
    return y if random.random() < 0.5 else -y


def draw_by_numpy(self, y):
    return y * self.noise.random()


def draw_partly(self, y):
    return y * halves()


def step(self, y):
    return y * next(self.iterator)


def in_a_helper(self, y):
    return append(self, y)


def caught(self, y):
    try:
        return y if y.sum() > 0 else -y
    except Exception:
        return y


EFFECTS = [
    *(store, append, add_in_place, write_class, write_global, write_dict, draw, draw_by_numpy),
    *(draw_partly, step, in_a_helper, caught),
]


def with_forward(base, code):
    """A class whose forward computes the convolution, and then `code` of it."""
    return type(code.__name__, (base,), {"forward": lambda self, x: code(self, self.conv(x))})


def results(model, inputs):
    """Those of calls that begin with the same state of all that is global."""
    global COUNT
    COUNT, type(model).calls = 0, 0
    LAST.clear()
    STREAM.seed(0)
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
    with torch.no_grad():
        return [model(x) for x in inputs]


@pytest.mark.parametrize("code", EFFECTS)
def test_effects_are_those_of_the_model(code):
    model = with_forward(Model, code)().eval()
    twin, inputs = copy.deepcopy(model), torch.randn(6, 1, 3, 6, 6)
    expected = results(twin, inputs)
    door.convert(model)
    torch.testing.assert_close(results(model, inputs), expected, rtol=1e-4, atol=1e-4)


class Everyday(nn.Module):
    """Has what the code below reads."""

    sizes = (1, 2)

    def __init__(self):
        super().__init__()
        self.conv, self.downsample = nn.Conv2d(3, 4, 3), None
        self.blocks = nn.ModuleList(nn.Conv2d(4, 4, 1) for _ in range(2))
        self.layer0, self.scales, self.act = nn.Conv2d(4, 4, 1), [1.0, 2.0], functional.relu
        self.config = types.SimpleNamespace(slope=0.1, mode="same")

    def scaled(self, y, scale=2.0):
        """A method that helps."""
        return y * scale

    @property
    def first(self):
        """The first block."""
        return self.blocks[0]

    @staticmethod
    def negative(y):
        """Without the module."""
        return -y


def helper(y, *others):
    return torch.cat([y, *others], 1)


def if_else(self, y):
    if self.training or self.downsample is not None:
        raise ValueError(f"{self.downsample} of {type(self).__name__}")
    return y if not torch.jit.is_scripting() else -y


def loops(self, y):
    for block in self.blocks:
        y = functional.relu(block(y))
    for n, scale in enumerate(self.scales):
        y = y * scale + n
    return y


def lists(self, y):
    found = [y]
    for block in self.blocks:
        found.append(block(found[-1]))
    return helper(*found), [block(y) for block in self.blocks]


def shapes(self, y):
    n, c = y.shape[:2]
    return y.view(n, c, -1).mean(-1), y.size(1), y.reshape(n, -1)


def methods(self, y):
    y = self.first(self.scaled(y, scale=self.sizes[1]))
    y += getattr(self, f"layer{0}")(y)
    return self.negative(self.act(y, inplace=True))


def configured(self, y):
    if self.config.mode == "same":
        y = functional.leaky_relu(y, self.config.slope)
    return {"y": y, "z": torch.flatten(functional.max_pool2d(y, 2), 1)}


def functions(self, y):
    inner = lambda z: torch.sigmoid(self.blocks[0](z))  # noqa: E731
    return torch.add(inner(y), y).clamp(min=0), functional.interpolate(y, scale_factor=2.0)


@pytest.mark.parametrize("code", [if_else, loops, lists, shapes, methods, configured, functions])
def test_everyday_code_has_programs(code, programs):
    model = with_forward(Everyday, code)().eval()
    twin, inputs = copy.deepcopy(model), torch.randn(3, 2, 3, 6, 6)
    door.convert(model)
    torch.testing.assert_close(results(model, inputs), results(twin, inputs), rtol=1e-4, atol=1e-4)
    assert programs
