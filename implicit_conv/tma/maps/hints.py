"""Hints in words: the formula of a field, for findings that no slip explains."""

from __future__ import annotations

from collections.abc import Callable

from implicit_conv.tma.maps.limits import PACKED_SWIZZLES, Description, Finding

UPPER = "upper = pad_hi - (taps - 1) * dilation, counted from the last pixel"
WIDE_UPPER = "upper = lower + (L - 1) * stride - (W - 1), for L slots of an image row"


def hint(m: Description, finding: Finding) -> str:
    """What the field should be, if a formula or a rule of thumb says it."""
    name, _, letter = finding.field.rstrip("]").partition("[")
    words = HINTS.get(name)
    return words(m, letter) if words and letter + name not in ("lower_corner", "coords") else ""


def _upper(m: Description, letter: str) -> str:
    return (WIDE_UPPER if m.wide else UPPER) if letter else ""


def _coords(m: Description, letter: str) -> str:
    if letter == "c":
        return f"take a multiple of {m.unit} channels"
    if letter == "n":
        return ""
    if m.wide:
        return (
            "the walk may begin left of its box but not right of it: start = lower + slot * stride"
        )
    return "start = lower + p * stride; the filter tap belongs in the offsets"


def _offsets(m: Description, letter: str) -> str:
    if m.wide:
        return "give w_offset for W, and the row of the image in coords"
    return "the offset of tap r is r * dilation, counted from the start and never negative"


def _shape(m: Description, letter: str) -> str:
    if not letter or letter != m.dims[-1]:
        return ""
    padded = -(-m.shape[-1] // m.unit) * m.unit
    return f"pad {'it' if m.tiled else 'C'} to {padded}" if 0 < m.shape[-1] != padded else ""


def _channels(m: Description, letter: str) -> str:
    return _packed(m) or f"take a multiple of {m.unit} channels"


def _packed(m: Description) -> str:
    """The one count that copies of elements of 4 and 6 bits have."""
    return f"take {m.unit}" if m.element in PACKED_SWIZZLES else ""


def _halo(m: Description, letter: str) -> str:
    if not m.wide:
        return "use offsets, or an Im2colWideMap"
    return "w_halo counts pixels of the walk: the shift of the buffer's last tap, t div stride"


def _offset(m: Description, letter: str) -> str:
    if not m.wide:
        return "use offsets, or an Im2colWideMap"
    return "keep w_offset = phase and extend the halo to the tap"


def _pixels(m: Description, letter: str) -> str:
    return "split the column into several loads" if m.pixels > 1 else "it is the rows of one load"


HINTS: dict[str, Callable[[Description, str], str]] = {
    "lower_corner": lambda m, letter: "lower = -pad_lo",
    "upper_corner": _upper,
    "coords": _coords,
    "offsets": _offsets,
    "channels_per_pixel": _channels,
    "pixels_per_column": _pixels,
    "traversal_stride": lambda m, letter: "it is the convolution's stride",
    "strides": lambda m, letter: "pad the rows in memory",
    "shape": _shape,
    "w_halo": _halo,
    "w_offset": _offset,
    "swizzle": lambda m, letter: "im2col::w writes only swizzled rows" if m.wide else "",
    "box": lambda m, letter: _packed(m) or "divide the box into several copies",
    "address": lambda m, letter: "allocate with the alignment, and slice along n, h or w",
}
