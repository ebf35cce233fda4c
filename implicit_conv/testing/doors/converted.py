"""Random small networks with `implicit_conv.torch.convert` against themselves in float64.

A network is called again and again, each time with other values, while its weights, its modules and
its modes change; one of four is trained.
"""

from __future__ import annotations

import copy
import dataclasses
from dataclasses import dataclass
from typing import Any
from unittest import mock

from implicit_conv import config
from implicit_conv.cpu.machine.arch import CpuArch, cpu_arch
from implicit_conv.testing import Array
from implicit_conv.testing.doors.data import check_close, placed
from implicit_conv.testing.doors.turns import Turns
from implicit_conv.testing.families import Dice
from implicit_conv.testing.trial import SIDES
from implicit_conv.testing.ways import TIMES, Watch, calls, counted

REQUIRED = {"torch": "torch>=2.13"}
# How far elements may be from those in float64, relative to the largest one of a layer's sums.
EPS = {"float64": 1e-12, "float32": 1e-5, "float16": 2e-2, "bfloat16": 0.15}
FUNCTIONS = tuple(f"{rank}d {dtype}" for rank in (1, 2, 3) for dtype in EPS)
SUMS = ("none", "after", "before", "in place", "mean", "twice", "written")
# What is computed next, of the layer's sums y: no part of a chain.
NEXT = ("nothing", "half", "twice less one", "plus a number")
# What is computed first, of the layer's input.
UNPOOLED = (
    *("nothing", "gate", "diamond", "joined"),
    *("enlarged", "parts", "shuffled", "tokens", "inverted"),
)
BETWEEN = "maximum", "mean", "means", *UNPOOLED
CRAMPED = 4 << 10  # bytes of L2, so that small images are computed by strips
FORMS = ("plain", "plain", "channels last", "negated")  # of the input
ACTIVATIONS: dict[str, tuple[str, dict[str, Any]]] = {  # modules of torch.nn and their arguments
    "none": ("Identity", {}),
    "relu": ("ReLU", {}),
    "relu in place": ("ReLU", {"inplace": True}),
    "relu6": ("ReLU6", {}),
    "leaky": ("LeakyReLU", {"negative_slope": 0.2}),
    "silu": ("SiLU", {}),
    "silu in place": ("SiLU", {"inplace": True}),
    "gelu": ("GELU", {}),
    "gelu by tanh": ("GELU", {"approximate": "tanh"}),
    "hardswish": ("Hardswish", {}),
    "clamp": ("Hardtanh", {"min_val": -0.3, "max_val": 0.8}),
    "elu": ("ELU", {}),
    "sigmoid": ("Sigmoid", {}),
    "tanh": ("Tanh", {}),
}
CHANGES = (
    *("none", "in place", "data", "load", "assign", "optimiser", "fused optimiser", "train"),
    *("channels last", "hook", "convert", "restore", "eps", "statistics", "gradients"),
    *("average", "average", "transposed", "threads"),
)


MADE, TOGETHER, LEFT = "made", "in one program", "left to torch"
ONCE, AGAIN = "trained once", "trained again"
KINDS = (*map(calls, TIMES), *dict.fromkeys(CHANGES[1:]), ONCE, AGAIN)
ELEMENTS = "Pool", "Gated", "Added", "Join", "Enlargement"  # of programs, besides layers
WAYS = (
    *(MADE, TOGETHER, LEFT, "Shuffle in 2d", "strips", "lanes"),
    *(f"{element} in {rank}d" for element in (*ELEMENTS, "linear layer") for rank in (1, 2, 3)),
    *(f"step in {rank}d" for rank in (1, 2, 3)),
    *("convolution of ours", "graph with channels last"),
)


