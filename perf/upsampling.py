"""Suites whose layers have operators of their own: transposed convolutions, the gradients of
strided ones, and convolutions, of networks that make signals, images and volumes.

Each table repeats a published configuration; the shapes are derived from it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import NamedTuple

from implicit_conv.testing import Case
from perf.shapes import Layer, Layers, depthwise, layer, rise

# Kong et al., "HiFi-GAN" (2020), appendix A.1, as (channels, (taps, stride) of transposed
# convolutions, which halve the channels, (taps, dilations) of the blocks after each). MEL_FRAMES
# is 1.2 s of speech.
HIFI_GAN = {
    "V1": (
        512,
        ((16, 8), (16, 8), (4, 2), (4, 2)),
        ((3, (1, 3, 5)), (7, (1, 3, 5)), (11, (1, 3, 5))),
    ),
    "V2": (
        128,
        ((16, 8), (16, 8), (4, 2), (4, 2)),
        ((3, (1, 3, 5)), (7, (1, 3, 5)), (11, (1, 3, 5))),
    ),
    "V3": (
        256,
        ((16, 8), (16, 8), (8, 4)),
        ((3, (1, 2)), (5, (2, 6)), (7, (3, 12))),
    ),
}
MEL_FRAMES, MEL_CHANNELS = 100, 80

# Demucs, 8 taps and stride 4, as (channels of the mixture, channels of the first layer, which each
# layer doubles, layers, channels of the result, frames of the last layer). Defossez et al., "Music
# Source Separation in the Waveform Domain" (2019), section 4: 2 s of stereo, 4 sources; Defossez et
# al., "Real Time Speech Enhancement in the Waveform Domain" (2020), section 2: 1 s at 64 kHz.
DEMUCS = {"Demucs": (2, 64, 6, 8, 20), "Demucs denoiser": (1, 48, 5, 1, 60)}

# Luo and Mesgarani, "Conv-TasNet" (2019), table 2, the best: N = 512 filters of L = 16 taps with
# half as stride, on 4 s at 8 kHz.
CONV_TASNET = (512, 16, 8, 32000)

# Short-time Fourier transforms as convolutions, real and imaginary parts as channels: (taps, hop,
# frames). 1024 with hop 256 is that of HiFi-GAN's spectrograms; 16 with hop 4 is the last layer of
# iSTFTNet, Kaneko et al. (2022), table 1, C8C8I.
FOURIER = {"STFT": (1024, 256, MEL_FRAMES), "iSTFTNet": (16, 4, 64 * MEL_FRAMES)}

# Ronneberger et al., "U-Net" (2015), figure 1: 2x2 transposed convolutions that halve the
# channels, as (channels, input size).
UNET = ((1024, 28), (512, 52), (256, 100), (128, 196))

# Cicek et al., "3D U-Net" (2016), figure 2: 2x2x2 that keep the channels, as (channels, size).
UNET3D = ((512, (7, 9, 9)), (256, (10, 14, 14)), (128, (16, 24, 24)))

# Isensee et al., "nnU-Net" (2021), at patches of 128 x 128 x 128, without its largest level:
# (channels, filters, input size) of the strided 3x3x3, whose 2x2x2 go the other way.
NNUNET = ((64, 128, 64), (128, 256, 32), (256, 320, 16), (320, 320, 8))

# Radford et al., "Unsupervised Representation Learning with Deep Convolutional Generative
# Adversarial Networks" (2015), figure 1: 5x5 with stride 2, as (channels, filters, input size).
DCGAN = ((1024, 512, 4), (512, 256, 8), (256, 128, 16), (128, 3, 32))

# The example "dcgan" of torch: 4x4 with stride 2 and padding 1 in generator and discriminator, as
# (channels, filters, input size); the generator begins with 4x4 on a single pixel of noise.
GENERATOR = ((512, 256, 4), (256, 128, 8), (128, 64, 16), (64, 3, 32))
DISCRIMINATOR = ((3, 64, 64), (64, 128, 32), (128, 256, 16), (256, 512, 8))
NOISE = (100, 512, 4)  # channels, filters, taps

# Kirillov et al., "Segment Anything" (2023), appendix A: the mask decoder's 2x2 with stride 2, as
# (channels, filters, input size).
SEGMENT_ANYTHING = ((256, 64, 64), (64, 32, 128))

# Sandler et al., "MobileNetV2" (2018), table 2: (channels, input size) of depthwise 3x3 with
# stride 2.
MOBILENET_STRIDED = ((96, 112), (144, 56), (192, 28), (576, 14))

# He et al., "Deep Residual Learning for Image Recognition" (2016), table 1: (channels, filters,
# taps, input size) with stride 2. ResNet-50 is that of v1.5.
RESNET_STRIDED = {
    "ResNet-18": ((64, 128, 3, 56), (128, 256, 3, 28), (256, 512, 3, 14)),
    "ResNet-50": (
        (3, 64, 7, 224),
        (128, 128, 3, 56),
        (256, 256, 3, 28),
        (512, 512, 3, 14),
        (256, 512, 1, 56),
        (512, 1024, 1, 28),
        (1024, 2048, 1, 14),
    ),
}


MIXED = "mixed"  # operator of a run whose layers have operators of their own


class Row(NamedTuple):
    """A layer with the operator to compute of it; a name says the model, too."""

    operator: str
    name: str
    case: Case


Rows = Iterator[Row]


def transposed() -> Layers:
    """The transposed convolutions of U-Net, DCGAN, Segment Anything and HiFi-GAN V1."""
    for network in (unet, dcgan, segment_anything):
        yield from network()
    yield from vocoder("V1")


def unet() -> Layers:
    """The 2x2 of U-Net."""
    for channels, size in UNET:
        yield rise(channels, channels // 2, (size, size), 2, 2)


def dcgan() -> Layers:
    """The 5x5 of DCGAN's generator."""
    for channels, filters, size in DCGAN:
        yield rise(channels, filters, (size, size), 5, 2, pad=2, added=1)


