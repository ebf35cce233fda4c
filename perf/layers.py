"""Suites of layers: the distinct convolutions of networks, at batch 1.

Each table below repeats a table of the cited paper; the shapes are derived from it. A suite is a
dict of layer name to `Case`, in the order of the network.
"""

from __future__ import annotations

from dataclasses import replace

from implicit_conv.testing import Case

Suite = dict[str, Case]

# He et al., "Deep Residual Learning for Image Recognition" (2016), table 1, in the form known as
# v1.5 (torchvision, NVIDIA), where the 3x3 has the stride: (width, input size, stride of the
# stage).
RESNET50_STAGES = ((64, 56, 1), (128, 56, 2), (256, 28, 2), (512, 14, 2))

# Sandler et al., "MobileNetV2" (2018), table 2: (expansion, output channels, blocks, stride).
MOBILENET_V2 = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)

# Xie et al., "Aggregated Residual Transformations for Deep Neural Networks" (2017), table 1,
# ResNeXt-50 (32 x 4d); the 3x3 has the stride: (width of the 3x3, input size, stride).
RESNEXT50_GROUPS = 32
RESNEXT50_STAGES = ((128, 56, 1), (256, 56, 2), (512, 28, 2), (1024, 14, 2))

# Liu et al., "A ConvNet for the 2020s" (2022), section 3, ConvNeXt-T: (channels, size) of stages.
CONVNEXT_STAGES = ((96, 56), (192, 28), (384, 14), (768, 7))

# Simonyan and Zisserman, "Very Deep Convolutional Networks" (2014), table 1, column D:
# (filters, convolutions) between two poolings.
VGG16 = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))

# Ronneberger et al., "U-Net" (2015), figure 1: 572 x 572 input, no padding; (filters, input size)
# of the two 3x3 convolutions of each level, down and then up.
UNET_DOWN = ((64, 572), (128, 284), (256, 140), (512, 68), (1024, 32))
UNET_UP = ((512, 56), (256, 104), (128, 200), (64, 392))

GPU_BATCH = 64  # images: enough to fill a GPU

# The names of suites in reports.
TITLES = {
    "resnet50": "ResNet-50",
    "resnext50": "ResNeXt-50, 3x3",
    "mobilenet": "MobileNetV2",
    "convnext": "ConvNeXt-T",
    "vgg": "VGG-16",
    "unet": "U-Net",
    "small": "small calls",
    "gpu": "ResNet-50",
}


def layer(
    c: int,
    k: int,
    size: int,
    taps: int = 1,
    stride: int = 1,
    pad: int | None = None,
    groups: int = 1,
) -> Suite:
    """A suite of one square layer with `c` channels and `k` filters in all groups.

    The padding is half the filter unless `pad` is given.
    """
    low = taps // 2 if pad is None else pad
    case = Case(
        C=c // groups,
        K=k // groups,
        groups=groups,
        size=(size, size),
        kernel=(taps, taps),
        stride=(stride, stride),
        padding=((low, low), (low, low)),
    )
    return {name_of(case): case}


def depthwise(channels: int, size: int, stride: int = 1, taps: int = 3) -> Suite:
    """A depthwise layer: one filter for each channel."""
    return layer(channels, channels, size, taps, stride, groups=channels)


def name_of(case: Case) -> str:
    """A name such as "3x3/2 128-256 @56": taps, stride, channels, filters, input size."""
    stride = f"/{case.stride[0]}" if case.stride[0] > 1 else ""
    channels = f"{case.C * case.groups}-{case.K * case.groups}"
    if case.groups > 1:
        single = case.C == case.K == 1
        channels = f"dw {case.groups}" if single else f"{channels} g{case.groups}"
    return f"{case.kernel[0]}x{case.kernel[1]}{stride} {channels} @{case.size[0]}"


def resnet50() -> Suite:
    """The 23 distinct shapes, including stem and shortcuts."""
    suite = layer(3, 64, 224, 7, 2)
    channels = 64
    for width, size, stride in RESNET50_STAGES:
        out = size // stride
        suite |= layer(channels, width, size)
        suite |= layer(width, width, size, 3, stride)
        suite |= layer(width, 4 * width, out)
        suite |= layer(channels, 4 * width, size, 1, stride)  # the shortcut
        suite |= layer(4 * width, width, out)
        suite |= layer(width, width, out, 3)
        channels = 4 * width
    return suite


