"""`convert` and `restore`: a model whose calls are compiled, in place.

torch keeps a compiled call in an attribute of a module, `_compiled_call_impl`. All modules around
convolutions get one, so that parts that are called for themselves are compiled too. Dynamo looks
into modules without it: the one that is called first has one graph of all inside.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FunctionType
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as torch_module
from torch.utils.hooks import RemovableHandle

from implicit_conv.torch.backend import Row, compile_graph
from implicit_conv.torch.override import SWITCH
from implicit_conv.torch.region import is_watched

CALL = "_compiled_call_impl"  # the attribute
CONVOLUTIONS = (
    *(nn.Conv1d, nn.Conv2d, nn.Conv3d),
    *(nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d),
)
HOOKS = (
    *("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"),
    *("_forward_hooks_with_kwargs", "_forward_pre_hooks_with_kwargs"),
)
CHILDREN = [0]  # that any modules got so far


def _count(*_: Any) -> None:
    CHILDREN[0] += 1


torch_module.register_module_module_registration_hook(_count)


def convert(model: Any, precision: str, choose: str) -> Any:
    """See `implicit_conv.torch.convert`; the options are checked."""
    restore(model)
    SWITCH.lend(model)  # idle threads of torch spin on the CPUs that others would need
    for module in model.modules():
        if _is_served(module):
            vars(module)[CALL] = CompiledCall(module, {"precision": precision, "choose": choose})
    return model


def restore(model: Any) -> Any:
    """See `implicit_conv.torch.restore`."""
    if not isinstance(model, nn.Module):
        kind = f"the class {model.__name__}" if isinstance(model, type) else type(model).__name__
        raise TypeError(f"model must be a module of torch, a torch.nn.Module, not {kind}")
    for module in model.modules():
        call = module._compiled_call_impl
        if isinstance(call, CompiledCall):
            del vars(module)[CALL]
            if call.before is not None:
                vars(module)[CALL] = call.before
    SWITCH.end_loans(model.modules())
    return model


def compiled_calls(model: Any) -> dict[Any, CompiledCall]:
    """New calls for the modules that have some, of which nothing is compiled."""
    found = {}
    for module in model.modules() if isinstance(model, nn.Module) else ():
        call = module._compiled_call_impl
        if isinstance(call, CompiledCall):
            found[module] = CompiledCall(module, call.graphs.options)
    return found


@contextmanager
def calls_replaced(calls: Mapping[Any, CompiledCall | None]) -> Iterator[None]:
    """A block in which modules have these calls; None is their own."""
    before = {module: module._compiled_call_impl for module in calls}
    try:
        for module, call in calls.items():
            vars(module)[CALL] = call
        yield
    finally:
        for module, call in before.items():
            vars(module)[CALL] = call


def _is_served(module: Any) -> bool:
    """Whether a module has code that Dynamo reads, and convolutions."""
    if isinstance(module, torch.jit.ScriptModule) or type(module).forward is nn.Module.forward:
        return False
    return any(isinstance(each, CONVOLUTIONS) for each in module.modules())


class CompiledCall:
    """The call of one module, compiled where it runs first.

    It does not hold the module, which holds it, and copies and pickles have None in its place.

    Attributes
    ----------
    graphs : Graphs
    before : function or None
        The module's compiled call of somebody else.
    """

    def __init__(self, module: Any, options: dict[str, Any]) -> None:
        """
        Raises
        ------
        RuntimeError
            torch.compile does not serve this Python.
        """
        self._module, self.graphs = weakref.ref(module), Graphs(options)
        self.before = module._compiled_call_impl
        self._begin(module)

    def _begin(self, module: Any) -> None:
        """Compile anew, with the hooks that there are now, of which guards do not see more."""
        self._seen, self._hooks = (RemovableHandle.next_id, *CHILDREN), _hooks(module)
        # With code of its own, no other module uses up its limit of compilations. Dynamo would skip
        # the call of a module, whose code is torch's.
        run: Any = FunctionType(_call.__code__.replace(co_name=type(module).__name__), globals())
        self._run: Callable[..., Any] = torch.compile(
            run, backend=self.graphs, isolate_recompiles=True
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The result of the module."""
        module: Any = self._module()
        # Dynamo comes here for modules with hooks, or with a forward of their own.
        if torch.compiler.is_dynamo_compiling() or is_watched():
            return module._call_impl(*args, **kwargs)
        seen = RemovableHandle.next_id, *CHILDREN
        if self._seen != seen:
            self._seen = seen
            if self._hooks != _hooks(module):
                self._begin(module)
        return self._run(module, args, kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        return _nothing, ()


def _nothing() -> None:
    """What copies have."""


def _call(module: Any, args: Any, kwargs: Any) -> Any:
    return module._call_impl(*args, **kwargs)


def _hooks(module: Any) -> list[tuple[int, ...]]:
    """The hooks of a module, of those inside, and of all modules."""
    return [*map(tuple, _dicts(module))]


def _dicts(module: Any) -> Iterator[Any]:
    yield from (vars(torch_module)[f"_global{name}"] for name in HOOKS[:4])
    for each in module.modules():
        yield from (getattr(each, name) for name in HOOKS)


class Graphs:
    """A backend that knows what it has compiled.

    Attributes
    ----------
    options : dict of str
    rows : list of list of Row
        Those of each graph, the newest last.
    """

    def __init__(self, options: dict[str, Any]) -> None:
        self.options, self.rows = options, list[list[Row]]()

    def __call__(self, graph: Any, inputs: Any) -> Callable[..., Any]:
        """A compiled graph; see `implicit_conv.torch.backend.backend`."""
        found = compile_graph(graph, inputs, **self.options)
        self.rows.append(found.rows)
        return found.run
