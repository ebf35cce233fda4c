"""Slips: the mistakes that are made with tensor maps, each undone.

A slip is a guess. The linter believes it only if undoing it removes findings and adds no error, so
no guess here needs to be careful. A piece of advice is a slip that says what is legal instead of
what was meant; it is taken where no mistake explains the findings.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from implicit_conv.tma.check.entries import exchanges, fits, scales
from implicit_conv.tma.maps.limits import (
    BOX_MAX,
    CHANNELS_MAX,
    ITEMSIZES,
    SMEM_ALIGNMENT,
    Description,
    Start,
    with_rows,
)
from implicit_conv.tma.maps.packing import DENSE, NESTED, packing
from implicit_conv.tma.maps.swizzles import SWIZZLES

CORNERS = ("lower_corner", "upper_corner")
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
    shape, strides = m.shape[::-1], None if m.strides is None else m.strides[::-1]
    yield Slip(("shape",), order(m, "it looks"), replace(m, shape=shape), None)
    if strides is not None:
        yield Slip(("strides",), order(m, "they look"), replace(m, strides=strides), None)
        both = replace(m, shape=shape, strides=strides)
        yield Slip(("shape", "strides"), order(m, "shape and strides both look"), both, None)
    if m.tiled:
        box = replace(m, box=m.box[::-1])
        yield Slip(("box",), order(m, "it looks"), with_rows(box), None)
        everything = replace(box, shape=shape, strides=strides, step=m.step[::-1])
        text = order(m, "all arrays look")
        yield Slip(("shape", "strides", "box", "step"), text, with_rows(everything), None)
    if len(m.lower) > 1:
        corners = replace(m, lower=m.lower[::-1], upper=m.upper[::-1])
        yield Slip(CORNERS, spatial_order(m, "corners"), corners, None)
        turned = replace(corners, step=m.step[::-1])
        fields, text = (*CORNERS, "traversal_stride"), spatial_order(m, "corners and steps")
        yield Slip(fields, text, turned, None)
        everything = replace(turned, shape=shape, strides=strides)
        yield Slip(("shape", "strides", *CORNERS), order(m, "all arrays look"), everything, None)


def spatial_order(m: Description, what: str) -> str:
    """That arrays of ([d,] h, w) are in the wrong order."""
    if m.fastest_first:
        return f"{what} look H-first; the driver reads W first"
    return f"{what} look W-first; Python takes ([d,] h, w)"


def _stride_units(m: Description) -> Iterator[Slip]:
    if m.strides is None:
        return
    size = m.itemsize
    if size > 1:
        in_bytes = tuple(stride * size for stride in m.strides)
        text = "strides look like elements; they must be bytes"
        yield Slip(("strides",), text, replace(m, strides=in_bytes), None)
    if len(m.strides) == m.rank and m.strides[-1] == size:
        text = "leave out the stride of c, which is implied"
        yield Slip(("strides",), text, replace(m, strides=m.strides[:-1]), None)


def _types(m: Description) -> Iterator[Slip]:
    """Smaller elements; which type was meant is not known, so that there is no fix."""
    for size in ITEMSIZES if m.strides is not None else ():
        if size >= m.itemsize:
            continue
        names = {1: "1 byte (UINT8)", 2: "2 bytes (FLOAT16 or BFLOAT16)"}.get(size, f"{size} bytes")
        text = f"the tensor looks like elements of {names}, not of {m.itemsize} bytes"
        yield Slip(("dtype",), text, replace(m, itemsize=size), None)


def _half_type(m: Description) -> Iterator[Slip]:
    """The type that is taken most often for another one: twice the size of the tensor's."""
    return (slip for slip in _types(m) if 2 * slip.map.itemsize == m.itemsize)


