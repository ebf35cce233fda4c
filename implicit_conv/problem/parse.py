"""Options as users write them -> integers and tuples, checked; every message has a way out."""

from __future__ import annotations

import difflib
import functools
import marshal
import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

import numpy as np

from implicit_conv.errors import ShapeError
from implicit_conv.problem.options import (
    LAYOUTS_OF,
    PADDING_MODES,
    PADDING_NAMES,
    SPACE,
    TAPS,
    WEIGHT_LAYOUTS_OF,
    PaddingName,
)

# The largest stride, dilation and padding of either sign, in pixels, and the largest number of taps
# of a filter: a position in the padded image, and a product of two of these, fit in int64.
MOST_PIXELS = (1 << 31) - 1
# The largest number of elements of x with its padding, of w and of y: a process on x86-64 cannot
# address more bytes. Byte offsets, and the scratch memory of all threads, then fit in int64.
MOST_ELEMENTS = 1 << 47
Ints: TypeAlias = int | Sequence[int]  # one for all axes, or one for each
Padding: TypeAlias = Ints | PaddingName | Literal["same_upper"] | Sequence[Sequence[int]]
# Words of other libraries for padding modes, and ours. Their "reflect" is ours, but for
# scipy.ndimage's, which repeats the edge: ours is "symmetric".
MODES_ELSEWHERE = {
    "constant": ("numpy", "zeros"),
    "edge": ("numpy", "replicate"),
    "wrap": ("numpy", "circular"),
    "mirror": ("scipy", "reflect"),
    "nearest": ("scipy", "replicate"),
    "fill": ("scipy", "zeros"),
    "symm": ("scipy", "symmetric"),
    "grid-wrap": ("scipy", "circular"),
    "grid-mirror": ("scipy", "symmetric"),
    "grid-constant": ("scipy", "zeros"),
    "border_constant": ("OpenCV", "zeros"),
    "border_replicate": ("OpenCV", "replicate"),
    "border_reflect": ("OpenCV", "symmetric"),
    "border_reflect_101": ("OpenCV", "reflect"),
    "border_wrap": ("OpenCV", "circular"),
}
# Words of other libraries for channels last and first: Keras's, and those of skimage and torch.
LAST = ("channels_last", "channel_last", "channelslast")
FIRST = ("channels_first", "channel_first", "channelsfirst")
Axes = tuple[int, ...]  # a value for each spatial axis, in the order of D, H, W


def remembered(function: Callable[..., str]) -> Callable[..., str]:
    """`function` of words, whose results are kept; others than words it gets each time."""
    kept = functools.lru_cache(64)(function)

    @functools.wraps(function)
    def of_words(word: object, *others: Any) -> str:
        return (kept if word is None or type(word) is str else function)(word, *others)

    return of_words


def parse_shape(name: str, shape: Sequence[int]) -> tuple[int, ...]:
    """The shape of the array `name` as ints.

    Raises
    ------
    ShapeError
        An extent is not an integer of at least 0, or the array has too many elements.
    """
    extents = tuple(integer(f"an extent of {name}", n, 0, MOST_ELEMENTS) for n in shape)
    check_elements(name, extents)
    return extents


def check_elements(name: str, extents: tuple[int, ...]) -> None:
    """Raise ShapeError for an array of over MOST_ELEMENTS elements; an extent of 0 counts as 1."""
    elements = math.prod([extent or 1 for extent in extents])
    if elements > MOST_ELEMENTS:
        raise ShapeError(
            f"{name} has {elements} elements, {' x '.join(map(str, extents))}; at most "
            f"{MOST_ELEMENTS} are supported; divide the problem into smaller ones"
        )


def choice(
    name: str,
    value: object,
    allowed: Sequence[str],
    aliases: Mapping[str, str] = MappingProxyType({}),
    error: type[ValueError] = ShapeError,
) -> str:
    """The word of `allowed` that `value` is in any case, or of which it is an alias.

    Raises
    ------
    ShapeError, or `error`
        It is none; the message names the option `name`, all allowed words and the closest one.
    """
    words = {word.lower(): word for word in allowed}
    words |= {alias.lower(): word for alias, word in aliases.items()}
    word = value.lower() if isinstance(value, str) else ""
    if word not in words:
        longer = [known for known in words if word and known.startswith(word)]
        close = longer[:1] or difflib.get_close_matches(word, words, 1)
        hint = f"; did you mean {words[close[0]]!r}?" if close else ""
        raise error(f"{name} {value!r} is none of {', '.join(allowed)}{hint}")
    return words[word]


