"""What a process times of a network: its functions, the reference, and its convolutions."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch

import implicit_conv
import implicit_conv.torch
from implicit_conv.torch.override import suspended
from implicit_conv.torch.report import measured
from perf.models.catalogue import CLASSES, Network
from perf.models.names import ARRAYS, CONTROL, OURS, TORCH
from perf.models.weights import initialise

RATE, MOMENTUM = 0.01, 0.9  # of SGD

Function = Callable[[], Any]


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
        found: dict[str, Function] = {OURS: of_torch, CONTROL: of_torch, TORCH: of_torch}
        if hasattr(self.model, "array"):
            found[ARRAYS] = partial(self.model.array, self.inputs[-1].numpy())
        return found

    def function(self, model: Any) -> Function:
        """A call of a model, or a step of its training."""
        x = self.inputs[-1]
        if not self.trains:
            return partial(model, x)
        targets = torch.arange(len(x)) % CLASSES
        descent = torch.optim.SGD(model.parameters(), RATE, MOMENTUM)

        def step() -> Any:
            descent.zero_grad()
            loss = torch.nn.functional.cross_entropy(first(model(x)), targets)
            loss.backward()
            descent.step()
            return loss

        return step

    def results(self) -> dict[str, Any]:
        """The result of each function, and "exact", that of torch in float64: what the model
        returns first or, where it is trained, the gradient of its first parameter.
        """
        found = {}
        for name, function in self.functions().items():
            with door(name):
                found[name] = torch.as_tensor(function()) if name == ARRAYS else self.result()
        with door(TORCH):
            found["exact"] = self.result(copy.deepcopy(self.model).double(), torch.float64)
        return found

    def result(self, model: Any = None, dtype: Any = torch.float32) -> Any:
        """See `results`. A model that is trained is a copy, so that all begin with the same."""
        x = self.inputs[-1].to(dtype)
        model = model or (copy.deepcopy(self.model) if self.trains else self.model)
        if not self.trains:
            return first(model(x))
        targets = torch.arange(len(x)) % CLASSES
        torch.nn.functional.cross_entropy(first(model(x)), targets).backward()
        return next(iter(model.parameters())).grad

    def convolutions(self) -> list[dict[str, Any]]:
        """The convolutions of the model, in the order in which they run, as `explain` times them;
        none of a step of training, whose gradients it does not see.
        """
        if self.trains:
            return []
        return [
            {"name": row.layer.name, "kernel": row.kernel, "ours": row.ours, "torch": row.torch}
            for row in measured(self.model, (self.inputs[0],))
        ]


def door(name: str) -> AbstractContextManager[Any]:
    """The block in which a function of this process runs."""
    if name in (OURS, CONTROL):
        return implicit_conv.torch.enable()
    if name == ARRAYS:
        return implicit_conv.config(num_threads=torch.get_num_threads())
    return suspended() if name == TORCH else nullcontext()


def first(output: Any) -> Any:
    """The first tensor that a model returns."""
    return output if isinstance(output, torch.Tensor) else output[0]
