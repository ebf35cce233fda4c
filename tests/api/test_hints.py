"""Messages whose hint is a call: the call works, and computes what was meant."""

import inspect
import re

import numpy as np
import pytest
from scipy import signal

import implicit_conv as ic

RNG = np.random.default_rng(0)


def integers(shape, dtype):
    low = 0 if dtype == "uint8" else -4
    return RNG.integers(low, 5, shape).astype(dtype)


def hinted(call, names):
    """The result of the call that the error of another call ends with."""
    with pytest.raises((ic.ShapeError, ic.DTypeError)) as caught:
        call()
    hint = re.search(r"write (.*)$", str(caught.value)).group(1)
    return eval(hint, {"np": np, **vars(ic), **names})


def summed(image, w):
    """The sums of one channel, in float64."""
    return signal.correlate(image.astype("f8"), w.astype("f8"), "valid", method="direct")


@pytest.mark.parametrize(
    "dtypes",
    [("uint8", "float32"), ("uint8", "float64"), ("float32", "float32"), ("int16", "int8"),
     ("float64", "uint8"), ("float32", "float64")],
)  # fmt: skip
@pytest.mark.parametrize("shape", [(40, 50), (40, 50, 3), (40, 50, 4), (3, 40, 50), (2, 9, 9)])
def test_a_filter_without_channels_of_a_picture(shape, dtypes):
    x, w = integers(shape, dtypes[0]), integers((3, 5), dtypes[1])
    y = hinted(lambda: ic.conv2d(x, w), {"x": x, "w": w})
    last = len(shape) == 3 and shape[-1] <= 4
    planes = x if len(shape) == 3 else x[..., None]
    planes = planes if last or len(shape) == 2 else np.moveaxis(x, 0, -1)
    sums = np.stack([summed(plane, w) for plane in np.moveaxis(planes, -1, 0)])
    if len(shape) == 2:
        sums = sums[0]
    np.testing.assert_array_equal(y, np.moveaxis(sums, 0, -1) if last else sums)


@pytest.mark.parametrize("layouts", [{}, {"layout": "NWC"}, {"weight_layout": "SCK"}])
@pytest.mark.parametrize("shape", [(100,), (100, 2), (2, 100)])
def test_a_filter_without_channels_of_a_signal(shape, layouts):
    x, w = integers(shape, "int16"), integers((7,), "float32")
    y = hinted(lambda: ic.conv1d(x, w, **layouts), {"x": x, "w": w})
    channels = np.moveaxis(x.reshape(100, -1) if shape[0] == 100 else x.T, -1, 0)
    sums = np.stack([summed(channel, w) for channel in channels])
    np.testing.assert_array_equal(
        y, {1: sums[0]}.get(len(shape), sums.T if shape[0] == 100 else sums)
    )


def test_a_filter_without_channels_of_a_transposed_convolution():
    x, w = integers((5, 6), "float32"), integers((3, 3), "float32")
    for options in {}, {"layout": "NHWC"}, {"weight_layout": "RSCK"}:
        y = hinted(lambda given=options: ic.conv_transpose2d(x, w, **given), {"x": x, "w": w})
        np.testing.assert_array_equal(y, signal.convolve(x, w, "full", method="direct"))


@pytest.mark.parametrize("options", [{}, {"layout": "NHWC"}])
def test_one_filter_of_one_channel_for_colours(options):
    x, w = integers((40, 50, 3), "float32"), integers((1, 1, 3, 3), "float32")
    with pytest.raises(ic.ShapeError) as caught:
        ic.conv2d(x, w, **options)
    given = re.search(r"write (.*)$", str(caught.value)).group(1)
    rest = "".join(f", {name}={value!r}" for name, value in options.items())
    y = eval(f"conv2d(x, {given}{rest})", {"np": np, "x": x, "w": w, **vars(ic)})
    expected = np.stack([summed(x[..., c], w[0, 0]) for c in range(3)], axis=-1)
    np.testing.assert_array_equal(y, expected)


@pytest.mark.parametrize(
    ("word", "numpys"),
    [("edge", "edge"), ("wrap", "wrap"), ("mirror", "reflect"), ("nearest", "edge"),
     ("grid-mirror", "symmetric"), ("BORDER_REFLECT_101", "reflect"), ("constant", "constant")],
)  # fmt: skip
def test_words_of_other_libraries_for_padding_name_ours(word, numpys):
    x, w = integers((1, 1, 6, 7), "float32"), integers((1, 1, 3, 3), "float32")
    with pytest.raises(ic.ShapeError) as caught:
        ic.conv2d(x, w, padding=1, padding_mode=word)
    mode = re.search(r"here it is '(.*)'", str(caught.value)).group(1)
    padded = np.pad(x[0, 0], 1, numpys)
    np.testing.assert_array_equal(
        ic.conv2d(x, w, padding=1, padding_mode=mode)[0, 0], summed(padded, w[0, 0])
    )
    with pytest.raises(ic.ShapeError) as caught:
        ic.conv2d(x, w, padding=word)
    given = re.search(r"example, (.*)$", str(caught.value)).group(1)
    y = eval(f"conv2d(x, w, {given})", {"x": x, "w": w, **vars(ic)})
    np.testing.assert_array_equal(y[0, 0], summed(padded, w[0, 0]))


