"""Tests of implicit_conv.jax: JAX's own convolutions in float64 are the oracle.

Each file is skipped where JAX is missing; this one is imported even there.
"""

import pytest

import implicit_conv.jax as door


@pytest.fixture(autouse=True)
def disabled():
    """Every test begins and ends with JAX's own convolutions, and has float64."""
    import jax

    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)
    door.disable()
    yield
    door.disable()
    jax.config.update("jax_enable_x64", before)
