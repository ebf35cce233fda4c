"""Layers as cases: one convolution each, with a name that tells its shape."""

from __future__ import annotations

from implicit_conv.problem.options import LAYOUTS_OF, WEIGHT_LAYOUTS_OF
from implicit_conv.testing import Case

Suite = dict[str, Case]  # name of a layer -> its convolution


def layer(
    c: int,
    k: int,
    size: int,
    taps: int = 1,
    stride: int = 1,
    pad: int | None = None,
    groups: int = 1,
    dilation: int = 1,
) -> Suite:
    """A suite of one square layer with `c` channels and `k` filters in all groups.

    The padding is half the filter, with its dilation, unless `pad` is given.
    """
    low = taps // 2 * dilation if pad is None else pad
    case = Case(
        C=c // groups,
        K=k // groups,
        groups=groups,
        size=(size, size),
        kernel=(taps, taps),
        stride=(stride, stride),
        dilation=(dilation, dilation),
        padding=((low, low), (low, low)),
    )
    return {name_of(case): case}


def depthwise(channels: int, size: int, stride: int = 1, taps: int = 3) -> Suite:
    """A depthwise layer: one filter for each channel."""
    return layer(channels, channels, size, taps, stride, groups=channels)


def name_of(case: Case) -> str:
    """A name such as "3x3/2 128-256 @56": taps, stride, channels, filters, input size."""
    steps = f"/{case.stride[0]}" if case.stride[0] > 1 else ""
    steps += f" dilated {case.dilation[0]}" if case.dilation[0] > 1 else ""
    channels = f"{case.C * case.groups}-{case.K * case.groups}"
    if case.groups > 1:
        single = case.C == case.K == 1
        channels = f"dw {case.groups}" if single else f"{channels} g{case.groups}"
    return f"{case.kernel[0]}x{case.kernel[1]}{steps} {channels} @{case.size[0]}"


def convolution(
    c: int,
    k: int,
    size: tuple[int, ...],
    kernel: tuple[int, ...],
    stride: tuple[int, ...] | None = None,
    pad: tuple[int, ...] | None = None,
    dilation: int = 1,
    groups: int = 1,
) -> Suite:
    """A suite of one layer with any number of spatial axes; the padding is half the filter unless
    `pad` is given.
    """
    lows = tuple(taps // 2 for taps in kernel) if pad is None else pad
    rank = len(size)
    case = Case(
        C=c // groups,
        K=k // groups,
        groups=groups,
        size=size,
        kernel=kernel,
        stride=stride or (1,) * rank,
        dilation=(dilation,) * rank,
        padding=tuple((low, low) for low in lows),
        layout=LAYOUTS_OF[rank][0],
        weight_layout=WEIGHT_LAYOUTS_OF[rank][0],
    )
    steps = f"/{times(case.stride)}" if max(case.stride) > 1 else ""
    steps += f" dilated {dilation}" if dilation > 1 else ""
    channels = f"{c}-{k}" if groups == 1 else f"dw {c}" if groups == c else f"{c}-{k} g{groups}"
    return {f"{times(kernel)}{steps} {channels} @{times(size)}": case}


def times(extents: tuple[int, ...]) -> str:
    """Extents as a text such as "3x3"."""
    return "x".join(map(str, extents))


def rise(
    c: int, k: int, size: tuple[int, ...], taps: int, stride: int, pad: int = 0, added: int = 0
) -> Suite:
    """A suite of one transposed convolution from `c` channels to `k`, with `size` input pixels; its
    output gets `added` pixels on the high side. The case is the convolution whose input gradient it
    is.
    """
    rank = len(size)
    out = tuple((n - 1) * stride - 2 * pad + taps + added for n in size)
    kernel, steps = (taps,) * rank, (stride,) * rank
    (case,) = convolution(k, c, out, kernel, steps, (pad,) * rank).values()
    return {f"{times(kernel)}/{stride} {c}-{k} @{times(size)}": case}
