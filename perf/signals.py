"""Networks of signals and of volumes."""

from __future__ import annotations

from perf.shapes import Layers, layer

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


def wavenet() -> Layers:
    """Dilated layers of WaveNet."""
    for dilation in WAVENET_DILATIONS:
        yield layer(64, 128, (SPEECH,), 2, pad=0, dilation=dilation)


def whisper() -> Layers:
    """The two convolutions of Whisper."""
    for channels, stride in WHISPER:
        yield layer(channels, 512, (3000,), 3, stride)


def wav2vec() -> Layers:
    """The convolutions of wav2vec 2.0."""
    channels, samples = 1, SPEECH
    for taps, stride in WAV2VEC:
        yield layer(channels, 512, (samples,), taps, stride, pad=0)
        channels, samples = 512, (samples - taps) // stride + 1
    yield layer(768, 768, (samples,), 128, groups=16)


def mamba() -> Layers:
    """The causal depthwise convolution of Mamba."""
    channels, taps, length = MAMBA
    yield layer(channels, channels, (length,), taps, pad=taps - 1, groups=channels)


def c3d() -> Layers:
    """The convolutions of C3D."""
    for channels, filters, depth, size in C3D:
        yield layer(channels, filters, (depth, size, size), 3)


def r2plus1d() -> Layers:
    """Pairs of R(2+1)D: in space, then in time."""
    for channels, between, depth, size in R2PLUS1D:
        yield layer(channels, between, (depth, size, size), (1, 3, 3))
        yield layer(between, channels, (depth, size, size), (3, 1, 1))


def unet3d() -> Layers:
    """The convolutions of 3D U-Net that keep their channels."""
    for channels, depth, size in UNET3D:
        yield layer(channels, channels, (depth, size, size), 3, pad=0)


def x3d() -> Layers:
    """The depthwise layers of X3D-M."""
    for channels, size in X3D:
        yield layer(channels, channels, (16, size, size), 3, groups=channels)


def conv1d() -> Layers:
    """The convolutions of WaveNet, Whisper, wav2vec 2.0 and Mamba."""
    for network in (wavenet, whisper, wav2vec, mamba):
        yield from network()


def conv3d() -> Layers:
    """The convolutions of C3D, R(2+1)D, 3D U-Net and X3D-M."""
    for network in (c3d, r2plus1d, unet3d, x3d):
        yield from network()