def segment_anything() -> Layers:
    """The 2x2 of Segment Anything."""
    for channels, filters, size in SEGMENT_ANYTHING:
        yield rise(channels, filters, (size, size), 2, 2)


def vocoder(version: str) -> Layers:
    """The transposed convolutions of HiFi-GAN."""
    channels, rises, _ = HIFI_GAN[version]
    frames = MEL_FRAMES
    for taps, stride in rises:
        yield rise(channels, channels // 2, (frames,), taps, stride, pad=(taps - stride) // 2)
        channels, frames = channels // 2, frames * stride


def row(model: str, operator: str, found: Layer) -> Row:
    """A row such as "MobileNetV2: dgrad 3x3/2 dw 96 @112"; that of fprop names no operator."""
    name, case = found
    words = "" if operator == "fprop" else f"{operator} "
    return Row(operator, f"{model}: {words}{name}", case)


def hifi_gan() -> Rows:
    """HiFi-GAN V1 to V3: first layer, transposed convolutions, dilated blocks, last layer."""
    for version, (first, _, blocks) in HIFI_GAN.items():
        model = f"HiFi-GAN {version}"
        yield row(model, "fprop", layer(MEL_CHANNELS, first, (MEL_FRAMES,), 7))
        for name, case in vocoder(version):
            yield row(model, "transposed", (name, case))
            for taps, dilations in blocks:
                for dilation in dilations:
                    dilated = layer(case.C, case.C, case.size, taps, dilation=dilation)
                    yield row(model, "fprop", dilated)
        yield row(model, "fprop", layer(case.C, 1, case.size, 7))


def demucs() -> Rows:
    """Demucs for music and for speech: decoders, encoders and their input gradients."""
    for model, (mixture, first, depth, result, frames) in DEMUCS.items():
        widths = [first * 2**level for level in range(depth)]
        lengths = [frames]
        for channels, filters in pairwise([*reversed(widths), result]):
            decoder = rise(channels, filters, (lengths[-1],), 8, 4)
            yield row(model, "transposed", decoder)
            lengths += decoder[1].size
        inputs = reversed(lengths[1:])
        for (channels, filters), samples in zip(pairwise([mixture, *widths]), inputs, strict=True):
            encoder = layer(channels, filters, (samples,), 8, 4, pad=0)
            yield row(model, "fprop", encoder)
            yield row(model, "dgrad", encoder)


def conv_tasnet() -> Rows:
    """Encoder of Conv-TasNet, its input gradient, and decoder."""
    filters, taps, stride, samples = CONV_TASNET
    encoder = layer(1, filters, (samples,), taps, stride, pad=0)
    yield row("Conv-TasNet", "fprop", encoder)
    yield row("Conv-TasNet", "dgrad", encoder)
    frames = encoder[1].output
    yield row("Conv-TasNet", "transposed", rise(filters, 1, frames, taps, stride))


def fourier() -> Rows:
    """Short-time Fourier transforms and their inverses."""
    for model, (taps, hop, frames) in FOURIER.items():
        inverse = rise(taps + 2, 1, (frames,), taps, hop)
        samples = inverse[1].size
        yield row(model, "fprop", layer(1, taps + 2, samples, taps, hop, pad=0))
        yield row(model, "transposed", inverse)


def images() -> Rows:
    """Transposed convolutions of U-Net, DCGAN and Segment Anything; gradients of DCGAN's
    discriminator, MobileNetV2 and ResNet.
    """
    for model, network in (("U-Net", unet), ("DCGAN", dcgan), ("SAM", segment_anything)):
        yield from (row(model, "transposed", each) for each in network())
    channels, filters, taps = NOISE
    yield row("DCGAN of torch", "transposed", rise(channels, filters, (1, 1), taps, 1))
    for channels, filters, size in GENERATOR:
        yield row("DCGAN of torch", "transposed", rise(channels, filters, (size, size), 4, 2, 1))
    for channels, filters, size in DISCRIMINATOR:
        yield row("DCGAN of torch", "dgrad", layer(channels, filters, size, 4, 2, pad=1))
    strided = [layer(3, 32, 224, 3, 2), *(depthwise(*each, stride=2) for each in MOBILENET_STRIDED)]
    for operator in ("dgrad", "wgrad"):
        yield from (row("MobileNetV2", operator, each) for each in strided)
    for model, shapes in RESNET_STRIDED.items():
        for channels, filters, taps, size in shapes:
            yield row(model, "dgrad", layer(channels, filters, size, taps, 2))


def volumes() -> Rows:
    """Transposed convolutions of 3D U-Net and nnU-Net, and input gradients of nnU-Net."""
    for channels, size in UNET3D:
        yield row("3D U-Net", "transposed", rise(channels, channels, size, 2, 2))
    for channels, filters, extent in NNUNET:
        half = (extent // 2,) * 3
        yield row("nnU-Net", "transposed", rise(filters, channels, half, 2, 2))
        yield row("nnU-Net", "dgrad", layer(channels, filters, (extent,) * 3, 3, 2))


def audio() -> Rows:
    """HiFi-GAN, Demucs, Conv-TasNet and short-time Fourier transforms."""
    for network in (hifi_gan, demucs, conv_tasnet, fourier):
        yield from network()


def upsampling() -> Rows:
    """All transposed convolutions and strided gradients of signals, images and volumes."""
    for network in (audio, images, volumes):
        yield from (each for each in network() if each.operator != "fprop")


SUITES: dict[str, Callable[[], Rows]] = {"audio": audio, "upsampling": upsampling}


def layers(suite: str) -> Layers:
    """The names and cases of a suite of this module."""
    return ((each.name, each.case) for each in SUITES[suite]())


def operators(suite: str) -> dict[str, str]:
    """Names of the layers of a suite of this module, and their operators; else nothing."""
    return {each.name: each.operator for each in SUITES[suite]()} if suite in SUITES else {}
