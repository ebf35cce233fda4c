"""The problem of a transposed convolution: the convolution whose input gradient it is.

In its own letters a transposed convolution maps x (N, C, H, W) with w (C, K / groups, R, S) to y
(N, K, P, Q). The convolution that is transposed maps y to x, so its letters C and K, and its input
and output sizes, are swapped.
"""

from __future__ import annotations

from typing import Any

from implicit_conv.errors import ShapeError
from implicit_conv.problem.operand_checks import (
    check_axes,
    check_channels,
    check_dtypes,
    check_taps,
)
from implicit_conv.problem.options import (
    COMPLEX_PARTS,
    DTYPES,
    LAYOUTS_OF,
    SPACE,
    TAPS,
    WEIGHT_LAYOUTS_OF,
)
from implicit_conv.problem.parse import (
    MOST_ELEMENTS,
    Axes,
    Padding,
    check_elements,
    choice,
    integer,
    parse_layout,
    parse_padding,
    parse_shape,
    parse_weight_layout,
    per_axis,
)
from implicit_conv.problem.problem import Problem

SWAPPED = str.maketrans("CK", "KC")
NAMES = ("valid", "same", "same_lower")  # of paddings


def parse_transposed(
    rank: int,
    x_shape: tuple[int, ...],
    w_shape: tuple[int, ...],
    dtype: str,
    w_dtype: str,
    *,
    stride: Any,
    padding: Padding,
    dilation: Any,
    groups: int,
    layout: str | None,
    weight_layout: str | None,
    output_padding: Any,
    output_size: Any,
) -> Problem:
    """Check shapes and options, and make the problem of the convolution that is transposed.

    The parameters are those of `conv_transpose2d`.

    Raises
    ------
    ShapeError, DTypeError
        As in `conv_transpose2d`.
    """
    space, taps = SPACE[rank], TAPS[rank]
    layout, weight_layout = (
        parse_layout(layout, rank),
        parse_weight_layout(weight_layout, rank, "C"),
    )
    x_shape, w_shape = parse_shape("x", x_shape), parse_shape("w", w_shape)
    shapes, layouts = (x_shape, w_shape), (layout, weight_layout)
    check_channels(shapes, layouts, (dtype, w_dtype), f"conv_transpose{rank}d")
    check_dtypes(dtype, w_dtype, (*DTYPES, *COMPLEX_PARTS))
    check_axes(shapes, layouts)
    batched = len(x_shape) == len(layout)
    x = dict(zip(layout if batched else layout.replace("N", ""), x_shape, strict=True))
    w = dict(zip(weight_layout, w_shape, strict=True))
    groups = integer("groups", groups, 1, MOST_ELEMENTS)
    if x["C"] != w["C"]:
        raise ShapeError(
            f"x has C={x['C']} but w ({weight_layout}) has C={w['C']}; both must have as many "
            f"channels; {_other_layout(x, x_shape, w, w_shape, rank)}"
        )
    if x["C"] % groups:
        raise ShapeError(
            f"C={x['C']} is not a multiple of groups={groups}; pass a divisor of {x['C']}"
        )
    size, kernel = tuple(x[axis] for axis in space), tuple(w[axis] for axis in taps)
    check_taps(kernel, taps)
    if min(size) < 1:
        raise ShapeError(f"x has {' x '.join(map(str, size))} pixels; it needs at least one")
    steps = per_axis("stride", stride, 1, space)
    dilations = per_axis("dilation", dilation, 1, space)
    more = _output_padding(output_padding, space, steps, dilations)
    reaches = [
        (pixels - 1) * step + (count - 1) * gap + 1
        for pixels, step, count, gap in zip(size, steps, kernel, dilations, strict=True)
    ]
    if isinstance(padding, str):
        name = choice("padding", padding, NAMES, {"same_upper": "same"})
        found = [_named(name, *axis) for axis in zip(size, reaches, steps, more, strict=True)]
        pads, more = [pair for pair, _ in found], tuple(added for _, added in found)
    else:
        pads = list(parse_padding(padding, space, size, kernel, steps, dilations))
    outputs = [reach - low - high for reach, (low, high) in zip(reaches, pads, strict=True)]
    if output_size is not None:
        more = _from_size(output_size, output_padding, space, outputs, steps, dilations)
    outputs = [out + added for out, added in zip(outputs, more, strict=True)]
    for word, pixels in (("y", outputs), ("y without padding", reaches)):
        check_elements(word, (x.get("N", 1), w["K"] * groups, *(max(0, n) for n in pixels)))
    for axis, out, reach, pair in zip(space, outputs, reaches, pads, strict=True):
        if out < 1:
            raise ShapeError(
                f"the output has {out} pixels along {axis}: x and w make {reach}, and padding "
                f"{pair} removes {sum(pair)}; pad by {1 - out} less"
            )
    low = tuple(pair[0] for pair in pads)
    problem = Problem(
        N=x.get("N", 1),
        C=w["K"] * groups,
        K=x["C"],
        groups=groups,
        size=tuple(outputs),
        kernel=kernel,
        stride=steps,
        dilation=dilations,
        pad_lo=low,
        # What makes the output of the convolution as large as x.
        pad_hi=tuple(map(_difference, reaches, outputs, low)),
        dtype=dtype,
        w_dtype=None if w_dtype == dtype else w_dtype,
        layout=layout,
        weight_layout=weight_layout.translate(SWAPPED),
        batched=batched,
    )
    problem.check_sizes()
    return problem


