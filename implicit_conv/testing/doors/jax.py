"""Random convolutions of JAX and their derivatives, against XLA's own.

XLA owns its results, so that guard pages are around the arrays that it is given alone, where it
shares numpy's memory: on the side "begin", and on the other one of multiples of 64 bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from itertools import permutations
from math import prod, sqrt
from typing import Any

import numpy as np

from implicit_conv.testing import Case
from implicit_conv.testing.doors.data import Data, check_bits, check_close, made, outcome
from implicit_conv.testing.doors.turns import (
    ONCE,
    Repeated,
    Turn,
    Turns,
    called,
    draw_turns,
    forget,
)
from implicit_conv.testing.draw import FAMILY_NAMES, draw_image
from implicit_conv.testing.families import Dice
from implicit_conv.testing.trial import Trial
from implicit_conv.testing.ways import COMPILED, FIRST, Watch, counted, noted

REQUIRED = {"jax": "jax>=0.5"}
# None is required: repeated calls are slow here, and a minute has too few programs of each kind.
KINDS = WAYS = tuple[str, ...]()
FUNCTIONS = ("conv", "jvp", "vjp", "jvp of vjp")
FLOATS = ("float32", "float64", "float16", "bfloat16")
DTYPES = (*FLOATS * 6, "int8", "int32", "complex64", "complex128")
OWN = "XLA's own"
# Largest differences, of eps relative to sums of magnitudes: Winograd adds to those of rounding.
# XLA sums one product after another, so that its own grow with the square root of their number.
UNITS = {"strict": 16, "": 64, "standard": 64, "fast": 400}


@dataclass(frozen=True)
class Call(Repeated):
    """One of FUNCTIONS of a convolution of x and w with these options, along dx and dw.

    It is called by `enable` of this precision, or else by `implicit_conv.jax`. `jax.vmap` maps
    `axes` of the convolution, or of all if it is `outside`.
    """

    function: str
    arrays: dict[str, Data]
    options: dict[str, Any]
    precision: str
    jit: bool
    axes: tuple[int | None, ...]
    outside: bool
    turns: Turns = ONCE

    def check(self) -> tuple[str, ...]:
        """Compare what calls come to, and return their ways; see `doors.fuzz.Program`."""
        import jax

        from implicit_conv import jax as door
        from implicit_conv.jax import lowering, problems

        before, own = jax.config.read("jax_enable_x64"), jax.lax.conv_general_dilated
        jax.config.update("jax_enable_x64", True)
        jax.clear_caches()
        theirs, watch, given = jax.jit(self._program(own)), Watch(), dict[str, Any]()
        ours = self._program(own if self.precision else door.conv_general_dilated)
        ours = jax.jit(ours) if self.jit else ours
        try:
            turns = [(turn, *self._expected(turn, theirs)) for turn in self.turns.each()]
            with (
                noted(watch, lowering, "program_key", FIRST),
                noted(watch, lowering, "OWN_LOWERING", OWN),
                counted(watch, problems, "_of_groups", "groups one by one"),
                counted(watch, problems, "_input_gradient", "input gradient"),
                counted(watch, problems, "_weight_gradient", "weight gradient"),
                door.enable(precision=self.precision) if self.precision else nullcontext(),
            ):
                for turn, *expected in turns:
                    given = self._check(turn, given, ours, watch, *expected)
        finally:
            jax.config.update("jax_enable_x64", before)
        return (*self.kinds, *watch.taken)

    def _made(self, turn: Turn) -> dict[str, Any]:
        return made({name: turn.data(each) for name, each in self.arrays.items()})

    def _program(self, convolve: Any) -> Any:
        """The function of x, w and their tangents, which is linear in each of them."""
        import jax

        def derived(x: Any, w: Any, dx: Any, dw: Any) -> Any:
            one = partial(convolve, **self.options)
            f = jax.vmap(one, self.axes) if self.axes and not self.outside else one

            def gradients(x: Any, w: Any) -> Any:
                return jax.vjp(f, x, w)[1](f(dx, dw))

            first = gradients if "vjp" in self.function else f
            return jax.jvp(first, (x, w), (dx, dw)) if "jvp" in self.function else first(x, w)

        whole = jax.vmap(derived, self.axes * 2) if self.outside else derived
        return lambda x, w, dx, dw: tuple(jax.tree.leaves(whole(x, w, dx, dw)))

    def _expected(self, turn: Turn, theirs: Any) -> Any:
        """What JAX comes to, and the sums of magnitudes."""
        arrays = self._made(turn)
        sizes = {k: np.where(np.isfinite(a), abs(a), 0).astype(a.dtype) for k, a in arrays.items()}
        return outcome(theirs, arrays), outcome(theirs, sizes).results

    def _check(self, turn: Turn, old: Any, ours: Any, watch: Watch, *expected: Any) -> Any:
        """Make one call, and return its arguments, which nothing reads any more."""
        import jax

        if turn.change in ("threads", "subnormals"):
            jax.clear_caches()  # functions are compiled with these settings
        caller = f"{'enable' if self.precision else 'function'}, {'jit' if self.jit else 'eager'}"
        unseen = OWN if watch.taken[f"{caller}: {OWN}"] else COMPILED
        with turn.settings(), self.turns.guarded():
            given = turn.placed(self._made(turn), old)
            run = called(ours, partial(watch.call, caller, unseen=unseen))
            found = outcome(lambda: run(**jax.device_put(given, may_alias=True)), {})
        terms = max(prod(data.shape) for data in self.arrays.values())
        for (own, result), size in zip(expected[0].pairs(found), expected[1], strict=True):
            eps = 0 if own.dtype.kind == "i" else jax.numpy.finfo(own.dtype).eps
            units = 2 if own.itemsize == 2 else max(UNITS[self.precision], sqrt(terms))
            check_close(own, result, units * eps * abs(size))
        for name, array in self._made(turn).items():
            check_bits(array, given[name])  # they are not changed
        forget(given)
        return given


def draw(dice: Dice) -> Call:
    """Of any family of filters; transposed ones, groups of images and all orders of axes too."""
    rank, precision, dtype = dice.number(1, 3), dice.pick(*UNITS), dice.pick(*DTYPES)
    drawn = draw_image(Trial(Case()), rank, dice, dice.pick(*FAMILY_NAMES))
    case, space = drawn.case, "DHW"[3 - rank :]
    images = dice.pick(1, 1, 2, 4) if case.groups == 1 else 1
    sizes = {"N": images * case.N * dice.number(1, 3), "C": case.C * case.groups}
    sizes |= zip(space, case.size, strict=True)
    filters = {"I": case.C, "O": case.K * case.groups * images}
    filters |= zip(space, case.kernel, strict=True)
    letters = (f"N{space}C", f"{space}IO") if dice.happens(2) else (f"NC{space}", f"OI{space}")
    orders = [[*permutations(each)] if dice.happens(3) else [each] for each in letters]
    of_x, of_w, of_y = ("".join(dice.pick(*orders[n])) for n in (0, 1, 0))
    axes = dice.pick((0, None), (None, 0), (0, 0), (1, 0)) if dice.happens(3) else ()
    padding = case.padding if images == 1 else _kept(case.padding, [sizes[s] for s in space])
    options = {
        "window_strides": case.stride,
        "padding": dice.pick("SAME", "VALID") if dice.happens(5) else padding,
        "rhs_dilation": case.dilation,
        "dimension_numbers": (of_x, of_w, of_y),
        "feature_group_count": case.groups + (dice.happens(60) and not axes),
        "batch_group_count": images,
        "precision": dice.pick(None, "default", "high", "highest", ("default", "highest")),
    }
    if dice.happens(3):
        options["lhs_dilation"] = tuple(dice.number(1, 3) for _ in space)
        options["window_strides"] = (1 + dice.happens(8),) * rank
    if dice.happens(4) and dtype in ("float16", "bfloat16", "int8"):
        options["preferred_element_type"] = "int32" if dtype == "int8" else "float32"
    shapes = [sizes[s] for s in of_x], [filters[s] for s in of_w]
    for shape, axis in zip(shapes, axes, strict=False):
        if axis is not None:
            shape.insert(axis, 2)
    pairs = zip(("x", "w", "dx", "dw"), shapes * 2, strict=True)
    data = {name: Data(tuple(shape), dtype, dice.number(0, 1 << 30)) for name, shape in pairs}
    function = "conv" if dtype[0] == "i" else dice.pick(*FUNCTIONS)
    if precision == "strict" and "vjp" not in function:  # XLA's gradients multiply zeros by others
        data["x"] = replace(data["x"], special=int(dice.happens(4)))
    flags = dice.happens(2), axes, bool(axes) and dice.happens(2)
    return Call(function, data, options, precision, *flags, draw_turns(dice))


def _kept(padding: Any, extents: Sequence[int]) -> Any:
    """Padding that crops no axis away: XLA's own gradients of groups of images would end the
    process (jaxlib 0.10.2).
    """
    return tuple(
        (low, high) if extent + min(low, 0) + min(high, 0) > 0 else (max(low, 0), max(high, 0))
        for (low, high), extent in zip(padding, extents, strict=True)
    )
