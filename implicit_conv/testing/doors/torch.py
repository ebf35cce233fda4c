"""Random programs of torch with `implicit_conv.torch.enable`, against torch alone in float64.

A program uses few parameters again and again: by several operators, with other shapes and strides
of the same bytes, after writes that no version counter tells, in new and in freed memory, in
threads and forked children, and while the switch is moved. A use is several equal calls, each of
new tensors, in one of FORMS and MODES: the first ones are planned, later ones kept, and those after
them run by compiled code.
"""

from __future__ import annotations

import os
import pickle
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any
from unittest import mock

import numpy as np

from implicit_conv.cpu.run.call import compiled
from implicit_conv.operators.programs import differing
from implicit_conv.testing import Array
from implicit_conv.testing.doors.data import DifferenceError, check_close, placed
from implicit_conv.testing.doors.turns import Turns
from implicit_conv.testing.families import Dice
from implicit_conv.testing.trial import SIDES
from implicit_conv.testing.ways import COMPILED, FIRST, TIMES, Watch, calls, noted

REQUIRED = {"torch": "torch>=2.13"}
FUNCTIONS = tuple(f"conv{kind}{rank}d" for kind in ("", "_transpose") for rank in (1, 2, 3))
EPS = {"float64": 0.0, "float32": 0.0, "float16": 2.0**-10, "bfloat16": 2.0**-7}  # sums are exact
TAPS = {1: ((9,),), 2: ((3, 3), (9, 1), (1, 9)), 3: ((3, 3, 1), (1, 3, 3))}
WRITES = ("data", "numpy", "in place", "new memory", "new parameter", "swap", "optimiser")
SWITCHES = ("block", "no room", "off and on", "strict")
BIASES = ("none", "vector", "strided")
DIRECT = ("functional", "module", "operator")  # those of threads and of forked children
FORMS = (*DIRECT, "module", "compiled")  # what makes a call; compiled by torch.compile
MODES = ("no grad", "inference", "training", "autocast")
STRIDES, THREADS, FORKED = "strides out of order", "by threads", "in a forked child"
PROGRAM, PACKED = "kept, a program run by Python", "a packed filter"
OWN = "torch's own kernel"
KINDS = (*dict.fromkeys(FORMS), *MODES, *map(calls, TIMES), STRIDES, THREADS, FORKED)
# Compiled code reads tensors where it knows how they are stored.
FRONT = (COMPILED,) if sys.platform == "linux" and not differing() else ()
WAYS = (FIRST, PROGRAM, PACKED, *FRONT)
PARAMETERS, REPEATS, KEPT = 2, 12, 64 << 20
Result = tuple[Array, float]  # and how far it may be from an exact one
CHILD_SECONDS = 60  # after which a forked child hangs: one of a busy machine took more than 20


def by_operator(x: Any, w: Any, bias: Any = None, *, transposed: bool, **options: int) -> Any:
    """What ``torch.nn.functional`` computes of tensors and options that are the same for all
    axes.
    """
    from implicit_conv.torch.op import convolution

    rank = x.dim() - 2
    stride, padding, dilation = (
        [options[name]] * rank for name in ("stride", "padding", "dilation")
    )
    sizes = stride, padding, dilation, transposed, [0] * rank
    return convolution(x, w, bias, *sizes, options["groups"])


