"""What Python prints as JavaScript for the page, and what it refuses to print."""

import pytest

from implicit_conv.tma.page.javascript import script


def half(x):
    try:
        return x // 2
    except TypeError:
        return 0


def mod(x):
    return x % 8


def test_a_function_with_all_that_it_needs():
    lines = script(mod).splitlines()
    assert "return py.mod(x, 8);" in lines
    assert lines[-1] == "const mod = test_javascript$mod;"


def test_what_has_no_form_is_refused():
    with pytest.raises(TypeError, match=r"Try in test_javascript\.half has no form"):
        script(half)
