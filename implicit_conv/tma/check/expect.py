"""Check whether a tensor map walks as a given convolution needs.

Walks are compared, not corners, because different corners can give the same walk. A walk is
determined by the start of a row, its step, and the number of positions in the box, which must be Q
for im2col and L slots for im2col::w.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from implicit_conv.kernels.schedule import ceil_div
from implicit_conv.problem.problem import Problem
from implicit_conv.tma.maps.limits import Description, Finding, Start
from implicit_conv.tma.run.lowering import AxisBox, Lowering
from implicit_conv.tma.run.lowering_choice import candidates
from implicit_conv.tma.run.wide_lowering import PermutedLowering

SOURCE = "addressing of this convolution"


def walks_of(problem: Problem, mode: str, operator: str) -> tuple[Lowering, ...]:
    """The lowerings with which a map of this mode is compared: one for each stride phase."""
    if mode == "tiled":
        raise ValueError("a tiled map has no walk to compare with a convolution; leave problem out")
    lowerings = tuple(candidates(problem, mode, operator))
    if not lowerings:
        raise ValueError(f"no tap of {problem} reaches dx: there is nothing to load")
    return lowerings


def nearest(m: Description, lowerings: tuple[Lowering, ...]) -> tuple[list[Finding], Lowering]:
    """(the fields in which the map differs from the lowering most like it, that lowering)."""
    compared = [(list(_differences(m, lowering)), lowering) for lowering in lowerings]
    return min(compared, key=lambda pair: len(pair[0]))


def operand_findings(
    m: Description, start: Start, lowerings: tuple[Lowering, ...]
) -> Iterator[Finding]:
    """A warning on operands that no load of the convolution has; the map has its walk."""
    mine = [lowering for lowering in lowerings if not list(_differences(m, lowering))]
    loads = {x for walk in mine for x in walk.operands()}
    if m.wide:
        yield from _wide_operands(start, sorted({(x.w_halo, x.w_offset) for x in loads}))
        return
    taps = {x.offsets or (0,) * len(m.sizes) for x in loads}
    given = start.offsets or (0,) * len(m.sizes)
    if given in taps:
        return
    dilated = tuple(x * axis.dilation for x, axis in zip(given, mine[0].axes, strict=False))
    allowed = f"name a tap outside of the filter, whose last tap has {max(taps)}"
    hint, fix = "the offset of tap r is r * dilation", None
    if dilated in taps:
        allowed, fix = "name no tap of the filter", {"offsets": dilated}
        hint = f"the dilation looks forgotten: {hint}"
    yield Finding("offsets", given, allowed, SOURCE, hint, "warning", fix)


def _wide_operands(start: Start, pairs: list[tuple[int, int]]) -> Iterator[Finding]:
    """The same for the w_halo and w_offset of the buffers."""
    halo, offset = start.w_halo, start.w_offset
    if (halo, offset) in pairs:
        return
    buffers = ", ".join(map(str, pairs))
    allowed = f"the buffers of this convolution have (w_halo, w_offset) {buffers}"
    fixed, field, hint = None, "w_offset", "it is the stride phase of the buffer's first tap"
    if (offset, halo) in pairs:
        fixed, field, hint = (offset, halo), "w_halo", "w_halo and w_offset look exchanged"
    elif sum(other == offset for _, other in pairs) == 1:
        fixed = next(pair for pair in pairs if pair[1] == offset)
        field, hint = "w_halo", "the halo holds the pixels of the buffer's later taps"
    fix = fixed and {"w_halo": fixed[0], "w_offset": fixed[1]}
    value = halo if field == "w_halo" else offset
    yield Finding(field, value, allowed, SOURCE, hint, "warning", fix)


def matching(m: Description, lowering: Lowering) -> Description:
    """The map with the walk that the lowering needs."""
    boxes = lowering.boxes
    given: tuple[int | None, ...] = m.upper if len(m.upper) == len(boxes) else (None,) * len(boxes)
    upper = (_right_upper(box, up) for box, up in zip(boxes, given, strict=True))
    return replace(
        m,
        shape=lowering.shape,
        lower=tuple(box.lower for box in boxes),
        upper=tuple(upper),
        step=tuple(box.step for box in boxes),
    )


def _right_upper(box: AxisBox, given: int | None) -> int:
    """The upper corner that a box needs: the given one if it serves."""
    if given is not None and box.least <= _held(box, given) <= box.most:
        return given
    return box.lower + (box.least - 1) * box.step - (box.size - 1)


def _held(box: AxisBox, upper: int) -> int:
    """The positions that a box with this upper corner has."""
    return ceil_div(box.size + upper - box.lower, box.step)


def _differences(m: Description, lowering: Lowering) -> Iterator[Finding]:
    """The fields in which the map differs from the lowering."""
    if m.rank != len(lowering.shape):
        yield Finding("shape", m.shape, f"must be {lowering.shape}", SOURCE)
        return
    for letter, size, wanted in zip(m.dims, m.shape, lowering.shape, strict=True):
        if size != wanted:
            hint = "it is that of the tensor that is walked"
            yield Finding(f"shape[{letter}]", size, f"must be {wanted}", SOURCE, hint)
    if isinstance(lowering, PermutedLowering) and not lowering.is_permuted(m.byte_strides):
        allowed = "must be those of the tensor with n next to w: h's before n's"
        yield Finding("strides", m.byte_strides, allowed, SOURCE)
    boxes = lowering.boxes
    if not len(m.lower) == len(m.upper) == len(m.step) == len(boxes):
        return
    for letter, box, lower, upper, step in zip(
        m.axes, boxes, m.lower, m.upper, m.step, strict=True
    ):
        if lower != box.lower:
            hint = "lower = -pad_lo"
            yield Finding(f"lower_corner[{letter}]", lower, f"must be {box.lower}", SOURCE, hint)
        if step != box.step and box.most > 1:
            allowed = f"must be {box.step}, the stride"
            yield Finding(f"traversal_stride[{letter}]", step, allowed, SOURCE)
        yield from _upper_corner(letter, box, upper, m.wide)


def _upper_corner(letter: str, box: AxisBox, upper: int, wide: bool) -> Iterator[Finding]:
    """An upper corner that gives the right lower corner and step too few or too many positions."""
    held, right = _held(box, upper), _right_upper(box, upper)
    if right == upper:
        return
    allowed = f"the box holds {held} positions but must hold {box.least}: take {right}"
    past = f"upper corner reaches past {'L' if wide else 'ZPQ'['dhw'.index(letter)]}"
    hint = f"{past}: rows would overrun" if held > box.most else "rows would wrap too early"
    yield Finding(f"upper_corner[{letter}]", upper, allowed, SOURCE, hint)
