"""What tests of implicit_conv.jax share: arrays, JAX's convolution in float64, and its error."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

UNITS = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
OURS = "@implicit_conv("  # in lowered text


def arrays(*shapes, dtype="float32", seed=0):
    """Normal arrays of a seed."""
    rng = np.random.default_rng(seed)
    return tuple(jnp.asarray(rng.standard_normal(shape), dtype) for shape in shapes)


def calls(function, *operands):
    """The number of our calls in a function of arrays, as it is lowered."""
    return jax.jit(function).lower(*operands).as_text().count(OURS)


def error(result, function, *operands):
    """The largest error of `result` in units of its dtype, relative to the sums of magnitudes:
    those of `function`, which is linear in each operand, in float64.
    """
    unit = UNITS[str(result.dtype)]
    wide = [np.asarray(operand).astype(np.float64) for operand in operands]
    function = jax.jit(function)
    exact, scale = (np.asarray(function(*given)) for given in (wide, map(np.abs, wide)))
    assert result.shape == exact.shape
    difference = np.abs(np.asarray(result).astype(np.float64) - exact)
    return float(np.max(difference / np.maximum(scale, 1e-300), initial=0.0) / unit)
