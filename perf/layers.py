"""Suites of layers: the distinct convolutions of networks, at batch 1.

Each table below repeats a table of the cited paper; the shapes are derived from it. A suite is a
dict of layer name to `Case`, in the order of the network.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from implicit_conv.problem.options import LAYOUTS_OF
from perf import networks, upsampling
from perf.shapes import Layers, Suite, depthwise, layer

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

# van den Oord et al., "WaveNet" (2016), section 2.1: 2 taps, dilations doubled up to 512; the
# number of channels, which the paper leaves open, is 64 with 64 gates, and the signal is 1 s.
WAVENET_DILATIONS = (1, 16, 512)
SPEECH = 16000  # samples in 1 s

# Radford et al., "Robust Speech Recognition via Large-Scale Weak Supervision" (2022), section 2.2,
# Whisper base: two convolutions of 3 taps over 30 s of 80 mel channels: (channels, stride).
WHISPER = ((80, 1), (512, 2))

# Baevski et al., "wav2vec 2.0" (2020), section 4.2: (taps, stride) of 512 channels; then positions
# by 128 taps and 16 groups over 768 channels.
WAV2VEC = ((10, 5), (3, 2), (3, 2), (3, 2), (3, 2), (2, 2), (2, 2))

# Gu and Dao, "Mamba" (2023), section 3.4, at 130 million parameters: channels, taps, sequence.
MAMBA = (1536, 4, 2048)

# Tran et al., "Learning Spatiotemporal Features with 3D Convolutional Networks" (2015), figure 3,
# C3D: (channels, filters, depth, size); all have 3x3x3 taps and padding.
C3D = (
    (3, 64, 16, 112),
    (64, 128, 16, 56),
    (128, 256, 8, 28),
    (256, 256, 8, 28),
    (256, 512, 4, 14),
    (512, 512, 4, 14),
    (512, 512, 2, 7),
)

# Tran et al., "A Closer Look at Spatiotemporal Convolutions" (2018), section 3.5, R(2+1)D of clips
# with 16 frames: (channels, channels between 1x3x3 and 3x1x1, depth, size).
R2PLUS1D = ((64, 144, 16, 56), (128, 288, 8, 28), (256, 576, 4, 14))

# Cicek et al., "3D U-Net" (2016), figure 2, without its two largest levels: (channels, depth,
# size); there is no padding.
UNET3D = ((128, 26, 30), (256, 11, 13))

# Feichtenhofer, "X3D" (2020), table 1, X3D-M: (channels, size) of depthwise 3x3x3 over 16 frames.
X3D = ((54, 56), (108, 28), (216, 14), (432, 7))

# Howard et al., "MobileNets" (2017), table 1: (channels, input size, stride) of the depthwise 3x3.
MOBILENET_V1 = (
    (32, 112, 1),
    (64, 112, 2),
    (128, 56, 1),
    (128, 56, 2),
    (256, 28, 1),
    (256, 28, 2),
    (512, 14, 1),
    (512, 14, 2),
    (1024, 7, 1),
)

# First layers of detectors, as (taps, stride, filters, size): Redmon and Farhadi, "YOLOv3" (2018),
# table 1, at its size of 608; Tan et al., "EfficientDet" (2020), table 1, D0; He et al., "Mask
# R-CNN" (2017), section 3.1, with the stem of ResNet. Images are gray, complex, in colour, or have
# depth as a fourth channel.
FIRST = ((3, 1, 32, 608), (3, 2, 32, 512), (7, 2, 64, 800))
FIRST_CHANNELS = (1, 2, 3, 4)

# Chen et al., "Rethinking Atrous Convolution for Semantic Image Segmentation" (2017), section 3.3:
# atrous spatial pyramid pooling on 513 x 513 images at output stride 16.
ASPP_CHANNELS, ASPP_FILTERS, ASPP_SIZE, ASPP_RATES = 2048, 256, 33, (6, 12, 18)

# 1x1 on a single pixel, as (channels, filters) of both ways: Hu et al., "Squeeze-and-Excitation
# Networks" (2018), section 4, SE-ResNet-50 with reduction 16.
SQUEEZE = ((256, 16), (512, 32), (1024, 64), (2048, 128))

# The last layers of VGG-16 and ResNet-50 as convolutions: (channels, filters).
CLASSIFIERS = ((4096, 4096), (4096, 1000), (2048, 1000))

GPU_BATCH = 64  # images: enough to fill a GPU


def resnet50() -> Layers:
    """The 23 distinct shapes, including stem and shortcuts."""
    yield layer(3, 64, 224, 7, 2)
    channels = 64
    for width, size, stride in RESNET50_STAGES:
        out = size // stride
        yield layer(channels, width, size)
        yield layer(width, width, size, 3, stride)
        yield layer(width, 4 * width, out)
        yield layer(channels, 4 * width, size, 1, stride)  # the shortcut
        yield layer(4 * width, width, out)
        yield layer(width, width, out, 3)
        channels = 4 * width


def mobilenet() -> Layers:
    """Stem, pointwise and depthwise layers of MobileNetV2 at 224 x 224."""
    yield layer(3, 32, 224, 3, 2)
    channels, size = 32, 112
    for expansion, filters, blocks, first_stride in MOBILENET_V2:
        for block in range(blocks):
            stride = first_stride if block == 0 else 1
            wide = expansion * channels
            if expansion > 1:
                yield layer(channels, wide, size)
            yield depthwise(wide, size, stride)
            size //= stride
            yield layer(wide, filters, size)
            channels = filters
    yield layer(channels, 1280, size)


def resnext50() -> Layers:
    """The grouped 3x3 layers of ResNeXt-50; its other layers are like those of ResNet-50."""
    for width, size, stride in RESNEXT50_STAGES:
        for place, step in ((size, stride), (size // stride, 1)):
            yield layer(width, width, place, 3, step, groups=RESNEXT50_GROUPS)


def convnext() -> Layers:
    """The layers of ConvNeXt-T: stem, depthwise 7x7, pairs of 1x1, 2x2 between stages."""
    yield layer(3, CONVNEXT_STAGES[0][0], 224, 4, 4, pad=0)
    for stage, (channels, size) in enumerate(CONVNEXT_STAGES):
        if stage:
            yield layer(channels // 2, channels, 2 * size, 2, 2, pad=0)
        yield depthwise(channels, size, taps=7)
        yield layer(channels, 4 * channels, size)
        yield layer(4 * channels, channels, size)


def vgg() -> Layers:
    """The 9 distinct 3x3 layers of VGG-16."""
    channels, size = 3, 224
    for filters, count in VGG16:
        for _ in range(count):
            yield layer(channels, filters, size, 3)
            channels = filters
        size //= 2


def unet() -> Layers:
    """The convolutions of U-Net except its transposed ones; there is no padding."""
    channels = 1
    for filters, size in UNET_DOWN:
        yield layer(channels, filters, size, 3, pad=0)
        yield layer(filters, filters, size - 2, 3, pad=0)
        channels = filters
    for filters, size in UNET_UP:
        yield layer(2 * filters, filters, size, 3, pad=0)
        yield layer(filters, filters, size - 2, 3, pad=0)
    yield layer(64, 2, 388)


def aspp() -> Layers:
    """Atrous spatial pyramid pooling of DeepLabv3: 1x1, dilated 3x3, image pooling, and the 1x1 on
    all of them.
    """
    yield layer(ASPP_CHANNELS, ASPP_FILTERS, ASPP_SIZE)
    for rate in ASPP_RATES:
        yield layer(ASPP_CHANNELS, ASPP_FILTERS, ASPP_SIZE, 3, dilation=rate)
    yield layer(ASPP_CHANNELS, ASPP_FILTERS, 1)
    yield layer((2 + len(ASPP_RATES)) * ASPP_FILTERS, ASPP_FILTERS, ASPP_SIZE)


def first() -> Layers:
    """First layers on large images with 1 to 4 channels."""
    for taps, stride, filters, size in FIRST:
        for channels in FIRST_CHANNELS:
            yield layer(channels, filters, size, taps, stride)


def depthwise_layers() -> Layers:
    """The depthwise layers of MobileNet, MobileNetV2, EfficientNet-B0, Xception and ConvNeXt-T."""
    for channels, size, stride in MOBILENET_V1:
        yield depthwise(channels, size, stride)
    for network in (mobilenet, networks.efficientnet, networks.xception, convnext):
        yield from ((name, case) for name, case in network() if case.C == case.K == 1)


def pixel() -> Layers:
    """1x1 on a single pixel: squeeze and excitation of EfficientNet-B0 and SE-ResNet-50, image
    pooling of DeepLabv3, and the last layers of VGG-16 and ResNet-50 as convolutions.
    """
    yield from ((name, case) for name, case in networks.efficientnet() if case.size == (1, 1))
    for channels, filters in SQUEEZE:
        yield layer(channels, filters, 1)
        yield layer(filters, channels, 1)
    yield layer(ASPP_CHANNELS, ASPP_FILTERS, 1)
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
    return ((name, replace(case, dtype="uint8", w_dtype="int8")) for name, case in resnet50())


def gpu() -> Layers:
    """ResNet-50 at a batch size that fills a GPU."""
    return ((name, replace(case, N=GPU_BATCH)) for name, case in resnet50())


def conv1d() -> Layers:
    """The convolutions of WaveNet, Whisper, wav2vec 2.0 and Mamba."""
    for dilation in WAVENET_DILATIONS:
        yield layer(64, 128, (SPEECH,), 2, pad=0, dilation=dilation)
    for channels, stride in WHISPER:
        yield layer(channels, 512, (3000,), 3, stride)
    channels, samples = 1, SPEECH
    for taps, stride in WAV2VEC:
        yield layer(channels, 512, (samples,), taps, stride, pad=0)
        channels, samples = 512, (samples - taps) // stride + 1
    yield layer(768, 768, (samples,), 128, groups=16)
    channels, taps, length = MAMBA
    yield layer(channels, channels, (length,), taps, pad=taps - 1, groups=channels)


def conv3d() -> Layers:
    """The convolutions of C3D, R(2+1)D, 3D U-Net and X3D-M."""
    for channels, filters, depth, size in C3D:
        yield layer(channels, filters, (depth, size, size), 3)
    for channels, between, depth, size in R2PLUS1D:
        yield layer(channels, between, (depth, size, size), (1, 3, 3))
        yield layer(between, channels, (depth, size, size), (3, 1, 1))
    for channels, depth, size in UNET3D:
        yield layer(channels, channels, (depth, size, size), 3, pad=0)
    for channels, size in X3D:
        yield layer(channels, channels, (16, size, size), 3, groups=channels)


# Suite: its title in reports, and its layers, where equal ones may repeat.
SUITES: dict[str, tuple[str, Callable[[], Layers]]] = {
    "resnet50": ("ResNet-50", resnet50),
    "resnext50": ("ResNeXt-50, 3x3", resnext50),
    "mobilenet": ("MobileNetV2", mobilenet),
    "convnext": ("ConvNeXt-T", convnext),
    "vgg": ("VGG-16", vgg),
    "unet": ("U-Net", unet),
    "efficientnet": ("EfficientNet-B0", networks.efficientnet),
    "xception": ("Xception", networks.xception),
    "densenet": ("DenseNet-121", networks.densenet),
    "ssd": ("SSD300", networks.ssd),
    "aspp": ("DeepLabv3, ASPP", aspp),
    "first": ("first layers of networks", first),
    "depthwise": ("depthwise layers", depthwise_layers),
    "pixel": ("1x1 on one pixel", pixel),
    "small": ("small calls", small),
    "int8": ("ResNet-50, uint8 x int8", int8),
    "gpu": ("ResNet-50", gpu),
    "transposed": ("transposed convolutions", upsampling.transposed),
    "conv1d": ("conv1d of signals", conv1d),
    "conv3d": ("conv3d of volumes", conv3d),
    "audio": ("networks of audio", partial(upsampling.layers, "audio")),
    "upsampling": ("upsampling and strided gradients", partial(upsampling.layers, "upsampling")),
}
KINDS = ("aspp", "first", "depthwise", "pixel", "small")  # suites of layers of one kind
# Suites that "all" leaves out.
OTHERS = ("int8", "gpu", "transposed", "conv1d", "conv3d", *upsampling.SUITES)


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
