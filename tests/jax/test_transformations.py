"""jit, grad, jvp, hessian and vmap: each convolution that they make of ours is ours again."""

from functools import partial

import numpy as np
import pytest

jax = pytest.importorskip("jax", minversion="0.5", reason="pip install '.[jax]'")

import jax.numpy as jnp  # noqa: E402
from jax import lax  # noqa: E402
from jax_cases import arrays, calls, error  # noqa: E402

from implicit_conv.jax import conv_general_dilated  # noqa: E402

NHWC = ("NHWC", "HWIO", "NHWC")
MOST_UNITS = 32
CASES = {
    "plain": ((2, 9, 9, 4), (3, 3, 4, 6), {}),
    "stride": ((2, 9, 9, 4), (3, 3, 4, 6), {"window_strides": (2, 2)}),
    "dilation": ((2, 9, 9, 4), (3, 3, 4, 6), {"rhs_dilation": (2, 1)}),
    "groups": ((2, 9, 9, 4), (3, 3, 2, 6), {"feature_group_count": 2}),
    "strided groups": (
        *((2, 9, 9, 48), (3, 3, 24, 12)),
        {"feature_group_count": 2, "window_strides": (2, 1)},
    ),
    "transposed": ((2, 5, 5, 4), (3, 3, 4, 6), {"lhs_dilation": (2, 2)}),
    "cropped": ((2, 9, 9, 4), (3, 3, 4, 6), {"padding": [(-1, 2), (0, -1)]}),
    "images": ((4, 9, 9, 4), (3, 3, 4, 6), {"batch_group_count": 2}),
    "pixels": ((2, 9, 9, 4), (1, 1, 4, 6), {"padding": "VALID", "window_strides": (2, 2)}),
}
cases = pytest.mark.parametrize(("x_shape", "w_shape", "options"), CASES.values(), ids=CASES)


def functions(options):
    """Our convolution and JAX's."""
    options = {
        "window_strides": (1, 1),
        "padding": [(1, 1)] * 2,
        "dimension_numbers": NHWC,
    } | options
    return (partial(f, **options) for f in (conv_general_dilated, lax.conv_general_dilated))


@cases
def test_gradients(x_shape, w_shape, options):
    own, other = functions(options)
    x, w = arrays(x_shape, w_shape)
    (dy,) = arrays(other(x, w).shape, seed=1)

    def of_x(f, dy, w):
        (dx,) = jax.linear_transpose(lambda x: f(x, w), jnp.zeros(x_shape, dy.dtype))(dy)
        return dx

    def of_w(f, dy, x):
        (dw,) = jax.linear_transpose(lambda w: f(x, w), jnp.zeros(w_shape, dy.dtype))(dy)
        return dw

    for gradient, operand in ((of_x, w), (of_w, x)):
        ours, theirs = partial(gradient, own), partial(gradient, other)
        assert calls(ours, dy, operand) == 1
        assert error(ours(dy, operand), theirs, dy, operand) <= MOST_UNITS
        assert error(jax.jit(ours)(dy, operand), theirs, dy, operand) <= MOST_UNITS


@cases
def test_batches(x_shape, w_shape, options):
    own, other = functions(options)
    shapes = {
        (0, None): ((3, *x_shape), w_shape),
        (None, 0): (x_shape, (3, *w_shape)),
        (0, 0): ((3, *x_shape), (3, *w_shape)),
    }
    for axes, given in shapes.items():
        x, w = arrays(*given)
        ours, theirs = jax.vmap(own, axes), jax.vmap(other, axes)
        assert error(ours(x, w), theirs, x, w) <= MOST_UNITS
        assert calls(ours, x, w) == 1


def test_gradients_of_each_example():
    own, other = functions({})
    x, w, dy = arrays((3, 2, 9, 9, 4), (3, 3, 4, 6), (3, 2, 9, 9, 6))

    def each(f, x, dy):
        return jax.vmap(
            lambda x, dy: jax.vjp(lambda w: f(x, w), jnp.zeros(w.shape, x.dtype))[1](dy)[0]
        )(x, dy)

    assert error(each(own, x, dy), partial(each, other), x, dy) <= MOST_UNITS
    assert calls(partial(each, own), x, dy) >= 1


def test_forward_derivatives():
    own, other = functions({"window_strides": (2, 2)})
    x, w, dx, dw = arrays(*[(2, 9, 9, 4), (3, 3, 4, 6)] * 2)
    y, dy = jax.jvp(own, (x, w), (dx, dw))
    wide = [a.astype(jnp.float64) for a in (x, w, dx, dw)]
    wanted = jax.jvp(other, tuple(wide[:2]), tuple(wide[2:]))
    for found, exact in zip((y, dy), wanted, strict=True):
        np.testing.assert_allclose(found, exact, rtol=0, atol=2e-5)


def test_second_derivatives():
    own, other = functions({"window_strides": (2, 1)})
    x, w = arrays((1, 9, 9, 2), (3, 3, 2, 3), dtype="float64")

    def loss(f, w):
        return jnp.sum(jnp.sin(f(x, w)))

    found, wanted = (jax.hessian(partial(loss, f))(w) for f in (own, other))
    np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-12)
    assert calls(jax.hessian(partial(loss, own)), w) >= 2


def test_derivatives_of_batches_and_batches_of_derivatives():
    own, other = functions({})
    x, w = arrays((3, 2, 6, 6, 2), (3, 3, 2, 3), dtype="float64")

    def loss(f, w, x):
        return jnp.sum(f(x, w) ** 2)

    def total(f, w):
        return jnp.sum(jax.vmap(partial(loss, f), (None, 0))(w, x))

    found, wanted = (jax.grad(partial(total, f))(w) for f in (own, other))
    np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-12)
    found, wanted = (jax.vmap(jax.grad(partial(loss, f)), (None, 0))(w, x) for f in (own, other))
    np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-12)


def test_loops_and_checkpoints():
    own, other = functions({})
    x, w = arrays((1, 8, 8, 4), (3, 3, 4, 4), dtype="float64")

    def network(f, x):
        layer = jax.checkpoint(lambda x: jnp.tanh(f(x, w)))
        return jnp.sum(lax.scan(lambda x, _: (layer(x), None), x, None, length=3)[0])

    found, wanted = (jax.jit(jax.grad(partial(network, f)))(x) for f in (own, other))
    np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-12)


def test_a_derivative_that_nobody_asks_for_is_not_computed():
    own, _ = functions({})
    x, w = arrays((1, 8, 8, 4), (3, 3, 4, 4))
    assert calls(jax.grad(lambda w: jnp.sum(own(x, w) ** 2)), w) == 2
