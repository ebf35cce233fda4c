"""The forward of a converted module: its graph with fused calls, where it surely means the same."""

from __future__ import annotations

import operator
import threading
import weakref
from collections.abc import Callable
from functools import partial
from itertools import chain
from types import MethodType
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.fx import Graph
from torch.nn.modules import module as torch_module
from torch.utils import _pytree as pytree

from implicit_conv.torch.chains import Chain, chains, is_convolution
from implicit_conv.torch.fused import PLAIN, FusedConv
from implicit_conv.torch.steps import LOG
from implicit_conv.torch.trace import LeftError, defaults, required, traced
from implicit_conv.torch.watch import OwnForward, Structure, Weights

# How far results may be from those of the module itself, relative to the largest element. It is to
# tell another meaning from another rounding, which deep networks add up.
TOLERANCES = {torch.float64: 1e-6, torch.float32: 1e-2, torch.float16: 0.1, torch.bfloat16: 0.3}
PUT = "forward", "__getstate__"  # the attributes of a converted module
PLAIN_CALLS = threading.local()  # has a `depth` in threads that run a module itself


class Program:
    """A module's graph as a function, and what it depends on."""

    def __init__(self, module: Any, precision: str) -> None:
        """
        Raises
        ------
        LeftError
            There is no graph.
        """
        self.convolutions: list[FusedConv] = []
        if is_convolution(module):
            conv = FusedConv(Chain(weakref.ref(module)), "conv", precision)
            self.convolutions.append(conv)
            self.run: Callable[..., Any] = lambda _, x: conv(x)
            inside = list[Any]()
        else:
            graph, inside = traced(module)
            for found in list(chains(graph, module)):  # which a change would confuse
                self._replace(graph, found, precision)
            if not self.convolutions:
                raise LeftError("its graph has no convolution of torch.nn")
            self.run = _function(graph)
            inside += [conv.chain.conv for conv in self.convolutions]
        inside += [each for conv in self.convolutions for each in conv.chain.modules]
        self.structure = Structure(module, list(dict.fromkeys(inside)))

    def folded(self) -> list[Any]:
        """The modules whose weights are folded."""
        parts = [conv.chain for conv in self.convolutions]
        return [each for one in parts for each in (one.conv, one.norm) if each is not None]

    def _replace(self, graph: Graph, found: Chain, precision: str) -> None:
        """Have one call in place of the nodes of a chain."""
        conv = FusedConv(found, f"fused_{len(self.convolutions)}", precision)
        self.convolutions.append(conv)
        first, last = found.nodes[0], found.nodes[-1]
        operands = first.args if found.residual is None else (*first.args, found.residual)
        with graph.inserting_before(last):
            node = graph.call_function(conv, operands)
        last.replace_all_uses_with(node)
        for each in reversed(found.nodes):
            graph.erase_node(each)
        found.nodes, found.residual = [], None


def _function(graph: Graph) -> Callable[..., Any]:
    """A graph as a function of (module, *inputs)."""
    code = graph.python_code("self")
    names = dict(code.globals)
    exec(compile(code.src, "<converted>", "exec"), names)
    found: Callable[..., Any] = names.pop("forward")  # no cycle keeps its filters alive
    return found


class State:
    """What stands as `__getstate__` in the attributes of a converted module."""

    def __init__(self, module: weakref.ref[Any]) -> None:
        self._module = module

    def __call__(self) -> Any:
        """What copies and pickles of the module have."""
        module = self._module()
        own = getattr(type(module), "__getstate__", None)
        state = vars(module) if own is None else own(module)
        if not isinstance(state, dict):
            return state
        return {name: value for name, value in state.items() if name not in PUT}

    def __reduce__(self) -> tuple[Any, ...]:
        """The module's own state, in copies of its attributes alone."""
        module = self._module()
        if hasattr(type(module), "__getstate__"):
            return getattr, (module, "__getstate__")
        return partial, (vars, module)


