"""What a process times of a network: its functions, the reference, and its convolutions inside the
model, where what they read is not cached as it is alone.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property, partial
from statistics import median
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import implicit_conv
import implicit_conv.torch
from implicit_conv.torch.backend import backend
from implicit_conv.torch.override import suspended
from perf.model_names import ARRAYS, CONTROL, OURS, TORCH
from perf.models.catalogue import CLASSES, Network

ROUNDS = 7  # in which convolutions are timed inside the model
RATE, MOMENTUM = 0.01, 0.9  # of SGD

Function = Callable[[], Any]

# Operator: the place of its x, before its filter, among its arguments.
OPERATORS = {"convolution": 0, "convolution_backward": 1}

CONVOLUTIONS = tuple(
    getattr(nn, f"Conv{kind}{rank}d") for kind in ("", "Transpose") for rank in (1, 2, 3)
)
NORMS = nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d


def initialise(model: Any, x: Any) -> None:
    """Draw the filters of a module as He et al., "Delving Deep into Rectifiers" (2015), and have
    its batch normalization scale by 1, and know the statistics of what x leads to. With the weights
    that libraries begin with, EfficientNet's activations shrink to subnormals, which are slow.
    """
    norms = []
    for module in model.modules():
        if isinstance(module, CONVOLUTIONS):
            # Filters that are computed from other parameters are left as they are.
            if "weight" in module._parameters:
                nn.init.kaiming_normal_(module.weight)
        elif isinstance(module, NORMS):
            module.reset_parameters()
            norms.append((module, module.momentum))
    model.eval()
    for norm, _ in norms:
        norm.momentum, norm.training = 1.0, True
    with torch.no_grad():
        model(x)
    for norm, momentum in norms:
        norm.momentum, norm.training = momentum, False


def _watch(watch: Any, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
    """Run an operator of torch; note how long it took if it is of `OPERATORS`."""
    name = function.overloadpacket.__name__
    start = time.perf_counter()
    y = function(*args, **(kwargs or {}))
    seconds = time.perf_counter() - start
    if name in OPERATORS:
        x, w = args[OPERATORS[name] :][:2]
        watch.seen.append(({"operator": name, "x": [*x.shape], "w": [*w.shape]}, seconds))
    return y


Watch: Any = type("Watch", (TorchDispatchMode,), {"__torch_dispatch__": _watch})


def convolutions(function: Callable[[], Any]) -> list[tuple[dict[str, Any], float]]:
    """The convolutions and their gradients that a call of a function computes, in order: each with
    its shapes, and the seconds that it took.
    """
    watch = Watch()
    watch.seen = []
    with watch:
        function()
    return list(watch.seen)


class Workload:
    """A network with weights and inputs that are equal in every process."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self.trains = network.trains
        torch.set_grad_enabled(self.trains)
        torch.manual_seed(0)
        self.inputs: list[Any] = []  # those before stay, so that each set has pages of its own
        self.model = network.make()
        self.add_inputs()
        if isinstance(self.model, torch.nn.Module):
            initialise(self.model, self.inputs[0])
        self.model = self.model.train() if self.trains else self.model.eval()

    def add_inputs(self) -> None:
        """Another set of inputs, which functions read from now on."""
        torch.manual_seed(len(self.inputs))
        self.inputs.append(torch.randn(self.network.shape))

    def functions(self) -> dict[str, Function]:
        """The functions of the process in which ours and torch take turns."""
        of_torch = self.function(self.model)
        ours = self.function(self.compiled) if self.network.compiled else of_torch
        found: dict[str, Function] = {OURS: ours, CONTROL: ours, TORCH: of_torch}
        if hasattr(self.model, "array"):
            found[ARRAYS] = partial(self.model.array, self.inputs[-1].numpy())
        return found

    def function(self, model: Any) -> Function:
        """A call of a model, or a step of its training."""
        x = self.inputs[-1]
        if not self.trains:
            return partial(model, x)
        descent = torch.optim.SGD(model.parameters(), RATE, MOMENTUM)

        def step() -> Any:
            descent.zero_grad()
            loss = self.loss(model, x)
            loss.backward()
            descent.step()
            return loss

        return step

    def results(self) -> dict[str, list[Any]]:
        """The results of each function, and "exact", those of torch in float64: what the model
        returns first or, where it is trained, the gradient of each parameter.
        """
        found = {}
        functions = self.functions()
        del functions[CONTROL]
        for name, function in functions.items():
            with self.door(name):
                compiles = self.network.compiled and name == OURS
                found[name] = (
                    [torch.as_tensor(function())]
                    if name == ARRAYS
                    else self.result(wrap=compiled_here if compiles else lambda model: model)
                )
        with self.door(TORCH):
            found["exact"] = self.result(torch.float64)
        return found

    def result(
        self, dtype: Any = torch.float32, wrap: Callable[[Any], Any] = lambda model: model
    ) -> list[Any]:
        """See `results`; computed by a copy of the model, so that all begin with the same."""
        model, x = copy.deepcopy(self.model).to(dtype), self.inputs[-1].to(dtype)
        if not self.trains:
            return [first(wrap(model)(x))]
        self.loss(wrap(model), x).backward()
        return [parameter.grad for parameter in model.parameters()]

    @cached_property
    def compiled(self) -> Any:
        """The model, compiled for our backend."""
        return compiled_here(self.model)

    def door(self, name: str) -> AbstractContextManager[Any]:
        """The block in which a function of this process runs."""
        if name in (OURS, CONTROL):
            return nullcontext() if self.network.compiled else implicit_conv.torch.enable()
        if name == ARRAYS:
            return implicit_conv.config(num_threads=torch.get_num_threads())
        return suspended() if name == TORCH else nullcontext()

    def loss(self, model: Any, x: Any) -> Any:
        """What training makes smaller."""
        targets = torch.arange(len(x)) % CLASSES
        return torch.nn.functional.cross_entropy(first(model(x)), targets)

    def convolutions(self) -> dict[str, Any]:
        """Medians of seconds that convolutions take inside the model, by ours and by torch in turn,
        and that the model takes in these rounds with torch's kernels.
        """
        functions, whole = self.functions(), list[float]()
        found: dict[str, list[list[float]]] = {OURS: [], TORCH: []}
        for _ in range(ROUNDS):
            for name, rounds in found.items():
                with self.door(name):
                    functions[name]()
                    if name == TORCH:
                        whole.append(seconds(functions[name]))
                    seen = convolutions(functions[name])
                rounds.append([taken for _, taken in seen])
        layers = [
            {**facts, **{name: median(taken[at] for taken in found[name]) for name in found}}
            for at, (facts, _) in enumerate(seen)
        ]
        return {"whole": median(whole), "layers": layers}


def compiled_here(model: Any) -> Any:
    """A model, compiled for our backend."""
    return torch.compile(model, backend=backend)


def seconds(function: Function) -> float:
    """How long one call takes."""
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def first(output: Any) -> Any:
    """The first tensor that a model returns."""
    return output if isinstance(output, torch.Tensor) else output[0]
