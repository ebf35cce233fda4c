"""Networks as all their convolutions in order, equal ones repeated, so that totals can be compared
with those of the papers. A suite holds each shape once.
"""

from __future__ import annotations

from perf.shapes import Layers, depthwise, layer

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