@remembered
def parse_layout(layout: str | None, rank: int) -> str:
    """The layout of x and y, by default channels first.

    Raises
    ------
    ShapeError
        It is not one with `rank` spatial axes.
    """
    first, last = LAYOUTS_OF[rank]
    word = layout.lower() if isinstance(layout, str) else ""
    if word in (*FIRST, *LAST, *(known[1:].lower() for known in (first, last))):
        ours = last if word in LAST or word == last[1:].lower() else first
        raise ShapeError(
            f"layout {layout!r} is a word of other libraries; here it is {ours!r}, and x may lack N"
        )
    return choice("layout", layout or first, (first, last))


@remembered
def parse_weight_layout(layout: str | None, rank: int, first: str = "K") -> str:
    """The layout of filters; the words with O and I, such as OIHW, are aliases.

    By default the axis `first` comes first: K in a convolution, and C in a transposed one, which
    allows the layouts of both.

    Raises
    ------
    ShapeError
        It is not one with `rank` spatial axes.
    """
    allowed = list(WEIGHT_LAYOUTS_OF[rank])
    if first == "C":
        allowed = [*(word.translate(str.maketrans("KC", "CK")) for word in allowed), *allowed]
    own, usual = TAPS[rank] + "KC", SPACE[rank] + "OI"
    aliases = {word.translate(str.maketrans(own, usual)): word for word in allowed}
    return choice("weight_layout", layout or allowed[0], allowed, aliases)


def frozen(name: str, value: object) -> Any:
    """The option `name` with its lists and arrays as tuples, which are hashable.

    Raises
    ------
    ShapeError
        A value is a bool or a float: as a key, True and 1.0 would be equal to 1.
    """
    if type(value) is int:  # the most common type, and each call has four of them
        return value
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, (list, tuple)):
        if {*map(type, value)} == {int}:
            return tuple(value)
        return tuple(frozen(name, entry) for entry in value)
    if isinstance(value, (bool, float, np.bool_, np.floating)):
        whole = f"; write {int(value)}" if math.isfinite(value) and value == int(value) else ""
        raise ShapeError(f"{name} must be an integer, not {value!r}{whole}")
    return value


def exact_key(values: tuple[Any, ...]) -> bytes | None:
    """A key of nested lists and tuples of ints and names, made in 0.4 us; None if there is none.

    Only what `is_exact` may be kept under it: then keys are equal if and only if the types and
    values of all entries are.
    """
    try:
        return marshal.dumps(values, 2)  # from format 3 on, bytes depend on who else holds a value
    except ValueError:
        return None


def is_exact(values: Any) -> bool:
    """Whether `values` are nested lists and tuples of plain ints and strings."""
    found = [values]
    for each in found:  # which grows by the entries of each list and tuple
        if type(each) in (list, tuple):
            found += each
        elif type(each) not in (int, str):
            return False
    return True


def hashable(name: str, value: object) -> Any:
    """The option `name`, an int, None or a sequence of ints, as a hashable value.

    Raises
    ------
    ShapeError
        A value is a bool or a float.
    """
    return value if value is None or type(value) is int else frozen(name, value)


def shape_tuple(name: str, value: Sequence[int]) -> tuple[int, ...]:
    """The argument `name` as a hashable tuple.

    Raises
    ------
    TypeError
        It is no sequence, or it is an array instead of its shape.
    ShapeError
        An extent is a bool or a float.
    """
    shape = getattr(value, "shape", ())
    if len(shape) > 1:
        raise TypeError(f"{name} must be a shape, not an array; pass {tuple(shape)}")
    try:
        extents = tuple(value)
    except TypeError:
        raise TypeError(f"{name} must be a sequence of integers, not {value!r}") from None
    return frozen(f"an extent of {name}", extents)  # type: ignore[no-any-return]


def integer(name: str, value: object, least: int, most: int) -> int:
    """`value` as an int.

    Raises
    ------
    ShapeError
        It is a bool or not an integer, or is not in [least, most].
    """
    try:
        number = value.__index__()  # type: ignore[attr-defined]
    except (AttributeError, TypeError):
        raise ShapeError(f"{name} must be an integer, not {value!r}") from None
    if isinstance(value, bool) or number < least:
        raise ShapeError(f"{name} is {value!r}; it must be an integer of at least {least}")
    if number > most:
        raise ShapeError(f"{name} is {value!r}; it must be an integer of at most {most}")
    return int(number)


def parse_max_workspace(value: object) -> int | None:
    """The option `max_workspace`, in bytes; None is no limit.

    Raises
    ------
    ShapeError
        It is neither None nor an integer from 0 to 2^63 - 1.
    """
    return None if value is None else integer("max_workspace", value, 0, (1 << 63) - 1)


