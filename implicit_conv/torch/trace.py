"""The graph of a module's forward, by torch.fx, where it is sure to mean the same."""

from __future__ import annotations

import inspect
import operator
import threading
from typing import Any

import torch
from torch.fx import Graph, Node, Tracer
from torch.fx.proxy import TraceError

from implicit_conv.process.preparation import prepare
from implicit_conv.torch.purity import ImpureError, only_computing
from implicit_conv.torch.watch import has_hooks, is_replaced

# Modules and functions of these write to nothing but where their names or arguments say so.
PURE_MODULES = "torch.nn.modules."
PURE = ("torch", "torch.nn.functional", "torch._C._nn", "_operator", "builtins", "math")
OPERATORS = vars(operator)


class LeftError(Exception):
    """A module is left to torch, for the reason that this says."""


class ForwardTracer(Tracer):  # type: ignore[misc]  # torch.fx has no types
    """Traces the forward of one module, whose optional parameters have their defaults.

    Attributes
    ----------
    inside : list of modules
        Those inside of the one, whose code the graph has in place of a call.
    """

    proxy_buffer_attributes = True  # code that writes to a buffer would run once more

    def __init__(self) -> None:
        super().__init__()
        self.inside: list[Any] = []
        self._thread = threading.get_ident()

    def create_args_for_root(
        self, root_fn: Any, is_module: bool, concrete_args: Any = None
    ) -> tuple[Any, list[Any]]:
        """Proxies for the required parameters alone."""
        names = required(self.root)
        return root_fn, [
            self.root,
            *(self.create_proxy("placeholder", name, (), {}) for name in names),
        ]

    def call_module(self, m: Any, forward: Any, args: Any, kwargs: Any) -> Any:
        """The node of a call, or what the code of the module comes to."""
        if threading.get_ident() != self._thread:  # torch.fx patches the calls of all threads
            return forward(*args, **kwargs)
        if has_hooks(m):
            raise LeftError(f"{self.path_of_module(m)} has hooks")
        if is_replaced(m):
            raise LeftError(f"the forward of {self.path_of_module(m)} was replaced")
        if not self.is_leaf_module(m, self.path_of_module(m)):
            self.inside.append(m)
        return super().call_module(m, forward, args, kwargs)

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: Any) -> Any:
        """A parameter or buffer as a proxy, in this thread."""
        if threading.get_ident() != self._thread:
            return attr_val
        return super().getattr(attr, attr_val, parameter_proxy_cache)

    def create_arg(self, a: Any) -> Any:
        """An argument of a node; tensors that forward makes without its inputs would be made once,
        and written to again and again.
        """
        if isinstance(a, torch.Tensor) and not self._is_registered(a):
            raise LeftError("its forward uses a tensor that is no input, parameter or buffer")
        return super().create_arg(a)

    def _is_registered(self, tensor: Any) -> bool:
        named = *self.root.parameters(), *self.root.buffers()
        return any(tensor is known for known in named)


def required(module: Any) -> list[str]:
    """The names of the parameters of forward that have no default."""
    return [name for name, parameter in _positional(module) if parameter.default is parameter.empty]


def defaults(module: Any) -> dict[str, Any]:
    """The other parameters of forward."""
    found = _parameters(module)
    return {name: p.default for name, p in found.items() if p.default is not p.empty}


def _positional(module: Any) -> list[tuple[str, Any]]:
    kinds = inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD
    return [(name, p) for name, p in _parameters(module).items() if p.kind in kinds]


def _parameters(module: Any) -> dict[str, inspect.Parameter]:
    signature = inspect.signature(type(module).forward)
    return dict(list(signature.parameters.items())[1:])


