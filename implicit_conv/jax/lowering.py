"""The rule by which a convolution is lowered to a call of this package, or as JAX lowers it.

What is lowered has the key of a program in it, which is a hash of all that the program depends on.
The program itself is kept in this process, so that an executable that JAX kept on disk finds one
that the lowering in this process has made.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import logging
import math
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.interpreters import mlir

from implicit_conv.errors import DTypeError, PlanError, ShapeError
from implicit_conv.jax.internals import interface_version, is_alone, own_lowering
from implicit_conv.jax.problems import Window, problem_of
from implicit_conv.operators.programs import Buffer, Target, buffer_arrays, make_words
from implicit_conv.process.preparation import prepare
from implicit_conv.settings import current

LOG = logging.getLogger("implicit_conv")
REFUSAL = "JAX's own convolution runs: %s"  # with the reason
TARGET = "implicit_conv"
DTYPES = ("float32", "float64", "float16", "bfloat16")
PRECISE = ("HIGH", "HIGHEST")
# Products of the smallest convolution that is taken over. XLA makes a sum of a smaller one, which
# it fuses with what is around it: 256 products took 8.8 us there, of which jitted `x + 1` takes
# 8.2, and 9.9 here; 2,300 took 32 and 12 (AMD EPYC, Zen 4, JAX 0.10.2, 2026-11).
FEWEST_PRODUCTS = 1024
OWN_LOWERING = own_lowering()


@functools.cache
def target() -> Any:
    """The function that XLA calls, which is registered once."""
    found = prepare(Target, interface_version())
    function = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(found.address)
    jax.ffi.register_ffi_target(TARGET, jax.ffi.pycapsule(function), platform="cpu")
    return found


def lowered(ctx: Any, lhs: Any, rhs: Any, *, by: str | None, **params: Any) -> Any:
    """The values of a convolution: of this package with the precision `by`, or of JAX with None."""
    if by is not None:
        try:
            call = call_of(ctx, by, params)
        except (PlanError, ShapeError, DTypeError) as error:
            LOG.debug(REFUSAL, error)
        else:
            return mlir.lower_fun(call, multiple_results=False)(ctx, lhs, rhs)
    return OWN_LOWERING(ctx, lhs, rhs, **params)


def call_of(ctx: Any, precision: str, params: dict[str, Any]) -> Callable[..., Any]:
    """The function of (lhs, rhs) that calls this package.

    Raises
    ------
    PlanError, ShapeError, DTypeError
        JAX computes this convolution.
    """
    if not is_alone(ctx):
        raise PlanError("XLA divides it among devices, or it is exported")
    if params.get("out_sharding") is not None:
        raise PlanError("it has an out_sharding")
    avals = (*ctx.avals_in, *ctx.avals_out)
    if not all(isinstance(n, int) for aval in avals for n in aval.shape):
        raise PlanError("a size is symbolic")
    window = Window(
        _ints(params["window_strides"]),
        tuple((int(low), int(high)) for low, high in params["padding"]),
        _ints(params["lhs_dilation"]),
        _ints(params["rhs_dilation"]),
        int(params["feature_group_count"]),
        int(params["batch_group_count"]),
    )
    lhs, rhs, out = (Buffer(str(aval.dtype), tuple(aval.shape)) for aval in avals)
    of_x, of_w, of_y = (_ints(spec) for spec in params["dimension_numbers"])
    products = math.prod(out.shape) * math.prod(rhs.shape) // max(1, rhs.shape[of_w[0]])
    if 0 < products < FEWEST_PRODUCTS:
        raise PlanError(f"{products} products, fewer than {FEWEST_PRODUCTS}")
    word = _precision(params["precision"], precision)
    key, order = _program((lhs, rhs, out), (of_x, of_w, of_y), window, word)
    result = jax.ShapeDtypeStruct(out.shape, ctx.avals_out[0].dtype)
    # Of taps that JAX's rules have reversed, for a gradient, XLA makes those that were given.
    taps = of_w[2:] if window.reverses_taps else ()

    def call(lhs: Any, rhs: Any) -> Any:
        filters = lax.rev(rhs, taps) if taps else rhs
        if order != tuple(range(rhs.ndim)):
            filters = lax.transpose(filters, order)
        return jax.ffi.ffi_call(TARGET, result)(lhs, filters, plan=np.int64(key))

    return call


def _program(
    buffers: Any, axes: Any, window: Window, precision: str
) -> tuple[int, tuple[int, ...]]:
    """The key of the program of a convolution, and the order of the axes in which it takes rhs.

    Some methods want filters whose taps are contiguous, others copy them: XLA makes faster copies,
    and those that JAX's rules have reversed it copies anyway. So the order that needs no copy of
    ours comes first, that of rhs before the other one.
    """
    (lhs, rhs, out), (of_x, of_w, of_y) = buffers, axes
    given = tuple(range(len(of_w)))
    # The first axis is that of filters.
    turned = (of_w[1], of_w[0], *of_w[2:]) if window.reverses_taps else of_w
    refusals = list[PlanError]()
    for copies_filter in (False, True):
        for order in dict.fromkeys((given, turned)):
            own = Buffer(rhs.dtype, tuple(rhs.shape[axis] for axis in order))
            places = of_x, _places(of_w, order), of_y
            try:
                return program_key((lhs, own, out), places, window, precision, copies_filter), order
            except PlanError as error:
                refusals.append(error)
    raise refusals[-1]


def program_key(
    buffers: Any, axes: Any, window: Window, precision: str, copies_filter: bool
) -> int:
    """The key of the program of a convolution, which is made unless there is one. Without
    `copies_filter`, one that copies rhs is none.

    Raises
    ------
    PlanError, ShapeError, DTypeError
        There is none.
    """
    spec = buffers, axes, window, precision, current().key
    digest = hashlib.sha256(repr(spec).encode()).digest()
    key = int.from_bytes(digest[:8], "little", signed=True) or 1
    dtypes = {buffer.dtype for buffer in buffers[:2]}
    if len(dtypes) != 1 or not dtypes.issubset(DTYPES) or buffers[2].dtype not in DTYPES:
        raise DTypeError(f"dtypes {', '.join(buffer.dtype for buffer in buffers)}")
    if target().has(key, buffers):
        return key
    arrays = zip(buffer_arrays(buffers), axes, strict=True)
    views: Any = tuple(array.transpose(each) for array, each in arrays)
    problem = problem_of(window, views, buffers[0].dtype, precision)
    target().keep(
        key, make_words(problem.plan, problem.parts, copies_filter=copies_filter), buffers
    )
    return key


def _places(axes: tuple[int, ...], order: tuple[int, ...]) -> tuple[int, ...]:
    """Where the axes are of an array whose axes have this order."""
    return tuple(map(order.index, axes))


def _ints(values: Any) -> tuple[int, ...]:
    return tuple(map(int, values))


def _precision(asked: Any, default: str) -> str:
    """The precision of a plan for JAX's: one word for each operand, or an algorithm."""
    if asked is None:
        return default
    operands = asked if isinstance(asked, tuple) else (asked,)
    words = [str(getattr(each, "name", each)) for each in operands]
    if not set(words) <= {"DEFAULT", *PRECISE, "None"}:
        raise PlanError(f"precision {asked}")
    return "strict" if set(words) & set(PRECISE) else default
