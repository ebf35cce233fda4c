"""Layers of a graph of Dynamo: a convolution or linear layer, and what one launch computes with it.

Parameters and buffers are inputs of such a graph, and modules are functions of them. A layer is
taken where it is sure to mean the same: its values are used once, have one dtype, and nothing that
runs between writes to memory.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import Graph, Node
from torch.nn import functional

from implicit_conv.problem.options import Activation
from implicit_conv.torch import activations
from implicit_conv.torch.purity import is_pure
from implicit_conv.torch.steps import Window
from implicit_conv.torch.tensors import DTYPES

CONVOLUTIONS = {torch.conv1d: 1, torch.conv2d: 2, torch.conv3d: 3}
TRANSPOSED = {torch.conv_transpose1d: 1, torch.conv_transpose2d: 2, torch.conv_transpose3d: 3}
NAMES = "input", "weight", "bias", "stride", "padding", "dilation", "groups"
LINEAR = torch._C._nn.linear, functional.linear
TRANSPOSED_NAMES = (*NAMES[:5], "output_padding", "groups", "dilation")
NO_PADDING = {"padding": 0, "output_padding": 0}
NORM_NAMES = "input", "running_mean", "running_var", "weight", "bias", "training", "momentum", "eps"
PADS = functional.pad, torch._C._nn.pad
MODES = {
    "constant": "zeros",
    "reflect": "reflect",
    "replicate": "replicate",
    "circular": "circular",
}
AUTOCAST = torch.float16, torch.bfloat16  # what it converts to
DEVICES = ("cpu",) if torch.version.hip else ("cpu", "cuda")  # "cuda" is what ROCm says, too
SUM_FUNCTIONS = operator.add, torch.add
FRESH = {*CONVOLUTIONS, *TRANSPOSED, *LINEAR, functional.batch_norm, *SUM_FUNCTIONS}  # new tensors
SUMS = *SUM_FUNCTIONS, operator.iadd, "add", "add_"
WRITING_SUMS = operator.iadd, "add_"
ITEMS = tuple.__getitem__, list.__getitem__, dict.__getitem__  # which only read


@dataclass(repr=False)
class Layer:
    """activation(norm(convolution(x, w) + bias) + residual)

    A linear layer is a convolution of one tap, whose pixels are all axes but the last one.

    Attributes
    ----------
    x, w, bias : nodes; the bias may be None
    window : Window
    padding : pairs of numbers of pixels, before and after each axis
    padding_mode : str
    norm : (mean, variance, weight, bias) of a batch norm, or nothing
        Nodes, of which the last two may be None.
    eps : float or None
        That of the batch norm, if there is one.
    residual : node or None
    activation : Activation
        None is none.
    nodes : list of nodes, the convolution's first, that of the result last
    """

    x: Node
    w: Node
    bias: Node | None
    window: Window
    padding: tuple[tuple[int, int], ...]
    padding_mode: str = "zeros"
    norm: tuple[Node | None, ...] = ()
    eps: float | None = None
    residual: Node | None = None
    activation: Activation = None
    nodes: list[Node] = field(default_factory=list)

    @property
    def result(self) -> Node:
        """The node of its result."""
        return self.nodes[-1]

    @property
    def images(self) -> list[Node]:
        """The images that it reads."""
        return [self.x] if self.residual is None else [self.x, self.residual]

    @property
    def is_linear(self) -> bool:
        """Whether it is a linear layer."""
        return bool(value_of(self.w).dim() == 2)

    @property
    def is_on_gpu(self) -> bool:
        """Whether it is computed on a GPU."""
        return bool(value_of(self.w).device.type == "cuda")

    @property
    def is_converted(self) -> bool:
        """Whether autocast converts what its convolution reads."""
        read = [each for each in (self.x, self.w, self.bias) if each is not None]
        return any(value_of(each).dtype != value_of(self.result).dtype for each in read)

    @property
    def weights(self) -> list[Node | None]:
        """What else it reads: w, the bias, and the batch norm."""
        return [self.w, self.bias, *self.norm]

    @property
    def words(self) -> str:
        """What it computes besides the convolution."""
        activation = self.activation
        name = activation[0] if isinstance(activation, tuple) else activation or ""
        parts = "batch norm" * bool(self.norm), "residual" * (self.residual is not None), name
        return ", ".join(filter(None, parts)) or "nothing"

    def __repr__(self) -> str:
        """All but the names of its nodes."""
        w = value_of(self.w)
        kinds = self.bias is None, self.eps, [each is None for each in self.norm], self.activation
        return f"{self.window} {self.padding} {self.padding_mode} {tuple(w.shape)} {kinds}"


def layers(graph: Graph, precision: str) -> list[Layer]:
    """The layers of a graph, in the order of their results. Of two that a sum joins, the later one
    has it.
    """
    nodes = list(graph.nodes)
    place = {node: number for number, node in enumerate(nodes)}
    is_written = written(graph)
    taken, found = set[Node](), list[Layer]()
    for node in reversed(nodes):
        layer = convolution(node, precision) or _linear(node, precision)
        if layer is None or not _are_weights(layer.w, layer.bias):
            continue
        before = layer.x
        if not is_written(layer.nodes, before, node) and _is_padded(layer, before):
            layer.nodes.insert(0, before)
        while (user := _only_user(layer.result)) is not None and user not in taken:
            if is_written(layer.nodes, layer.nodes[0], user) or not _follows(layer, user):
                break
            layer.nodes.append(user)
        taken.update(layer.nodes)
        found.append(layer)
    return sorted(found, key=lambda layer: place[layer.result])


def written(graph: Graph) -> Callable[[Sequence[Node], Node, Node], bool]:
    """A function of (nodes, first, last): whether any other node between these two may write."""
    place = {node: number for number, node in enumerate(graph.nodes)}
    writing = [node for node in graph.nodes if writes(node)]

    def is_written(own: Sequence[Node], first: Node, last: Node) -> bool:
        low, high = place[first], place[last]
        return any(low < place[node] < high and node not in own for node in writing)

    return is_written


def writes(node: Node) -> bool:
    """Whether a node may write to what another one reads: all that is not surely pure, but for
    activations in place of a new tensor.
    """
    if is_pure(node) or node.target is torch.split or _reads_item(node):
        return False
    of = node.args[0] if node.args else None
    fresh = isinstance(of, Node) and of.target in FRESH and len(of.users) == 1
    known = activations.of_call(node.target, node.args[1:], node.kwargs) is not None
    return not (fresh and known)


def _reads_item(node: Node) -> bool:
    """Whether a node reads an item of what is known to be a tensor, or a container of Python's."""
    of = value_of(node.args[0]) if node.target is operator.getitem else None
    return isinstance(of, torch.Tensor) or getattr(type(of), "__getitem__", None) in ITEMS