def _values(name: str, value: object, axes: str) -> Sequence[object]:
    """A value for each of the spatial axes `axes`; a single value is used for all."""
    if not isinstance(value, Sequence) or isinstance(value, str):
        return (value,) * len(axes)
    if len(value) != len(axes):
        each = f"one for each of {', '.join(axes)}" if len(axes) > 1 else f"one for {axes}"
        more = f", or a (low, high) pair for each, as in {PAIRS[len(axes)]}"
        raise ShapeError(
            f"{name} has {len(value)} values {tuple(value)}; give one, or {each}"
            f"{more if name == 'padding' else ''}"
        )
    return value


PAIRS = {1: "((1, 2),)", 2: "((1, 2), (1, 2))", 3: "((1, 2), (1, 2), (1, 2))"}


def per_axis(name: str, value: object, least: int, axes: str = "HW") -> Axes:
    """The option `name` with a value for each of `axes`, integers in [least, MOST_PIXELS].

    Raises
    ------
    ShapeError
        It has neither one value nor one for each axis, or one is not such an integer.
    """
    return tuple(integer(name, v, least, MOST_PIXELS) for v in _values(name, value, axes))


def parse_padding(
    padding: Padding, axes: str, size: Axes, kernel: Axes, stride: Axes, dilation: Axes
) -> tuple[tuple[int, int], ...]:
    """The (low, high) padding of each of the spatial `axes` in pixels; negative values crop.

    "same" pads so that the output has ceil(size / stride) pixels, and puts an odd pixel on the high
    side; "same_lower" puts it on the low side. "full" keeps every window that touches the image.
    "causal" pads the low side only, so that no output depends on a later pixel.

    Raises
    ------
    ShapeError
        The name is unknown, the number of values is wrong, or one is not an integer in
        [-MOST_PIXELS, MOST_PIXELS].
    """
    if isinstance(padding, str):
        _refuse_mode(padding)
        name = choice("padding", padding, PADDING_NAMES, {"same_upper": "same"})
        each = zip(size, kernel, stride, dilation, strict=True)
        pads = (_named_padding(name, *axis) for axis in each)
        return tuple(_pads(f"padding {name!r}", pair) for pair in pads)
    return tuple(
        _axis_padding(axis, value)
        for axis, value in zip(axes, _values("padding", padding, axes), strict=True)
    )


@remembered
def parse_padding_mode(mode: object) -> str:
    """The padding mode in lower case.

    Raises
    ------
    ShapeError
        It is none of PADDING_MODES.
    """
    word = mode.lower() if isinstance(mode, str) else ""
    if word in MODES_ELSEWHERE:
        library, ours = MODES_ELSEWHERE[word]
        raise ShapeError(f"padding_mode {mode!r} is a word of {library}; here it is {ours!r}")
    return choice("padding_mode", mode, PADDING_MODES)


def _refuse_mode(padding: str) -> None:
    """Refuse the word of a padding mode where sizes are expected, and say where it belongs."""
    word = padding.lower()
    ours = word if word in PADDING_MODES else MODES_ELSEWHERE.get(word, ("", ""))[1]
    if ours:
        raise ShapeError(
            f"padding {padding!r} says what padding is made of, not how large it is; write, for "
            f"example, padding='same', padding_mode={ours!r}"
        )


def _axis_padding(axis: str, value: object) -> tuple[int, int]:
    if not isinstance(value, Sequence) or isinstance(value, str):
        value = value, value
    if len(value) != 2:
        raise ShapeError(
            f"padding of {axis} has {len(value)} values {tuple(value)}; give one, or a (low, high) "
            "pair"
        )
    return _pads("padding", (value[0], value[1]))


def _pads(name: str, values: tuple[object, object]) -> tuple[int, int]:
    """The (low, high) padding of an axis as integers in [-MOST_PIXELS, MOST_PIXELS]."""
    low, high = (integer(name, value, -MOST_PIXELS, MOST_PIXELS) for value in values)
    return low, high


def _named_padding(name: str, size: int, taps: int, stride: int, dilation: int) -> tuple[int, int]:
    reach = (taps - 1) * dilation
    if name == "valid":
        return 0, 0
    if name == "full":
        return reach, reach
    if name == "causal":
        return reach, 0
    total = max(0, (-(-size // stride) - 1) * stride + reach + 1 - size)
    low = total - total // 2 if name == "same_lower" else total // 2
    return low, total - low
