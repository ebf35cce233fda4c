"""conv_general_dilated: the cases of its arguments, against JAX in float64."""

from functools import partial

import numpy as np
import pytest

jax = pytest.importorskip("jax", minversion="0.5", reason="pip install '.[jax]'")

import jax.numpy as jnp  # noqa: E402
from jax import lax  # noqa: E402
from jax_cases import arrays, calls, error  # noqa: E402

from implicit_conv.errors import PlanError  # noqa: E402
from implicit_conv.jax import conv_general_dilated, lowering  # noqa: E402
from implicit_conv.operators.programs import make_words  # noqa: E402

NHWC, NCHW = ("NHWC", "HWIO", "NHWC"), ("NCHW", "OIHW", "NCHW")
PLAIN = {"window_strides": (1, 1), "padding": "SAME", "dimension_numbers": NHWC}
# Units of error: Winograd's products of transformed tiles add some to those of rounded sums.
MOST_UNITS = 32


def check(x_shape, w_shape, *, dtype="float32", ours=1, units=MOST_UNITS, seed=0, **options):
    """Compare a convolution with JAX's, and count our calls."""
    x, w = arrays(x_shape, w_shape, dtype=dtype, seed=seed)
    own, other = (partial(f, **options) for f in (conv_general_dilated, lax.conv_general_dilated))
    y = own(x, w)
    assert y.dtype == other(x, w).dtype
    wide = {**options, "preferred_element_type": None}
    assert error(y, partial(lax.conv_general_dilated, **wide), x, w) <= units
    assert calls(own, x, w) == ours


@pytest.mark.parametrize("padding", ["SAME", "VALID", [(0, 2), (3, 1)], [(-1, 2), (2, -1)]])
@pytest.mark.parametrize("strides", [(1, 1), (2, 3)])
@pytest.mark.parametrize("dilation", [None, (2, 1)])
def test_windows(padding, strides, dilation):
    options = {"window_strides": strides, "padding": padding, "rhs_dilation": dilation}
    check((2, 13, 11, 8), (3, 2, 8, 5), dimension_numbers=NHWC, **options)


@pytest.mark.parametrize("dilation", [(2, 2), (1, 3)])
@pytest.mark.parametrize("padding", [[(0, 0), (1, 2)], [(3, 1), (2, 4)], [(-1, 0), (0, 5)], "SAME"])
@pytest.mark.parametrize("window", [(1, 1), (2, 1)])
def test_a_dilated_lhs_is_an_input_gradient(dilation, padding, window):
    if padding == "SAME":
        padding = [(1, 1), (1, 1)]
    options = {"window_strides": (1, 1), "padding": padding, "lhs_dilation": dilation}
    # Enough filters that no CPU's phases copy theirs, as those of few results do.
    check((2, 6, 7, 8), (3, 3, 8, 24), dimension_numbers=NHWC, rhs_dilation=window, **options)


@pytest.mark.parametrize(
    ("x_shape", "w_shape", "groups"),
    [((1, 9, 9, 8), (3, 3, 4, 6), 2), ((1, 9, 9, 16), (3, 3, 1, 16), 16)],
    ids=["groups", "depthwise"],
)
@pytest.mark.parametrize("dilation", [(1, 1), (2, 2)])
def test_groups_of_channels(x_shape, w_shape, groups, dilation):
    options = {**PLAIN, "padding": [(1, 1), (1, 1)], "lhs_dilation": dilation}
    check(x_shape, w_shape, feature_group_count=groups, **options)


def test_many_dilated_groups_of_several_channels_stay_with_jax():
    options = {**PLAIN, "padding": [(1, 1), (1, 1)], "lhs_dilation": (2, 2)}
    check((1, 4, 4, 256), (2, 2, 2, 256), feature_group_count=128, ours=0, **options)


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_groups_of_images_are_weight_gradients(groups):
    options = {"window_strides": (1, 2), "padding": [(1, 1), (0, 1)], "rhs_dilation": (2, 1)}
    numbers = ("CHWN", "IHWO", "HWNC")
    check(
        (8, 12, 12, 4 * groups),
        (8, 5, 5, 8),
        dimension_numbers=numbers,
        batch_group_count=groups,
        **options,
    )