def _other_layout(
    x: dict[str, int],
    x_shape: tuple[int, ...],
    w: dict[str, int],
    w_shape: tuple[int, ...],
    rank: int,
) -> str:
    """The way out if channels do not match: another layout that fits, if there is one."""
    for layout in LAYOUTS_OF[rank]:
        if x_shape[layout.index("C") - len(layout)] == w["C"]:
            where = "last" if layout.endswith("C") else "first"
            return f"x has {w['C']} channels {where}; did you mean layout='{layout}'?"
    for layout in WEIGHT_LAYOUTS_OF[rank]:
        for word in (layout.translate(SWAPPED), layout):
            if w_shape[word.index("C")] == x["C"]:
                return f"w fits in another layout; did you mean weight_layout='{word}'?"
    return "check layout and weight_layout"


def _difference(reach: int, out: int, low: int) -> int:
    return reach - out - low


def _output_padding(value: object, space: str, steps: Axes, dilations: Axes) -> Axes:
    """The output padding of each axis, less than the stride or the dilation."""
    added = per_axis("output_padding", value, 0, space)
    for axis, pixels, step, gap in zip(space, added, steps, dilations, strict=True):
        if pixels >= max(step, gap):
            raise ShapeError(
                f"output_padding along {axis} is {pixels}; it must be less than the stride, {step},"
                f" or the dilation, {gap}"
            )
    return added


def _named(name: str, size: int, reach: int, step: int, added: int) -> tuple[tuple[int, int], int]:
    """((low, high) padding, output padding) of an axis; "same" makes size * step pixels."""
    if name == "valid":
        return (0, 0), added
    total = reach + added - size * step
    if total < 0:  # taps do not reach the last pixels
        return (0, 0), added - total
    less, rest = total // 2, total - total // 2
    return ((rest, less) if name == "same_lower" else (less, rest)), added


def _from_size(
    value: object,
    output_padding: object,
    space: str,
    outputs: list[int],
    steps: Axes,
    dilations: Axes,
) -> Axes:
    """The output padding that makes y as large as `output_size` says."""
    if any(per_axis("output_padding", output_padding, 0, space)):
        raise ShapeError(
            f"output_size={value} and output_padding={output_padding} both set the size of y; give "
            "one of them"
        )
    sizes = per_axis("output_size", value, 1, space)
    added = tuple(size - out for size, out in zip(sizes, outputs, strict=True))
    for axis, size, out, pixels, step, gap in zip(
        space, sizes, outputs, added, steps, dilations, strict=True
    ):
        most = max(step, gap) - 1
        if not 0 <= pixels <= most:
            raise ShapeError(
                f"output_size along {axis} is {size}; with this stride, padding and dilation it "
                f"can be {out} to {out + most}"
            )
    return added
