"""Whole networks on a card: ResNet-50 by torch, by torch's compiler, and through our door.

The results of each way are compared with those of torch in float32 before it is timed. A way that
fails is named, and the others go on. Kernels come from a kit, as a card need not have compilers.
"""

from __future__ import annotations

import copy
import logging
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from torch import nn
from torch.nn import functional

from implicit_conv.gpu.cuda import cubin
from implicit_conv.kernels import sources
from implicit_conv.tools.rivals import WrongResultError
from implicit_conv.torch import cuda, enable
from implicit_conv.torch.backend import backend
from perf.bringup.kit import Kit
from perf.bringup.steps import NotRunError
from perf.networks import RESNET50_STAGES

LOG = logging.getLogger("implicit_conv")
DTYPE, LAST = torch.bfloat16, torch.channels_last
STATISTICS = 16  # images of which the statistics of the batch norms are
LAST_SCALE = 0.1  # of a block's last norm: what a block adds is small, as in networks with training
RATE = 1e-6  # of SGD: so small that the gradients of some steps are the same
CHECKED = 3  # calls of each way: a graph of CUDA is captured in the second, and replayed later
ROUNDS = 5
CALLS, SAMPLE_SECONDS = 20, 0.1  # calls of a sample at most, and about how long it takes
LATE = "not measured: it did not fit in the time"

Call = Callable[[], list[Any]]


class Network(NamedTuple):
    """A ResNet of bottlenecks: (width, input size, stride, blocks) of its stages."""

    name: str
    stages: Sequence[tuple[int, int, int, int]]
    classes: int

    @property
    def size(self) -> int:
        """Rows and columns of an image."""
        return 4 * self.stages[0][1]

    def images(self, count: int, device: str) -> Any:
        """Normally distributed images."""
        x = torch.randn(count, 3, self.size, self.size, device=device)
        return x.to(DTYPE, memory_format=LAST)

    def model(self, device: str) -> Any:
        """The network in eval mode with random weights, and statistics of random images."""
        torch.manual_seed(0)
        width = self.stages[0][0]
        parts: list[Any] = [nn.Conv2d(3, width, 7, 2, 3, bias=False), norm(width), nn.ReLU()]
        parts.append(nn.MaxPool2d(3, 2, 1))
        channels = width
        for width, _, stride, blocks in self.stages:
            for block in range(blocks):
                parts.append(Bottleneck(channels, width, stride if block == 0 else 1))
                channels = 4 * width
        ends = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, self.classes)
        model = nn.Sequential(*parts, *ends).to(device)
        with torch.no_grad():
            model(self.images(STATISTICS, device).float())
        return model.eval().to(DTYPE, memory_format=LAST)


