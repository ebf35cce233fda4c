"""The kernels that networks ask for through torch's door, found without a GPU.

A network is traced as `torch.compile` traces it. Its layers and their gradients are read, planned
and bound to dense arrays by the code that does so on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch

from implicit_conv.gpu.cuda.arch import GpuArch
from implicit_conv.gpu.cuda.arrays import Operand
from implicit_conv.gpu.cuda.cubin import FILTERS_TITLE, AnyVariant, cubin, filters_cubin
from implicit_conv.gpu.run.call import kernels_for
from implicit_conv.gpu.run.launch import Arrays
from implicit_conv.gpu.run.run import device_filter
from implicit_conv.gpu.run.wgrad import adapted, with_bias
from implicit_conv.torch.cuda import Operands, Operation, gradients, plan_of
from implicit_conv.torch.cuda_layers import operation_of
from implicit_conv.torch.layers import Layer, convolution, layers, value_of
from perf.bringup.networks import DTYPE, Network, Work, predict

Compiled = Callable[[], tuple[bytes, str]]


def kernels(arch: GpuArch, network: Network, works: Sequence[Work]) -> dict[str, Compiled]:
    """Functions that compile the kernels of `works`, by their titles: those of convolutions, which
    `enable` asks for, and of their gradients, or where a network predicts of layers, which the
    backend of torch.compile does.
    """
    found = dict[str, Compiled]()
    model = network.model("cpu")
    for images, make in dict.fromkeys((work.images, work.make) for work in works):
        graph = traced(model, network.images(images, "cpu"))
        every = [convolution(node, "standard") for node in graph.nodes]
        alone = [layer for layer in every if layer is not None]
        joined = layers(graph, "standard") if make is predict else []
        asked = [v for layer in (*alone, *joined) for v in _forward(layer, arch)]
        if make is not predict:
            asked += [v for layer in alone for v in _backward(layer, arch)]
            size = DTYPE.itemsize
            found[FILTERS_TITLE.format(size)] = partial(filters_cubin, size, arch.cc)
        found |= {repr(v): partial(cubin, v, arch.cc) for v in asked}
    return found


def traced(model: Any, x: Any) -> Any:
    """The graph of a model that predicts, which is not run."""
    graphs = []

    def keep(graph: Any, inputs: Any) -> Any:
        graphs.append(graph.graph)
        return lambda *_: (x,)

    torch._dynamo.reset()
    with torch.no_grad():
        torch.compile(model, backend=keep, dynamic=False)(x)
    (graph,) = graphs
    return graph


def _forward(layer: Layer, arch: GpuArch) -> list[AnyVariant]:
    """The kernel that computes a layer of dense arrays, unless it is linear."""
    if layer.is_linear:
        return []
    x, w, residual, y = map(value_of, (layer.x, layer.w, layer.residual, layer.result))
    choice = _choice(Operands(x, w), operation_of(layer), arch)
    pairs = Operand(0, (w.shape[0], 2), (8, 4), "float32", None) if layer.norm else None
    return _bound(choice, x, w, y, pairs, residual)


def _backward(layer: Layer, arch: GpuArch) -> Iterator[AnyVariant]:
    """The kernels of the gradients of x, w and bias, but for those of images that are given."""
    x, w, y = map(value_of, (layer.x, layer.w, layer.result))
    of_x, of_w = gradients(layer.window, y, x, w)
    if layer.x.op != "placeholder":
        yield from _bound(_choice(*of_x, arch), y, w, x)
    choice = _choice(*of_w, arch)
    choice = choice if layer.bias is None else with_bias(choice)
    first, second = (_operand(each).view(choice.axes) for each in (x, y))
    yield from (v for v, *_ in adapted(choice, first, second).launches)


def _choice(given: Operands, operation: Callable[[], Operation], arch: GpuArch) -> Any:
    plan: Any = plan_of(given, operation(), arch)
    return plan.engine.choice


def _bound(
    choice: Any, x: Any, w: Any, y: Any, pairs: Operand | None = None, residual: Any = None
) -> list[AnyVariant]:
    arrays = Arrays(
        x=_operand(x),
        w=device_filter(choice, _operand(w)),
        y=_operand(y),
        bias=pairs,
        residual=None if residual is None else _operand(residual),
        scaled=pairs is not None,
    )
    return [*kernels_for(choice, arrays)]


def _operand(tensor: Any) -> Operand:
    strides = tuple(step * tensor.itemsize for step in tensor.stride())
    dtype = str(tensor.dtype).removeprefix("torch.")
    return Operand(0, tuple(tensor.shape), strides, dtype, None)
