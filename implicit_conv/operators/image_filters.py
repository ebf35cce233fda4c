"""For doors: filters of images, by sums over windows that have a fixed order, and by the order of
the elements of windows.
"""

from implicit_conv.cpu.engines.image_filters import CONSTANT, ImageLaunch, Order, launch_of
from implicit_conv.cpu.engines.image_passes import Format, Pass
from implicit_conv.cpu.engines.image_rows import Images
from implicit_conv.cpu.engines.rank_filters import extremes, ranks

__all__ = [
    "CONSTANT",
    "Format",
    "ImageLaunch",
    "Images",
    "Order",
    "Pass",
    "extremes",
    "launch_of",
    "ranks",
]
