"""Messages for calls as users of other libraries write them: how the call is written here."""

from __future__ import annotations

import difflib
import inspect
import sys
from collections.abc import Mapping

import numpy as np

from implicit_conv.errors import DTypeError, ShapeError
from implicit_conv.problem.options import PADDING_NAMES
from implicit_conv.problem.parse import FIRST, LAST, MODES_ELSEWHERE
from implicit_conv.settings import THREADS

# The least likeness of a word and ours of which it is a slip; "padding_fill" is none of "padding".
CLOSE = 0.78
LONG = 60  # characters of a value that a message repeats at most

# Keywords that mean one of ours, with its values: of torch, JAX, TensorFlow, Keras, ONNX, OpenCV,
# scipy.
RENAMED = {
    "b": "bias",
    "act": "activation",
    "biases": "bias",
    "channels": "groups",
    "dilate": "dilation",
    "dilation_rate": "dilation",
    "dilations": "dilation",
    "dst": "out",
    "dtype": "out_dtype",
    "feature_group_count": "groups",
    "group": "groups",
    "kernel_layout": "weight_layout",
    "num_groups": "groups",
    "output": "out",
    "output_dtype": "out_dtype",
    "output_shape": "output_size",
    "pad": "padding",
    "pad_mode": "padding_mode",
    "paddings": "padding",
    "pads": "padding",
    "preferred_element_type": "out_dtype",
    "rhs_dilation": "dilation",
    "step": "stride",
    "strides": "stride",
    "subsample": "stride",
    "window_strides": "stride",
}
FILLS = (  # what padding is made of
    *("constant_values", "cval", "fill_value", "fillvalue", "pad_value", "padding_fill"),
    *("padding_value", "value"),
)
TRANSPOSED = ("output_padding", "output_size")  # that transposed convolutions alone have
IMPLIED = ("kernel_size", "ksize", "kernel_shape", "in_channels", "out_channels")
# Modes of scipy.ndimage: its "reflect" repeats the edge.
NDIMAGE = {"reflect": "symmetric", "symmetric": "symmetric", "replicate": "replicate"}


def unexpected(name: str, other: Mapping[str, object]) -> TypeError:
    """The error of a call with the keywords `other`, which the function `name` does not have; it
    ends with what to write instead.
    """
    known = inspect.signature(getattr(sys.modules["implicit_conv"], name)).parameters
    written: dict[str, str] = {}
    advice: list[str] = []
    for word, value in other.items():
        _translate(word, value, [*known], written, advice)
    if "padding_mode" in written and "boundary" in other:
        written.setdefault("padding", "'full'")  # scipy.signal's default
    given = ", ".join(map(repr, other))
    instead = ", ".join(f"{key}={text}" for key, text in written.items())
    hints = [*advice, *([f"write {instead}"] if instead else [])]
    several = "s" if len(other) > 1 else ""
    return TypeError(
        f"{name}() got an unexpected keyword argument{several} {given}; {'; '.join(hints)}"
    )


def _translate(
    word: str, value: object, known: list[str], written: dict[str, str], advice: list[str]
) -> None:
    """Put what a keyword is here into `written`, or in words into `advice`."""
    ours, lower = RENAMED.get(word.lower(), ""), str(value).lower()
    if word == "data_format" and lower in (*FIRST, *LAST):
        advice.append("layouts are named by their axes")
        written["layout"] = repr("NHWC" if lower in LAST else "NCHW")
    elif word == "data_format":
        written["layout"] = _text(value)
    elif word == "mode" and lower in PADDING_NAMES:
        written["padding"] = repr(lower)
    elif word in ("mode", "boundary", "border", "bordertype") and _mode(lower):
        if word != "boundary":
            written["padding"] = "'same'"
        written["padding_mode"] = repr(_mode(lower))
    elif word not in known and (way := _way(word, value)):
        advice.append(way)
    elif ours in known:
        written[ours] = _text(value)
    else:
        close = difflib.get_close_matches(word, known, 1, CLOSE)
        if close:
            written[close[0]] = _text(value)
        else:
            advice.append(f"its parameters are {', '.join(known)}")


def _way(word: str, value: object) -> str:
    """Advice on a keyword that none of ours stands for; empty for others."""
    if word in THREADS:
        return f"threads are a setting: with implicit_conv.config(num_threads={value!r}):"
    if word in FILLS:
        way = "leave it out"
        if value != 0:
            filled = f"np.pad(x, ..., constant_values={_text(value)})"
            way = f"pad x before by {filled}, and leave out this and padding"
        return f"padding is made of zeros or of pixels: {way}"
    if word in TRANSPOSED:
        return f"transposed convolutions alone have {word}: leave it out"
    return "it follows from the shape of w: leave it out" if word in IMPLIED else ""


def _mode(word: str) -> str:
    """Our padding mode for the word of another library; empty if there is none."""
    return NDIMAGE.get(word) or MODES_ELSEWHERE.get(word, ("", ""))[1]


def _text(value: object) -> str:
    """A value as a message writes it; arrays are not repeated."""
    text = repr(value)
    return text if len(text) <= LONG and not hasattr(value, "__array__") else "..."


def for_arrays(
    error: ShapeError | DTypeError, names: tuple[str, str], given: tuple[object, object]
) -> ShapeError | DTypeError:
    """The error, whose hint may be code for arrays, for lists, pictures or tensors."""
    text = str(error)
    if ".astype(" not in text and "[None" not in text and "np." not in text:
        return error
    others = [
        name for name, value in zip(names, given, strict=True) if not isinstance(value, np.ndarray)
    ]
    arrays = ", ".join(f"np.asarray({name})" for name in others)
    return type(error)(f"{text}; before that, {', '.join(others)} = {arrays}")