@dataclass(frozen=True)
class Use:
    """A convolution whose filter is the memory of a parameter.

    Attributes
    ----------
    function : one of FUNCTIONS
    parameter : int
        Its number.
    shape, order : tuple of ints
        The filter's shape, and its axes from the longest stride to the shortest.
    size : tuple of ints
        The batch, and the pixels of x.
    options : dict
        Arguments of the function.
    seed : int
        That of x and of the gradient of y.
    last : bool
        Whether the channels of x are contiguous.
    bias : one of BIASES
    times : int
        How often it is called.
    form : one of FORMS
        What makes the calls; "operator" is ``implicit_conv::convolution``.
    mode : one of MODES
        In "training" the gradients of x, the filter and the bias are computed too, and in
        "autocast" operands of float32 are computed in bfloat16.
    """

    function: str
    parameter: int
    shape: tuple[int, ...]
    order: tuple[int, ...]
    size: tuple[int, ...]
    options: dict[str, int]
    seed: int
    last: bool = False
    bias: str = "none"
    times: int = 1
    form: str = "functional"
    mode: str = "no grad"

    @property
    def kinds(self) -> set[str]:
        """The kinds of calls that they are; see KINDS."""
        in_order = self.order == tuple(range(len(self.order)))
        return {self.form, self.mode, *(() if in_order else (STRIDES,))}

    @property
    def eps(self) -> float:
        """How far results may be from exact ones by the mode, relative to the largest element."""
        return EPS["bfloat16"] if self.mode == "autocast" else 0.0

    def view(self, line: Any) -> Any:
        """The filter in contiguous memory."""
        stored = line.view([self.shape[axis] for axis in self.order])
        return stored.permute([self.order.index(axis) for axis in range(len(self.order))])

    def results(self, w: Any, dtype: Any, watch: Watch | None = None) -> list[Result]:
        """Of each call y, and dx, dw and db if they are asked for; `watch` notes their ways, and is
        None where torch alone computes.
        """
        with self._caller(w, watch is not None) as call:
            turns = (
                self._called(call, w, dtype, self.seed + 3 * turn, watch)
                for turn in range(self.times)
            )
            return [(result, self.eps) for turn in turns for result in turn]

    @property
    def is_transposed(self) -> bool:
        """Whether it is a transposed convolution."""
        return "transpose" in self.function

    @property
    def channels(self) -> tuple[int, int]:
        """Those of x and of y."""
        first, second = self.shape[0], self.shape[1] * self.options["groups"]
        return (first, second) if self.is_transposed else (second, first)

    @contextmanager
    def _caller(self, w: Any, is_on: bool) -> Iterator[Callable[..., Any]]:
        """A function of x, w and a bias that makes the calls in this form, if it `is_on`."""
        import torch

        function = partial(getattr(torch.nn.functional, self.function), **self.options)
        if self.form == "operator" and is_on:
            function = partial(by_operator, transposed=self.is_transposed, **self.options)
        if self.form == "compiled" and is_on:
            yield torch.compile(function, backend="eager")
            torch.compiler.reset()  # its weak references to a parameter forbid to swap it
        elif self.form == "module" and is_on:
            kind = getattr(torch.nn, self.function.replace("conv", "Conv").replace("_t", "T"))
            taps = self.shape[2:]
            module = kind(*self.channels, taps, bias=False, device="meta", **self.options).eval()
            module.weight = w

            def called(x: Any, w: Any, bias: Any) -> Any:
                module.bias = None if bias is None else bias
                return module(x)

            yield called
        else:
            yield function

    def _called(
        self, convolve: Callable[..., Any], w: Any, dtype: Any, seed: int, watch: Watch | None
    ) -> list[Array]:
        """The results of one call."""
        import torch

        channels, filters = self.channels
        x = _integers((self.size[0], channels, *self.size[1:]), seed).to(dtype)
        if self.last:
            x = x.movedim(1, -1).contiguous()
        if watch is not None:
            x = placed(x)
        if self.last:
            x = x.movedim(-1, 1)
        bias = None
        if self.bias != "none":
            step = 2 if self.bias == "strided" else 1
            bias = _integers((step * (filters - 1) + 1,), seed + 2).to(dtype)
            bias = (bias if watch is None else placed(bias))[::step]
            if self.form == "module":
                bias = torch.nn.Parameter(bias, requires_grad=False)
        call = partial(convolve, x, w, bias)
        if watch is not None:
            call = partial(watch.call, self.form, call)
        if self.mode != "training":
            is_cast = self.mode == "autocast" and watch is not None
            with (
                torch.inference_mode() if self.mode == "inference" else torch.no_grad(),
                torch.autocast("cpu", torch.bfloat16, enabled=is_cast),
            ):
                return [_array(call())]
        given = [tensor for tensor in (x, w, bias) if tensor is not None]
        for tensor in given:
            tensor.requires_grad_()
        y = call()
        found = torch.autograd.grad(y, given, _integers(y.shape, seed + 1).to(dtype))
        w.requires_grad_(False)
        return [_array(tensor) for tensor in (y.detach(), *found)]


@dataclass(frozen=True)
class Write:
    """Other values, other memory or another object for a parameter."""

    how: str  # one of WRITES
    parameter: int
    seed: int


