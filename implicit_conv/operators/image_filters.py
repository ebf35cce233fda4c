"""For doors: filters of images, whose sums over windows have a fixed order."""

from implicit_conv.cpu.engines.image_filters import (
    CONSTANT,
    Format,
    ImageLaunch,
    Order,
    Pass,
    launch_of,
)

__all__ = ["CONSTANT", "Format", "ImageLaunch", "Order", "Pass", "launch_of"]
