"""Guesses on the entries of a tensor map: two exchanged, one in the wrong unit, one that misfits.

There is no list of mistakes here. Every pair of entries of every array is exchanged, every
count is divided by the bytes of an element, and every stride multiplied, so that a mistake of these
kinds always has the guess that undoes it among those that explain it. Each extent and stride is
also replaced by what its neighbours say.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace

from implicit_conv.tma.maps.limits import Description, with_rows

ARRAYS = {  # attribute of a description: the field's name in im2col maps
    "shape": "shape",
    "strides": "strides",
    "box": "box",
    "step": "traversal_stride",
    "lower": "lower_corner",
    "upper": "upper_corner",
}
SCALED = ("shape", "strides", "box")
IN_ELEMENTS = "looks like elements; it must be bytes"


@dataclass(frozen=True)
class Change:
    """The field that a guess changes, what the field looks like, and the map without that."""

    field: str
    text: str
    map: Description


def exchanges(m: Description) -> Iterator[Change]:
    """Every exchange of two entries of an array, every array one place off, and the exchange of the
    two counts of im2col.
    """
    for name in ARRAYS:
        values = getattr(m, name) or ()
        for i, j in itertools.combinations(range(len(values)), 2):
            turned = list(values)
            turned[i], turned[j] = values[j], values[i]
            text = f"{_letter(m, name, i)} and {_letter(m, name, j)} look exchanged"
            yield Change(_field(m, name), text, _with(m, name, tuple(turned)))
        for turn in (1, -1) if len(values) > 2 else ():
            moved = (*values[turn:], *values[:turn])
            yield Change(_field(m, name), "its entries look one place off", _with(m, name, moved))
    if not m.tiled:
        text = "it and the pixels of a load look exchanged"
        counts = replace(m, channels=m.pixels, pixels=m.channels)
        yield Change("channels_per_pixel", text, counts)


def scales(m: Description) -> Iterator[Change]:
    """Every count of elements as if it were given in bytes, every stride as if in elements."""
    size = m.itemsize
    if size < 2:
        return
    for name in SCALED:
        values = getattr(m, name) or ()
        if name != "strides" and not any(value % size for value in values):
            counts = tuple(value // size for value in values)
            yield Change(name, "its entries look like bytes", _with(m, name, counts))
        for i, value in enumerate(values):
            text = f"{_letter(m, name, i)} looks like bytes; it counts elements"
            scaled, left = divmod(value, size)
            if name == "strides":
                scaled, left, text = value * size, 0, f"that of {_letter(m, name, i)} {IN_ELEMENTS}"
            if not left:
                changed = (*values[:i], scaled, *values[i + 1 :])
                yield Change(_field(m, name), text, _with(m, name, changed))


def fits(m: Description) -> Iterator[Change]:
    """Every stride packed on the next one, and every extent as its strides have it."""
    strides = m.byte_strides
    if not strides or len(strides) != m.rank - 1:
        return
    ends = (*strides[1:], m.itemsize)
    for i, (stride, end) in enumerate(zip(strides, ends, strict=True)):
        letter, inner = _letter(m, "shape", i), _letter(m, "shape", i + 1)
        packed = end * m.shape[i + 1]
        text = f"that of {letter} is no step over {inner}, which is {packed} bytes"
        yield Change(
            "strides", text, _with(m, "strides", (*strides[:i], packed, *strides[i + 1 :]))
        )
        if end > 0 and stride % end == 0:
            extents = (*m.shape[: i + 1], stride // end, *m.shape[i + 2 :])
            text = f"{inner} does not fit the strides, which step over {stride // end}"
            yield Change("shape", text, _with(m, "shape", extents))


def _letter(m: Description, name: str, index: int) -> str:
    """An entry in the caller's words: a letter, or a number in the caller's order."""
    letters = "" if m.tiled else m.axes if name in ("step", "lower", "upper") else m.dims
    count = len(getattr(m, name) or ())
    number = count - 1 - index if m.fastest_first else index
    return letters[index] if count <= len(letters) else f"entry {number}"


def _field(m: Description, name: str) -> str:
    return "step" if m.tiled and name == "step" else ARRAYS[name]


def _with(m: Description, name: str, values: tuple[int, ...]) -> Description:
    changed = replace(m, **{name: values})  # type: ignore[arg-type]
    return with_rows(changed) if m.tiled else changed
