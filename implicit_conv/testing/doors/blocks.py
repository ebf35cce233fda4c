"""What stands between the convolutions of random networks of torch, which keeps their channels."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

POOLS = ("maximum", "mean", "means")
NARROW = ("float16", "bfloat16")


class Gate(nn.Module):  # type: ignore[misc]  # torch has no types here
    """The product with a gate that is computed of the means of all pixels."""

    def __init__(self, rank: int, channels: int) -> None:
        super().__init__()
        self.pixels, self.conv = tuple(range(2, rank + 2)), _convolution(rank, channels, channels)

    def forward(self, x: Any) -> Any:
        """The product."""
        return x * torch.sigmoid(self.conv(x.mean(self.pixels, keepdim=True)))


class Diamond(nn.Module):  # type: ignore[misc]
    """A sum of two images, both behind activations."""

    def __init__(self, rank: int, channels: int) -> None:
        super().__init__()
        self.conv = _convolution(rank, channels, channels)

    def forward(self, x: Any) -> Any:
        """The sum."""
        return functional.silu(x) + torch.relu(self.conv(functional.silu(x)))


class Joint(nn.Module):  # type: ignore[misc]
    """Images that are joined along their channels, of which the first ones fill no vector."""

    def __init__(self, rank: int, channels: int) -> None:
        super().__init__()
        self.few = _convolution(rank, channels, 3)
        self.all = _convolution(rank, channels + 3, channels)

    def forward(self, x: Any) -> Any:
        """A convolution of all."""
        return self.all(torch.cat([self.few(x), x], 1))


class Parts(nn.Module):  # type: ignore[misc]
    """A convolution of some channels, and the others as they are."""

    def __init__(self, rank: int, channels: int) -> None:
        super().__init__()
        self.conv = _convolution(rank, channels // 2, channels // 2)

    def forward(self, x: Any) -> Any:
        """The parts in the other order, in which `split` has them too."""
        (a, b), rest = x.chunk(2, 1), x.shape[1] - 3
        few, others = torch.split(torch.cat([self.conv(b), a], 1), [3, rest], 1)
        return torch.cat([others, few], 1)


class Tokens(nn.Module):  # type: ignore[misc]
    """Linear layers of the channels of each pixel, and the sum, as transformers have them."""

    def __init__(self, rank: int, channels: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(channels, 24), nn.Linear(24, channels, bias=rank > 1)

    def forward(self, x: Any) -> Any:
        """The sum."""
        x = x.movedim(1, -1).contiguous()
        return (x + self.second(functional.gelu(self.first(x)))).movedim(-1, 1)


class Inverted(nn.Module):  # type: ignore[misc]
    """A block of MobileNet: more channels, a depthwise convolution, fewer channels, and the sum."""

    def __init__(self, rank: int, channels: int) -> None:
        super().__init__()
        many = 3 * channels
        kind = getattr(nn, f"Conv{rank}d")
        self.more, self.fewer = kind(channels, many, 1), kind(many, channels, 1)
        self.depthwise = kind(many, many, 3, padding=1, groups=many)

    def forward(self, x: Any) -> Any:
        """The sum."""
        y = self.depthwise(functional.hardtanh(self.more(x), 0, 6))
        return x + self.fewer(torch.relu(y))


def block(name: str, rank: int, channels: int, dtype: str) -> Any:
    """The module of a name in `BETWEEN` of the door. That of "shuffled" does nothing but to images
    of two axes.
    """
    if name == "mean" and rank == 3 and dtype in NARROW:  # torch has no such means
        name = "means"
    if name in POOLS:
        kind = {"maximum": "MaxPool", "mean": "AvgPool", "means": "AdaptiveAvgPool"}[name]
        stride = 1 if rank == 3 else 2  # torch takes no means of volumes smaller than a window
        options = {"means": (4,), "mean": (3, stride, 1, True, False), "maximum": (3, 1, 1)}[name]
        return getattr(nn, f"{kind}{rank}d")(*options)
    if name == "enlarged":
        factors = (2, 3, 1)[:rank]
        return nn.Sequential(
            nn.Upsample(scale_factor=factors), _convolution(rank, channels, channels, factors)
        )
    if name == "shuffled" and rank == 2:
        return nn.Sequential(
            nn.PixelShuffle(2),
            _convolution(rank, channels // 4, channels),
            nn.PixelUnshuffle(2),
            _convolution(rank, 4 * channels, channels),
        )
    kinds = {"gate": Gate, "diamond": Diamond, "joined": Joint, "parts": Parts}
    made = (kinds | {"tokens": Tokens, "inverted": Inverted}).get(name)
    return nn.Identity() if made is None else made(rank, channels)


def _convolution(rank: int, channels: int, filters: int, stride: Any = 1) -> Any:
    """A convolution that divides the pixels along an axis by its stride."""
    return getattr(nn, f"Conv{rank}d")(channels, filters, 3, stride, 1)