def traced(module: Any) -> tuple[Graph, list[Any]]:
    """The graph of a module's forward, and the modules inside of which it looks.

    Raises
    ------
    LeftError
        There is none, or its meaning may be another one.
    """
    if not inspect.isfunction(type(module).forward):
        raise LeftError("its forward is no Python function")
    if not required(module):
        raise LeftError("its forward requires no input")
    stores = [store for each in module.modules() for store in _stores(each)]
    before = [store.copy() for store in stores]
    held = [value for store in stores for value in store.values() if type(value) in (list, set)]
    contents = [value.copy() for value in held]
    _refuse_tensors(module)
    random = torch.get_rng_state()
    try:
        graph, inside = prepare(_graph, module)
    except LeftError:
        raise
    except ImpureError as error:
        raise LeftError(f"its code does more than compute: {error}") from error
    except Exception as error:  # of any kind, since proxies are no tensors
        raise LeftError(f"torch.fx cannot trace it ({_words(error)})") from error
    finally:
        if not torch.equal(torch.get_rng_state(), random):
            torch.set_rng_state(random)
        changed = [_changed(*pair) for pair in zip(stores, before, strict=True)]
        grown = [_grown(*pair) for pair in zip(held, contents, strict=True)]
    if any(changed):
        raise LeftError(
            f"its forward sets {', '.join(name for names in changed for name in names)}"
        )
    if any(grown):
        raise LeftError("its forward changes a list or a set")
    if any(node.op == "get_attr" and node.target.startswith("_tensor_") for node in graph.nodes):
        raise LeftError("its forward makes constants")
    return graph, inside


def _graph(module: Any) -> tuple[Graph, list[Any]]:
    """The graph, and modules inside. torch.fx patches torch.nn.Module meanwhile: neither another
    thread that traces, nor a fork nor Ctrl-C may leave it so.
    """
    tracer = ForwardTracer()
    try:
        with torch.no_grad(), only_computing():
            return tracer.trace(module), tracer.inside
    finally:
        tracer.root = torch.nn.Module()  # the tracer is in a cycle, which holds no model


def _words(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    kind = "" if isinstance(error, TraceError) else f"{type(error).__name__}: "
    return f"{kind}{lines[0][:120] if lines else ''}"


def _refuse_tensors(module: Any) -> None:
    """Refuse modules with tensors that are no parameters and buffers: code that writes to them
    would run once more.

    Raises
    ------
    LeftError
        There is one.
    """
    for name, each in module.named_modules():
        for attribute, value in vars(each).items():
            if isinstance(value, torch.Tensor):
                path = f"{name}.{attribute}".lstrip(".")
                raise LeftError(f"{path} is a tensor, but no parameter or buffer")


def _grown(held: Any, before: Any) -> bool:
    """Whether a list or a set has other elements than before, which it then has again."""
    if len(held) == len(before) and all(map(operator.is_, held, before)):
        return False
    held.clear()
    held.extend(before) if isinstance(held, list) else held.update(before)
    return True


def _stores(module: Any) -> tuple[dict[Any, Any], ...]:
    """Where a module has its attributes, and dicts among these."""
    dicts = [value for value in vars(module).values() if type(value) is dict]
    return vars(module), *dicts


def _changed(store: dict[str, Any], before: dict[str, Any]) -> list[str]:
    """The names of attributes that are not as they were; they get their values back."""
    names = [
        name
        for name in {**before, **store}
        if name not in before or name not in store or store[name] is not before[name]
    ]
    for name in names:
        store.pop(name, None)
        if name in before:
            store[name] = before[name]
    return names


def is_pure(node: Node, module: Any) -> bool:
    """Whether a node surely writes to none of its inputs; `module` is what it calls."""
    if node.op == "call_method":
        special = node.target.startswith("__")
        return not (writes(node.target.strip("_")) if special else node.target.endswith("_"))
    if node.op == "call_module":
        is_torchs = type(module).__module__.startswith(PURE_MODULES)
        return is_torchs and not getattr(module, "inplace", False)
    if node.op != "call_function":
        return True
    name, home = node.target.__name__, node.target.__module__
    if home not in PURE and not str(home).startswith("torch._C"):
        return False
    if home == "_operator":
        return not (name == "getitem" or writes(name))  # items of any object
    given = *node.args, *node.kwargs.values()
    return not (name.endswith("_") or "out" in node.kwargs or any(each is True for each in given))


def writes(name: str) -> bool:
    """Whether a function of `operator` writes to its first argument, such as iadd."""
    if name in ("setitem", "delitem"):
        return True
    return name.startswith("i") and (name[1:] in OPERATORS or f"{name[1:]}_" in OPERATORS)
