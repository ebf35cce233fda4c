"""Chains of a graph: a convolution and what one call computes with it."""

from __future__ import annotations

import operator
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.fx import Graph, Node

from implicit_conv.problem.options import Activation
from implicit_conv.torch import activations
from implicit_conv.torch.trace import is_pure

CONVOLUTIONS = (
    *(nn.Conv1d, nn.Conv2d, nn.Conv3d),
    *(nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d),
)
NORMS = nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d
NOTHING = nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d  # in eval mode
SUMS = operator.add, operator.iadd, torch.add, "add", "add_"
WRITING_SUMS = operator.iadd, "add_"
Rest = Callable[[Any, Any], Any]  # what torch computes next of (y, residual)


@dataclass
class Chain:
    """A convolution, and what follows it.

    Attributes
    ----------
    of_conv : weak reference to the convolution, which may hold this
    norm : module or None
    adds : bool
        Whether a residual is added, which then is the second operand.
    activation : Activation
        None is none.
    rest : list of functions of (y, residual)
        How torch computes what follows the convolution.
    nodes : list of nodes, the convolution's first
    residual : node or None
    modules : list of modules
        All that are part of the chain, without the convolution.
    """

    of_conv: weakref.ref[Any]
    norm: Any = None
    adds: bool = False
    activation: Activation = None
    rest: list[Rest] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    residual: Node | None = None
    modules: list[Any] = field(default_factory=list)

    @property
    def conv(self) -> Any:
        """The convolution."""
        return self.of_conv()

    def torch_rest(self, y: Any, residual: Any = None) -> Any:
        """What torch computes of the convolution's result."""
        for one in self.rest:
            y = one(y, residual)
        return y


def is_convolution(module: Any) -> bool:
    """Whether a module is a convolution of torch, and nothing derived from it."""
    return type(module) in CONVOLUTIONS


def chains(graph: Graph, root: Any) -> Iterator[Chain]:
    """The chains of a graph, from its end on: of two that a sum joins, the later one has it."""
    nodes = list(graph.nodes)
    place = {node: n for n, node in enumerate(nodes)}
    modules = {n: root.get_submodule(n.target) for n in nodes if n.op == "call_module"}
    pure = [is_pure(node, modules.get(node)) for node in nodes]
    taken = set[Node]()
    for node in reversed(nodes):
        module = modules.get(node)
        if not is_convolution(module) or len(node.args) != 1 or node.kwargs:
            continue
        chain = Chain(weakref.ref(module), nodes=[node])
        while (user := _only_user(chain.nodes[-1])) is not None and user not in taken:
            between = range(place[node] + 1, place[user])
            if not all(pure[n] for n in between if nodes[n] not in chain.nodes):
                break  # a write may come before or after the convolution reads
            if not _follows(chain, user, modules.get(user)):
                break
            chain.nodes.append(user)
        taken.update(chain.nodes)
        yield chain


def _only_user(node: Node) -> Node | None:
    """The node that alone uses this one's value, unless that is a result of the graph."""
    users = list(node.users)
    return users[0] if len(users) == 1 and users[0].op != "output" else None


def _follows(chain: Chain, node: Node, module: Any) -> bool:
    """Whether the chain can compute `node`, which uses its value; it then is part of it."""
    is_first = bool(node.args) and node.args[0] is chain.nodes[-1]
    if chain.activation is not None or (module is None and node.op == "call_module"):
        return False
    if module is None:
        if node.target in SUMS:
            return not chain.adds and _adds(chain, node, is_first)
        return is_first and _activates(chain, node)
    if len(node.args) != 1 or node.kwargs or not is_first:
        return False
    return _joins(chain, module)


def _joins(chain: Chain, module: Any) -> bool:
    """Whether the chain can compute a module of its value."""
    is_nothing = type(module) in NOTHING and not module.training
    if not is_nothing and _is_norm_of(chain, module):
        chain.norm = module
    elif not is_nothing:
        chain.activation = activations.of_module(module)
        if chain.activation is None:
            return False
    chain.modules.append(module)
    if not is_nothing:
        chain.rest.append(lambda y, _: module(y))
    return True


def _is_norm_of(chain: Chain, module: Any) -> bool:
    """Whether a module is a batch norm of the chain's convolution, and an affine function of each
    channel.
    """
    conv = chain.conv
    return (
        type(module) is NORMS[len(conv.kernel_size) - 1]
        and not (chain.norm or chain.adds or module.training)
        and module.running_mean is not None
        and module.running_var is not None
        and module.num_features == conv.out_channels
    )


def _activates(chain: Chain, node: Node) -> bool:
    """Whether a function or method of the chain's value is an activation that it can compute."""
    op, target, others, options = node.op, node.target, node.args[1:], node.kwargs
    chain.activation = activations.of_call(target, others, options)
    if chain.activation is None:
        return False
    chain.rest.append(lambda y, _: _called(op, target, (y, *others), options))
    return True


def _adds(chain: Chain, node: Node, is_first: bool) -> bool:
    """Whether a sum is one with another node's value, and leaves that as it is."""
    if len(node.args) != 2 or node.kwargs or (node.target in WRITING_SUMS and not is_first):
        return False
    other = node.args[1 if is_first else 0]
    if not isinstance(other, Node) or other in chain.nodes:
        return False
    add = partial(_called, node.op, node.target)
    if is_first:
        chain.rest.append(lambda y, residual: add((y, residual), {}))
    else:
        chain.rest.append(lambda y, residual: add((residual, y), {}))
    chain.adds, chain.residual = True, other
    return True


def _called(op: str, target: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """The value of a node that calls a function or a method."""
    if op == "call_function":
        return target(*arguments, **options)
    return getattr(arguments[0], target)(*arguments[1:], **options)
