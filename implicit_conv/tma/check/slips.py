"""Slips: the mistakes that are made with tensor maps, each undone.

A slip is a guess. The linter believes it only if undoing it removes findings and adds no error, so
no guess here needs to be careful. A piece of advice is a slip that says what is legal instead of
what was meant; it is taken where no mistake explains the findings.

Entries of arrays have no list of mistakes: every pair of entries of every array is exchanged, every
count is divided by the bytes of an element, and every stride multiplied, so that a mistake of these
kinds always has the guess that undoes it among those that explain it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from implicit_conv.tma.maps import limits
from implicit_conv.tma.maps.limits import Description, Start, with_rows
from implicit_conv.tma.maps.packing import DENSE, NESTED, packing
from implicit_conv.tma.maps.swizzles import SWIZZLES

FIELDS = {  # attribute of a description: the field, where it has another name
    "lower": "lower_corner",
    "upper": "upper_corner",
    "step": "traversal_stride",
    "channels": "channels_per_pixel",
    "pixels": "pixels_per_column",
    "itemsize": "dtype",
}
ARRAYS = ("shape", "strides", "box", "step", "lower", "upper")
SCALED = ("shape", "strides", "box")
ADJACENT = "the axis of adjacent elements"


@dataclass(frozen=True)
class Slip:
    """A mistake: the fields where it shows, what it looks like, and the arguments without it.

    Attributes
    ----------
    kind : {"part", "whole", "advice"}
        Whether it is believed where it explains only a part of what was found, only where it
        explains all, or only where no mistake does so; an advice has words, and no fix.
    """

    fields: tuple[str, ...]
    text: str
    map: Description
    start: Start | None
    kind: str = "part"


def changed(m: Description, text: str, **values: Any) -> Slip:
    """A slip that shows in attributes of a map, and the values that they have without it."""
    without = replace(m, **values)
    fields = ("step" if m.tiled and n == "step" else FIELDS.get(n, n) for n in values)
    return Slip(tuple(fields), text, with_rows(without) if m.tiled else without, None)


def moved(m: Description, start: Start, text: str, **values: Any) -> Slip:
    """A slip that shows in one operand of a load, the first that is given."""
    return Slip((next(iter(values)),), text, m, replace(start, **values))


def slips(m: Description, start: Start | None) -> Iterator[Slip]:
    """The slips that could have been made here, those of a load first."""
    for look, kind in START_SLIPS:
        if start is None or len(start.coords) != m.rank:
            break
        for slip in look(m, start):
            if slip.start != start:
                yield replace(slip, kind=kind)
    for guess, kind in MAP_SLIPS:
        for slip in guess(m):
            if slip.map != m:
                yield replace(slip, start=start, kind=kind)


def is_sure(slip: Slip, m: Description) -> bool:
    """Whether what explains a finding is also what was meant.

    Advice is not. One array alone, the extents or the strides, must fit the other one: any pitch of
    the rows of a matrix is legal.
    """
    alone = slip.fields in (("shape",), ("strides",)) and len(m.byte_strides) == m.rank - 1
    least = NESTED if m.rank > 2 else DENSE
    return slip.kind != "advice" and (not alone or packing(slip.map) >= least)


def told_apart(guesses: Sequence[Slip]) -> list[Slip]:
    """The mistakes among the guesses that lead to different maps or starts, or one advice.

    Advice that leads to another map says that there may have been another mistake: it is named too.
    """
    advice = [slip for slip in guesses if slip.kind == "advice"]
    mistakes = [slip for slip in guesses if slip.kind != "advice"]
    if not mistakes:
        return advice[:1]
    maps = {slip.map for slip in mistakes}
    found: dict[tuple[Description, Start | None], Slip] = {}
    for slip in (*mistakes, *(slip for slip in advice if slip.map not in maps)):
        found.setdefault((slip.map, slip.start), slip)
    return list(found.values())


def stride_slips(m: Description) -> Iterator[Slip]:
    """The mistakes that show in the strides of a tiled map."""
    for guess in (_stride_units, _half_type, _reversed_arrays):
        yield from guess(m)


def order(m: Description, what: str) -> str:
    """That an array is in the wrong order, in the words of the interface that the caller used."""
    if m.fastest_first:
        axes = f"{ADJACENT} first" if m.tiled else "c first: (c, w, h, [d,] n)"
        return f"{what} row-major; the driver reads {axes}"
    axes = f"{ADJACENT} last" if m.tiled else "(n, [d,] h, w, c)"
    return f"{what} fastest-first; Python takes {axes}"


def _reversed_arrays(m: Description) -> Iterator[Slip]:
    turned = {name: getattr(m, name) and getattr(m, name)[::-1] for name in ARRAYS}

    def turn(text: str, *names: str) -> Slip:
        return changed(m, text, **{name: turned[name] for name in names})

    yield turn(order(m, "it looks"), "shape")
    if m.strides is not None:
        yield turn(order(m, "they look"), "strides")
        yield turn(order(m, "shape and strides both look"), "shape", "strides")
    if m.tiled:
        yield turn(order(m, "it looks"), "box")
        yield turn(order(m, "all arrays look"), "shape", "strides", "box", "step")
    if len(m.lower) > 1:
        yield turn(spatial_order(m, "corners"), "lower", "upper")
        yield turn(spatial_order(m, "corners and steps"), "lower", "upper", "step")
        yield turn(order(m, "all arrays look"), "shape", "strides", "lower", "upper", "step")


def spatial_order(m: Description, what: str) -> str:
    """That arrays of ([d,] h, w) are in the wrong order."""
    if m.fastest_first:
        return f"{what} look H-first; the driver reads W first"
    return f"{what} look W-first; Python takes ([d,] h, w)"


def _stride_units(m: Description) -> Iterator[Slip]:
    if m.strides is None:
        return
    if m.itemsize > 1:
        in_bytes = tuple(stride * m.itemsize for stride in m.strides)
        yield changed(m, "strides look like elements; they must be bytes", strides=in_bytes)
    if len(m.strides) == m.rank and m.strides[-1] == m.itemsize:
        yield changed(m, "leave out the stride of c, which is implied", strides=m.strides[:-1])


def _types(m: Description) -> Iterator[Slip]:
    """Smaller elements; which type was meant is not known, so that there is no fix."""
    for size in limits.ITEMSIZES if m.strides is not None else ():
        if size < m.itemsize:
            names = {1: "1 byte (UINT8)", 2: "2 bytes (FLOAT16 or BFLOAT16)"}
            elements = f"elements of {names.get(size, f'{size} bytes')}, not of {m.itemsize} bytes"
            yield changed(m, f"the tensor looks like {elements}", itemsize=size)


def _half_type(m: Description) -> Iterator[Slip]:
    """The type that is taken most often for another one: twice the size of the tensor's."""
    return (slip for slip in _types(m) if 2 * slip.map.itemsize == m.itemsize)