@pytest.mark.parametrize(
    "numbers",
    [NHWC, NCHW, ("HWNC", "OHWI", "NHWC"), ("CNHW", "IHWO", "WHCN"), ("NCHW", "HWIO", "NHWC")],
)
@pytest.mark.parametrize("strides", [(1, 1), (2, 2)])
def test_dimension_numbers(numbers, strides):
    sizes = {"N": 2, "C": 8, "H": 9, "W": 11}, {"O": 6, "I": 8, "H": 3, "W": 2}
    shapes = (tuple(map(size.get, spec)) for size, spec in zip(sizes, numbers, strict=False))
    options = {"window_strides": strides, "padding": "SAME", "dimension_numbers": numbers}
    check(*shapes, **options)


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
@pytest.mark.parametrize("operator", [{}, {"lhs_dilation": (2, 2), "padding": [(1, 1), (1, 1)]}])
def test_dtypes(dtype, operator):
    units = MOST_UNITS if dtype == "float64" else 1.01  # the rounding of the result
    check((1, 8, 8, 16), (3, 3, 16, 8), dtype=dtype, units=units, **PLAIN | operator)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_preferred_type_of_the_sums(dtype):
    options = {**PLAIN, "preferred_element_type": jnp.float32}
    check((1, 8, 8, 16), (3, 3, 16, 8), dtype=dtype, **options)


@pytest.mark.parametrize(
    ("x_shape", "w_shape", "numbers"),
    [((2, 8, 30), (4, 8, 5), ("NCH", "OIH", "NCH")), ((1, 5, 6, 7, 4), (3, 2, 3, 4, 6), None)],
    ids=["signals", "volumes"],
)
@pytest.mark.parametrize("dilation", [1, 2])
def test_ranks(x_shape, w_shape, numbers, dilation):
    rank = len(x_shape) - 2
    numbers = numbers or ("NDHWC", "DHWIO", "NDHWC")
    options = {"window_strides": (1,) * rank, "padding": [(2, 1)] * rank}
    check(x_shape, w_shape, dimension_numbers=numbers, lhs_dilation=(dilation,) * rank, **options)


@pytest.mark.parametrize("dilation", [1, 2])
def test_a_filter_that_no_order_saves_a_copy(dilation, monkeypatch):
    """Ours runs all the same."""
    asked = list[bool]()

    def made(plan, parts, *, copies_filter):
        asked.append(copies_filter)
        if not copies_filter:
            raise PlanError("the filter is copied")
        return make_words(plan, parts)

    monkeypatch.setattr(lowering, "make_words", made)
    options = {"window_strides": (1, 1), "padding": [(2, 1)] * 2, "lhs_dilation": (dilation,) * 2}
    check((1, 7, 6, 5), (3, 2, 5, 7), dimension_numbers=("NHWC", "HWIO", "NHWC"), **options)
    assert asked[:3] == [False, False, True]


@pytest.mark.parametrize("precision", [None, "high", lax.Precision.HIGHEST, ("default", "highest")])
def test_precisions(precision):
    check((1, 16, 16, 32), (3, 3, 32, 32), precision=precision, **PLAIN)


def test_the_highest_precision_is_strict():
    x, w = arrays((1, 16, 16, 32), (3, 3, 32, 32))
    x = x.at[0, 8, 8, 0].set(jnp.inf)  # which Winograd's transform would turn into NaNs
    own = partial(conv_general_dilated, precision="highest", **PLAIN)
    assert np.isnan(own(x, w)).sum() == np.isnan(lax.conv_general_dilated(x, w, **PLAIN)).sum()
    assert calls(own, x, w) == 1


