"""Networks of images as their convolutions in order; a suite holds each shape once.

Each table repeats a table of the cited paper; the shapes are derived from it. Networks with all
their convolutions repeat equal ones, so that totals can be compared with those of the papers.
"""

from __future__ import annotations

from perf.shapes import Layers, depthwise, layer

# He et al., "Deep Residual Learning for Image Recognition" (2016), table 1, in the form known as
# v1.5 (torchvision, NVIDIA), where the 3x3 has the stride: (width, input size, stride of the
# stage, blocks).
RESNET50_STAGES = ((64, 56, 1, 3), (128, 56, 2, 4), (256, 28, 2, 6), (512, 14, 2, 3))

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

# Chen et al., "Rethinking Atrous Convolution for Semantic Image Segmentation" (2017), section 3.3:
# atrous spatial pyramid pooling on 513 x 513 images at output stride 16.
ASPP_CHANNELS, ASPP_FILTERS, ASPP_SIZE, ASPP_RATES = 2048, 256, 33, (6, 12, 18)

# Tan and Le, "EfficientNet" (2019), table 1, B0: (expansion, taps, output channels, blocks,
# stride). A block squeezes to a quarter of its input channels.
EFFICIENTNET_B0 = (
    (1, 3, 16, 1, 1),
    (6, 3, 24, 2, 2),
    (6, 5, 40, 2, 2),
    (6, 3, 80, 3, 2),
    (6, 5, 112, 3, 1),
    (6, 5, 192, 4, 2),
    (6, 3, 320, 1, 1),
)

# Chollet, "Xception" (2017), figure 5, at 299 x 299: (filters of the two separable convolutions,
# input size) of the blocks that halve the image.
XCEPTION_ENTRY = ((128, 128, 147), (256, 256, 74), (728, 728, 37))
XCEPTION_MIDDLE = 8  # blocks of three separable convolutions
XCEPTION_SIZE = 19  # of the middle flow

# Huang et al., "Densely Connected Convolutional Networks" (2017), table 1, DenseNet-121: (pairs of
# 1x1 and 3x3, size) of dense blocks; a pair adds GROWTH channels.
DENSENET_121 = ((6, 56), (12, 28), (24, 14), (16, 7))
GROWTH = 32

# Liu et al., "SSD" (2016), figure 2, at 300 x 300: VGG-16 up to conv5_3 as (filters, convolutions,
# size), then (filters of 1x1, filters of 3x3, input size, stride, padding), and the sources of
# detections as (channels, size, boxes of a pixel). PASCAL VOC has 20 classes and the background.
SSD_VGG = ((64, 2, 300), (128, 2, 150), (256, 3, 75), (512, 3, 38), (512, 3, 19))
SSD_EXTRAS = ((256, 512, 19, 2, 1), (128, 256, 10, 2, 1), (128, 256, 5, 1, 0), (128, 256, 3, 1, 0))
SSD_SOURCES = (
    (512, 38, 4),
    (1024, 19, 6),
    (512, 10, 6),
    (256, 5, 6),
    (256, 3, 4),
    (256, 1, 4),
)
SSD_CLASSES = 21

# Krizhevsky et al., "ImageNet Classification with Deep Convolutional Neural Networks" (2012),
# section 3.5, on two GPUs, which are two groups: (channels, filters, taps, stride, groups, size,
# padding). The image is 227 x 227, from which the first layer makes the 55 x 55 of the paper.
ALEXNET = (
    (3, 96, 11, 4, 1, 227, 0),
    (96, 256, 5, 1, 2, 27, 2),
    (256, 384, 3, 1, 1, 13, 1),
    (384, 384, 3, 1, 2, 13, 1),
    (384, 256, 3, 1, 2, 13, 1),
)

# Zhang et al., "ShuffleNet" (2018), table 1, 3 groups: (channels, size); section 3.2: the channels
# of the bottleneck are a quarter.
SHUFFLENET_GROUPS = 3
SHUFFLENET_STAGES = ((240, 28), (480, 14), (960, 7))

# Redmon and Farhadi, "YOLOv3" (2018), table 1, Darknet-53 at 256 x 256: filters of the stages.
DARKNET_53 = (64, 128, 256, 512, 1024)

# Yu and Koltun, "Multi-Scale Context Aggregation by Dilated Convolutions" (2016), table 1, the
# large context module on 64 x 64 scores of 21 classes: (multiple of the classes, dilation).
CONTEXT_CLASSES, CONTEXT_SIZE = 21, 64
CONTEXT = ((2, 1), (2, 1), (4, 2), (8, 4), (16, 8), (32, 16), (32, 1))

# Chen et al., "Rethinking Atrous Convolution for Semantic Image Segmentation" (2017), section 4.1:
# the 3x3 of block 4 with multi-grid (1, 2, 4) at output stride 16: (width, size, rates).
DEEPLAB_BLOCK4 = (512, 33, (2, 4, 8))


def resnet50() -> Layers:
    """The 23 distinct shapes, including stem and shortcuts."""
    return iter({name: (name, case) for name, case in all_resnet50()}.values())


def all_resnet50() -> Layers:
    """All 53 convolutions."""
    yield layer(3, 64, 224, 7, 2)
    channels = 64
    for width, size, stride, blocks in RESNET50_STAGES:
        out = size // stride
        yield layer(channels, width, size)
        yield layer(width, width, size, 3, stride)
        yield layer(width, 4 * width, out)
        yield layer(channels, 4 * width, size, 1, stride)  # the shortcut
        for _ in range(1, blocks):
            yield layer(4 * width, width, out)
            yield layer(width, width, out, 3)
            yield layer(width, 4 * width, out)
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