def _units(m: Description) -> Iterator[Slip]:
    size = m.itemsize
    if m.tiled:
        inner = m.box[-1] if m.box else 0
        if size > 1 and inner % size == 0 and inner > (m.span // size if m.span else BOX_MAX):
            text = f"it looks like bytes; that is {inner // size} elements of {size} bytes"
            yield Slip(("box",), text, _inner(m, inner // size), None)
        return
    most = min(m.span // max(1, size) if m.span else CHANNELS_MAX, m.shape[-1])
    if size > 1 and m.channels % size == 0 and m.channels > most:
        text = f"it looks like bytes; that is {m.channels // size} channels of {size} bytes"
        if m.channels == m.shape[-1] and m.channels // size == most:
            text = f"it looks like bytes, or like all channels: a copy takes {most} at most"
        yield Slip(("channels_per_pixel",), text, replace(m, channels=m.channels // size), None)


def _inner(m: Description, count: int) -> Description:
    """A tiled map with another last entry of its box."""
    return with_rows(replace(m, box=(*m.box[:-1], count)))


def _entries(m: Description) -> Iterator[Slip]:
    for change in itertools.chain(exchanges(m), scales(m)):
        yield Slip((change.field,), change.text, change.map, None)


def _fits(m: Description) -> Iterator[Slip]:
    for change in fits(m):
        yield Slip((change.field,), change.text, change.map, None)


def _counts(m: Description) -> Iterator[Slip]:
    """Steps, and rows of shared memory, that the map can have."""
    span, size = m.span, max(1, m.itemsize)
    if 0 in m.step and not m.tiled:
        steps = tuple(step or 1 for step in m.step)
        yield Slip(("traversal_stride",), "1 visits every pixel", replace(m, step=steps), None)
    if m.tiled:
        if m.box and span and m.box[-1] * size > span:
            text = f"load {span // size} elements at a time"
            yield Slip(("box",), text, _inner(m, span // size), None)
        if m.box and m.box[-1] >= m.unit:
            text = f"take a multiple of {m.unit} elements"
            yield Slip(("box",), text, _inner(m, m.box[-1] // m.unit * m.unit), None)
        return
    if span and m.channels * size > span:
        text = f"load {span // size} channels at a time"
        yield Slip(("channels_per_pixel",), text, replace(m, channels=span // size), None)
    whole = m.channels // m.unit * m.unit
    if whole:
        text = f"take a multiple of {m.unit} channels"
        yield Slip(("channels_per_pixel",), text, replace(m, channels=whole), None)
    needed = -(-m.shape[-1] // m.unit) * m.unit
    if m.channels > needed > 0:
        text = f"{needed} channels are enough for C = {m.shape[-1]}"
        yield Slip(("channels_per_pixel",), text, replace(m, channels=needed), None)


def _corners(m: Description) -> Iterator[Slip]:
    if not len(m.lower) == len(m.upper) == len(m.sizes):
        return
    relative = tuple(
        u - (size - 1) if 0 < size // 2 <= u else u
        for u, size in zip(m.upper, m.sizes, strict=True)
    )
    text = "it looks like an absolute end; it counts from the last pixel, size - 1"
    yield Slip(("upper_corner",), text, replace(m, upper=relative), None)
    mirrored = tuple(
        low if low < 0 and up == -low else up for low, up in zip(m.lower, m.upper, strict=True)
    )
    text = "it looks like the padding; a filter of 2 * pad + 1 taps has upper = -pad"
    yield Slip(("upper_corner",), text, replace(m, upper=mirrored), None)
    negated = tuple(  # where the other corner has the same padding
        -low if low > 0 and up == -low else low for low, up in zip(m.lower, m.upper, strict=True)
    )
    yield Slip(("lower_corner",), "lower = -pad_lo", replace(m, lower=negated), None)


def _modes(m: Description) -> Iterator[Slip]:
    row = m.channels * m.itemsize
    for swizzle in ("64B", "128B"):
        if row <= SWIZZLES[swizzle].span:
            text = f"{swizzle} holds a row of {row} bytes"
            yield Slip(("swizzle",), text, replace(m, swizzle=swizzle), None)
    yield Slip(("swizzle",), "the two go together", replace(m, swizzle="32B"), None)
    yield Slip(("interleave",), "use none", replace(m, interleave="none"), None)
    if not m.floating:
        yield Slip(("oob_fill",), "integers fill with zero", replace(m, oob_fill="zero"), None)
    if 0 in m.step and m.tiled:  # a box that steps is rare
        steps = tuple(step or 1 for step in m.step)
        yield Slip(("step",), "1 loads every element", with_rows(replace(m, step=steps)), None)


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
        yield Slip(("coords",), text, m, replace(start, coords=turned))
    if m.tiled:
        return
    if _rows_exist(m, exchanged) and (not m.wide or coords[-2] >= m.sizes[0]):
        text = "h and w look exchanged; coordinates are (n, [d,] h, w, c)"
        yield Slip(("coords",), text, m, replace(start, coords=exchanged))
    if start.offsets is not None:
        turned = start.offsets[::-1]
        text = "offsets look W-first; here they are ([d,] h, w)"
        yield Slip(("offsets",), text, m, replace(start, offsets=turned))


def _rows_exist(m: Description, coords: tuple[int, ...]) -> bool:
    """Whether the rows at a start are in the tensor, where the walk does not leave them."""
    rows = zip(coords[1:-2], m.shape[1:-2], strict=True)
    return not (m.wide or m.tiled) or all(0 <= x < size for x, size in rows)


def _start_units(m: Description, start: Start) -> Iterator[Slip]:
    coords, size = start.coords, max(1, m.itemsize)
    if coords[-1] >= m.shape[-1] and coords[-1] % size == 0:
        in_elements = replace(start, coords=(*coords[:-1], coords[-1] // size))
        yield Slip(("coords",), "it looks like bytes; it counts channels", m, in_elements)


def _moved_start(m: Description, start: Start) -> Iterator[Slip]:
    coords = start.coords
    whole = coords[-1] // m.unit * m.unit
    text = f"take a multiple of {m.unit} channels"
    yield Slip(("coords",), text, m, replace(start, coords=(*coords[:-1], whole)))
    if len(m.lower) == len(m.step) == len(m.sizes) and all(step > 0 for step in m.step):
        first = len(coords) - 1 - len(m.sizes)
        boxed = zip(coords[first:-1], m.lower, m.step, strict=True)
        grid = tuple(low + max(0, (x - low) // step) * step for x, low, step in boxed)
        text = "start = lower + p * stride: otherwise rows after the first wrap are shifted"
        moved = replace(start, coords=(*coords[:first], *grid, coords[-1]))
        yield Slip(("coords",), text, m, moved)
    pattern = SWIZZLES[m.swizzle].pattern if m.swizzle in SWIZZLES else SMEM_ALIGNMENT
    up = -(-start.dst // pattern) * pattern
    yield Slip(("dst",), f"align it to {pattern} bytes", m, replace(start, dst=up))


def _operands(m: Description, start: Start) -> Iterator[Slip]:
    if m.wide and start.offsets:
        operands = replace(start, offsets=None, w_offset=start.w_offset + start.offsets[-1])
        yield Slip(("offsets",), "the offset of W is w_offset", m, operands)
    if not m.wide and start.w_offset > 0:
        offsets = start.offsets or (0,) * len(m.sizes)
        moved = (*offsets[:-1], offsets[-1] + start.w_offset)
        operands = replace(start, offsets=moved, w_offset=0)
        yield Slip(("w_offset",), "the offset of W is an entry of offsets", m, operands)


MAP_SLIPS: tuple[tuple[Callable[[Description], Iterator[Slip]], str], ...] = (
    (_stride_units, "part"),
    (_types, "whole"),
    (_reversed_arrays, "whole"),
    (_units, "part"),
    (_entries, "whole"),
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
