"""The signatures of the operators follow one table of options, and say what `help` shows."""

import inspect
import pickle
import re
import textwrap
import types

import pytest

import implicit_conv
from implicit_conv import ndimage, signal
from implicit_conv.operators.dispatch import SHAPES, Options, with_rank
from implicit_conv.problem.options import LAYOUTS_OF

FAMILIES = ("conv{}d", "conv_transpose{}d", "conv{}d_input_grad", "conv{}d_weight_grad")
FAMILIES = (*FAMILIES, *(f"plan_{family}" for family in FAMILIES))
NAMES = [family.format(rank) for family in FAMILIES for rank in (1, 2, 3)]
OPERANDS = {  # the parameters that are no options
    *("x", "w", "dy", "bias", "scale", "residual", "out"),
    *("x_shape", "w_shape", "dy_shape", "dtype", "w_dtype"),
}
SWAPPED = " | Swapped"  # which transposed convolutions alone take


@pytest.mark.parametrize("name", NAMES)
def test_options_have_the_type_and_the_default_of_the_table(name):
    parameters = inspect.signature(getattr(implicit_conv, name)).parameters
    options = [option for option in Options._fields if option in parameters]
    assert set(parameters) == {*options, *(set(parameters) & OPERANDS)}
    for option in options:
        parameter, kind = parameters[option], Options.__annotations__[option].__forward_arg__
        kind = kind if "transpose" in name else kind.replace(SWAPPED, "")
        default = inspect.Parameter.empty if option in SHAPES else Options._field_defaults[option]
        assert (parameter.annotation, parameter.default) == (kind, default), option


@pytest.mark.parametrize("name", NAMES)
def test_a_function_is_called_by_its_name(name):
    """The copies for other ranks have one code, but their own names in errors and in pickles."""
    function = getattr(implicit_conv, name)
    assert inspect.isfunction(function)
    assert function.__name__ == function.__qualname__ == function.__code__.co_name == name
    assert pickle.loads(pickle.dumps(function)) is function
    with pytest.raises(TypeError, match=rf"^{name}\(\) missing 2 required|^{name}\(\) missing 3"):
        function()


@pytest.mark.parametrize("name", NAMES)
def test_documentation_is_whole_and_of_its_rank(name):
    text, rank = inspect.getdoc(getattr(implicit_conv, name)), int(*filter(str.isdigit, name))
    for section in ("Parameters", "Returns", "Examples"):
        assert f"{section}\n{'-' * len(section)}" in text
    for parameter in inspect.signature(getattr(implicit_conv, name)).parameters:
        assert parameter in text.partition("Returns\n")[0]
    assert f"import {name}\n" in text
    others = {word for other in {1, 2, 3} - {rank} for word in (f"{other}d", *LAYOUTS_OF[other])}
    assert not [word for word in others if word in text]


def test_documentation_is_of_its_rank_whichever_python_compiled_it():
    """Python 3.13 and newer take the indentation of a docstring away."""
    function, example = implicit_conv.conv2d, "\n>>> 1 + 1\n2\n"
    as_new, as_old = (
        types.FunctionType(function.__code__, {}, "conv2d", function.__defaults__) for _ in range(2)
    )
    as_new.__doc__ = inspect.cleandoc(function.__doc__)
    as_old.__doc__ = textwrap.indent(as_new.__doc__, "    ").lstrip()
    new, old = (with_rank(one, 1, example).__doc__ for one in (as_new, as_old))
    assert new == old and new.endswith(f"\n\nExamples\n--------{example}")


def test_no_public_function_takes_or_returns_anything():
    """`Any` switches type checkers off."""
    plans = [implicit_conv.Plan.__call__, *vars(implicit_conv.Plan).values()]
    functions = [
        *(getattr(implicit_conv, name) for name in (*NAMES, "im2col", "col2im")),
        *filter(inspect.isfunction, (*plans, *vars(implicit_conv.CausalConv1d).values())),
        *(getattr(signal, name) for name in signal.served()),
        *(ndimage.patch, ndimage.unpatch),
    ]
    vague = [
        function.__qualname__
        for function in functions
        if not function.__name__.startswith("_") or function.__name__ == "__call__"
        if re.search(r"\bAny\b", str(function.__annotations__))
    ]
    assert vague == []