def _units(m: Description) -> Iterator[Slip]:
    size = m.itemsize
    if m.tiled:
        inner = m.box[-1] if m.box else 0
        if (
            size > 1
            and inner % size == 0
            and inner > (m.span // size if m.span else limits.BOX_MAX)
        ):
            text = f"it looks like bytes; that is {inner // size} elements of {size} bytes"
            yield changed(m, text, box=(*m.box[:-1], inner // size))
        return
    most = min(m.span // max(1, size) if m.span else limits.CHANNELS_MAX, m.shape[-1])
    if size > 1 and m.channels % size == 0 and m.channels > most:
        text = f"it looks like bytes; that is {m.channels // size} channels of {size} bytes"
        if m.channels == m.shape[-1] and m.channels // size == most:
            text = f"it looks like bytes, or like all channels: a copy takes {most} at most"
        yield changed(m, text, channels=m.channels // size)


def _exchanges(m: Description) -> Iterator[Slip]:
    """Every exchange of two entries of an array, every array one place off, and the exchange of the
    two counts of im2col.
    """
    for name in ARRAYS:
        values = getattr(m, name) or ()
        for i, j in itertools.combinations(range(len(values)), 2):
            turned = list(values)
            turned[i], turned[j] = values[j], values[i]
            text = f"{_letter(m, name, i)} and {_letter(m, name, j)} look exchanged"
            yield changed(m, text, **{name: tuple(turned)})
        for turn in (1, -1) if len(values) > 2 else ():
            rolled = (*values[turn:], *values[:turn])
            yield changed(m, "its entries look one place off", **{name: rolled})
    if not m.tiled:
        text = "it and the pixels of a load look exchanged"
        yield changed(m, text, channels=m.pixels, pixels=m.channels)


def _scales(m: Description) -> Iterator[Slip]:
    """Every count of elements as if it were given in bytes, every stride as if in elements."""
    size = m.itemsize
    for name in SCALED if size > 1 else ():
        values = getattr(m, name) or ()
        if name != "strides" and not any(value % size for value in values):
            counts = tuple(value // size for value in values)
            yield changed(m, "its entries look like bytes", **{name: counts})
        for i, value in enumerate(values):
            text = f"{_letter(m, name, i)} looks like bytes; it counts elements"
            scaled, left = divmod(value, size)
            if name == "strides":
                text = f"that of {_letter(m, name, i)} looks like elements; it must be bytes"
                scaled, left = value * size, 0
            if not left:
                yield changed(m, text, **{name: (*values[:i], scaled, *values[i + 1 :])})


def _fits(m: Description) -> Iterator[Slip]:
    """Every stride packed on the next one, and every extent as its strides have it."""
    strides = m.byte_strides
    if not strides or len(strides) != m.rank - 1:
        return
    for i, (stride, end) in enumerate(zip(strides, (*strides[1:], m.itemsize), strict=True)):
        letter, inner = _letter(m, "shape", i), _letter(m, "shape", i + 1)
        packed = end * m.shape[i + 1]
        text = f"that of {letter} is no step over {inner}, which is {packed} bytes"
        yield changed(m, text, strides=(*strides[:i], packed, *strides[i + 1 :]))
        if end > 0 and stride % end == 0:
            text = f"{inner} does not fit the strides, which step over {stride // end}"
            yield changed(m, text, shape=(*m.shape[: i + 1], stride // end, *m.shape[i + 2 :]))


def _letter(m: Description, name: str, index: int) -> str:
    """An entry in the caller's words: a letter, or a number in the caller's order."""
    letters = "" if m.tiled else m.axes if name in ("step", "lower", "upper") else m.dims
    count = len(getattr(m, name) or ())
    number = count - 1 - index if m.fastest_first else index
    return letters[index] if count <= len(letters) else f"entry {number}"


def _counts(m: Description) -> Iterator[Slip]:
    """Steps, and rows of shared memory, that the map can have."""
    span, size = m.span, max(1, m.itemsize)
    if m.tiled:
        inner = m.box[-1] if m.box else 0
        if span and inner * size > span:
            text = f"load {span // size} elements at a time"
            yield changed(m, text, box=(*m.box[:-1], span // size))
        if inner >= m.unit:
            text = f"take a multiple of {m.unit} elements"
            yield changed(m, text, box=(*m.box[:-1], inner // m.unit * m.unit))
        return
    if 0 in m.step:
        yield changed(m, "1 visits every pixel", step=tuple(step or 1 for step in m.step))
    if span and m.channels * size > span:
        yield changed(m, f"load {span // size} channels at a time", channels=span // size)
    whole = m.channels // m.unit * m.unit
    if whole:
        yield changed(m, f"take a multiple of {m.unit} channels", channels=whole)
    needed = -(-m.shape[-1] // m.unit) * m.unit
    if m.channels > needed > 0:
        text = f"{needed} channels are enough for C = {m.shape[-1]}"
        yield changed(m, text, channels=needed)


def _corners(m: Description) -> Iterator[Slip]:
    if not len(m.lower) == len(m.upper) == len(m.sizes):
        return
    ends = list(zip(m.lower, m.upper, m.sizes, strict=True))
    relative = tuple(up - (size - 1) if 0 < size // 2 <= up else up for _, up, size in ends)
    text = "it looks like an absolute end; it counts from the last pixel, size - 1"
    yield changed(m, text, upper=relative)
    mirrored = tuple(low if low < 0 and up == -low else up for low, up, _ in ends)
    text = "it looks like the padding; a filter of 2 * pad + 1 taps has upper = -pad"
    yield changed(m, text, upper=mirrored)
    # Where the other corner has the same padding:
    negated = tuple(-low if low > 0 and up == -low else low for low, up, _ in ends)
    yield changed(m, "lower = -pad_lo", lower=negated)


def _modes(m: Description) -> Iterator[Slip]:
    row = m.channels * m.itemsize
    for swizzle in ("64B", "128B"):
        if row <= SWIZZLES[swizzle].span:
            yield changed(m, f"{swizzle} holds a row of {row} bytes", swizzle=swizzle)
    yield changed(m, "the two go together", swizzle="32B")
    yield changed(m, "use none", interleave="none")
    if not m.floating:
        yield changed(m, "integers fill with zero", oob_fill="zero")
    if 0 in m.step and m.tiled:  # a box that steps is rare
        yield changed(m, "1 loads every element", step=tuple(step or 1 for step in m.step))


def _turned_start(m: Description, start: Start) -> Iterator[Slip]:
    coords = start.coords
    turned, exchanged = coords[::-1], (coords[0], *coords[-2:0:-1], coords[-1])
    ends = zip((turned[0], turned[-1]), (m.shape[0], m.shape[-1]), strict=True)
    # An image past the last one is also where a loop ends too late, so that c = 0 tells nothing.
    told = coords[-1] != 0 or m.tiled
    if told and all(0 <= x < size for x, size in ends) and _rows_exist(m, turned):
        text = "coordinates look fastest-first {c, w, h, n}; here they are (n, [d,] h, w, c)"
        if m.tiled:
            text = f"coordinates look fastest-first; here {ADJACENT} comes last"
        yield moved(m, start, text, coords=turned)
    if m.tiled:
        return
    if _rows_exist(m, exchanged) and (not m.wide or coords[-2] >= m.sizes[0]):
        text = "h and w look exchanged; coordinates are (n, [d,] h, w, c)"
        yield moved(m, start, text, coords=exchanged)
    if start.offsets is not None:
        text = "offsets look W-first; here they are ([d,] h, w)"
        yield moved(m, start, text, offsets=start.offsets[::-1])


def _rows_exist(m: Description, coords: tuple[int, ...]) -> bool:
    """Whether the rows at a start are in the tensor, where the walk does not leave them."""
    rows = zip(coords[1:-2], m.shape[1:-2], strict=True)
    return not (m.wide or m.tiled) or all(0 <= x < size for x, size in rows)


def _start_units(m: Description, start: Start) -> Iterator[Slip]:
    *outer, c = start.coords
    size = max(1, m.itemsize)
    if c >= m.shape[-1] and c % size == 0:
        text = "it looks like bytes; it counts channels"
        yield moved(m, start, text, coords=(*outer, c // size))


def _moved_start(m: Description, start: Start) -> Iterator[Slip]:
    *outer, c = start.coords
    whole = c // m.unit * m.unit
    yield moved(m, start, f"take a multiple of {m.unit} channels", coords=(*outer, whole))
    if len(m.lower) == len(m.step) == len(m.sizes) and all(step > 0 for step in m.step):
        first = len(outer) - len(m.sizes)
        boxed = zip(outer[first:], m.lower, m.step, strict=True)
        grid = (low + max(0, (x - low) // step) * step for x, low, step in boxed)
        text = "start = lower + p * stride: otherwise rows after the first wrap are shifted"
        yield moved(m, start, text, coords=(*outer[:first], *grid, c))
    pattern = SWIZZLES[m.swizzle].pattern if m.swizzle in SWIZZLES else limits.SMEM_ALIGNMENT
    up = -(-start.dst // pattern) * pattern
    yield moved(m, start, f"align it to {pattern} bytes", dst=up)


def _operands(m: Description, start: Start) -> Iterator[Slip]:
    if m.wide and start.offsets:
        offset = start.w_offset + start.offsets[-1]
        yield moved(m, start, "the offset of W is w_offset", offsets=None, w_offset=offset)
    if not m.wide and start.w_offset > 0:
        *outer, last = start.offsets or (0,) * len(m.sizes)
        offsets = (*outer, last + start.w_offset)
        text = "the offset of W is an entry of offsets"
        yield moved(m, start, text, w_offset=0, offsets=offsets)


MAP_SLIPS: tuple[tuple[Callable[[Description], Iterator[Slip]], str], ...] = (
    (_stride_units, "part"),
    (_types, "whole"),
    (_reversed_arrays, "whole"),
    (_units, "part"),
    (_exchanges, "whole"),
    (_scales, "whole"),
    (_modes, "part"),
    (_corners, "part"),
    (_counts, "advice"),
    (_fits, "advice"),
)
START_SLIPS: tuple[tuple[Callable[[Description, Start], Iterator[Slip]], str], ...] = (
    (_turned_start, "whole"),
    (_start_units, "part"),
    (_operands, "part"),
    (_moved_start, "advice"),
)
