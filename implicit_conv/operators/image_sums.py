"""For doors: sums over taps of an image in the order of a plain loop, in float64 or float32."""

from implicit_conv.cpu.engines.image_sums import (
    BLOCK_BYTES,
    Order,
    Sum,
    aligned_bytes,
    correlate,
    mean,
    room,
)

__all__ = ["BLOCK_BYTES", "Order", "Sum", "aligned_bytes", "correlate", "mean", "room"]