@dataclass(frozen=True)
class Layer:
    """A convolution and what follows it.

    Attributes
    ----------
    taps, groups : int
    transposed, norm : bool
    total : one of SUMS
        How the input of the layer is added to what it computes.
    then : one of NEXT
        What is computed of the sum before the activation.
    activation : one of ACTIVATIONS
    shares : bool
        Whether it is the layer before, called again.
    between : one of BETWEEN
    """

    taps: int
    groups: int
    transposed: bool
    norm: bool
    total: str
    then: str
    activation: str
    shares: bool
    between: str = "nothing"

    def made(self, rank: int, channels: int, dtype: str) -> Any:
        """The modules: the convolution, the norm, the activation, and what is between."""
        from torch import nn

        from implicit_conv.testing.doors.blocks import block

        kind = f"Conv{'Transpose' * self.transposed}{rank}d"
        conv = getattr(nn, kind)(
            channels, channels, self.taps, padding=self.taps // 2, groups=self.groups
        )
        norm = getattr(nn, f"BatchNorm{rank}d")(channels) if self.norm else nn.Identity()
        name, options = ACTIVATIONS[self.activation]
        between = block(self.between, rank, channels, dtype)
        return nn.ModuleList([conv, norm, getattr(nn, name)(**options), between])

    def compute(self, modules: Any, x: Any) -> Any:
        """The layer's result for x."""
        conv, norm, activation, between = modules
        x = between(x)
        y = norm(conv(x))
        if self.total == "after":
            y = y + x
        elif self.total == "before":
            y = x + y
        elif self.total == "in place":
            y += x
        elif self.total == "mean":
            y = y + x.mean(-1, keepdim=True)
        elif self.total == "twice":
            y = y + y
        elif self.total == "written":
            z = x.mul(1)
            z.add_(y)
            y = z
        if self.then == "half":
            y = y * 0.5
        elif self.then == "twice less one":
            y = y * 2 - 1
        elif self.then == "plus a number":
            y = y + 0.25
        return activation(y)


