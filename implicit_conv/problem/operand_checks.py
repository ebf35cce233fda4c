"""Checks of the axes and dtypes of x and w, whose messages have a call that works."""

from __future__ import annotations

import math
from collections.abc import Sequence

from implicit_conv.errors import DTypeError, ShapeError
from implicit_conv.problem.options import (
    COMPLEX_PARTS,
    DTYPES,
    FLOAT_DTYPES,
    INTEGER_RANGES,
    LAYOUTS_OF,
    WEIGHT_LAYOUTS_OF,
)
from implicit_conv.problem.parse import MOST_PIXELS

Shapes = tuple[tuple[int, ...], tuple[int, ...]]
COLOURS = 4  # channels at most of what is taken for a picture


# Dtypes that are not computed, and what takes their place without loss: up to 2^53 for integers.
NEAREST = {"bool": "uint8", "uint16": "float32", "complex256": "complex128"}
WIDE = "float64"
NO_EPILOGUE = "a gradient has no bias, residual or scale; leave them out"


def conversions(
    x: str, w: str, supported: Sequence[str], names: tuple[str, str] = ("x", "w")
) -> dict[str, str]:
    """The arrays that must be converted so that they can be multiplied, with their dtypes.

    A filter of integers that numpy made of Python's, next to small integers or floats, takes the
    dtype of its values: float32, or that of x.
    """
    first, second = (_nearest(d, supported) for d in (x, w))
    if second != w and w not in NEAREST and x in supported:
        second = x if x not in INTEGER_RANGES and x not in COMPLEX_PARTS else "float32"
    integers = first in INTEGER_RANGES and second in INTEGER_RANGES
    if first != second and not integers:
        # What w converts to without loss; of two floats w, which is smaller.
        floats = first in FLOAT_DTYPES and second in FLOAT_DTYPES
        wider = second in INTEGER_RANGES or first in COMPLEX_PARTS or floats
        first, second = (first, first) if wider else (second, second)
    made = zip(names, (x, w), (first, second), strict=True)
    return {name: new for name, old, new in made if new != old}


def _nearest(dtype: str, supported: Sequence[str]) -> str:
    """The supported dtype that takes the place of another one."""
    if dtype in supported:
        return dtype
    near = NEAREST.get(dtype, WIDE)
    return near if near in supported else "float32"  # the widest one of GPUs


def check_dtypes(
    x: str, w: str, supported: Sequence[str] = DTYPES, *, names: tuple[str, str] = ("x", "w")
) -> None:
    """Check that x and w of these dtypes, which messages call `names`, can be multiplied.

    Raises
    ------
    DTypeError
        One is not supported, or they differ and are not both integers.
    """
    made = conversions(x, w, supported, names)
    way = " and ".join(f"{name}.astype({dtype!r})" for name, dtype in made.items())
    if names == ("x", "w") and (x == "bool" or "int" in x) and "int8" in supported:
        way += "; next to a w of float32, conv1d to conv3d take x of 8 or 16 bits, such as uint16"
    for name, dtype in zip(names, (x, w), strict=True):
        if dtype not in supported:
            raise DTypeError(
                f"dtype {dtype} is not supported; {name} is {dtype}: convert it to one of "
                f"{', '.join(supported)}, as in {way}"
            )
    if made:
        raise DTypeError(
            f"{names[0]} is {x} but {names[1]} is {w}, which are not multiplied: both may be "
            f"integers, or of one float dtype; convert one, as in {way}"
        )


def check_channels(
    shapes: Shapes,
    layouts: tuple[str, str],
    dtypes: tuple[str, str],
    name: str,
    supported: Sequence[str] = (*DTYPES, *COMPLEX_PARTS),
) -> None:
    """Refuse a filter without channels, of a picture that may have some, in the function `name`.

    Raises
    ------
    ShapeError
        The message has the whole call that works, with conversions.
    """
    (x_shape, w_shape), (layout, weight_layout) = shapes, layouts
    rank = len(layout) - 2
    if len(w_shape) != rank or len(x_shape) not in (rank, rank + 1):
        return
    arrays = {"x": "x", "w": "w"}
    for array, dtype in conversions(*dtypes, supported).items():
        arrays[array] += f".astype({dtype!r})"
    x, w = arrays.values()
    if len(x_shape) == rank:
        what, end = "one channel and one filter", "[0, 0]"
        call = f"{x}[None, None], {w}[None, None]"
    else:
        last = x_shape[-1] <= COLOURS < x_shape[0]
        channels = x_shape[-1 if last else 0]
        what, end = f"this filter of each of {channels} channels", ""
        call = f"{x}, np.broadcast_to({w}, {(channels, 1, *w_shape)}), groups={channels}"
        call += f", layout={LAYOUTS_OF[rank][1]!r}" * last
    raise ShapeError(
        f"x has {len(x_shape)} axes {x_shape} and w has {rank} axes {w_shape}; {name} takes arrays "
        f"with channels, {layout} and {weight_layout}, and of one dtype; for {what} write "
        f"{name}({call}){end}"
    )