def _only_user(node: Node) -> Node | None:
    """The node that alone uses this one's value, once, unless that is a result of the graph."""
    users = list(node.users)
    if len(users) != 1 or users[0].op == "output" or users[0].all_input_nodes.count(node) != 1:
        return None
    uses = [each for each in (*users[0].args, *users[0].kwargs.values()) if each is node]
    return users[0] if len(uses) == 1 else None


def named(node: Node, names: tuple[str, ...], defaults: dict[str, Any]) -> dict[str, Any] | None:
    """The arguments of a call by their names; None if there are others."""
    given = {**defaults, **dict(zip(names, node.args, strict=False)), **node.kwargs}
    known = {*names, *defaults}
    return given if len(node.args) <= len(names) and given.keys() <= known else None


def is_convolution(node: Node) -> bool:
    """Whether a node is a convolution of torch."""
    return node.target in CONVOLUTIONS or node.target in TRANSPOSED


def convolution(node: Node, precision: str) -> Layer | None:
    """The layer of a convolution alone; None of all else."""
    transposed = node.target in TRANSPOSED
    rank = (TRANSPOSED if transposed else CONVOLUTIONS).get(node.target, 0)
    names = TRANSPOSED_NAMES if transposed else NAMES
    given = named(node, names, {"bias": None, **dict.fromkeys(names[3:], 1), **NO_PADDING})
    if not rank or given is None or not _are_like(node, given):
        return None
    x, w, bias = given["input"], given["weight"], given["bias"]
    if (value_of(x).dim(), value_of(w).dim()) != (rank + 2, rank + 2):
        return None
    every = [sizes_of(given[name], rank) for name in ("stride", "dilation", "output_padding")]
    padding = _padding(given["padding"], value_of(w), every[1], rank)
    if None in every or padding is None or type(given["groups"]) is not int:
        return None
    stride, dilation, added = every
    least = tuple(low for low, _ in padding)
    window = Window.of((stride, least, dilation, transposed, added, given["groups"]), precision)
    return Layer(x, w, bias, window, padding, nodes=[node])


def _linear(node: Node, precision: str) -> Layer | None:
    """The layer of a linear layer alone; None of all else."""
    given = named(node, NAMES[:3], {"bias": None}) if node.target in LINEAR else None
    if given is None or not _are_like(node, given):
        return None
    x, w, bias = given["input"], given["weight"], given["bias"]
    if value_of(w).dim() != 2 or value_of(x).dim() < 2 or (bias and value_of(bias).dim() != 1):
        return None
    window = Window.of(((1,), (0,), (1,), False, (0,), 1), precision)
    return Layer(x, w, bias, window, ((0, 0),), nodes=[node])


def _are_like(node: Node, given: dict[str, Any]) -> bool:
    """Whether x, w, a bias and the result are dense tensors on the CPU or on one GPU, of one dtype;
    on a GPU also where autocast converts operands of float32 to that of the result.
    """
    x, w, bias = (value_of(given.get(name)) for name in ("input", "weight", "bias"))
    values = [x, w, value_of(node), *([] if given["bias"] is None else [bias])]
    if not all(isinstance(each, torch.Tensor) for each in values):
        return False
    (device, layout), *others = {(each.device, each.layout) for each in values}
    dtypes, own = {each.dtype for each in values}, value_of(node).dtype
    known = own in DTYPES and device.type in DEVICES and layout is torch.strided
    converted = device.type == "cuda" and own in AUTOCAST and dtypes <= {own, torch.float32}
    return known and not others and (dtypes == {own} or converted)


