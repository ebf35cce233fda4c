"""`convert` and `restore`: which modules of a model run graphs, and the table that says so."""

from __future__ import annotations

from typing import Any

import torch

from implicit_conv.torch.chains import Chain, is_convolution
from implicit_conv.torch.converted import Converted
from implicit_conv.torch.override import SWITCH
from implicit_conv.torch.trace import LeftError

HEADS = "convolution", "one call with", "graph of"


def convert(model: Any, precision: str) -> str:
    """See `implicit_conv.torch.convert`; the precision is checked."""
    _check(model)
    training = [name for name, module in model.named_modules() if module.training]
    if training:
        raise ValueError(
            f"{training[0] or 'the model'} is in training mode, and convert() folds what batch "
            "norms do in eval mode: call model.eval() before"
        )
    restore(model)
    SWITCH.lend(model)  # idle threads of torch spin on the CPUs that others would need
    for module in model.modules():
        if "forward" not in vars(module) and _runs_convolutions(module):
            Converted(module, precision).put()
    return Report(model).text()


def restore(model: Any) -> None:
    """See `implicit_conv.torch.restore`."""
    _check(model)
    for module in model.modules():
        forward = vars(module).get("forward")
        if isinstance(forward, Converted):
            forward.take()
    SWITCH.end_loans(model.modules())


def _check(model: Any) -> None:
    """Refuse what is no module.

    Raises
    ------
    TypeError
        It is a class, a function or anything else.
    """
    if not isinstance(model, torch.nn.Module):
        kind = f"the class {model.__name__}" if isinstance(model, type) else type(model).__name__
        raise TypeError(f"model must be a module of torch, a torch.nn.Module, not {kind}")


def _runs_convolutions(module: Any) -> bool:
    """Whether a module has a forward and, itself or inside, a convolution."""
    has_forward = type(module).forward is not torch.nn.Module.forward
    return has_forward and any(map(is_convolution, module.modules()))


class Report:
    """What becomes of the convolutions of a model, in the order of its modules."""

    def __init__(self, model: Any) -> None:
        self._names = {module: name or "(model)" for name, module in model.named_modules()}
        self._rows, self._reasons = dict[Any, tuple[str, ...]](), list[str]()
        self._visit(model)

    def text(self) -> str:
        """A line for each convolution, and one for each module of which there is no graph."""
        cells = [HEADS, *(self._rows[m] for m in self._names if m in self._rows)]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        pad = [
            [cell.ljust(width) for cell, width in zip(row, widths, strict=True)] for row in cells
        ]
        reasons = ["", "These run as they are, and what is inside them alone:", *self._reasons]
        return "\n".join(["  ".join(row).rstrip() for row in pad] + reasons * bool(self._reasons))

    def _visit(self, module: Any) -> None:
        """Trace a module or, where that fails, what is inside."""
        if not any(map(is_convolution, module.modules())):
            return
        try:
            self._trace(module)
        except LeftError as error:
            self._reasons.append(f"{self._names[module]}: {error}")
        else:
            return
        for child in module.children():
            self._visit(child)

    def _trace(self, module: Any) -> None:
        """Note the convolutions of a module's graph.

        Raises
        ------
        LeftError
            There is none.
        """
        forward = vars(module).get("forward")
        if forward is None:  # a list of modules, or a class without one
            raise LeftError("it has no forward")
        if not isinstance(forward, Converted):
            raise LeftError("its forward was replaced")
        convolutions = forward.trace().convolutions
        name = self._names[module]
        for each in filter(is_convolution, module.modules()):
            self._rows.setdefault(each, (self._names[each], "left to torch", name))
        calls: dict[Any, list[str]] = {}  # of each convolution, in their order
        for one in reversed(convolutions):
            calls.setdefault(one.chain.conv, []).append(_words(one.chain))
        for conv, words in calls.items():
            self._rows[conv] = (self._names[conv], "; ".join(words), name)


def _words(chain: Chain) -> str:
    """What one call computes besides a convolution."""
    activation = chain.activation
    name = activation[0] if isinstance(activation, tuple) else activation or ""
    parts = "batch norm" if chain.norm else "", "residual" if chain.adds else "", name
    return ", ".join(filter(None, parts)) or "nothing"
