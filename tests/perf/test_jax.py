"""``python -m perf jax``: every operator runs, and a wrong result is not timed."""

import pytest

pytest.importorskip("jax", minversion="0.5", reason="pip install '.[jax]'")

from perf import jax as suite

SMALL = suite.Row(4, 9, 8, 3, 2)


@pytest.mark.parametrize("operator", suite.OPERATORS)
def test_a_line_has_a_ratio(operator):
    text, ratio = suite.line(SMALL, operator, 1, 1)
    assert text.startswith(f"{operator} 3x3/2 4 -> 8 at 9: ours ")
    assert ratio > 0


def test_a_wrong_result_is_an_error(monkeypatch):
    import implicit_conv.jax as door

    right = door.conv_general_dilated
    monkeypatch.setattr(door, "conv_general_dilated", lambda *a, **b: 2 * right(*a, **b))
    with pytest.raises(ArithmeticError, match="is off by"):
        suite.contenders(SMALL, "fprop", 1)


def test_other_numbers_of_threads_are_refused():
    from perf.__main__ import main

    assert main(["jax", "--threads", "77"]) == 2
