"""The tables of `explain`: the convolutions of a model, with times of our and of torch's kernels,
and what becomes of them in a converted one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import torch
import torch._dynamo  # which a dispatch mode imports otherwise, while others may fork
from torch.utils._python_dispatch import TorchDispatchMode

from implicit_conv.timing import disturbance, show
from implicit_conv.torch.backend import Row as Compiled
from implicit_conv.torch.conversion import CompiledCall, calls_replaced, compiled_calls
from implicit_conv.torch.first_calls import REFUSED
from implicit_conv.torch.override import enable, kept_step, suspended, torchs_convolution
from implicit_conv.torch.steps import Window

KEYS = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
KEPT = 256 << 20  # bytes of packed filters, as `enable` has by default
LAYER_SECONDS, MODEL_RUNS = 0.05, 7  # for which each layer is measured; runs of the model


class Layer(NamedTuple):
    """One convolution of a model."""

    name: str
    arguments: tuple[Any, ...]  # of ``aten::convolution``


class Whole(NamedTuple):
    """What is measured of the model, in seconds."""

    ours: float
    torch: float
    converted: float | None = None


class Row(NamedTuple):
    """What is measured of a layer, in seconds."""

    layer: Layer
    kernel: str
    ours: float
    torch: float
    slower: bool  # measured so when the layer ran first, so that torch's kernel runs


def _note(record: Any, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
    """Run an operator of torch; if it is a convolution, note it and the module that calls it."""
    if function is torch.ops.aten.convolution.default and args[0].device.type == "cpu":
        name = record.modules[-1] if record.modules else "(function)"
        record.layers.append(Layer(name or "(model)", tuple(args)))
    return function(*args, **(kwargs or {}))


Record: Any = type("Record", (TorchDispatchMode,), {"__torch_dispatch__": _note})


def report(model: Any, inputs: tuple[Any, ...]) -> str:
    """The table of `implicit_conv.torch.explain`."""
    _check(model, inputs)
    disturbed, calls = disturbance(torch.get_num_threads()), compiled_calls(model)
    with torch.no_grad(), _evaluating(model), calls_replaced(dict.fromkeys(calls)):
        layers = _layers(model, inputs)
        with enable(KEPT, "standard", "measured"):
            stays = [_run(layer) is REFUSED for layer in layers]
        with enable(KEPT, "standard", "always"):
            rows = list[Row]()
            for layer, each in zip(layers, stays, strict=True):
                show(f"convolution {len(rows) + 1} of {len(layers)}: {layer.name}")
                rows.append(_measured(layer, each))
        show("the whole model")
        whole = _whole(model, inputs, calls)
        show("")
    disturbed = disturbed or disturbance(torch.get_num_threads())
    told = [disturbed, ""] if disturbed else []
    return "\n".join(
        [
            *told,
            *_table(rows, whole, disturbed),
            *_chosen(rows),
            "",
            *_summary(rows, whole, disturbed),
            *(_programs(calls) if calls else ()),
        ]
    )


def _check(model: Any, inputs: tuple[Any, ...]) -> None:
    """Refuse what cannot be run.

    Raises
    ------
    TypeError
        The model is a class or cannot be called, or its arguments are a shape, arrays of numpy, or
        tensors of another device than the CPU.
    """
    if isinstance(model, type):
        name = model.__name__
        raise TypeError(f"model must be a module, not the class {name}: explain({name}(), x)")
    if not callable(model):
        kind = type(model).__name__
        raise TypeError(f"model must be a module or a function, not {kind}: explain(model, x)")
    if inputs and all(isinstance(value, int) for value in inputs):
        raise TypeError(
            f"x must be a tensor or a tuple of the model's arguments, not a shape: "
            f"explain(model, torch.zeros({inputs}))"
        )
    if any(isinstance(value, np.ndarray) for value in inputs):
        raise TypeError(
            "x must be a tensor, not a numpy array: explain(model, torch.from_numpy(x))"
        )
    tensors = [value for value in inputs if isinstance(value, torch.Tensor)]
    for device in {value.device.type for value in tensors} - {"cpu"}:
        raise TypeError(
            f"x is on device {device}, and enable() serves the CPU alone: "
            "explain(model.cpu(), x.cpu())"
        )


@contextmanager
def _evaluating(model: Any) -> Iterator[None]:
    """A block in which all modules of the model are in eval mode."""
    modules = list(model.modules()) if isinstance(model, torch.nn.Module) else []
    modes = [module.training for module in modules]
    try:
        for module in modules:
            module.training = False
        yield
    finally:
        for module, mode in zip(modules, modes, strict=True):
            module.training = mode


def _layers(model: Any, inputs: tuple[Any, ...]) -> list[Layer]:
    record, stack = Record(), list[str]()
    record.layers, record.modules = list[Layer](), stack
    with ExitStack() as hooks, suspended():
        for name, module in model.named_modules() if isinstance(model, torch.nn.Module) else ():
            enter = module.register_forward_pre_hook(lambda *_, name=name: stack.append(name))
            leave = module.register_forward_hook(lambda *_: stack.pop() and None)
            hooks.callback(enter.remove)
            hooks.callback(leave.remove)
        with record:
            model(*inputs)
    return list(record.layers)


def _run(layer: Layer) -> Any:
    """Run a layer; returns the step that computed it, REFUSED if torch's kernel did."""
    x, w, bias, *rest = layer.arguments
    torch.ops.aten.convolution(x, w, bias, *rest)
    return kept_step(x, w, bias, Window.of(rest))