def check_axes(shapes: Shapes, layouts: tuple[str, str]) -> None:
    """Check the numbers of axes of x, which may lack N, and w.

    Raises
    ------
    ShapeError
        An array has too many or too few.
    """
    rank = len(layouts[0]) - 2
    least = rank + 1, rank + 2
    for array, shape, layout, fewest in zip("xw", shapes, layouts, least, strict=True):
        if not fewest <= len(shape) <= rank + 2:
            less = f", or {fewest} without N" if fewest < rank + 2 else ""
            lacks = ", ".join(["None"] * (fewest - len(shape)))
            more = f"; add axes of extent 1, as in {array}[{lacks}]" if lacks else ""
            raise ShapeError(
                f"{array} has {len(shape)} axes {shape}; {layout} has {rank + 2}{less}{more}"
            )


def other_layout(
    x: dict[str, int], w: dict[str, int], groups: int, layout: str, weight_layout: str
) -> str:
    """The way out if channels do not match: another layout that fits, if there is one."""
    rank = len(layout) - 2
    x_shape = [x[letter] for letter in layout if letter in x]
    w_shape = [w[letter] for letter in weight_layout]
    share = _groups(x["C"], w)
    if share and w["C"] == 1:
        return f"did you mean groups={share}?"
    if w["C"] == w["K"] == groups == 1:
        return _one_filter(x_shape, layout, w)
    for other in LAYOUTS_OF[rank]:
        channels = x_shape[other.index("C") - len(other)]
        if other != layout and channels == w["C"] * groups:
            return f"x has {channels} channels {_side(other)}; did you mean layout='{other}'?"
    for other in WEIGHT_LAYOUTS_OF[rank]:
        channels = w_shape[other.index("C")]
        if other != weight_layout and channels * groups == x["C"]:
            return f"w fits in another layout; did you mean weight_layout='{other}'?"
    if share:
        return f"check layout and weight_layout; did you mean groups={share}?"
    return _grouped_layout(x_shape, layout, w) or "check layout, weight_layout and groups"


def _grouped_layout(x_shape: list[int], layout: str, w: dict[str, int]) -> str:
    """The way out if x has another layout and w is for groups; empty if they do not fit."""
    for other in LAYOUTS_OF[len(layout) - 2]:
        channels = x_shape[other.index("C") - len(other)]
        share = _groups(channels, w)
        if other != layout and share:
            way = f"did you mean layout='{other}', groups={share}?"
            return f"x has {channels} channels {_side(other)}; {way}"
    return ""


def _groups(channels: int, w: dict[str, int]) -> int:
    """The number of groups, more than one, with which w fits an x of so many channels, or 0."""
    share = channels // max(1, w["C"])
    return share if share > 1 and channels == share * w["C"] and w["K"] % share == 0 else 0


def _side(layout: str) -> str:
    return "last" if layout.endswith("C") else "first"


def _one_filter(x_shape: list[int], layout: str, w: dict[str, int]) -> str:
    """The way out for one filter of one channel, and an x with several."""
    last = LAYOUTS_OF[len(layout) - 2][1]
    wanted = last if x_shape[-1] <= COLOURS < x_shape[1 - len(layout)] else layout
    channels = x_shape[-1 if wanted == last else 1 - len(layout)]
    filters = channels, 1, *(w[letter] for letter in "TRS" if letter in w)
    other = "" if wanted == layout else f", layout={wanted!r}"
    return (
        "w has one filter of one channel; for this filter of each channel write "
        f"np.broadcast_to(w, {filters}), groups={channels}{other}"
    )


def check_taps(kernel: tuple[int, ...], letters: str) -> None:
    """Check the extents `kernel` of a filter along its axes `letters`.

    Raises
    ------
    ShapeError
        One is 0, or there are too many taps.
    """
    extents, names = " x ".join(map(str, kernel)), " x ".join(letters)
    if min(kernel) < 1:
        each = "both" if len(kernel) == 2 else "each"
        raise ShapeError(f"w has a filter of {extents} ({names}); {each} must be at least 1")
    if math.prod(kernel) > MOST_PIXELS:
        raise ShapeError(
            f"w has filters of {extents} = {math.prod(kernel)} taps ({names}); at most "
            f"{MOST_PIXELS} are supported; divide the filter into parts and add their outputs"
        )


def check_groups(
    x: dict[str, int], w: dict[str, int], groups: int, layout: str, weight_layout: str
) -> None:
    """Check that channels and filters divide into groups, and that x has as many as w expects."""
    for name, count in (("C", x["C"]), ("K", w["K"])):
        if count % groups:
            raise ShapeError(f"{name}={count} is not a multiple of groups={groups}")
    expected = w["C"] * groups
    if x["C"] != expected:
        raise ShapeError(
            f"x has C={x['C']} but w ({weight_layout}) expects C/groups={w['C']} with groups="
            f"{groups}, that is C={expected}; " + other_layout(x, w, groups, layout, weight_layout)
        )