class Bottleneck(nn.Module):  # type: ignore[misc]
    """A block of three convolutions; the 3x3 has the stride."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        filters = 4 * width
        self.reduce, self.norm1 = nn.Conv2d(channels, width, 1, bias=False), norm(width)
        self.conv, self.norm2 = nn.Conv2d(width, width, 3, stride, 1, bias=False), norm(width)
        self.expand = nn.Conv2d(width, filters, 1, bias=False)
        self.norm3 = norm(filters, LAST_SCALE)
        self.shortcut: nn.Module = nn.Identity()
        if channels != filters:
            one = nn.Conv2d(channels, filters, 1, stride, bias=False)
            self.shortcut = nn.Sequential(one, norm(filters))

    def forward(self, x: Any) -> Any:
        """The block of x."""
        y = functional.relu(self.norm1(self.reduce(x)))
        y = functional.relu(self.norm2(self.conv(y)))
        return functional.relu(self.norm3(self.expand(y)) + self.shortcut(x))


def norm(channels: int, scale: float = 1.0) -> Any:
    """A batch norm that is no identity, and whose statistics are those of the last images."""
    made = nn.BatchNorm2d(channels, momentum=1.0)
    nn.init.uniform_(made.weight, 0.5 * scale, 1.5 * scale)
    nn.init.normal_(made.bias, std=0.1)
    return made


def predict(model: Any, x: Any) -> Call:
    """A function that returns the logits of images, of shape (images, classes)."""

    def call() -> list[Any]:
        with torch.no_grad():
            return [model(x)]

    return call


def train(model: Any, x: Any) -> Call:
    """A function that makes a step of SGD, and returns the gradients of the parameters, of which
    ``aten::convolution_backward`` computes those of convolutions.
    """
    model.train()
    labels = torch.arange(len(x), device=x.device) % 10
    optimizer = torch.optim.SGD(model.parameters(), RATE, momentum=0.9)

    def call() -> list[Any]:
        optimizer.zero_grad()
        functional.cross_entropy(model(x).float(), labels).backward()
        optimizer.step()
        return [each.grad for each in model.parameters()]

    return call


class Way(NamedTuple):
    """A function that converts a model, and one that makes the context of its calls."""

    convert: Callable[[Any], Any]
    context: Callable[[], AbstractContextManager[Any]] = nullcontext


def compiled(**options: Any) -> Way:
    """A way by torch.compile."""
    return Way(lambda model: torch.compile(model, dynamic=False, **options))


EAGER, ENABLED, GRAPHED, INDUCTOR = "eager", "enable()", "backend, cudagraph", "Inductor"
WAYS = {
    EAGER: Way(lambda model: model),
    ENABLED: Way(lambda model: model, enable),
    "backend": compiled(backend=backend),  # no name: a checkout has no entry point
    GRAPHED: compiled(backend=backend, options={"cudagraph": True}),
    INDUCTOR: compiled(),
}


class Work(NamedTuple):
    """What networks are timed with.

    `bound` is how far results may be apart from those in float32, each relative to its norm. On a
    CPU, logits of torch are 0.005 apart, and gradients up to 0.35; all zeros would be 1 apart.
    """

    name: str
    images: int
    bound: float
    make: Callable[[Any, Any], Call] = predict
    ways: Sequence[str] = (EAGER, ENABLED, "backend", GRAPHED)

    def operators(self, convolutions: int) -> int:
        """How many operators a network with so many convolutions runs: in training also gradients
        of all filters, and of all images but those that are given.
        """
        return convolutions if self.make is predict else 3 * convolutions - 1


RESNET50 = Network("ResNet-50", RESNET50_STAGES, 1000)
TINY = Network("tiny", ((16, 8, 1, 2), (32, 8, 2, 1)), 10)
NETWORKS = {each.name: each for each in (RESNET50, TINY)}
BESIDE = EAGER, GRAPHED, INDUCTOR  # the last one compiles long, or may fail to: at the end
WORKS = (
    Work("256 images", 256, 0.03),
    Work("1 image", 1, 0.03),
    Work("a training step, 64 images", 64, 0.7, train, (EAGER, ENABLED)),
    Work("256 images, beside Inductor", 256, 0.03, predict, BESIDE),
    Work("1 image, beside Inductor", 1, 0.03, predict, BESIDE),
)


def provide(kit: Kit) -> None:
    """Have the engine load the kit's kernels for networks instead of compiling them.

    Raises
    ------
    NotRunError
        The kit has none, or they are of other sources.
    """
    target, packed, here = kit.about["target"], kit.about["kernel sources"], sources.kernels_hash()
    if packed != here:
        raise NotRunError(f"the kit's kernels are of sources {packed}, not {here}: pack it here")
    if not kit.door:
        raise NotRunError("the kit has no kernels for networks: pack it with --compare")
    for title, (name, entry) in kit.door.items():
        cubin.PROVIDED[title, target, packed] = kit.files[name], entry


def rows(
    network: Network,
    works: Sequence[Work],
    device: str,
    seconds: Callable[[Call], float],
    in_time: Callable[[], bool],
) -> Iterator[dict[str, Any]]:
    """For each work a row: samples in seconds, errors and operators by our kernels of each way, and
    why others failed.

    Parameters
    ----------
    device : str
        torch's name of it.
    seconds : function
        Seconds of one call of a function.
    in_time : function
        Whether there is time for another way.
    """
    model = network.model(device)
    convolutions = sum(isinstance(each, nn.Conv2d) for each in model.modules())
    for work in works:
        row = {name: dict[str, Any]() for name in ("seconds", "errors", "ours", "failures")}
        try:
            _measure(row, model, network.images(work.images, device), work, seconds, in_time)
        except Exception as error:
            row["failures"]["float32"] = _why(error)
        operators = work.operators(convolutions)
        yield {"name": f"{network.name}, {work.name}", "operators": operators, **row}


def _measure(
    row: dict[str, dict[str, Any]],
    model: Any,
    x: Any,
    work: Work,
    seconds: Callable[[Call], float],
    in_time: Callable[[], bool],
) -> None:
    torch._dynamo.reset()  # whose code for other works counts
    with torch.backends.cudnn.flags(enabled=True, benchmark=False, allow_tf32=False):
        expected = work.make(copy.deepcopy(model).float(), x.float())()
    calls: dict[str, Call] = {}
    for name in work.ways:
        if not in_time():
            row["failures"][name] = LATE
            continue
        warnings = Warnings()
        try:
            with WAYS[name].context(), warnings:
                call = work.make(WAYS[name].convert(copy.deepcopy(model)), x)
                row["errors"][name], row["ours"][name] = checked(call, expected, work.bound)
            calls[name] = call
        except Exception as error:
            warnings.lines.append(_why(error))
        if warnings.lines:
            row["failures"][name] = "\n".join(warnings.lines)
    order, samples = random.Random(0), row["seconds"]
    samples |= {name: [] for name in calls}
    for _ in range(ROUNDS):
        for name in order.sample([*samples], len(samples)):
            try:
                with WAYS[name].context():
                    samples[name].append(seconds(calls[name]))
            except Exception as error:
                row["failures"][name] = _why(error)
                del samples[name]


def _why(error: Exception) -> str:
    """The first line of a message, and the kind of error."""
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"


def checked(call: Call, expected: Sequence[Any], bound: float) -> tuple[float, int]:
    """(how far results are apart from what is expected, operators by our kernels), of CHECKED
    calls.

    Raises
    ------
    WrongResultError
        They are further apart than `bound`, relative to their norm.
    """
    errors, counts = [], []
    for _ in range(CHECKED):
        with counted() as ran:
            found = call()
        errors.append(apart(found, expected))
        counts.append(len(ran))
        if not errors[-1] <= bound:
            raise WrongResultError(f"{errors[-1]:.2g} apart from float32, more than {bound:.2g}")
    return max(errors), counts[1]  # the first call measures, and runs others too


def apart(found: Sequence[Any], expected: Sequence[Any]) -> float:
    """The largest norm of a difference of tensors, relative to that of what is expected."""
    size = torch.linalg.vector_norm
    pairs = zip(found, expected, strict=True)
    return float(torch.stack([size(y.float() - z) / size(z) for y, z in pairs]).max())


@contextmanager
def counted() -> Iterator[list[Any]]:
    """Yield a list that grows by one for each operator on a GPU by kernels of ours."""
    run, ran = cuda.Step.__call__, list[Any]()

    def call(step: Any, *operands: Any) -> Any:
        ran.append(step)
        return run(step, *operands)

    with patch.object(cuda.Step, "__call__", call):
        yield ran


class Warnings(logging.Handler):
    """A block in which what the door warns of is collected, in `lines`."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a message."""
        self.lines.append(record.getMessage())

    def __enter__(self) -> None:
        LOG.addHandler(self)

    def __exit__(self, *_: object) -> None:
        LOG.removeHandler(self)


def event_seconds(call: Call) -> float:
    """Seconds of a call on the current GPU, of some that follow each other between two events; the
    host's part counts where the GPU waits for it.
    """

    def span(times: int) -> float:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(times):
            call()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) / 1e3

    times = max(1, min(CALLS, int(SAMPLE_SECONDS / span(1))))  # which also warms up
    return span(times) / times
