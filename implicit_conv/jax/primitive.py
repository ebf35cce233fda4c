"""A primitive like that of JAX's convolution, with its rules, which this package lowers.

JAX's rules of differentiation and of batching give convolutions of JAX. They are traced, and what
they give is bound again with ours in place of JAX's.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
from jax import lax
from jax.extend.core import Primitive, jaxpr_as_fun
from jax.interpreters import ad, batching, mlir

from implicit_conv.jax.internals import CONV, TRANSPOSES, allow_in_shard_map, apply_primitive
from implicit_conv.jax.lowering import OWN_LOWERING, lowered, target
from implicit_conv.jax.switch import SWITCH

OURS = Primitive("implicit_conv_general_dilated")


def rebound(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, of arrays, with our primitive in place of JAX's."""

    @functools.wraps(function)
    def traced(*arrays: Any) -> Any:
        jaxpr, shape = jax.make_jaxpr(function, return_shape=True)(*arrays)
        results = jaxpr_as_fun(_replaced(jaxpr))(*jax.tree.leaves(arrays))
        return jax.tree.unflatten(jax.tree.structure(shape), results)

    return traced


def _replaced(jaxpr: Any) -> Any:
    """A jaxpr with our primitive in place of JAX's."""
    equations = [
        each.replace(primitive=OURS) if each.primitive is CONV else each
        for each in jaxpr.jaxpr.eqns
    ]
    return jaxpr.replace(jaxpr=jaxpr.jaxpr.replace(eqns=equations))


def _transpose(rule: Callable[..., Any], linear: int) -> Callable[..., Any]:
    """JAX's rule for the gradient of one operand, in which the convolution is linear."""

    def transposed(dy: Any, lhs: Any, rhs: Any, **params: Any) -> Any:
        def traced(dy: Any, other: Any) -> Any:
            operands = (lhs, other) if linear == 0 else (other, rhs)
            return rule(dy, *operands, **params)

        return rebound(traced)(dy, rhs if linear == 0 else lhs)

    return transposed


def _batched(operands: Any, axes: Any, rule: Callable[..., Any], params: Any) -> Any:
    """What JAX's `rule` for batches of convolutions gives."""
    if all(axis is None for axis in axes):  # which JAX 0.8 asks for, and has no rule for
        return OURS.bind(*operands, **params), None
    out_axes = []

    def traced(lhs: Any, rhs: Any) -> Any:
        out, out_axis = rule((lhs, rhs), axes, **params)
        out_axes.append(out_axis)
        return out

    out = rebound(traced)(*operands)
    return out, out_axes[-1]


def _batch(operands: Any, axes: Any, **params: Any) -> Any:
    return _batched(operands, axes, batching.primitive_batchers[CONV], params)


def _batch_of_axis(axis: Any, operands: Any, axes: Any, **params: Any) -> Any:
    rule = functools.partial(batching.fancy_primitive_batchers[CONV], axis)
    return _batched(operands, axes, rule, params)


def _lower_here(ctx: Any, lhs: Any, rhs: Any, **params: Any) -> Any:
    return lowered(ctx, lhs, rhs, by=SWITCH.precision or "standard", **params)


OURS.def_impl(functools.partial(apply_primitive, OURS))
OURS.abstract_eval = CONV.abstract_eval
ad.defbilinear(OURS, *(_transpose(rule, place) for place, rule in enumerate(TRANSPOSES)))
if CONV in batching.fancy_primitive_batchers:  # since JAX 0.6
    batching.fancy_primitive_batchers[OURS] = _batch_of_axis
else:
    batching.primitive_batchers[OURS] = _batch
allow_in_shard_map(OURS)
mlir.register_lowering(OURS, OWN_LOWERING)
mlir.register_lowering(OURS, _lower_here, platform="cpu")


@functools.partial(jax.jit, static_argnums=2, inline=True)
def _compiled(lhs: Any, rhs: Any, options: Any) -> Any:
    return _convolution(lhs, rhs, dict(options))


def _convolution(lhs: Any, rhs: Any, options: dict[str, Any]) -> Any:
    return rebound(functools.partial(lax.conv_general_dilated, **options))(lhs, rhs)


def convolution(lhs: Any, rhs: Any, options: dict[str, Any]) -> Any:
    """See `implicit_conv.jax.conv_general_dilated`: JAX reads the arguments."""
    target()  # whose errors are not those of a lowering
    fixed = tuple((name, _fixed(value)) for name, value in options.items())
    try:
        hash(fixed)
    except TypeError:
        return _convolution(lhs, rhs, options)
    return _compiled(lhs, rhs, fixed)


def _fixed(value: Any) -> Any:
    """An option whose lists are tuples."""
    return tuple(map(_fixed, value)) if type(value) in (list, tuple) else value