@dataclass(frozen=True)
class Threads:
    """Uses by threads at once, each several times, while another one moves the switch."""

    uses: tuple[Use, ...]
    switch: str  # one of SWITCHES


@dataclass(frozen=True)
class Fork:
    """A use by a forked child."""

    use: Use


@dataclass(frozen=True)
class Switch:
    """The switch is moved, and a call of `enable` is in force at the end."""

    how: str  # one of SWITCHES


Action = Use | Write | Threads | Fork | Switch


@dataclass(frozen=True)
class Program:
    """Actions on parameters of one dtype, of `elements` each; filters that are not written are
    packed where that is possible, if it `packs` them, and else where it is worth it. On the side
    `guard` of what this thread makes, x, filters and biases, there are inaccessible pages.
    """

    dtype: str
    elements: int
    seed: int
    actions: tuple[Action, ...]
    packs: bool = True
    guard: str = ""

    @property
    def function(self) -> str:
        """The operator of the first use."""
        return next(_uses(action)[0].function for action in self.actions if _uses(action))

    @property
    def kinds(self) -> set[str]:
        """The kinds of calls that it makes; see KINDS."""
        found = {kind for action in self.actions for use in _uses(action) for kind in use.kinds}
        for action in self.actions:
            found |= {calls(action.times)} if isinstance(action, Use) else set()
            found |= {THREADS} if isinstance(action, Threads) else set()
            found |= {FORKED} if isinstance(action, Fork) else set()
        return found

    def check(self) -> tuple[str, ...]:
        """Compare all results with those of torch alone, in float64; see `doors.fuzz.Program`.

        Raises
        ------
        DifferenceError
            A result differs, a child does not end, or something is left after `disable`.
        """
        import torch

        import implicit_conv.torch as door
        from implicit_conv import clear_plan_cache
        from implicit_conv.torch import steps

        torch.set_num_threads(1)  # a forked child has no threads of OpenMP
        expected = _Run(self, torch.float64, None).results()
        # To compare filters takes no cycles, so that packing saves more, or as many as it does.
        speed = float("inf") if self.packs else steps.COMPARED_PER_CYCLE
        with mock.patch.object(steps, "COMPARED_PER_CYCLE", speed):
            import_module("implicit_conv.torch.op")  # before threads do
            clear_plan_cache()
            door.enable(KEPT, choose="always")
            try:
                with _watched() as watch, Turns(guard=self.guard).guarded():
                    found = _Run(self, getattr(torch, self.dtype), watch).results()
            finally:
                door.disable()
                clear_plan_cache()
        for (own, by_mode), (result, _) in zip(found, expected, strict=True):
            eps = max(by_mode, EPS[self.dtype])
            check_close(result, own, eps * float(abs(result).max(initial=0.0)))
        _check_rest()
        return (*self.kinds, *watch.taken)


@contextmanager
def _watched() -> Iterator[Watch]:
    """Note the ways of calls of torch: by a step's function of arrays, by its program, by a packed
    filter, by torch's own kernel, and where Python sees no call, by compiled code.
    """
    from implicit_conv.torch import override, steps

    watch, run = Watch(), steps.Step.__call__

    def called(step: Any, a: Any, b: Any, bias: Any = None, packed: Any = None) -> Any:
        watch.note(FIRST)
        y = run(step, a, b, bias, packed)
        if packed is not None:
            watch.note(PACKED)
        return y

    with (
        mock.patch.object(steps.Step, "__call__", called),
        noted(watch, override, "torchs_convolution", OWN),
        noted(watch, compiled(), "run", PROGRAM),
    ):
        yield watch


def _check_rest() -> None:
    """Raise a DifferenceError if filters or claims are left."""
    from implicit_conv.torch.override import SWITCH
    from implicit_conv.torch.packed import FILTERS

    if len(FILTERS) or SWITCH.claims:
        raise DifferenceError(f"{len(FILTERS)} filters, {SWITCH.claims} claims left by disable()")


