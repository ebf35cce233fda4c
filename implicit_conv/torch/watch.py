"""Whether modules are what they were: their classes, children, flags, and every write to a weight
that torch tells of.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from operator import attrgetter, is_, itemgetter
from typing import Any, NamedTuple

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from implicit_conv.torch.steps import storage_address

VERSION = attrgetter("_version")
HOOKS = "_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"
OWN = frozenset(vars(torch.nn.Module())) - {"training"}  # attributes of every module
UNSET = object()
FUSED_STEPS = [0]  # the steps of optimisers whose writes no version counter tells


def _count(optimizer: Any, arguments: Any, options: Any) -> None:
    """Count steps of fused optimisers: they leave the versions of parameters as they are."""
    if any(group.get("fused") for group in optimizer.param_groups):
        FUSED_STEPS[0] += 1


register_optimizer_step_post_hook(_count)


class OwnForward:
    """What `convert` has as `forward` in the attributes of modules."""


def is_replaced(module: Any) -> bool:
    """Whether a module has a forward of its own, which is not ours."""
    found = vars(module).get("forward")
    return found is not None and not isinstance(found, OwnForward)


def has_hooks(module: Any) -> bool:
    """Whether calls of a module run hooks of its own."""
    return any(getattr(module, name) for name in HOOKS)


class Structure:
    """What a graph depends on besides weights: classes and attributes of modules, and which modules
    are whose children. It does not hold the module whose graph it is, which holds it.
    """

    def __init__(self, root: Any, inside: Sequence[Any]) -> None:
        """The graph is that of `root`, and has the code of modules `inside`."""
        self._inside = inside
        self._attributes = list(map(vars, inside))
        modules = [root, *inside]
        names = [[name for name in vars(each) if _is_own(name)] for each in modules]
        self._getters = [itemgetter(*found) for found in names]
        self._children = [module._modules for module in modules]
        every = list(root.modules())[1:]  # hooks of the root run where it is called
        self._hooks = [getattr(module, name) for module in every for name in HOOKS]
        self._every = every
        self._known = self._values(root)

    def _values(self, root: Any) -> list[Any]:
        attributes = [vars(root), *self._attributes]
        pairs = zip(self._getters, attributes, strict=True)
        of_attributes = [get(known) for get, known in pairs]
        of_children = chain.from_iterable(map(dict.values, self._children))
        types = map(type, self._inside)
        return [*of_attributes, *of_children, *map(len, attributes), *types, type(root)]

    def holds(self, root: Any) -> bool:
        """Whether all is as it was, and no module inside has hooks or a forward of its own."""
        if any(self._hooks) or any(map(is_replaced, self._every)):
            return False
        try:
            return self._known == self._values(root)
        except (KeyError, RuntimeError, ValueError):  # a name is gone, or arrays were compared
            return False


def _is_own(name: str) -> bool:
    """Whether an attribute is of a module's class, and not of all modules."""
    return name not in OWN and name not in ("forward", "__getstate__")


class Weights(NamedTuple):
    """Tensors at one time. It holds their memory, so that no other tensor can be at its address."""

    stores: list[dict[str, Any]]
    values: list[Any]
    versions: list[int]
    addresses: list[int]
    forms: list[Any]
    fused_steps: int
    memory: list[Any]

    @classmethod
    def of(cls, modules: Iterable[Any]) -> Weights:
        """Those of modules, now."""
        stores = [store for each in modules for store in (each._parameters, each._buffers)]
        values = _values(stores)
        tensors = _tensors(values)
        held = [tensor.data for tensor in tensors]
        return cls(
            stores,
            values,
            list(map(VERSION, tensors)),
            list(map(storage_address, tensors)),
            _forms(tensors),
            FUSED_STEPS[0],
            held,
        )

    def hold(self) -> bool:
        """Whether the modules have the same tensors, to which nothing was written."""
        values = _values(self.stores)
        if len(values) != len(self.values) or not all(map(is_, values, self.values)):
            return False
        tensors = _tensors(values)
        return (
            list(map(VERSION, tensors)) == self.versions
            and list(map(storage_address, tensors)) == self.addresses
            and _forms(tensors) == self.forms
            and FUSED_STEPS[0] == self.fused_steps
        )


def _values(stores: list[dict[str, Any]]) -> list[Any]:
    return list(chain.from_iterable(map(dict.values, stores)))


def _tensors(values: list[Any]) -> list[Any]:
    return [value for value in values if value is not None]


def _forms(tensors: list[Any]) -> list[Any]:
    """Where in its storage a tensor has its elements, and what they mean."""
    return [(t.storage_offset(), t.shape, t.stride(), t.dtype) for t in tensors]
