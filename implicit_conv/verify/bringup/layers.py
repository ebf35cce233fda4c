"""Layers whose maps are encoded and whose kernels are timed, as cases of channels-last arrays."""

from __future__ import annotations

from collections.abc import Iterator

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
TINY = ((64, 64, 8, 3, 1),)  # for a rehearsal


def cases(network: str, batch: int) -> Iterator[tuple[str, Case]]:
    """(name, case) of the layers of "ResNet-50", "VGG-16", "U-Net" or "tiny"."""
    layers = {"ResNet-50": RESNET, "VGG-16": VGG, "U-Net": UNET, "tiny": TINY}[network]
    for channels, filters, size, taps, stride in layers:
        pad = 0 if network == "U-Net" else taps // 2
        yield (
            f"{network} {taps}x{taps}/{stride} {channels}-{filters} @{size}",
            Case(
                batch,
                channels,
                filters,
                size=(size, size),
                kernel=(taps, taps),
                stride=(stride, stride),
                padding=((pad, pad), (pad, pad)),
                layout="NHWC",
                weight_layout="KRSC",
                dtype="bfloat16",
            ),
        )