def mobilenet() -> Suite:
    """Stem, pointwise and depthwise layers of MobileNetV2 at 224 x 224."""
    suite = layer(3, 32, 224, 3, 2)
    channels, size = 32, 112
    for expansion, filters, blocks, first_stride in MOBILENET_V2:
        for block in range(blocks):
            stride = first_stride if block == 0 else 1
            wide = expansion * channels
            if expansion > 1:
                suite |= layer(channels, wide, size)
            suite |= depthwise(wide, size, stride)
            size //= stride
            suite |= layer(wide, filters, size)
            channels = filters
    return suite | layer(channels, 1280, size)


def resnext50() -> Suite:
    """The grouped 3x3 layers of ResNeXt-50; its other layers are like those of ResNet-50."""
    suite: Suite = {}
    for width, size, stride in RESNEXT50_STAGES:
        for place, step in ((size, stride), (size // stride, 1)):
            suite |= layer(width, width, place, 3, step, groups=RESNEXT50_GROUPS)
    return suite


def convnext() -> Suite:
    """The layers of ConvNeXt-T: stem, depthwise 7x7, pairs of 1x1, 2x2 between stages."""
    suite = layer(3, CONVNEXT_STAGES[0][0], 224, 4, 4, pad=0)
    for stage, (channels, size) in enumerate(CONVNEXT_STAGES):
        if stage:
            suite |= layer(channels // 2, channels, 2 * size, 2, 2, pad=0)
        suite |= depthwise(channels, size, taps=7)
        suite |= layer(channels, 4 * channels, size) | layer(4 * channels, channels, size)
    return suite


def vgg() -> Suite:
    """The 9 distinct 3x3 layers of VGG-16."""
    suite: Suite = {}
    channels, size = 3, 224
    for filters, count in VGG16:
        for _ in range(count):
            suite |= layer(channels, filters, size, 3)
            channels = filters
        size //= 2
    return suite


def unet() -> Suite:
    """The convolutions of U-Net except its transposed ones; there is no padding."""
    suite: Suite = {}
    channels = 1
    for filters, size in UNET_DOWN:
        suite |= layer(channels, filters, size, 3, pad=0)
        suite |= layer(filters, filters, size - 2, 3, pad=0)
        channels = filters
    for filters, size in UNET_UP:
        suite |= layer(2 * filters, filters, size, 3, pad=0)
        suite |= layer(filters, filters, size - 2, 3, pad=0)
    return suite | layer(64, 2, 388)


def small() -> Suite:
    """Calls so short that the overhead of a call matters.

    A filter bank on a thumbnail; LeNet-5 (LeCun et al. 1998, figure 2); the CIFAR network of He et
    al. (2016, section 4.2), one 3x3 of each stage.
    """
    suite = layer(3, 8, 32, 3)
    suite |= layer(1, 6, 32, 5, pad=0) | layer(6, 16, 14, 5, pad=0)
    return suite | layer(16, 16, 32, 3) | layer(32, 32, 16, 3) | layer(64, 64, 8, 3)


def gpu() -> Suite:
    """ResNet-50 at a batch size that fills a GPU."""
    return {name: replace(case, N=GPU_BATCH) for name, case in resnet50().items()}


SUITES = {
    "resnet50": resnet50,
    "resnext50": resnext50,
    "mobilenet": mobilenet,
    "convnext": convnext,
    "vgg": vgg,
    "unet": unet,
    "small": small,
    "gpu": gpu,
}


def layers(suite: str, layout: str = "NCHW", batch: int | None = None) -> Suite:
    """The layers of a suite in `layout`, with `batch` images (None: as in the suite).

    "all" is every suite for a CPU; a layer of several suites appears once.

    Raises
    ------
    ValueError
        There is no such suite.
    """
    if suite != "all" and suite not in SUITES:
        raise ValueError(f"no suite is called {suite!r}; choose from {', '.join(SUITES)}, all")
    chosen = [name for name in SUITES if name != "gpu"] if suite == "all" else [suite]
    found: Suite = {}
    for name in chosen:
        found |= SUITES[name]()
    return {name: replace(case, layout=layout, N=batch or case.N) for name, case in found.items()}
