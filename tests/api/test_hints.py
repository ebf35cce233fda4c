"""Messages whose hint is a call: the call works, and computes what was meant."""

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
