"""Device functions of the same ingredients are one, and nothing else makes two functions one."""

import importlib.util

import pytest

from implicit_conv.gpu.plan.families import FAMILIES
from implicit_conv.kernels.gpu import ptx

if importlib.util.find_spec("numba_cuda") is None:
    pytest.skip("needs pip install '.[cu13]' in a checkout", allow_module_level=True)


def adding(value, scale=(1, 2)):
    def add(x, bias=scale):
        return x + value

    return add


def test_equal_functions_are_one():
    assert ptx.device(adding(1)) is ptx.device(adding(1))
    inner = ptx.device(adding(2))
    assert ptx.device(adding(inner)) is ptx.device(adding(ptx.device(adding(2))))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (adding(1), adding(2)),
        (adding(1), adding(True)),
        (adding(1), adding(1.0)),
        (adding(0.0), adding(-0.0)),
        (adding((1, 1)), adding((1, True))),
        (adding((1, (2, 3))), adding((1, 2, 3))),
        (adding(None), adding("None")),
        (adding(object()), adding(object())),
        (adding(1), adding(1, (1, 3))),
        (lambda x: x + 1, lambda x: x + 2),
    ],
)
def test_other_functions_are_not(one, other):
    assert ptx.ingredients(one) != ptx.ingredients(other)


def test_the_same_code_over_other_globals_is_another_function():
    add = adding(1)
    moved = type(add)(add.__code__, {}, "add", add.__defaults__, add.__closure__)
    assert ptx.ingredients(add) != ptx.ingredients(moved)


def test_no_factory_replaces_values_afterwards():
    """Numba would compile the later value, for all functions that were equal before."""
    from implicit_conv.kernels.gpu.fprop import make_fprop

    for family in FAMILIES.values():
        for v in family.variants:
            make_fprop(v)
    for made_of, function in ptx._device_functions.items():
        assert ptx.ingredients(function.py_func) == made_of, function