@pytest.mark.parametrize(
    ("x_shape", "w_shape", "options"),
    [
        ((0, 8, 8, 4), (3, 3, 4, 4), {}),
        ((1, 2, 2, 4), (3, 3, 4, 4), {"padding": "VALID"}),
        ((1, 8, 8, 0), (3, 3, 0, 4), {}),
        ((1, 8, 8, 4), (3, 3, 4, 4), {"lhs_dilation": (2, 2), "window_strides": (2, 1)}),
        ((1, 4, 4, 4), (1, 1, 4, 4), {"padding": "VALID"}),
    ],
    ids=["no images", "no pixels", "no channels", "a dilated lhs and a stride", "few products"],
)
def test_what_stays_with_jax(x_shape, w_shape, options):
    options = {**PLAIN, "padding": [(1, 1), (1, 1)], **options}
    check(x_shape, w_shape, ours=0, **options)


@pytest.mark.parametrize("dtype", ["int8", "int32", "complex64"])
def test_other_dtypes_stay_with_jax(dtype):
    x, w = (jnp.round(3 * a).astype(dtype) for a in arrays((1, 6, 6, 2), (3, 3, 2, 4)))
    own = partial(conv_general_dilated, **PLAIN)
    np.testing.assert_array_equal(own(x, w), lax.conv_general_dilated(x, w, **PLAIN))
    assert calls(own, x, w) == 0


WRONG = [
    ((1, 8, 8, 4), (3, 3, 5, 4), PLAIN),
    ((1, 8, 8, 4), (3, 3, 4, 4), {**PLAIN, "window_strides": (1,)}),
    ((1, 8, 8, 4), (3, 3, 4, 4), {**PLAIN, "window_strides": (0, 1)}),
    ((1, 8, 8, 4), (3, 3, 4, 4), {**PLAIN, "padding": "same padding"}),
    ((1, 8, 8, 4), (3, 3, 4), PLAIN),
    ((1, 8, 8, 4), (3, 3, 4, 4), {**PLAIN, "feature_group_count": 3}),
    ((3, 8, 8, 4), (3, 3, 4, 4), {**PLAIN, "batch_group_count": 2}),
    ((1, 8, 8, 4), (3, 3, 4, 4), {**PLAIN, "dimension_numbers": ("NHWC", "HWIO", "NHW")}),
]


@pytest.mark.parametrize(("x_shape", "w_shape", "options"), WRONG)
def test_errors_are_those_of_jax(x_shape, w_shape, options):
    x, w = arrays(x_shape, w_shape)
    with pytest.raises(Exception) as expected:
        lax.conv_general_dilated(x, w, **options)
    with pytest.raises(type(expected.value)) as found:
        conv_general_dilated(x, w, **options)
    assert str(found.value) == str(expected.value)


def test_other_dtypes_are_refused_as_by_jax():
    (x,), (w,) = arrays((1, 8, 8, 4)), arrays((3, 3, 4, 4), dtype="float64")
    with pytest.raises(TypeError, match="same dtypes"):
        conv_general_dilated(x, w, **PLAIN)


def test_options_may_be_lists_and_arrays():
    x, w = arrays((1, 8, 8, 4), (3, 3, 4, 4))
    wanted = conv_general_dilated(x, w, **PLAIN)
    for strides in ([1, 1], np.ones(2, int)):
        y = conv_general_dilated(x, w, strides, "SAME", dimension_numbers=NHWC)
        np.testing.assert_array_equal(y, wanted)


def test_arrays_of_numpy_are_taken():
    x, w = map(np.asarray, arrays((1, 8, 8, 4), (3, 3, 4, 4)))
    y = conv_general_dilated(x, w, **PLAIN)
    assert isinstance(y, jax.Array)
    np.testing.assert_array_equal(y, conv_general_dilated(jnp.asarray(x), jnp.asarray(w), **PLAIN))