def efficientnet() -> Layers:
    """EfficientNet-B0 at 224 x 224; squeeze and excitation are 1x1 on a single pixel."""
    yield layer(3, 32, 224, 3, 2)
    channels, size = 32, 112
    for expansion, taps, filters, blocks, first_stride in EFFICIENTNET_B0:
        for block in range(blocks):
            stride = first_stride if block == 0 else 1
            wide, narrow = expansion * channels, channels // 4
            if expansion > 1:
                yield layer(channels, wide, size)
            yield depthwise(wide, size, stride, taps)
            size //= stride
            yield layer(wide, narrow, 1)
            yield layer(narrow, wide, 1)
            yield layer(wide, filters, size)
            channels = filters
    yield layer(channels, 1280, size)


def xception() -> Layers:
    """Xception at 299 x 299."""
    yield layer(3, 32, 299, 3, 2, pad=0)
    yield layer(32, 64, 149, 3, pad=0)
    channels = 64
    for first, second, size in XCEPTION_ENTRY:
        yield layer(channels, second, size, 1, 2)  # the shortcut
        yield from separable(channels, first, size)
        yield from separable(first, second, size)
        channels = second
    for _ in range(3 * XCEPTION_MIDDLE):
        yield from separable(channels, channels, XCEPTION_SIZE)
    yield layer(channels, 1024, XCEPTION_SIZE, 1, 2)  # the shortcut
    yield from separable(channels, 728, XCEPTION_SIZE)
    yield from separable(728, 1024, XCEPTION_SIZE)
    yield from separable(1024, 1536, 10)
    yield from separable(1536, 2048, 10)


def separable(channels: int, filters: int, size: int) -> Layers:
    """A depthwise 3x3 and a 1x1."""
    yield depthwise(channels, size)
    yield layer(channels, filters, size)


def densenet() -> Layers:
    """DenseNet-121 at 224 x 224."""
    yield layer(3, 2 * GROWTH, 224, 7, 2)
    channels = 2 * GROWTH
    for block, (pairs, size) in enumerate(DENSENET_121):
        if block:
            yield layer(channels, channels // 2, 2 * size)  # the transition
            channels //= 2
        for _ in range(pairs):
            yield layer(channels, 4 * GROWTH, size)
            yield layer(4 * GROWTH, GROWTH, size, 3)
            channels += GROWTH


def ssd() -> Layers:
    """SSD300 with VGG-16; one 3x3 of a source predicts classes and offsets of all its boxes."""
    channels = 3
    for filters, count, size in SSD_VGG:
        for _ in range(count):
            yield layer(channels, filters, size, 3)
            channels = filters
    yield layer(channels, 1024, 19, 3, dilation=6)
    yield layer(1024, 1024, 19)
    channels = 1024
    for narrow, filters, size, stride, pad in SSD_EXTRAS:
        yield layer(channels, narrow, size)
        yield layer(narrow, filters, size, 3, stride, pad)
        channels = filters
    for channels, size, boxes in SSD_SOURCES:
        yield layer(channels, boxes * (SSD_CLASSES + 4), size, 3)


def mobilenet_v1() -> Layers:
    """MobileNet: stem, and pairs of depthwise and 1x1."""
    yield layer(3, 32, 224, 3, 2)
    for channels, size, stride in MOBILENET_V1:
        yield depthwise(channels, size, stride)
        doubled = stride == 2 or channels == 32  # the first pair doubles without a stride
        yield layer(channels, 2 * channels if doubled else channels, size // stride)


def alexnet() -> Layers:
    """AlexNet."""
    for channels, filters, taps, stride, groups, size, pad in ALEXNET:
        yield layer(channels, filters, size, taps, stride, pad, groups)


def shufflenet() -> Layers:
    """The units of ShuffleNet with stride 1."""
    for channels, size in SHUFFLENET_STAGES:
        yield layer(channels, channels // 4, size, groups=SHUFFLENET_GROUPS)
        yield depthwise(channels // 4, size)
        yield layer(channels // 4, channels, size, groups=SHUFFLENET_GROUPS)


def darknet() -> Layers:
    """The distinct layers of Darknet-53."""
    yield layer(3, 32, 256, 3)
    size = 256
    for filters in DARKNET_53:
        yield layer(filters // 2, filters, size, 3, 2)
        size //= 2
        yield layer(filters, filters // 2, size)
        yield layer(filters // 2, filters, size, 3)


def context() -> Layers:
    """The large context module of dilated convolutions."""
    channels = CONTEXT_CLASSES
    for multiple, dilation in CONTEXT:
        filters = multiple * CONTEXT_CLASSES
        yield layer(channels, filters, CONTEXT_SIZE, 3, dilation=dilation)
        channels = filters
    yield layer(channels, CONTEXT_CLASSES, CONTEXT_SIZE)


def deeplab() -> Layers:
    """DeepLabv3: the dilated layers of block 4, and the pyramid pooling."""
    width, size, rates = DEEPLAB_BLOCK4
    for rate in rates:
        yield layer(width, width, size, 3, dilation=rate)
    yield from aspp()
