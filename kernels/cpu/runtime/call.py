"""Call: what one launch tells the CPU kernels besides the Geometry, as int64 fields of one params
blob.

A launch passes a single blob, ``[next item, *Call, *Geometry]``, like the params blob of a GPU
kernel: arrays arrive as addresses and byte strides, and every thread takes its items from the first
word.
"""

from typing import NamedTuple

import numpy as np

from implicit_conv.kernels.geometry import Geometry


class Call(NamedTuple):
    """Addresses, byte strides and the division of the work of one launch."""

    x: int
    w: int  # the caller's filter, where panels are packed (1 before a call); 0 where they come so
    panels: int
    bias: int  # whole panels of initial sums
    residual: int
    y: int
    scratch: int  # its bytes, all threads', before a call
    kernels: int  # table of microkernel addresses
    activation: int  # address of (kind, low, high) as float64
    record: int  # debug build: [count, capacity, then RECORD_FIELDS words a load]
    x_n: int
    x_h: int
    x_w: int
    x_c: int
    x_apart: int  # between pixels of a row, where vector loads of planes take them
    x_element: int  # between elements of x: channels, or pairs of them
    w_k: int
    w_c: int
    w_r: int
    w_s: int
    y_n: int
    y_p: int
    y_q: int
    y_k: int
    residual_n: int
    residual_p: int
    residual_q: int
    residual_k: int
    panel_group: int  # bytes of one group's panels
    bias_panel: int  # bytes between the initial sums of two panels; 0 where all are the same
    bias_pixel: int  # bytes between those of two pixels; 0 where they share them
    itemsize: int  # bytes of an element
    lanes: int  # elements of a vector
    items: int  # work items of the launch
    chunk: int  # filter panels of one item
    in_place: int  # 1: read x where it lies
    staged: int  # 1: every panel goes through the staging tile; 0: only what does not fit y does
    flushes: int  # 1: subnormal numbers count as zeros
    rounds: int  # 1: y is narrower than the sums, and the microkernel may round to it
    clamps: int  # 1: the activation is a clamp, and nothing is added before it
    row_axis: int  # what lies one behind the other in y: see epilogue.py
    finish: int  # slot of the part that finishes sums
    adds_first: int  # 1: the residual lies otherwise than y, and is added before that part
    zeros: int  # address of a panel of zeros
    views: int  # address of pixel lanes' table of views
    channels: int  # of x; a Geometry may count pairs of them
    p_end: int  # outputs that exist; a Geometry may be rounded up to whole Winograd boxes
    q_end: int
    filters_together: int  # 1: pixel lanes are written filters by filters, as in NHWC
    long_rows: int  # 1: all pixels of a tile are one row of pixel lanes
    plane: int  # bytes of that row
    tail_pixels: int  # of it, beyond whole vectors, that dot products take at most
    waiting_filters: int  # of its staging tile
    tile_filters: int  # of a register tile whose lanes are channels
    group_channels: int  # of a group whose lanes are in one vector: 1 for depthwise
    row_kernels: int  # 1: depthwise kernels exist that take a filter row at once
    pieces: int  # address of the table of pieces of a row that these take where x lies
    winograd: int  # outputs of a Winograd box along an axis, 0 without
    scratch_bytes: int  # of one thread
    staging: int  # offset of the staging tile in a thread's scratch; the buffers come first
    runs: int  # offset of the run table
    panel: int  # offset of a panel that is packed just before it is used
    packing: int  # offset of what packing needs
    boxes: int  # offset of transformed boxes
    products: int  # offset of their products with the filters of a panel
    transformed: int  # offset of a panel that is transformed just before it is used
    loads: int  # offset of a table of loads
    tail: int  # offset of the last pixels of a long row


def _record(fields):
    return np.dtype([(name, np.int64) for name in fields])


WORD = 8  # bytes
# Words of the blob that the host fills in for a call, or reads; the first word counts items.
X, W, PANELS, BIAS, RESIDUAL, Y, SCRATCH, FLUSHES = (
    1 + Call._fields.index(name)
    for name in ("x", "w", "panels", "bias", "residual", "y", "scratch", "flushes")
)

# What compiled code sees: a pointer to this record, its fields read by name as of a namedtuple.
BLOB = np.dtype(
    [("item", np.int64), ("call", _record(Call._fields)), ("geometry", _record(Geometry._fields))]
)


def blob_of(call, geometry):
    """The params blob of one launch: one int64 word a field."""
    return np.array([0, *call, *geometry], np.int64)