def _is_padded(layer: Layer, node: Node) -> bool:
    """Whether a node pads the image of the layer, and of no other, as a convolution can; it then is
    part of it.
    """
    if layer.is_linear or node.target not in PADS or _only_user(node) is not layer.nodes[0]:
        return False
    defaults = {"mode": "constant", "value": None}
    given, rank = named(node, ("input", "pad", *defaults), defaults), len(layer.padding)
    if given is None or layer.window.transposed or given["value"] not in (None, 0):
        return False
    amounts, mode = [*given["pad"], *[0] * (2 * rank)], MODES.get(given["mode"])
    plain = all(type(each) is int and each >= 0 for each in amounts)
    if not plain or any(amounts[2 * rank :]) or value_of(given["input"]) is None:
        return False
    if mode is None or (mode != "zeros" and any(map(any, layer.padding))):
        return False
    pairs = [*zip(amounts[: 2 * rank : 2], amounts[1 : 2 * rank : 2], strict=True)][::-1]
    both = zip(layer.padding, pairs, strict=True)
    layer.padding = tuple((own[0] + low, own[1] + high) for own, (low, high) in both)
    layer.padding_mode, layer.x = mode, given["input"]
    return True


def sizes_of(given: Any, rank: int) -> tuple[int, ...] | None:
    """An option of a convolution as integers; None if it is a word or a symbol."""
    sizes = (given,) * rank if type(given) is int else given
    if not isinstance(sizes, (tuple, list)) or len(sizes) not in (1, rank):
        return None
    sizes = tuple(sizes) * (rank // len(sizes))
    return sizes if all(type(size) is int for size in sizes) else None


def _padding(given: Any, w: Any, dilation: Any, rank: int) -> tuple[tuple[int, int], ...] | None:
    """The padding before and after each axis, which "same" and "valid" are words for; None if it is
    no number.
    """
    if given == "same":
        if w is None or dilation is None:
            return None
        both = [step * (size - 1) for step, size in zip(dilation, w.shape[2:], strict=True)]
        return tuple((size // 2, size - size // 2) for size in both)
    sizes = sizes_of(0 if given == "valid" else given, rank)
    return None if sizes is None else tuple(zip(sizes, sizes, strict=True))


def value_of(node: Any) -> Any:
    """What Dynamo knows of a node's value: a tensor without memory, or None."""
    return node.meta.get("example_value") if isinstance(node, Node) else None


def _are_weights(*nodes: Any) -> bool:
    """Whether values are inputs of the graph, or None: only their versions tell of writes."""
    return all(
        node is None or (isinstance(node, Node) and node.op in ("placeholder", "get_attr"))
        for node in nodes
    )


def _follows(layer: Layer, node: Node) -> bool:
    """Whether the layer can compute `node`, which uses its result; it then is part of it."""
    is_first = bool(node.args) and node.args[0] is layer.result
    if not is_like(layer.result, node):
        return False
    if is_first and node.target is functional.dropout:
        given = named(node, ("input", "p", "training", "inplace"), {"training": True})
        return given is not None and given["training"] is False
    return layer.activation is None and _ends(layer, node, is_first)


def _ends(layer: Layer, node: Node, is_first: bool) -> bool:
    """Whether the epilogue of a layer can compute `node`, which is then part of it."""
    if node.target in SUMS:
        return layer.residual is None and _adds(layer, node, is_first)
    if not is_first or node.op not in ("call_function", "call_method"):
        return False
    if node.target is functional.batch_norm:
        return not layer.is_linear and _norms(layer, node)
    layer.activation = activations.of_call(node.target, node.args[1:], node.kwargs)
    return layer.activation is not None


def is_like(node: Node, other: Node) -> bool:
    """Whether two values have one shape and dtype."""
    ours, theirs = value_of(node), value_of(other)
    kinds = [
        (getattr(each, "dtype", None), str(getattr(each, "shape", ""))) for each in (ours, theirs)
    ]
    return kinds[0] == kinds[1]


def _norms(layer: Layer, node: Node) -> bool:
    """Whether a batch norm is an affine function of each channel of the convolution."""
    defaults = {"weight": None, "bias": None, "training": False, "eps": 1e-5}
    given = named(node, NORM_NAMES, defaults)
    if given is None or layer.norm or layer.residual or given["training"] is not False:
        return False
    own = tuple(given[name] for name in ("running_mean", "running_var", "weight", "bias"))
    if None in own[:2] or not _are_weights(*own) or not isinstance(given["eps"], float):
        return False
    layer.norm, layer.eps = own, given["eps"]
    return True


def _adds(layer: Layer, node: Node, is_first: bool) -> bool:
    """Whether a sum is one with another image, and leaves that as it is."""
    if len(node.args) != 2 or node.kwargs or (node.target in WRITING_SUMS and not is_first):
        return False
    other = node.args[1 if is_first else 0]
    if not isinstance(other, Node) or other in layer.nodes or not is_like(layer.result, other):
        return False
    layer.residual = other
    return True