class _Run:
    """A run of a program: with the switch as it says, or with torch alone and the same values."""

    def __init__(self, program: Program, dtype: Any, watch: Watch | None) -> None:
        self._program, self._dtype, self._watch = program, dtype, watch
        self._is_on = watch is not None
        self._parameters = [self._parameter(program.seed + n) for n in range(PARAMETERS)]

    def _parameter(self, seed: int) -> Any:
        import torch

        return torch.nn.Parameter(self._line(seed), requires_grad=False)

    def _line(self, seed: int) -> Any:
        line = _integers((self._program.elements,), seed).to(self._dtype)
        return placed(line) if self._is_on else line

    def results(self) -> list[Result]:
        """What all uses come to, in their order."""
        return [result for action in self._program.actions for result in self._done(action)]

    def _done(self, action: Action) -> list[Result]:
        if isinstance(action, Use):
            parameter = self._parameters[action.parameter]
            parameter.data = action.view(_line_of(parameter))
            return action.results(parameter, self._dtype, self._watch)
        if isinstance(action, Threads):
            return self._by_threads(action)
        if isinstance(action, Fork):
            return self._by_child(action.use)
        if isinstance(action, Write):
            self._write(action)
        elif self._is_on:
            _move_switch(action.how)
        return []

    def _write(self, write: Write) -> None:
        import torch

        place, new = write.parameter, self._line(write.seed)
        parameter = self._parameters[place]
        line = _line_of(parameter)
        if write.how == "data":
            line.copy_(new)
        elif write.how == "numpy" and self._program.dtype != "bfloat16":  # which numpy lacks
            line.numpy()[::3] = new.numpy()[::3]
        elif write.how == "in place":
            with torch.inference_mode():
                parameter.neg_()
        elif write.how == "new memory":
            parameter.data = line.clone()
        elif write.how == "new parameter":
            del line, parameter
            self._parameters[place] = self._parameter(write.seed)
        elif write.how == "swap":
            swap: Any = torch.utils.swap_tensors  # which has no types
            swap(*self._parameters)
        elif write.how == "optimiser":
            parameter.grad = torch.ones_like(parameter)
            torch.optim.SGD([parameter], lr=1.0).step()
            parameter.grad = None

    def _by_threads(self, action: Threads) -> list[Result]:
        """The results of all threads, which share the memory of parameters."""
        import torch

        def repeat(use: Use, times: int = REPEATS) -> list[Result]:
            w = self._shared(use)
            each = (use.results(w, self._dtype, self._watch) for _ in range(times))
            return [result for results in each for result in results]

        if not self._is_on:  # the same use gives the same results
            return [result for use in action.uses for result in repeat(use, 1) * REPEATS]
        with ThreadPoolExecutor(len(action.uses)) as pool:
            running = [pool.submit(repeat, use) for use in action.uses]
            while not all(one.done() for one in running):
                _move_switch(action.switch)
                torch.full((self._program.elements,), 1e6)  # where a packed filter may have been
                time.sleep(1e-3)
        return [result for one in running for result in one.result()]

    def _shared(self, use: Use) -> Any:
        """Another parameter with the memory of that of a use."""
        import torch

        line = _line_of(self._parameters[use.parameter])
        return torch.nn.Parameter(use.view(line), requires_grad=False)

    def _by_child(self, use: Use) -> list[Result]:
        """The results that a forked child computes."""
        if not self._is_on or not hasattr(os, "fork"):
            return self._done(use)
        ours, theirs = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                with os.fdopen(theirs, "wb") as file:
                    pickle.dump(self._done(use), file)
            finally:
                os._exit(0)
        os.close(theirs)
        return _received(ours, child)


def _received(pipe: int, child: int) -> list[Result]:
    """Arrays that a child sends before it ends."""
    timer = threading.Timer(CHILD_SECONDS, os.kill, (child, 9))
    timer.start()
    try:
        with os.fdopen(pipe, "rb") as file:
            found: list[Result] = pickle.load(file)
            return found
    except (EOFError, pickle.UnpicklingError) as error:
        raise DifferenceError("a forked child crashed, or had to be ended") from error
    finally:
        timer.cancel()
        os.waitpid(child, 0)