class Converted(OwnForward):
    """What stands as `forward` in the attributes of a module. It is the module's own forward in
    copies and pickles.

    Attributes
    ----------
    left : str
        Why the module itself runs; "" if nothing speaks against the graph.
    """

    def __init__(self, module: Any, precision: str) -> None:
        self._module, self._precision = weakref.ref(module), precision
        self._class = type(module)
        self._names, self._defaults = required(module), defaults(module)
        self._program: Program | None = None
        self._weights: Weights | None = None
        self._is_checked, self.left = False, ""

    def put(self) -> None:
        """Stand in the module's attributes, of which copies and pickles do not have this."""
        module = self._module()
        object.__setattr__(module, "forward", self)
        object.__setattr__(module, "__getstate__", State(self._module))

    def take(self) -> None:
        """Undo `put`."""
        for name in PUT:
            vars(self._module()).pop(name, None)

    def __reduce__(self) -> tuple[Any, ...]:
        """The module's own forward, in copies of its attributes alone."""
        return getattr, (self._module(), "forward")

    @property
    def __wrapped__(self) -> Any:
        """The module's own forward, whose signature this has."""
        return MethodType(self._class.forward, self._module())

    def __getattr__(self, name: str) -> Any:
        """What else the module's own forward has, such as its code."""
        return getattr(self.__wrapped__, name)

    def trace(self) -> Program:
        """The graph, on first use.

        Raises
        ------
        LeftError
            There is none.
        """
        module = self._module()
        if self.left:
            raise LeftError(self.left)
        if self._program is None:
            try:
                program = Program(module, self._precision)
            except LeftError as error:
                self.left = str(error)
                raise
            self._program = program
        return self._program

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The result of the graph, or of the module itself."""
        module = self._module()
        if torch.compiler.is_compiling():
            return self._class.forward(module, *args, **kwargs)
        if not self.left and not getattr(PLAIN_CALLS, "depth", 0):
            inputs = self._inputs(args, kwargs)
            if inputs is not None and _is_eager() and self._is_ready(inputs):
                if self._is_checked:
                    return self._program.run(module, *inputs)  # type: ignore[union-attr]
                return self._checked(module, args, kwargs, inputs)
        return self._class.forward(module, *args, **kwargs)

    def _inputs(self, args: Any, kwargs: Any) -> Any:
        """The tensors that the graph takes; None if it takes others, or if more is given."""
        if kwargs or len(args) != len(self._names):
            args = self._without_defaults(args, kwargs)
        if args is None or not all(type(value) in PLAIN and value.is_cpu for value in args):
            return None
        return args

    def _without_defaults(self, args: Any, kwargs: Any) -> Any:
        """The required arguments, if the others have the values that they have by default."""
        names = [*self._names, *self._defaults]
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        others = given.keys() - self._names
        if len(args) > len(names) or len(given) != len(args) + len(kwargs):
            return None
        if any(given[name] is not self._defaults.get(name, self) for name in others):
            return None
        return (
            tuple(given[name] for name in self._names) if given.keys() >= {*self._names} else None
        )

    def _is_ready(self, inputs: Any) -> bool:
        """Whether the graph may run: its modules are what they were, and nothing is recorded. What
        is folded then is that of the weights as they are now.
        """
        if torch.is_grad_enabled() and self._records(inputs):
            return False
        module: Any = self._module()
        if self._program is None and any(each.training for each in module.modules()):
            return False
        try:
            program = self.trace()
        except LeftError as error:
            LOG.debug("%s runs as it is: %s", self._class.__name__, error)
            return False
        if not program.structure.holds(module):
            self._forget(program)
            return False
        known = self._weights
        try:
            if known is None or not known.hold():
                now = Weights.of(program.folded())  # before anything is folded
                self._forget(program)
                self._weights = now  # last: other threads compare with it
        except RuntimeError:  # of tensors without memory or, in inference mode, without version
            self._forget(program)
            return False
        return True

    def _records(self, inputs: Any) -> bool:
        """Whether the module itself would record its operators for gradients."""
        module: Any = self._module()
        tensors = chain(inputs, module.parameters(), module.buffers())
        return any(each.requires_grad for each in tensors)

    def _forget(self, program: Program) -> None:
        """Drop what was folded."""
        self._weights = None
        for conv in program.convolutions:
            conv.forget()

    def _checked(self, module: Any, args: Any, kwargs: Any, inputs: Any) -> Any:
        """The result of the module itself, with which that of the graph is compared: the first call
        with a graph. Random numbers are drawn once, and inputs written once, as far as others see.
        """
        copies = list(map(_copy, inputs))
        every = list(module.modules())
        try:
            before, random = Weights.of(every), torch.get_rng_state()
        except RuntimeError as error:  # of tensors without memory or, in inference mode, versions
            self._leave(str(error))
            return self._class.forward(module, *args, **kwargs)
        PLAIN_CALLS.depth = 1
        try:
            expected = self._class.forward(module, *args, **kwargs)
        finally:
            PLAIN_CALLS.depth = 0
        if not before.hold():
            self._leave("its forward writes to its parameters or buffers")
            return expected
        after = torch.get_rng_state()
        try:
            torch.set_rng_state(random)
            found = self._program.run(module, *copies)  # type: ignore[union-attr]
            if not torch.equal(torch.get_rng_state(), after):
                self._leave("its graph draws other random numbers")
            elif not _is_close((found, copies), (expected, list(inputs))):
                self._leave("its graph has other results")
        except Exception as error:  # of any kind: the graph means something else
            self._leave(f"its graph does not run ({type(error).__name__}: {error})")
        finally:
            torch.set_rng_state(after)
        self._is_checked = not self.left
        return expected

    def _leave(self, reason: str) -> None:
        LOG.warning("%s runs as it is: %s", self._class.__name__, reason)
        self.left = reason
        if self._program is not None:
            self._forget(self._program)


def _copy(x: Any) -> Any:
    """A copy of a tensor with the same strides, whatever they are."""
    if not x.numel():
        return x.clone()
    span = sum(map(operator.mul, x.shape, x.stride())) - sum(x.stride()) + 1
    return x.as_strided((span,), (1,)).clone().as_strided(x.shape, x.stride(), 0)


def _is_eager() -> bool:
    """Whether calls compute numbers, and nobody looks at what they call."""
    c = torch._C
    return not (
        c._get_tracing_state()
        or c._len_torch_dispatch_stack()
        or c._len_torch_function_stack()
        or c._functorch.peek_interpreter_stack() is not None
        or c._is_any_autocast_enabled()
        or forward_ad._current_level >= 0
        or torch_module._has_any_global_hook()
    )


def _is_close(found: Any, expected: Any) -> bool:
    """Whether results have the same structure, kinds of tensors, and about the same values."""
    (ours, our_spec), (own, own_spec) = pytree.tree_flatten(found), pytree.tree_flatten(expected)
    return bool(our_spec == own_spec) and all(map(_is_one_close, ours, own))


def _is_one_close(found: Any, expected: Any) -> bool:
    if type(found) is not type(expected):
        return False
    if not isinstance(expected, torch.Tensor):
        return bool(found == expected)
    kinds = [(each.shape, each.dtype, each.stride(), each.device) for each in (found, expected)]
    if kinds[0] != kinds[1]:
        return False
    if expected.dtype not in TOLERANCES:
        return bool(torch.equal(found, expected))
    size = expected.abs().nan_to_num(0, 0, 0).max().item() if expected.numel() else 0.0
    bound = TOLERANCES[expected.dtype]
    return bool(torch.allclose(found, expected, bound, bound * size, equal_nan=True))
