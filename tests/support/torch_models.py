"""Small models of the kinds that `convert` is for, with batch norms that are no identity."""

import torch
from torch import nn
from torch.nn import functional


def evaluated(model, seed=0):
    """The model in eval mode, with random weights and statistics."""
    generator = torch.Generator().manual_seed(seed)
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.running_mean.normal_(0, 0.5, generator=generator)
            module.running_var.uniform_(0.3, 2.0, generator=generator)
            if module.affine:
                module.weight.data.uniform_(-1.5, 1.5, generator=generator)
                module.bias.data.normal_(0, 0.5, generator=generator)
    return model.eval().requires_grad_(False)


class Residual(nn.Module):
    """A block of ResNet."""

    def __init__(self, channels=16, stride=1, act=nn.ReLU):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, stride, 1, bias=False)
        self.norm1, self.act = nn.BatchNorm2d(channels), act()
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.norm2, self.shortcut = nn.BatchNorm2d(channels), None
        if stride > 1:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels, channels, 1, stride, bias=False), nn.BatchNorm2d(channels)
            )

    def forward(self, x):
        """The block of x."""
        y = self.norm2(self.conv2(self.act(self.norm1(self.conv1(x)))))
        y += x if self.shortcut is None else self.shortcut(x)
        return self.act(y)


def resnet():
    """A stem and blocks, of which the activations write in place."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 7, 2, 3, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2, 1),
        Residual(act=lambda: nn.ReLU(inplace=True)),
        Residual(stride=2, act=lambda: nn.ReLU(inplace=True)),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(16, 5),
    )


class Inverted(nn.Module):
    """A block of MobileNetV2, whose residual has no activation."""

    def __init__(self, channels=8, act=nn.ReLU6):
        super().__init__()
        wide = 3 * channels
        self.layers = nn.Sequential(
            nn.Conv2d(channels, wide, 1, bias=False),
            nn.BatchNorm2d(wide),
            act(),
            nn.Conv2d(wide, wide, 3, 1, 1, groups=wide, bias=False),
            nn.BatchNorm2d(wide),
            act(),
            nn.Conv2d(wide, channels, 1, bias=False),
            nn.BatchNorm2d(channels, affine=False),
        )

    def forward(self, x):
        """The block of x."""
        return x + self.layers(x)


class Gate(nn.Module):
    """Squeeze and excitation: a product that broadcasts, and a residual that does."""

    def __init__(self, channels=8):
        super().__init__()
        self.reduce, self.expand = nn.Conv2d(channels, 4, 1), nn.Conv2d(4, channels, 1)
        self.mix = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x):
        """The gated image, and one vector of a channel that is added to all pixels."""
        means = x.mean((2, 3), keepdim=True)
        gates = torch.sigmoid(self.expand(functional.silu(self.reduce(means))))
        return functional.gelu(self.mix(x * gates) + means)


class Turned(nn.Module):
    """A residual with other strides than those of the sum."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(8, 8, 3, padding=1)

    def forward(self, x):
        """The convolution and the turned image."""
        return self.conv(x) + x.transpose(2, 3)


class Untraceable(nn.Module):
    """Its own forward depends on values, but its blocks can be traced."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Inverted(), Residual(8, act=nn.SiLU)])

    def forward(self, x):
        """As many blocks as the values ask for."""
        for block in self.blocks:
            if x.abs().max() > 0:
                x = block(x)
        return x


class Twice(nn.Module):
    """A module that is called twice, and one weight in two convolutions."""

    def __init__(self):
        super().__init__()
        self.conv, self.other = nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.other.weight = self.conv.weight
        self.norm, self.last = nn.BatchNorm2d(8), nn.BatchNorm2d(8)

    def forward(self, x):
        """Both convolutions, the first with each norm."""
        y = torch.relu(self.norm(self.conv(x)))
        z = functional.leaky_relu(self.last(self.conv(y)), 0.2)
        return self.other(z).tanh(), z


class Upsampling(nn.Module):
    """Transposed convolutions, with groups, and what pads with other things than zeros."""

    def __init__(self):
        super().__init__()
        self.up = nn.ConvTranspose2d(8, 16, 4, 2, 1, groups=2)
        self.norm = nn.BatchNorm2d(16)
        self.out = nn.Conv2d(16, 8, 3, padding=1, padding_mode="reflect")
        self.same = nn.Conv2d(8, 8, (2, 4), padding="same")

    def forward(self, x):
        """An image twice as large."""
        return self.same(functional.hardswish(self.out(functional.relu6(self.norm(self.up(x))))))


def sequence():
    """Signals and their activations."""
    return nn.Sequential(
        nn.Conv1d(6, 12, 5, padding=2, dilation=1, bias=False),
        nn.BatchNorm1d(12),
        nn.GELU(),
        nn.Dropout(0.3),
        nn.ConvTranspose1d(12, 6, 4, 2, 1),
        nn.BatchNorm1d(6),
        nn.LeakyReLU(0.1),
        nn.Conv1d(6, 6, 3),
        nn.GELU("tanh"),
    )


def volume():
    """Volumes."""
    return nn.Sequential(
        nn.Conv3d(2, 8, 3, padding=1, bias=False),
        nn.BatchNorm3d(8),
        nn.Hardtanh(-0.5, 0.7),
        nn.Identity(),
        nn.Conv3d(8, 4, 2, 2),
        nn.Sigmoid(),
    )


MODELS = {  # the model, the shape of its input, and the number of convolutions in programs
    "resnet": (resnet, (2, 3, 32, 32), 6),
    "inverted": (Inverted, (1, 8, 14, 14), 3),
    "hardswish": (lambda: Inverted(act=nn.Hardswish), (1, 8, 9, 9), 3),
    "gate": (Gate, (2, 8, 9, 9), 3),
    "turned": (Turned, (1, 8, 9, 9), 1),
    "untraceable": (Untraceable, (1, 8, 8, 8), 5),
    "twice": (Twice, (1, 8, 12, 12), 3),
    "upsampling": (Upsampling, (1, 8, 7, 7), 3),
    "sequence": (sequence, (2, 6, 20), 3),
    "volume": (volume, (1, 2, 6, 6, 6), 2),
    "one": (lambda: nn.Conv2d(8, 8, 3), (1, 8, 8, 8), 1),
}