@dataclass(frozen=True)
class Program:
    """A network of `layers`, which is called once before and twice after each of `changes`, or is
    trained.

    Attributes
    ----------
    dtype : str
    rank, channels, pixels : int
    layers : tuple of Layers
    changes : tuple of CHANGES
    seed : int
    times : int
        How often it is called before the first change.
    is_flat : bool
        Whether all parameters are parts of one tensor, which has other ones for them too.
    is_whole : bool
        Whether it returns the last layer's result alone, so that layers are together.
    guard : one of SIDES, or ""
        The side of inputs, and of parameters and buffers as they are at first, on which there are
        inaccessible pages.
    steps : int
        Those of training, or 0.
    threads : int
        Those of calls, unless a change has others.
    """

    dtype: str
    rank: int
    channels: int
    pixels: int
    layers: tuple[Layer, ...]
    changes: tuple[str, ...]
    seed: int
    times: int = 1
    is_flat: bool = False
    is_whole: bool = False
    guard: str = ""
    steps: int = 0
    threads: int = 1

    @property
    def function(self) -> str:
        """The rank and the dtype."""
        return f"{self.rank}d {self.dtype}"

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of calls that it makes: how often it calls, and after which changes."""
        if self.steps:
            return (ONCE if self.steps == 1 else AGAIN,)
        return calls(self.times), *(change for change in self.changes if change != "none")

    def check(self) -> tuple[str, ...]:
        """Compare all results with the network's own in float64; see `doors.fuzz.Program`.

        Raises
        ------
        DifferenceError
            A result differs.
        """
        with Turns(guard=self.guard).guarded():
            return self._check()

    def _check(self) -> tuple[str, ...]:
        import torch

        import implicit_conv.torch as door
        from implicit_conv.operators import lanes, strips
        from implicit_conv.torch import regions
        from implicit_conv.torch.region import BoundProgram, RegionFunction

        torch.manual_seed(self.seed)
        torch.set_num_threads(min(self.threads, 2))
        model = _network(self).to(getattr(torch, self.dtype)).eval()
        _randomize(model)
        if self.guard:
            for each in (*model.parameters(), *model.buffers()):
                each.data = placed(each.data)
        rows = _rows(model)
        if self.is_flat:
            _use_row(model, rows)
        watch = Watch()
        torch._dynamo.reset()  # it holds what it has compiled
        door.convert(model, choose="always")
        with (
            mock.patch.object(regions, "LINEAR_FLOPS", 0),
            mock.patch.multiple(strips, L2_SHARE=3, MOVED_SHARE=1, FILTER_SHARE=1000),
            _small_caches(),
            counted(watch, strips.Strips, "steps", "converted: strips"),
            counted(watch, lanes.Task, "steps", "converted: lanes"),
            _elements_counted(watch, self.rank),
            counted(watch, BoundProgram, "run", f"converted: {TOGETHER}"),
            counted(watch, RegionFunction, "_by_torch", f"converted: {LEFT}"),
        ):
            if self.steps:
                return self._train(model, watch)
            with config(num_threads=self.threads):
                self._predict(model, rows)
        return (*self.kinds, *watch.taken)

    def _predict(self, model: Any, rows: Any) -> None:
        dice = Dice(self.seed)
        for _ in range(self.times):
            self._compare(model, 1, "plain")
        for number, change in enumerate(self.changes):
            threads = self.threads % 3 + 1 if change == "threads" else self.threads
            if change == "average":
                _use_row(model, rows)
            else:
                _change(model, change)
            with config(num_threads=threads):
                self._compare(model, 1 + number % 2, dice.pick(*FORMS))
                self._compare(model, 1, dice.pick(*FORMS))

    def _train(self, model: Any, watch: Watch) -> tuple[str, ...]:
        from implicit_conv.testing.doors.training import change, compare_step, steps_counted

        dice = Dice(self.seed)
        model.train(not dice.happens(4))
        batch, compared = dice.number(1, 3), []
        with steps_counted(watch):
            for _ in range(self.steps):
                x = self._images(batch, dice.pick(*FORMS[:3]))
                compared.append(compare_step(model, x, dice))
                change(model)
        steps = [f"trained: step in {self.rank}d"] * any(compared)
        return (*(self.kinds if all(compared) else ()), *steps, *watch.taken)

    def _images(self, batch: int, form: str) -> Any:
        import torch

        shape = (batch, self.channels, *(self.pixels + axis for axis in range(self.rank)))
        x = torch.randn(shape).to(getattr(torch, self.dtype))
        if form == "channels last":
            return x.movedim(1, -1).contiguous().movedim(-1, 1)
        if form == "negated":  # as parts of conjugate numbers are, which no step reads
            return torch._neg_view(x)
        return placed(x) if self.guard else x

    def _compare(self, model: Any, batch: int, form: str) -> None:
        import torch

        x = self._images(batch, form)
        exact, sums = copy.deepcopy(model).double(), list[Any]()
        for module in exact.modules():  # an activation may cut off the largest ones
            module.register_forward_hook(lambda *given: sums.append(given[-1]))
        with torch.no_grad():
            own = exact(x.double())
            found = model(x)
        arrays = (each for each in (*sums, *own) if isinstance(each, torch.Tensor))
        most = max(float(each.abs().max()) for each in arrays)
        if most > torch.finfo(x.dtype).max / 4:  # averaged weights add up beyond float16
            return
        for expected, result in zip(own, found, strict=True):
            check_close(_array(expected), _array(result), EPS[self.dtype] * most)


def _small_caches() -> Any:
    """A patch by which programs are cut for a CPU with a small L2."""

    def small(threads: int | None) -> CpuArch:
        return dataclasses.replace(cpu_arch(threads), l2_bytes=CRAMPED)

    return mock.patch("implicit_conv.operators.pipeline.cpu_arch", small)


def _elements_counted(watch: Watch, rank: int) -> Any:
    """A patch that counts the programs that are made, and what they have between layers."""
    from implicit_conv.torch.region import RegionFunction

    own = RegionFunction._program

    def function(region: Any, *arguments: Any) -> Any:
        found = own(region, *arguments)
        names = {type(element).__name__ for element, *_ in region._elements}
        if region._elements[0][0].weights and region._elements[0][0].is_linear:
            names.add("linear layer")
        ways = (f"converted: {name} in {rank}d" for name in names - {"Layer"})
        watch.taken.update([f"converted: {MADE}", *ways])
        return found

    return mock.patch.object(RegionFunction, "_program", function)


def _network(program: Program) -> Any:
    """A module whose forward returns the results of all layers."""
    from torch import nn

    class Network(nn.Module):  # type: ignore[misc]  # torch has no types here
        """The layers of a program."""

        def __init__(self) -> None:
            super().__init__()
            self.parts = nn.ModuleList()
            for layer in program.layers:
                shared = layer.shares and len(self.parts) > 0
                made = layer.made(program.rank, program.channels, program.dtype)
                self.parts.append(self.parts[-1] if shared else made)

        def forward(self, x: Any) -> Any:
            """The results of all layers, of which the last are copies of those that changed; or of
            the last one, if the program is whole.
            """
            results = []
            for layer, part in zip(program.layers, self.parts, strict=True):
                x = layer.compute(part, x)
                if not program.is_whole:
                    results.append(x * 1)
            return tuple(results) or (x,)

    return Network()


def _randomize(model: Any) -> None:
    """Statistics and factors that are none of an identity."""
    import torch

    with torch.no_grad():
        for name, tensor in model.named_buffers():
            if name.endswith("mean"):
                tensor.normal_(0, 0.5)
            elif name.endswith("var"):
                tensor.uniform_(0.5, 2)
        for name, tensor in model.named_parameters():
            if tensor.dim() == 1 and name.endswith(".1.weight"):
                tensor.uniform_(0.5, 1.5)


def _rows(model: Any) -> Any:
    """Two rows of all parameters of a model: as they are, and other ones."""
    import torch

    row = torch.cat([each.detach().flatten() for each in model.parameters()])
    return torch.stack([row, row * 0.75 + 0.05])


def _use_row(model: Any, rows: Any) -> None:
    """Have parameters be parts of the row that they are not parts of, as averages of weights are
    used, and shards of them.
    """
    first = next(iter(model.parameters()))
    row, at = rows[int(first.data_ptr() == rows.data_ptr())], 0
    for each in model.parameters():
        each.data = row[at : at + each.numel()].view(each.shape)
        at += each.numel()


def _change(model: Any, how: str) -> None:
    """Change a model in one of CHANGES, and have it in eval mode."""
    import torch

    import implicit_conv.torch as door

    conv, norm = model.parts[0][:2]
    if how == "convert":
        door.convert(model, choose="always")
    elif how == "restore":
        door.restore(model.parts[0])
    elif how == "train":
        model.train().eval()
    elif how == "hook":
        conv.register_forward_hook(lambda module, given, y: y * 1)
    elif how == "gradients":
        model.requires_grad_(not conv.weight.requires_grad)
    elif how == "channels last" and conv.weight.dim() == 4:
        model.to(memory_format=torch.channels_last)
    elif hasattr(norm, "eps") and how == "eps":
        norm.eps = 0.3
    elif hasattr(norm, "eps") and how == "statistics":
        norm.running_var.mul_(1.5)
    else:
        _write(model, conv.weight, how)


def _write(model: Any, weight: Any, how: str) -> None:
    """Write to a weight of a model."""
    import torch

    if how == "in place":
        with torch.no_grad():
            weight.neg_()
    elif how == "data":
        weight.data = weight.data.flip(0)
    elif how == "transposed" and weight.shape[0] == weight.shape[1]:
        weight.data = weight.data.transpose(0, 1)
    elif how in ("load", "assign"):
        state = model.state_dict()
        floats = {name: value * 0.9 for name, value in state.items() if value.is_floating_point()}
        model.load_state_dict(state | floats, assign=how == "assign")
    elif how.endswith("optimiser") and weight.dtype in (torch.float32, torch.float64):
        weight.grad = torch.full_like(weight, 0.1)
        torch.optim.SGD([weight], lr=0.5, fused=how.startswith("fused")).step()
        weight.grad = None


def _array(tensor: Any) -> Array:
    found: Array = tensor.double().numpy()
    return found


def draw(dice: Dice) -> Program:
    """A few layers, and a few changes."""
    rank = dice.pick(1, 2, 2, 3)
    layers = tuple(
        Layer(
            dice.pick(1, 3, 3, 5),
            dice.pick(1, 1, 2, 8),
            dice.happens(5),
            not dice.happens(3),
            dice.pick(*SUMS),
            dice.pick("nothing", *NEXT),
            dice.pick(*ACTIVATIONS),
            dice.happens(6),
            # torch pools no signals that a flag negates
            dice.pick(*(UNPOOLED if rank == 1 and number == 0 else BETWEEN)),
        )
        for number in range(dice.number(1, 4))
    )
    changes = tuple(dice.pick(*CHANGES) for _ in range(dice.number(1, 4)))
    pixels, channels = dice.number(5, 12), dice.pick(8, 16)
    program = Program(
        dice.pick("float32", "float32", *EPS),
        rank,
        channels,
        pixels,
        layers,
        changes,
        dice.number(0, 1 << 30),
        dice.pick(*TIMES[2:]) if dice.happens(8) else dice.pick(1, 2),
        dice.happens(2),
        dice.happens(2),
        dice.pick(*SIDES) if dice.happens(3) else "",
        threads=dice.pick(1, 1, 2, 3),
    )
    if not dice.happens(4):
        return program
    dtype = dice.pick("float64", "float64", "float32", *EPS)  # float64 tells most faults
    return dataclasses.replace(program, dtype=dtype, changes=(), steps=dice.number(1, 4))
