"""enable and disable: which convolutions run is what they last said, also of compiled functions."""

import threading

import numpy as np
import pytest

jax = pytest.importorskip("jax", minversion="0.5", reason="pip install '.[jax]'")

import jax.numpy as jnp  # noqa: E402
from jax import lax  # noqa: E402
from jax_cases import arrays, calls  # noqa: E402

import implicit_conv.jax as door  # noqa: E402
from implicit_conv.jax.switch import SWITCH  # noqa: E402


def conv(x, w):
    return lax.conv_general_dilated(
        x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


def operands():
    return arrays((1, 8, 8, 4), (3, 3, 4, 4))


def test_a_block_and_its_end():
    x, w = operands()
    before = conv(x, w)
    assert calls(conv, x, w) == 0
    with door.enable() as enabled:
        assert calls(conv, x, w) == 1
        np.testing.assert_allclose(conv(x, w), before, rtol=0, atol=1e-5)
        with enabled:  # a second block of one object changes nothing
            assert calls(conv, x, w) == 1
        assert calls(conv, x, w) == 0
    assert calls(conv, x, w) == 0


def test_disable_undoes_all_calls():
    x, w = operands()
    for _ in range(3):
        door.enable()
    assert calls(conv, x, w) == 1
    door.disable()
    assert calls(conv, x, w) == 0
    door.disable()


def test_blocks_may_end_in_any_order():
    x, w = operands()
    first, second = door.enable(), door.enable(precision="strict")
    assert SWITCH.precision == "strict"
    first.__exit__(None, None, None)
    assert SWITCH.precision == "strict"
    assert calls(conv, x, w) == 1
    second.__exit__(None, None, None)
    assert SWITCH.precision is None
    assert calls(conv, x, w) == 0


def test_an_exception_ends_the_block():
    with pytest.raises(KeyError), door.enable():
        raise KeyError
    assert not SWITCH.claims


def test_a_function_that_is_compiled_already_follows():
    """Winograd's NaNs tell whose kernel an executable has."""
    x, w = arrays((1, 16, 16, 32), (3, 3, 32, 32))
    x = x.at[0, 8, 8, 0].set(jnp.inf)
    compiled = jax.jit(conv)

    def has_nans():
        return bool(jnp.isnan(compiled(x, w)).any())

    assert not has_nans()
    with door.enable():
        assert has_nans()
        with door.enable(precision="strict"):
            assert not has_nans()
        assert has_nans()
    assert not has_nans()


def test_a_function_that_was_compiled_by_hand_stays():
    x, w = operands()
    with door.enable():
        compiled = jax.jit(conv).lower(x, w).compile()
    np.testing.assert_allclose(compiled(x, w), conv(x, w), rtol=0, atol=1e-5)


def test_gradients_and_layers_are_ours():
    x, w = operands()
    with door.enable():
        assert calls(jax.grad(lambda w: jnp.sum(conv(x, w) ** 2)), w) == 2
        assert calls(jax.grad(lambda x: jnp.sum(conv(x, w) ** 2)), x) == 2
        assert calls(jax.vmap(conv), x[None], w[None]) == 1
    assert calls(jax.grad(lambda w: jnp.sum(conv(x, w) ** 2)), w) == 0


def test_ours_is_ours_without_enable_and_with_it():
    x, w = operands()
    options = {"dimension_numbers": ("NHWC", "HWIO", "NHWC")}
    y = door.conv_general_dilated(x, w, (1, 1), "SAME", **options)
    with door.enable():
        np.testing.assert_array_equal(conv(x, w), y)
    door.disable()
    np.testing.assert_array_equal(door.conv_general_dilated(x, w, (1, 1), "SAME", **options), y)


def test_threads_switch_at_once():
    x, w = operands()
    wanted = conv(x, w)
    errors = []

    def switch():
        try:
            for _ in range(5):
                with door.enable():
                    np.testing.assert_allclose(conv(x, w), wanted, rtol=0, atol=1e-5)
        except Exception as error:  # told below
            errors.append(error)

    threads = [threading.Thread(target=switch) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert not SWITCH.claims
    assert calls(conv, x, w) == 0


def test_words_that_are_unknown():
    with pytest.raises(ValueError, match="precision"):
        door.enable(precision="highest")
    assert not SWITCH.claims
