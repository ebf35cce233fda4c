"""Layers whose maps are encoded and whose kernels are timed, as cases of channels-last arrays."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from implicit_conv.testing import Case

# (channels, filters, size, taps along an axis, stride): the distinct convolutions of ResNet-50
# (perf/layers.py cites the papers)
RESNET = (
    (64, 64, 56, 1, 1), (64, 64, 56, 3, 1), (64, 256, 56, 1, 1), (256, 64, 56, 1, 1),
    (256, 128, 56, 1, 1), (128, 128, 56, 3, 2), (128, 512, 28, 1, 1), (256, 512, 56, 1, 2),
    (512, 128, 28, 1, 1), (128, 128, 28, 3, 1), (512, 256, 28, 1, 1), (256, 256, 28, 3, 2),
    (256, 1024, 14, 1, 1), (512, 1024, 28, 1, 2), (1024, 256, 14, 1, 1), (256, 256, 14, 3, 1),
    (1024, 512, 14, 1, 1), (512, 512, 14, 3, 2), (512, 2048, 7, 1, 1), (1024, 2048, 14, 1, 2),
    (2048, 512, 7, 1, 1), (512, 512, 7, 3, 1),
)  # fmt: skip
VGG = (
    (64, 64, 224, 3, 1), (64, 128, 112, 3, 1), (128, 128, 112, 3, 1), (128, 256, 56, 3, 1),
    (256, 256, 56, 3, 1), (256, 512, 28, 3, 1), (512, 512, 28, 3, 1), (512, 512, 14, 3, 1),
)  # fmt: skip
UNET = ((64, 64, 570, 3, 1), (64, 128, 284, 3, 1), (512, 1024, 32, 3, 1), (1024, 512, 56, 3, 1))
# (channels, channels of a group, size, taps, stride): depthwise layers of MobileNetV2 and of
# ConvNeXt-T, and the groups of ResNeXt-50 32x4d
NARROW = (
    (32, 1, 112, 3, 1), (96, 1, 112, 3, 2), (144, 1, 56, 3, 1), (576, 1, 14, 3, 1),
    (96, 1, 56, 7, 1), (768, 1, 7, 7, 1), (128, 4, 56, 3, 1), (256, 8, 28, 3, 1),
)  # fmt: skip
TINY = ((64, 64, 8, 3, 1),)  # for a rehearsal


def cases(network: str, batch: int) -> Iterator[tuple[str, Case]]:
    """(name, case) of the layers of "ResNet-50", "VGG-16", "U-Net", "narrow groups" or "tiny"."""
    if network == "narrow groups":
        for channels, group, size, taps, stride in NARROW:
            name = f"{network} {taps}x{taps}/{stride} {channels} by {group} @{size}"
            yield name, _case(batch, (group, group), size, taps, stride, channels // group)
        return
    layers = {"ResNet-50": RESNET, "VGG-16": VGG, "U-Net": UNET, "tiny": TINY}[network]
    for channels, filters, size, taps, stride in layers:
        name = f"{network} {taps}x{taps}/{stride} {channels}-{filters} @{size}"
        case = _case(batch, (channels, filters), size, taps, stride)
        yield name, replace(case, padding=((0, 0), (0, 0))) if network == "U-Net" else case


def _case(
    batch: int, group: tuple[int, int], size: int, taps: int, stride: int, groups: int = 1
) -> Case:
    """A layer with `group` channels and filters in each group, and padding of half a filter."""
    channels, filters = group
    return Case(
        batch,
        channels,
        filters,
        groups,
        size=(size, size),
        kernel=(taps, taps),
        stride=(stride, stride),
        padding=((taps // 2, taps // 2),) * 2,
        layout="NHWC",
        weight_layout="KRSC",
        dtype="bfloat16",
    )
