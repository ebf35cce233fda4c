"""Layers as cases: one convolution each, with a name that tells its shape."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from implicit_conv.problem.options import LAYOUTS_OF, WEIGHT_LAYOUTS_OF
from implicit_conv.testing import Case

Layer = tuple[str, Case]  # a name, and the convolution that it tells
Layers = Iterator[Layer]
Suite = dict[str, Case]


def layer(
    c: int,
    k: int,
    size: int | tuple[int, ...],
    taps: int | tuple[int, ...] = 1,
    stride: int = 1,
    pad: int | None = None,
    groups: int = 1,
    dilation: int = 1,
) -> Layer:
    """A layer with `c` channels and `k` filters in all groups; a `size` that is an int is a square.

    The padding is half the filter, with its dilation, unless `pad` is given. A name is such as
    "3x3/2 128-256 @56": taps, stride, channels, filters, input size.
    """
    sizes = (size, size) if isinstance(size, int) else size
    rank = len(sizes)
    kernel = (taps,) * rank if isinstance(taps, int) else taps
    lows = [extent // 2 * dilation if pad is None else pad for extent in kernel]
    case = Case(
        C=c // groups,
        K=k // groups,
        groups=groups,
        size=sizes,
        kernel=kernel,
        stride=(stride,) * rank,
        dilation=(dilation,) * rank,
        padding=tuple((low, low) for low in lows),
        layout=LAYOUTS_OF[rank][0],
        weight_layout=WEIGHT_LAYOUTS_OF[rank][0],
    )
    steps = f"/{stride}" if stride > 1 else ""
    steps += f" dilated {dilation}" if dilation > 1 else ""
    channels = f"{c}-{k}" if groups == 1 else f"{c}-{k} g{groups}"
    if 1 < groups == c == k:
        channels = f"dw {c}"
    place = size if isinstance(size, int) else times(size)
    return f"{times(kernel)}{steps} {channels} @{place}", case


def depthwise(channels: int, size: int, stride: int = 1, taps: int = 3) -> Layer:
    """A depthwise layer: one filter for each channel."""
    return layer(channels, channels, size, taps, stride, groups=channels)


def times(extents: tuple[int, ...]) -> str:
    """Extents as a text such as "3x3"."""
    return "x".join(map(str, extents))


def rise(
    c: int, k: int, size: tuple[int, ...], taps: int, stride: int, pad: int = 0, added: int = 0
) -> Layer:
    """A transposed convolution from `c` channels to `k`, with `size` input pixels; its output gets
    `added` pixels on the high side. The case is the convolution whose input gradient it is.
    """
    out = tuple((n - 1) * stride - 2 * pad + taps + added for n in size)
    _, case = layer(k, c, out, taps, stride, pad)
    return f"{times(case.kernel)}/{stride} {c}-{k} @{times(size)}", case


def case_of(fields: dict[str, Any]) -> Case:
    """A case from JSON, where tuples are lists."""

    def tuples(value: Any) -> Any:
        return tuple(map(tuples, value)) if isinstance(value, list) else value

    return Case(**{name: tuples(value) for name, value in fields.items()})


def output_padding(case: Case) -> list[int]:
    """Pixels on the high side of a transposed convolution that no window of the case reaches."""
    axes = zip(
        case.size, case.output, case.kernel, case.stride, case.dilation, case.padding, strict=True
    )
    return [
        size + low + high - (out - 1) * stride - (taps - 1) * dilation - 1
        for size, out, taps, stride, dilation, (low, high) in axes
    ]