def _move_switch(how: str) -> None:
    """Move the switch; `enable` is in force at the end."""
    import implicit_conv.torch as door

    if how in ("block", "no room"):
        with door.enable(KEPT // 2 if how == "block" else 0):
            pass
    elif how == "strict":
        with door.enable(KEPT, precision="strict"):
            time.sleep(1e-3)
    else:
        door.disable()
        door.enable(KEPT)


def _line_of(parameter: Any) -> Any:
    """All elements of a parameter that fills its memory, in the order of their addresses."""
    return parameter.data.as_strided((parameter.numel(),), (1,), 0)


def _integers(shape: tuple[int, ...], seed: int) -> Any:
    """A tensor of float64 with small integers, whose sums every dtype but the 16-bit ones holds."""
    import torch

    return torch.from_numpy(np.random.default_rng(seed).integers(-2, 3, shape).astype(np.float64))


def _array(tensor: Any) -> Array:
    found: Array = tensor.double().numpy()
    return found


def _uses(action: Action) -> tuple[Use, ...]:
    if isinstance(action, Threads):
        return action.uses
    if isinstance(action, Fork):
        return (action.use,)
    return (action,) if isinstance(action, Use) else ()


def draw(dice: Dice) -> Program:
    """Few parameters and many uses of them; large ones for threads, which hold them for longer."""
    rank, dtype = dice.number(1, 3), dice.pick(*EPS)
    if dice.happens(6):
        width = dice.pick(128, 512)
        switch = dice.pick(*SWITCHES)
        contiguous = switch == "off and on"  # torch's own kernels run in between
        uses = tuple(_use(dice, 2, width, DIRECT, contiguous=contiguous) for _ in range(2))
        actions: tuple[Action, ...] = (Threads(uses, switch), uses[0])
        return Program("float32", width * width * 9, dice.number(0, 1 << 30), actions)
    width = dice.pick(16, 32)
    makers: tuple[Callable[[], Action], ...] = (
        *(lambda: _use(dice, rank, width),) * 8,
        *(lambda: Write(dice.pick(*WRITES), dice.number(0, 1), dice.number(0, 1 << 30)),) * 3,
        lambda: Switch(dice.pick(*SWITCHES)),
    )
    drawn = [_use(dice, rank, width), *(dice.pick(*makers)() for _ in range(dice.number(6, 14)))]
    if dice.happens(8):
        drawn.append(Fork(_use(dice, rank, width, DIRECT)))
    seed, packs = dice.number(0, 1 << 30), dice.happens(2)
    guard = dice.pick(*SIDES) if dice.happens(3) else ""
    return Program(dtype, width * width * 9, seed, tuple(drawn), packs, guard)


def _use(
    dice: Dice,
    rank: int,
    width: int,
    forms: tuple[str, ...] = ("functional", "module", *FORMS),
    *,
    contiguous: bool = False,
) -> Use:
    """A use of memory of width * width * 9 elements.

    In training, or if it has to be, the filter is contiguous. torch's own kernels refuse some other
    strides, and oneDNN's grouped conv_transpose2d is wrong for some in float32 (torch 2.13).
    """
    mode = dice.pick("no grad", "no grad", "no grad", "inference", *MODES)
    if width > 32 and mode == "training":  # which would take seconds
        mode = "no grad"
    kind = dice.pick("", "_transpose")
    share = dice.pick(1, 1, 1, 2)
    shape = (width // share, width * share, *dice.pick(*TAPS[rank]))
    axes = list(range(rank + 2))
    if dice.happens(2) and mode != "training" and not contiguous:
        axes = [axes.pop(dice.number(0, len(axes) - 1)) for _ in range(rank + 2)]
    stride, dilation = dice.pick(1, 1, 2), dice.pick(1, 1, 2)
    size = {1: (40,), 2: (18, 18), 3: (18, 18, 5)}[rank]
    if width > 32:
        size = (14, 14) if 9 not in shape[2:] else (18, 18)
        dilation = 1
    return Use(
        f"conv{kind}{rank}d",
        dice.number(0, PARAMETERS - 1),
        shape,
        tuple(axes),
        (dice.number(1, 2), *size),
        {
            "stride": stride,
            "dilation": dilation,
            "padding": dice.number(0, 2),
            "groups": dice.pick(1, 1, 2, 4),
        },
        dice.number(0, 1 << 30),
        last=dice.happens(3),
        bias=dice.pick(*BIASES),
        times=_times(dice) if width <= 32 else 1,  # threads repeat large ones
        form=dice.pick(*forms),
        mode=mode,
    )


def _times(dice: Dice) -> int:
    """How often a use is called, often in one of eight."""
    return dice.pick(*TIMES) if dice.happens(8) else dice.pick(1, 1, 4)