def test_one_number_is_the_bias_of_all_filters():
    x, w = integers((1, 2, 6, 7), "float32"), integers((4, 2, 3, 3), "float32")
    plan, y = ic.plan_conv2d(x.shape, w.shape), ic.conv2d(x, w)
    for _ in range(2):
        np.testing.assert_array_equal(ic.conv2d(x, w, 2.5), y + np.float32(2.5))
        np.testing.assert_array_equal(plan(x, plan.pack(w), np.float64(3)), y + 3)
        np.testing.assert_array_equal(ic.conv2d(x, w, scale=2, bias=1), 2 * y + 1)
    with pytest.raises(ic.DTypeError, match="bias is float64, which does not convert to int32"):
        ic.conv2d(x.astype("int8"), w.astype("int8"), 2.5)


def message_of(call, error):
    with pytest.raises(error) as caught:
        call()
    return str(caught.value)


@pytest.mark.parametrize("word", ["padding_value", "padding_fill", "pad_value", "value", "cval"])
def test_pixels_of_padding_are_made_before(word):
    x, w = integers((1, 2, 6, 7), "uint8"), integers((3, 2, 3, 3), "int8")
    text = message_of(lambda: ic.conv2d(x, w, padding=1, **{word: 128}), TypeError)
    code = re.search(r"by (np\.pad\(.*\)), and leave out this and padding$", text).group(1)
    pads = "((0, 0), (0, 0), (1, 1), (1, 1))"
    padded = eval(code.replace("...", pads), {"np": np, "x": x})
    assert (padded[0, 0, 0] == 128).all()
    expected = sum(summed(padded[0, c], w[1, c]) for c in range(2))
    np.testing.assert_array_equal(ic.conv2d(padded, w)[0, 1], expected)
    text = message_of(lambda: ic.conv2d(x, w, padding=1, **{word: 0}), TypeError)
    assert text.endswith("padding is made of zeros or of pixels: leave it out")


@pytest.mark.parametrize("word", ["output_padding", "output_size"])
def test_what_transposed_convolutions_alone_have_is_left_out(word):
    x, w = integers((1, 2, 6, 7), "float32"), integers((3, 2, 3, 3), "float32")
    text = message_of(lambda: ic.conv2d(x, w, **{word: 1}), TypeError)
    assert text.endswith(f"transposed convolutions alone have {word}: leave it out")
    assert word in inspect.signature(ic.conv_transpose2d).parameters


@pytest.mark.parametrize("word", ["strid", "dialation", "paddng", "actvation", "group_s"])
def test_slips_of_the_pen_are_still_understood(word):
    x, w = integers((1, 2, 6, 7), "float32"), integers((3, 2, 3, 3), "float32")
    known = inspect.signature(ic.conv2d).parameters
    name = re.search(r"write (\w+)=1$", message_of(lambda: ic.conv2d(x, w, **{word: 1}), TypeError))
    assert name.group(1) in known


@pytest.mark.parametrize("call", [ic.conv2d, ic.conv2d_input_grad])
@pytest.mark.parametrize("dtypes", [("float32", "float64"), ("float64", "float32")])
def test_of_two_floats_the_filter_is_converted(dtypes, call):
    x, w = integers((1, 2, 6, 7), dtypes[0]), integers((2, 2, 3, 3), dtypes[1])
    rest = ((*x.shape[:2], 8, 9),) if call is ic.conv2d_input_grad else ()
    text = message_of(lambda: call(x, w, *rest), ic.DTypeError)
    hint = re.search(r"as in (w\.astype\(.*\))$", text).group(1)
    y = call(x, eval(hint, {"w": w}), *rest)
    assert y.dtype == x.dtype
    np.testing.assert_array_equal(y, call(x.astype("f8"), w.astype("f8"), *rest))


def test_an_image_of_uint16_takes_a_filter_of_float32():
    x, w = integers((1, 2, 6, 7), "uint8").astype("uint16"), integers((3, 2, 3, 3), "int8")
    expected = ic.conv2d(x.astype("f8"), w.astype("f8"))
    text = message_of(lambda: ic.conv2d(x, w), ic.DTypeError)
    assert "conv2d takes x and w.astype('float32')" in text
    np.testing.assert_array_equal(ic.conv2d(x, w.astype("float32")), expected)
    text = message_of(lambda: ic.plan_conv2d(x.shape, w.shape, "uint16"), ic.DTypeError)
    assert "plans are of x.astype('float32') and w.astype('float32')" in text
    floats = x.astype("float32"), w.astype("float32")
    np.testing.assert_array_equal(ic.plan_conv2d(x.shape, w.shape)(*floats), expected)
    assert "uint16 next to a filter of float32" in ic.conv2d.__doc__


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_swapped_arrays_are_named(rank):
    x, w = integers((1, 3, *(16,) * rank), "float32"), integers((4, 3, *(3,) * rank), "float32")
    conv = getattr(ic, f"conv{rank}d")
    text = message_of(lambda: conv(w, x), ic.ShapeError)
    assert text.endswith("if x and w are swapped, pass the image first")
    assert conv(x, w).shape == (1, 4, *(14,) * rank)
    flat = integers((1, 3, *(2,) * (rank - 1), 16), "float32")
    if rank > 1:  # a filter that is too large along some axes alone
        assert "swapped" not in message_of(lambda: conv(flat, w), ic.ShapeError)


def test_dtypes_of_gpus_are_those_that_a_hint_names():
    from implicit_conv.problem.operand_checks import check_dtypes
    from implicit_conv.problem.options import GPU_DTYPES

    for dtype in ("int8", "uint8", "int16", "float64", "bool", "uint16", "int64", "complex64"):
        text = message_of(lambda d=dtype: check_dtypes(d, d, GPU_DTYPES), ic.DTypeError)
        named = re.findall(r"astype\('(\w+)'\)", text)
        assert named == ["float32", "float32"]
        check_dtypes(*named, GPU_DTYPES)
