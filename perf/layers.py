"""Suites of layers: the distinct convolutions of networks, and layers of one kind, at batch 1.

Each table below repeats a table of the cited paper; the shapes are derived from it. A suite is a
dict of layer name to `Case`, in the order of the network.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from implicit_conv.problem.options import LAYOUTS_OF
from perf import corpus, networks, signals, upsampling
from perf.shapes import Layers, Suite, depthwise, layer

# First layers of detectors, as (taps, stride, filters, size): Redmon and Farhadi, "YOLOv3" (2018),
# table 1, at its size of 608; Tan et al., "EfficientDet" (2020), table 1, D0; He et al., "Mask
# R-CNN" (2017), section 3.1, with the stem of ResNet. Images are gray, complex, in colour, or have
# depth as a fourth channel.
FIRST = ((3, 1, 32, 608), (3, 2, 32, 512), (7, 2, 64, 800))
FIRST_CHANNELS = (1, 2, 3, 4)

# 1x1 on a single pixel, as (channels, filters) of both ways: Hu et al., "Squeeze-and-Excitation
# Networks" (2018), section 4, SE-ResNet-50 with reduction 16.
SQUEEZE = ((256, 16), (512, 32), (1024, 64), (2048, 128))

# The last layers of VGG-16 and ResNet-50 as convolutions: (channels, filters).
CLASSIFIERS = ((4096, 4096), (4096, 1000), (2048, 1000))

GPU_BATCH = 64  # images: enough to fill a GPU


def first() -> Layers:
    """First layers on large images with 1 to 4 channels."""
    for taps, stride, filters, size in FIRST:
        for channels in FIRST_CHANNELS:
            yield layer(channels, filters, size, taps, stride)


def depthwise_layers() -> Layers:
    """The depthwise layers of MobileNet, MobileNetV2, EfficientNet-B0, Xception and ConvNeXt-T."""
    for channels, size, stride in networks.MOBILENET_V1:
        yield depthwise(channels, size, stride)
    for network in (
        networks.mobilenet,
        networks.efficientnet,
        networks.xception,
        networks.convnext,
    ):
        yield from ((name, case) for name, case in network() if case.C == case.K == 1)


def pixel() -> Layers:
    """1x1 on a single pixel: squeeze and excitation of EfficientNet-B0 and SE-ResNet-50, image
    pooling of DeepLabv3, and the last layers of VGG-16 and ResNet-50 as convolutions.
    """
    yield from ((name, case) for name, case in networks.efficientnet() if case.size == (1, 1))
    for channels, filters in SQUEEZE:
        yield layer(channels, filters, 1)
        yield layer(filters, channels, 1)
    yield layer(networks.ASPP_CHANNELS, networks.ASPP_FILTERS, 1)
    for channels, filters in CLASSIFIERS:
        yield layer(channels, filters, 1)


def small() -> Layers:
    """Calls so short that the overhead of a call matters.

    A filter bank on a thumbnail; LeNet-5 (LeCun et al. 1998, figure 2); the CIFAR network of He et
    al. (2016, section 4.2), one 3x3 of each stage; a pair of depthwise and 1x1.
    """
    yield layer(3, 8, 32, 3)
    for channels, filters, size in ((1, 6, 32), (6, 16, 14), (16, 120, 5)):
        yield layer(channels, filters, size, 5, pad=0)
    for channels, size in ((16, 32), (32, 16), (64, 8)):
        yield layer(channels, channels, size, 3)
    yield depthwise(8, 8)
    yield layer(8, 8, 8)


def int8() -> Layers:
    """ResNet-50 quantized: uint8 activations, as a relu leaves them, and int8 filters."""
    return (
        (name, replace(case, dtype="uint8", w_dtype="int8")) for name, case in networks.resnet50()
    )


def gpu() -> Layers:
    """ResNet-50 at a batch size that fills a GPU."""
    return ((name, replace(case, N=GPU_BATCH)) for name, case in networks.resnet50())


# Suite: its title in reports, and its layers, where equal ones may repeat.
SUITES: dict[str, tuple[str, Callable[[], Layers]]] = {
    "resnet50": ("ResNet-50", networks.resnet50),
    "resnext50": ("ResNeXt-50, 3x3", networks.resnext50),
    "mobilenet": ("MobileNetV2", networks.mobilenet),
    "convnext": ("ConvNeXt-T", networks.convnext),
    "vgg": ("VGG-16", networks.vgg),
    "unet": ("U-Net", networks.unet),
    "efficientnet": ("EfficientNet-B0", networks.efficientnet),
    "xception": ("Xception", networks.xception),
    "densenet": ("DenseNet-121", networks.densenet),
    "ssd": ("SSD300", networks.ssd),
    "aspp": ("DeepLabv3, ASPP", networks.aspp),
    "first": ("first layers of networks", first),
    "depthwise": ("depthwise layers", depthwise_layers),
    "pixel": ("1x1 on one pixel", pixel),
    "small": ("small calls", small),
    "int8": ("ResNet-50, uint8 x int8", int8),
    "gpu": ("ResNet-50", gpu),
    "transposed": ("transposed convolutions", upsampling.transposed),
    "conv1d": ("conv1d of signals", signals.conv1d),
    "conv3d": ("conv3d of volumes", signals.conv3d),
    "audio": ("networks of audio", partial(upsampling.layers, "audio")),
    "corpus": (f"corpus of {sum(corpus.SHARES.values())} layers", corpus.drawn),
    "upsampling": ("upsampling and strided gradients", partial(upsampling.layers, "upsampling")),
}
KINDS = ("aspp", "first", "depthwise", "pixel", "small")  # suites of layers of one kind
# Suites that "all" leaves out.
OTHERS = ("int8", "gpu", "transposed", "conv1d", "conv3d", "corpus", *upsampling.SUITES)


def layers(suite: str, layout: str = "NCHW", batch: int | None = None) -> Suite:
    """The layers of a suite in `layout`, with `batch` images (None: as in the suite).

    "all" is every suite of conv2d with floats for a CPU; a layer of several suites appears once.
    `layout` also says where signals and volumes have their channels.

    Raises
    ------
    ValueError
        There is no such suite.
    """
    if suite != "all" and suite not in SUITES:
        raise ValueError(f"no suite is called {suite!r}; choose from {', '.join(SUITES)}, all")
    chosen = [name for name in SUITES if name not in OTHERS]
    chosen = chosen if suite == "all" else [suite]
    found: Suite = {}
    for name in chosen:
        found |= dict(SUITES[name][1]())
    last = LAYOUTS_OF[2].index(layout)
    return {
        name: replace(case, layout=LAYOUTS_OF[len(case.size)][last], N=batch or case.N)
        for name, case in found.items()
    }
