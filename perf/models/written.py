"""U-Net and the generator of HiFi-GAN as modules of torch, by the tables of their papers."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from perf.upsampling import HIFI_GAN, MEL_CHANNELS

UNET_CHANNELS = (1, 64, 128, 256, 512, 1024)  # of the image, and of each level of figure 1
UNET_CLASSES = 2
SLOPE = 0.1  # of HiFi-GAN's leaky ReLU


class UNet(nn.Module):  # type: ignore[misc]
    """Ronneberger et al., "U-Net" (2015), figure 1: 3x3 without padding, 2x2 maxima, 2x2 transposed
    convolutions, and the left half cropped to what it is joined with.
    """

    def __init__(self) -> None:
        super().__init__()
        levels = range(1, len(UNET_CHANNELS))
        self.down = nn.ModuleList(_pair(*UNET_CHANNELS[at - 1 : at + 1]) for at in levels)
        back = [UNET_CHANNELS[at - 1 : at + 1] for at in reversed(levels[1:])]
        self.rise = nn.ModuleList(nn.ConvTranspose2d(wide, thin, 2, 2) for thin, wide in back)
        self.up = nn.ModuleList(_pair(wide, thin) for thin, wide in back)
        self.last = nn.Conv2d(UNET_CHANNELS[1], UNET_CLASSES, 1)

    def forward(self, x: Any) -> Any:
        """Scores of the classes, of the pixels in the middle."""
        kept = list[Any]()
        for pair in self.down:
            x = pair(functional.max_pool2d(x, 2) if kept else x)
            kept.append(x)
        for rise, pair, left in zip(self.rise, self.up, kept[-2::-1], strict=True):
            x = rise(x)
            crop = (left.shape[-1] - x.shape[-1]) // 2
            x = pair(torch.cat([left[..., crop:-crop, crop:-crop], x], 1))
        return self.last(x)


def _pair(channels: int, filters: int) -> nn.Module:
    """Two 3x3, each with a ReLU."""
    return nn.Sequential(
        nn.Conv2d(channels, filters, 3), nn.ReLU(), nn.Conv2d(filters, filters, 3), nn.ReLU()
    )


class Generator(nn.Module):  # type: ignore[misc]
    """Kong et al., "HiFi-GAN" (2020), appendix A.1: the generator of a version; weights have no
    normalization, which is folded into them before use.
    """

    def __init__(self, version: str) -> None:
        super().__init__()
        channels, rises, blocks = HIFI_GAN[version]
        self.first = nn.Conv1d(MEL_CHANNELS, channels, 7, padding=3)
        self.rise, self.blocks = nn.ModuleList(), nn.ModuleList()
        for taps, stride in rises:
            channels //= 2
            padding = (taps - stride) // 2
            rise = nn.ConvTranspose1d(2 * channels, channels, taps, stride, padding)
            self.rise.append(rise)
            self.blocks.append(nn.ModuleList(Residual(channels, *each) for each in blocks))
        self.last = nn.Conv1d(channels, 1, 7, padding=3)

    def forward(self, x: Any) -> Any:
        """The signal of a mel spectrogram."""
        x = self.first(x)
        for rise, blocks in zip(self.rise, self.blocks, strict=True):
            x = rise(functional.leaky_relu(x, SLOPE))
            x = sum(block(x) for block in blocks) / len(blocks)
        return torch.tanh(self.last(functional.leaky_relu(x)))


class Residual(nn.Module):  # type: ignore[misc]
    """A block of HiFi-GAN: a dilated convolution, and one without dilation, are added thrice."""

    def __init__(self, channels: int, taps: int, dilations: tuple[int, ...]) -> None:
        super().__init__()

        def layer(dilation: int) -> nn.Module:
            padding = dilation * (taps - 1) // 2
            return nn.Conv1d(channels, channels, taps, padding=padding, dilation=dilation)

        self.dilated = nn.ModuleList(map(layer, dilations))
        self.plain = nn.ModuleList(layer(1) for _ in dilations)

    def forward(self, x: Any) -> Any:
        """x and what the block adds."""
        for dilated, plain in zip(self.dilated, self.plain, strict=True):
            y = dilated(functional.leaky_relu(x, SLOPE))
            x = x + plain(functional.leaky_relu(y, SLOPE))
        return x
