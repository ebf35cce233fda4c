"""View tables of an im2col::w stage: offsets of filter taps, loads of phase buffers.

The formulas of the schedule divide, for which a GPU calls a subroutine. Tables in shared memory,
written once per block, keep divisions out of the loops. The first table has the byte offset of each
tap; the second has the halo, w_offset and byte offset in a stage of each phase buffer.
"""

from implicit_conv.kernels import schedule as plain_schedule
from implicit_conv.kernels.gpu import smem
from implicit_conv.kernels.gpu.ptx import device, device_module
from implicit_conv.kernels.gpu.sizes import VIEW_ENTRY_BYTES

schedule = device_module(plain_schedule)


@device
def write(g, call, table, row_bytes):
    """Write the tables of a block, by one warp and before the block synchronises."""
    for s in range(g.S):
        buffer, shift = schedule.tap_view(g, 1, s)
        at = buffer * call.a_buffer + shift * row_bytes
        smem.store16(table + VIEW_ENTRY_BYTES * s, at, 0, 0, 0)
    for b in range(g.phases_w):
        halo, offset = schedule.column_halo(g, b), schedule.column_offset(g, b)
        smem.store16(table + VIEW_ENTRY_BYTES * (g.S + b), halo, offset, b * call.a_buffer, 0)


@device
def tap_offset(table, s):
    """Bytes from a stage's first row to the first row that filter column s reads."""
    at, _, _, _ = smem.load16(table + VIEW_ENTRY_BYTES * s)
    return at


@device
def buffer_load(g, table, b):
    """(halo, w_offset, byte offset in a stage) of phase buffer b."""
    halo, offset, at, _ = smem.load16(table + VIEW_ENTRY_BYTES * (g.S + b))
    return halo, offset, at
