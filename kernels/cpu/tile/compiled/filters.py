"""The strides of a plain filter: where its rows begin, and which of its elements are contiguous."""

from __future__ import annotations

from implicit_conv.kernels.cpu.runtime.call import Call
from implicit_conv.kernels.geometry import Geometry


def row_offset(call: Call, g: Geometry, j: int) -> int:
    """Byte offset of filter row j."""
    return j // g.R * call.w.t + j % g.R * call.w.r


def lowest_tap(call: Call, g: Geometry) -> int:
    """Byte offset of the tap with the lowest address; strides of flipped taps are negative."""
    t, r, s = (g.T - 1) * call.w.t, (g.R - 1) * call.w.r, (g.S - 1) * call.w.s
    return min(0, t) + min(0, r) + min(0, s)


def tap_span(call: Call, g: Geometry, size: int) -> int:
    """Elements of `size` bytes from the tap with the lowest address to that with the highest."""
    t, r, s = (g.T - 1) * call.w.t, (g.R - 1) * call.w.r, (g.S - 1) * call.w.s
    return (abs(t) + abs(r) + abs(s)) // size + 1


def lowest_tap_of_row(call: Call, g: Geometry) -> int:
    """Byte offset of the tap of a filter row with the lowest address, from that of its first."""
    return min(0, (g.S - 1) * call.w.s)


def row_span(call: Call, g: Geometry, size: int) -> int:
    """Elements of `size` bytes among which the taps of a filter row are."""
    return (g.S - 1) * abs(call.w.s) // size + 1


def taps_follow(call: Call, g: Geometry, size: int) -> bool:
    """Whether the taps of a filter, elements of `size` bytes, are contiguous."""
    row = g.S * size
    return (
        (g.S == 1 or call.w.s == size)
        and (g.R == 1 or call.w.r == row)
        and (g.T == 1 or call.w.t == g.R * row)
    )
