"""Words that users bring from other libraries, and what messages say of words that do not fit."""

import numpy as np
import pytest

import implicit_conv as ic

X = np.arange(2 * 8 * 9 * 3, dtype=np.float32).reshape(2, 8, 9, 3) % 7
W = np.arange(3 * 3 * 3 * 4, dtype=np.float32).reshape(3, 3, 3, 4) % 5


@pytest.fixture(scope="module")
def expected():
    return ic.conv2d(X, W, padding="same", layout="NHWC", weight_layout="RSCK")


@pytest.mark.parametrize("padding", ["SAME", "Same", "same_upper", "SAME_UPPER"])
@pytest.mark.parametrize("weight_layout", ["HWIO", "hwio", "rsck"])
def test_words_in_any_case(padding, weight_layout, expected):
    y = ic.conv2d(X, W, padding=padding, layout="nhwc", weight_layout=weight_layout)
    np.testing.assert_array_equal(y, expected)


@pytest.mark.parametrize(("name", "axes"), [("OIHW", (3, 2, 0, 1)), ("OHWI", (3, 0, 1, 2))])
def test_filter_layouts_of_other_libraries(name, axes, expected):
    w = np.ascontiguousarray(W.transpose(axes))
    y = ic.conv2d(X, w, padding="same", layout="NHWC", weight_layout=name)
    np.testing.assert_array_equal(y, expected)


@pytest.mark.parametrize(("rank", "name"), [(1, "WIO"), (3, "DHWIO")])
def test_filter_layouts_of_signals_and_volumes(rank, name):
    x = np.ones((1, *[4] * rank, 2), np.float32)
    w = np.ones((*[3] * rank, 2, 5), np.float32)
    y = getattr(ic, f"conv{rank}d")(x, w, layout="N" + "DHW"[-rank:] + "C", weight_layout=name)
    np.testing.assert_array_equal(y, np.full((1, *[2] * rank, 5), 2 * 3.0**rank))


@pytest.mark.parametrize(
    ("name", "axes"),
    [
        ("IOHW", (2, 3, 0, 1)),
        ("HWOI", (0, 1, 3, 2)),
        ("HWIO", (0, 1, 2, 3)),
        ("CRSK", (2, 0, 1, 3)),
    ],
)
def test_filter_layouts_of_transposed_convolutions(name, axes):
    x = np.ones((1, 3, 5, 5), np.float32)
    expected = ic.conv_transpose2d(x, np.ascontiguousarray(W.transpose(2, 3, 0, 1)), stride=2)
    y = ic.conv_transpose2d(x, W.transpose(axes), stride=2, weight_layout=name)
    np.testing.assert_array_equal(y, expected)


def test_positional_order_of_torch():
    x, w = X.transpose(0, 3, 1, 2), W[..., :3].transpose(3, 2, 0, 1)[:, :1]
    bias = np.arange(3, dtype=np.float32)
    expected = ic.conv2d(x, w, bias, stride=2, padding=1, dilation=2, groups=3)
    np.testing.assert_array_equal(ic.conv2d(x, w, bias, 2, 1, 2, 3), expected)
    grown = ic.conv_transpose2d(x, w, bias, stride=2, padding=1, output_padding=1, groups=3)
    np.testing.assert_array_equal(ic.conv_transpose2d(x, w, bias, 2, 1, 1, 3, 1), grown)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"layout": "NHCW"}, ic.ShapeError, "did you mean 'NHWC'?"),
        ({"weight_layout": "KCSR"}, ic.ShapeError, "did you mean 'KCRS'?"),
        ({"padding": "smae"}, ic.ShapeError, "did you mean 'same'?"),
        ({"precision": "strickt"}, ic.PlanError, "did you mean 'strict'?"),
        ({"algorithm": "winogrd_f4"}, ic.PlanError, "did you mean 'winograd_f4'?"),
        ({"layout": 3}, ic.ShapeError, "layout 3 is none of NCHW, NHWC"),
    ],
)
def test_a_misspelt_word_gets_the_closest_one(options, error, message):
    x, w = np.ones((1, 3, 8, 8), np.float32), np.ones((4, 3, 3, 3), np.float32)
    with pytest.raises(error) as caught:
        ic.conv2d(x, w, **options)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("x", "w", "options", "hint"),
    [
        ((1, 8, 9, 3), (4, 3, 3, 3), {}, "x has 3 channels last; did you mean layout='NHWC'?"),
        ((1, 3, 8, 9), (4, 3, 5, 3), {"layout": "NHWC"}, "did you mean layout='NCHW'?"),
        ((1, 6, 8, 9), (3, 3, 6, 4), {}, "did you mean weight_layout='RSCK'?"),
        ((1, 6, 8, 9), (6, 1, 3, 3), {}, "did you mean groups=6?"),
        ((1, 6, 8, 9), (4, 3, 5, 5), {}, "did you mean groups=2?"),
        (
            (8, 9, 3),
            (3, 1, 3, 3),
            {},
            "x has 3 channels last; did you mean layout='NHWC', groups=3?",
        ),
        ((1, 7, 8, 9), (4, 3, 5, 5), {}, "check layout, weight_layout and groups"),
    ],
)
def test_an_array_that_fits_another_layout(x, w, options, hint):
    """The hint works when it is followed."""
    with pytest.raises(ic.ShapeError) as caught:
        ic.plan_conv2d(x, w, **options)
    assert str(caught.value).endswith(hint)
    if "did you mean" in hint:
        words = hint.partition("did you mean ")[2].rstrip("?")
        ic.plan_conv2d(x, w, **{**options, **eval(f"dict({words})")})


@pytest.mark.parametrize("options", ["", ", layout='NHWC'", ", weight_layout='HWIO'"])
@pytest.mark.parametrize("name", ["conv1d", "conv2d", "conv3d", "conv_transpose2d"])
def test_images_without_channels_get_a_call_that_works(name, options):
    rank = int(name[-2])
    if rank != 2 and options:
        options = options.replace("HW", "DHW"[-rank:])
    names = {"ic": ic, "x": np.ones((6,) * rank, np.float32), "w": np.ones((3,) * rank, np.float32)}
    with pytest.raises(ic.ShapeError) as caught:
        eval(f"ic.{name}(x, w{options})", names)
    call = str(caught.value).partition(" write ")[2]
    size = 8 if name == "conv_transpose2d" else 4
    assert eval(f"ic.{call}", names).shape == (size,) * rank
