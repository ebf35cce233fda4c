"""Addresses of elements of dy and dw.

A launch has the address of dy as that of a filter, and its strides as those of the output; it has
the strides of dw as those of a filter, and its address as that of the output.
"""

from __future__ import annotations

from implicit_conv.kernels import schedule
from implicit_conv.kernels.cpu.runtime.call import Call
from implicit_conv.kernels.cpu.tile.compiled.filters import row_offset
from implicit_conv.kernels.geometry import Geometry, Place


def dy_address(call: Call, g: Geometry, origin: Place, k: int) -> int:
    """Address of filter k, counted over all groups, of the first pixel of a tile in dy."""
    n, p, q = origin
    plane = schedule.plane_offset(g, n, call.y.n, call.y.z)
    return call.w.address + plane + p * call.y.p + q * call.y.q + k * call.y.k


def dw_address(call: Call, g: Geometry, k: int, c: int, tap: int) -> int:
    """Address of the element of dw of filter k, channel c and this tap."""
    row = row_offset(call, g, tap // g.S)
    return call.y.address + k * call.w.k + c * call.w.c + row + tap % g.S * call.w.s