def _measured(layer: Layer, stays: bool) -> Row:
    """The times of a layer, by calls of both kernels in turn; `stays` says that torch's runs."""
    x, w, bias, *rest = layer.arguments
    step = _run(layer)
    kernel = "torch" if step is REFUSED else step.plan.algorithm

    def theirs() -> Any:
        return torchs_convolution(KEYS, x, w, bias, rest)

    def ours() -> Any:
        return torch.ops.aten.convolution(x, w, bias, *rest)

    found: tuple[list[float], list[float]] = [], []
    until = time.perf_counter() + LAYER_SECONDS
    theirs()
    while time.perf_counter() < until or len(found[0]) < 3:
        for function, times in zip((ours, theirs), found, strict=True):
            times.append(_seconds(function))
    here, there = map(median, found)
    return Row(layer, kernel, here, there, stays and step is not REFUSED)


def _whole(model: Any, inputs: tuple[Any, ...], calls: dict[Any, CompiledCall]) -> Whole:
    """The times of the model with our kernels, with torch's and, if there are `calls`, with these,
    in turn.
    """
    ways: dict[str, Callable[[], AbstractContextManager[Any]]] = {
        "ours": lambda: enable(KEPT, "standard", "measured"),
        "torch": suspended,
        "converted": lambda: calls_replaced(calls),
    }
    times: dict[str, list[float]] = {name: [] for name in ways if calls or name != "converted"}
    for _ in range(MODEL_RUNS):
        for name, seconds in times.items():
            with ways[name]():
                model(*inputs)
                seconds.append(_seconds(lambda: model(*inputs)))
    found = {name: median(seconds) for name, seconds in times.items()}
    return Whole(**found)


def _seconds(function: Callable[[], Any]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def _table(rows: list[Row], whole: Whole, disturbed: str) -> Iterator[str]:
    """The lines of the table, without ratios if other work `disturbed` what was measured."""
    heads = "layer", "x", "w", "kernel", "here ms", "torch ms", "faster", "share"
    cells, total = [heads], _total(rows, whole)
    for row in rows:
        x, w = ("x".join(map(str, row.layer.arguments[i].shape)) for i in (0, 1))
        times = f"{row.ours * 1e3:.3f}", f"{row.torch * 1e3:.3f}"
        ratios = f"{row.torch / row.ours:.2f}", f"{row.torch / total:.1%}"
        told = ratios if not disturbed else ("-", "-")
        cells.append((row.layer.name, x, w, row.kernel, *times, *told))
    yield from _aligned(cells, left=4)


def _aligned(cells: Sequence[tuple[str, ...]], left: int) -> Iterator[str]:
    """Lines of cells, whose first `left` columns begin at one place; the others end at one."""
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for line in cells:
        words = [
            cell.ljust(width) if place < left else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        yield "  ".join(words).rstrip()


def _chosen(rows: list[Row]) -> Iterator[str]:
    """A line that names the layers that run torch's kernel though ours could."""
    slower = dict.fromkeys(row.layer.name for row in rows if row.slower)
    if slower:
        yield f"torch's kernel was measured to be faster, and runs: {', '.join(slower)}"


def _total(rows: list[Row], whole: Whole) -> float:
    """The time of the model with torch's kernels, of which layers have shares. It is that of the
    layers where these take more alone than the whole model does, for what they read is not cached.
    """
    return max(whole.torch, sum(row.torch for row in rows))


def _summary(rows: list[Row], whole: Whole, disturbed: str) -> Iterator[str]:
    times = f"the model: {whole.ours * 1e3:.3f} ms here, {whole.torch * 1e3:.3f} ms with torch's"
    converted = f"converted: {(whole.converted or 0) * 1e3:.3f} ms"
    if disturbed:
        yield f"{times} kernels"
        if whole.converted:
            yield converted
        return
    total = _total(rows, whole)
    here = sum(row.torch if row.slower else row.ours for row in rows)
    theirs = sum(row.torch for row in rows)
    gain, limit = whole.torch / whole.ours, total / max(total - theirs + here, 1e-9)
    yield f"{times} kernels: {gain:.2f} times as fast"
    share = f"{theirs / total:.0%} of that time is in convolutions"
    if gain > limit:  # calls alone find less in the caches than those of the model
        yield f"{share}, which called alone are {theirs / here:.2f} times as fast"
    else:
        yield f"{share}, so that by Amdahl's law their times allow {limit:.2f}"
    if whole.converted:
        yield f"{converted}: {whole.torch / whole.converted:.2f} times as fast"


def _programs(calls: dict[Any, CompiledCall]) -> Iterator[str]:
    """What becomes of the convolutions of a converted model."""
    graphs = [rows for call in calls.values() for rows in call.graphs.rows]
    numbers: dict[Any, str] = {}
    cells = [("convolution", "one launch with", "program")]
    for row in (row for rows in graphs for row in rows):
        cells.append((row.name, row.words, _program(row, numbers)))
    yield ""
    yield from _aligned(cells, left=3)
    yield f"{len(graphs)} graph{'s' * (len(graphs) != 1)} of torch.compile"


def _program(row: Compiled, numbers: dict[Any, str]) -> str:
    """The number of a program, or who computes the convolution."""
    if isinstance(row.program, str):
        return row.program
    function = row.program()
    if function is None or not function.runs:
        return "torch, which was faster or is right for such tensors"
    return numbers.setdefault(function, str(len(numbers) + 1))
