"""Hints on broken rules: which mistake was probably made, judging from the other fields.

A hint is given only if undoing the supposed mistake makes the field legal, or if one formula gives
the right value. A hint never decides whether a rule is broken.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from implicit_conv.tma.limits import Description, Finding, Start, swizzle_span
from implicit_conv.tma.rules import map_findings, start_findings

UPPER = "upper = pad_hi - (taps - 1) * dilation, counted from the last pixel"
LOWER = "lower = -pad_lo"


def with_hints(
    m: Description, findings: Sequence[Finding], start: Start | None = None
) -> list[Finding]:
    """The findings, each with a hint if there is one."""
    return [replace(f, hint=f.hint or _hint(m, f, start)) for f in findings]


def _hint(m: Description, finding: Finding, start: Start | None) -> str:
    name, _, letter = finding.field.rstrip("]").partition("[")
    hint = HINTS.get(name)
    return hint(m, finding, letter, start) if hint else ""


def corners_swapped(m: Description) -> Description:
    """The same map with both corners reversed."""
    return replace(m, lower=m.lower[::-1], upper=m.upper[::-1])


def order_hint(m: Description, what: str) -> str:
    """A hint on the order of dimensions, in the order and the words that the caller used."""
    if m.fastest_first:
        return f"{what} look H-first; the driver reads W first"
    return f"{what} look W-first; Python takes {'([d,] h, w)' if 'corner' in what else '(n, h, w)'}"


def _has(findings: Sequence[Finding], name: str) -> bool:
    return any(f.field.startswith(name) and f.severity == "error" for f in findings)


def _corner(m: Description, finding: Finding, letter: str, start: Start | None) -> str:
    if not letter:
        return ""
    if len(m.lower) > 1 and m.lower[::-1] + m.upper[::-1] != m.lower + m.upper:
        swapped = map_findings(corners_swapped(m))
        if not (_has(swapped, "lower_corner") or _has(swapped, "upper_corner")):
            return order_hint(m, "corners")
    if finding.field.startswith("lower"):
        return LOWER
    axis = m.axes.index(letter)
    if 0 < m.sizes[axis] // 2 <= m.upper[axis]:
        return f"it looks like an absolute end; {UPPER}"
    return UPPER


def _coords(m: Description, finding: Finding, letter: str, start: Start | None) -> str:
    if start is None or not letter:
        return ""
    turned = replace(start, coords=start.coords[::-1])
    aligned = turned.coords[-1] * m.itemsize % 16 == 0  # the first channel of a load always is
    if aligned and not _has(start_findings(m, turned), "coords"):
        return "coordinates look fastest-first {c, w, h, n}; Python takes (n, [d,] h, w, c)"
    if len(m.lower) > 1:
        if not _has(start_findings(corners_swapped(m), start), "coords"):
            return order_hint(m, "corners")
        spatial = start.coords[-2:0:-1]
        exchanged = replace(start, coords=(start.coords[0], *spatial, start.coords[-1]))
        if not _has(start_findings(m, exchanged), "coords"):
            return order_hint(m, "coordinates")
    if m.wide:
        return (
            "the walk may begin left of its box but not right of it: start = lower + slot * stride"
        )
    return "start = lower + p * stride; the filter tap belongs in the offsets"


def _offsets(m: Description, finding: Finding, letter: str, start: Start | None) -> str:
    if m.wide:
        return ""
    return "the offset of tap r is r * dilation, counted from the start and never negative"


def _channels(m: Description, finding: Finding, letter: str, start: Start | None) -> str:
    span = swizzle_span(m.swizzle)
    as_elements, rest = divmod(m.channels, m.itemsize)
    if m.itemsize > 1 and not rest and m.channels in (16, 32, 64, 128, 256, 512, 1024, span):
        return f"it looks like bytes; that is {as_elements} channels of {m.itemsize} bytes"
    if span and m.channels * m.itemsize > span:
        return f"load {span // m.itemsize} channels at a time"
    return f"take a multiple of {max(1, 16 // m.itemsize)} channels"


def _pixels(m: Description, finding: Finding, letter: str, start: Start | None) -> str:
    return "split the column into several loads" if m.pixels > 1 else "it is the rows of one load"


def _step(m: Description, finding: Finding, letter: str, start: Start | None) -> str:
    return "1 visits every pixel" if finding.value == 0 else "it is the convolution's stride"


def _strides(m: Description, finding: Finding, letter: str, start: Start | None) -> str:
    if m.strides is None:
        unit = max(1, 16 // m.itemsize)
        padded = -(-m.shape[-1] // unit) * unit
        return f"pad C to {padded}" if padded != m.shape[-1] else "divide the tensor into parts"
    if len(m.strides) == m.rank and m.strides[-1] == m.itemsize:
        return "leave out the stride of c, which is implied"
    if m.itemsize > 1 and looks_like_elements(m):
        return "strides look like elements; they must be bytes"
    return "pad the rows in memory"


def looks_like_elements(m: Description) -> bool:
    """Whether the strides would be those of a packed tensor if they counted elements."""
    packed = replace(m, strides=None).byte_strides
    return m.strides is not None and tuple(s * m.itemsize for s in m.strides) == packed


def _halo(m: Description, finding: Finding, letter: str, start: Start | None) -> str:
    if not m.wide:
        return "use offsets, or an Im2colWideMap"
    return "w_halo counts pixels of the walk: the shift of the buffer's last tap, t div stride"


def _offset(m: Description, finding: Finding, letter: str, start: Start | None) -> str:
    if not m.wide:
        return "use offsets, or an Im2colWideMap"
    return "keep w_offset = phase and extend the halo to the tap"


def _swizzle(m: Description, finding: Finding, letter: str, start: Start | None) -> str:
    return "im2col::w writes only swizzled rows" if m.wide else ""


def _fill(m: Description, finding: Finding, letter: str, start: Start | None) -> str:
    return "integers fill with zero" if m.oob_fill == "nan" else ""


Hint = Callable[[Description, Finding, str, "Start | None"], str]
HINTS: dict[str, Hint] = {
    "lower_corner": _corner,
    "upper_corner": _corner,
    "coords": _coords,
    "offsets": _offsets,
    "channels_per_pixel": _channels,
    "pixels_per_column": _pixels,
    "traversal_stride": _step,
    "strides": _strides,
    "shape": lambda m, f, letter, start: (
        _strides(m, f, letter, start) if letter == "c" and "multiple" in f.allowed else ""
    ),
    "w_halo": _halo,
    "w_offset": _offset,
    "swizzle": _swizzle,
    "oob_fill": _fill,
}
