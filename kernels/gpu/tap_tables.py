"""View tables of an im2col::w stage: offsets of filter taps, loads of phase buffers.

Tables in shared memory, written once per block, keep the formulas of the schedule out of the loops.
The first table has the byte offset of each tap; the second has the halo, w_offset and byte offset
in a stage of each phase buffer.
"""

from __future__ import annotations

from implicit_conv.kernels.geometry import Geometry
from implicit_conv.kernels.gpu import smem
from implicit_conv.kernels.gpu.call import Call
from implicit_conv.kernels.gpu.integer import divide
from implicit_conv.kernels.gpu.ptx import device
from implicit_conv.kernels.gpu.sizes import TAP_ENTRY_BYTES


@device
def base_shift(g: Geometry, call: Call, b: int) -> int:
    """schedule.base_shift of the W axis."""
    first = b * g.dilation_w
    return divide(first, call.by_step) * (first <= g.w_offset_max)


@device
def tap_shift(g: Geometry, call: Call, s: int) -> tuple[int, int]:
    """(phase buffer, row shift) of filter column s: schedule.tap_view."""
    b = s - divide(s, call.by_phases) * g.phases_w
    return b, divide(s * g.dilation_w, call.by_step) - base_shift(g, call, b)


@device
def write(g: Geometry, call: Call, table: int, row_bytes: int) -> None:
    """Write the tables of a block, by one warp and before the block synchronises."""
    for s in range(g.S):
        buffer, shift = tap_shift(g, call, s)
        at = buffer * call.a_buffer + shift * row_bytes
        smem.store_quad(table + TAP_ENTRY_BYTES * s, (at, 0, 0, 0))
    for b in range(g.phases_w):
        last = b + divide(g.S - 1 - b, call.by_phases) * g.phases_w
        _, halo = tap_shift(g, call, last)
        first = b * g.dilation_w
        phase = first - divide(first, call.by_step) * g.step_w
        offset = phase + g.step_w * base_shift(g, call, b)
        words = halo, offset, b * call.a_buffer, 0
        smem.store_quad(table + TAP_ENTRY_BYTES * (g.S + b), words)


@device
def tap_offset(table: int, s: int) -> int:
    """Bytes from a stage's first row to the first row that filter column s reads."""
    at, _, _, _ = smem.load16(table + TAP_ENTRY_BYTES * s)
    return at


@device
def buffer_load(g: Geometry, table: int, b: int) -> tuple[int, int, int]:
    """(halo, w_offset, byte offset in a stage) of phase buffer b."""
    halo, offset, at, _ = smem.load16(table + TAP_ENTRY_BYTES * (g.S + b))
    return halo, offset, at
