"""Call: what a launch passes to CPU kernels besides the Geometry, as int64 fields of a params blob.

A launch passes a single blob, ``[next item, *Call, *Geometry]``, like the params blob of a GPU
kernel: arrays arrive as addresses and byte strides, and every thread fetches its items from the
first word.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from implicit_conv.kernels.geometry import Geometry


class Call(NamedTuple):
    """Addresses, byte strides and the division of the work of one launch, grouped by their owner.

    The record that compiled code sees has the same fields, without levels: a field is one load at a
    fixed offset, and every caller fills in the few fields that its method uses.
    """

    # Addresses of arrays.
    x: int
    w: int  # the caller's filter, if panels are packed in the launch; 1 before a call, 0 without
    panels: int
    bias: int  # initial sums, as whole panels
    scale: int  # a factor for each filter, and what is added to its products
    shift: int
    residual: int
    y: int
    scratch: int  # scratch of all threads; before a call, its size in bytes
    kernels: int  # the kernel table
    activation: int  # (kind, low, high) as float64
    record: int  # debug build: [count, capacity, then the fields of each load]
    zeros: int  # a panel of zeros
    crowd: int  # how many threads run, and how many CPUs there are; see entry.py

    # Byte strides of arrays.
    x_n: int
    x_d: int
    x_h: int
    x_w: int
    x_c: int
    x_apart: int  # of the pixels of a row that vector loads of planes accept
    load_tile: int  # slot of the part that loads tiles of such an array
    x_element: int  # of elements of x, which are channels or pairs of channels
    x_tap: int  # windows: of the pixels of x, since x_w is that of windows
    w_k: int
    w_c: int
    w_t: int
    w_r: int
    w_s: int
    pack_block: int  # GEMM: slot of the part that packs such a filter
    y_n: int
    y_z: int
    y_p: int
    y_q: int
    y_k: int
    residual_n: int
    residual_z: int
    residual_p: int
    residual_q: int
    residual_k: int
    panel_group: int  # of the panels of a group
    bias_panel: int  # of the initial sums of a panel; 0 if all panels share them
    bias_pixel: int  # of the initial sums of a pixel; 0 if all pixels share them

    # Elements, and the division of the work.
    itemsize: int  # bytes of a sum
    scale_bytes: int  # bytes of a scale
    lanes: int  # elements of a vector
    channels: int  # channels of x; a Geometry may count pairs of them
    before: int  # windows: pixels of padding before a row, and pixels of a row
    columns: int
    p_end: int  # rows and columns of the output; a Geometry may be rounded up for Winograd
    q_end: int
    chain: int  # elements whose products one chain adds up at most
    items: int  # work items of the launch
    chunk: int  # filter panels of a work item
    in_place: int  # 1: x is read in place, without buffers
    flushes: int  # 1: subnormals are treated as zeros
    heads: int  # 1: panels have heads, which need the products of all taps

    # Stores.
    staged: int  # 1: every panel goes through the staging tile; 0: only panels that do not fit y
    rounds: int  # 1: y is narrower than the sums, and microkernels may round to it
    clamps: int  # 1: the activation is a clamp, and no residual is added before it
    row_axis: int  # the contiguous axis of y: see epilogue.py
    finish: int  # slot of the part that finishes sums
    spread: int  # slot of the part that spreads a row of pixels into y
    adds_first: int  # 1: the residual has another contiguous axis than y, and is added before that

    # Parts of a thread's scratch, as offsets in bytes; the buffers are at offset 0.
    scratch_bytes: int  # size of a thread's scratch
    unloaded: int  # size of the row buffers, if vectors read what no load writes; else 0
    staging: int  # the staging tile
    runs: int  # the run table, or the tap tables of depthwise
    packing: int  # what packing needs
    panel: int  # a panel that is packed just before it is used
    boxes: int  # Winograd: U, the transformed input
    products: int  # Winograd: M, the products
    transformed: int  # Winograd: V, a panel that is transformed just before it is used
    loads: int  # planes and pixel lanes: the table of loads
    tail: int  # long rows: the last pixels, and their sums

    # Winograd.
    winograd: int  # outputs of a box along an axis; 0 for other methods

    # Depthwise, and groups of a few channels.
    group_channels: int  # channels of a group; 1 for depthwise
    row_kernels: int  # 1: microkernels take one filter row per step
    pieces: int  # in place: address of the table of the segments of a row

    # Pixel lanes.
    views: int  # address of the table of views
    filters_together: int  # 1: filters are contiguous in the output, as in NHWC
    long_rows: int  # 1: all pixels of a tile form one row
    plane: int  # long rows: bytes of that row
    tail_pixels: int  # long rows: pixels beyond whole vectors that dot products compute, at most
    waiting_filters: int  # long rows: filters of the staging tile

    # Channel lanes, and the tails of long rows.
    tile_filters: int  # filters of a register tile

    # Weight gradients. Their strides are those of x, dy (y_*) and dw (w_*), and their addresses
    # those of a launch: x, its second operand dy at `w`, and its result dw at `y`. Partial sums are
    # at `panels`.
    parts: int  # ranges of load tiles that are summed apart
    part_tiles: int  # load tiles of a part
    part_items: int  # work items of a part
    item_sums: int  # bytes of the sums of a work item
    panel_sums: int  # bytes of the sums of a panel
    panel_bytes: int  # bytes of a panel of dy
    levels: int  # levels of sums
    joined: int  # 1: the columns of a filter row are rows of one matrix
    taps_inside: int  # 1: sums are [channel][tap], as in dw; 0: [tap][channel]
    dy_in_place: int  # 1: whole panels of dy are read in place
    direct: int  # 1: sums of whole panels are stored into dw itself
    unpadded: int  # 1: 1x1 filters without padding, so that x is loaded like dy


def _record(fields: Iterable[str]) -> "np.dtype[Any]":
    return np.dtype([(name, np.int64) for name in fields])


WORD = 8  # bytes of a word of the blob
# Indices of the blob's words that the host writes for each call, or reads; word 0 counts items.
X, W, PANELS, BIAS, SCALE, SHIFT, RESIDUAL, Y, SCRATCH, CROWD, FLUSHES = (
    1 + Call._fields.index(name)
    for name in (
        "x",
        "w",
        "panels",
        "bias",
        "scale",
        "shift",
        "residual",
        "y",
        "scratch",
        "crowd",
        "flushes",
    )
)

# The record that compiled code gets a pointer to, with fields by name like those of a NamedTuple.
BLOB = np.dtype(
    [("item", np.int64), ("call", _record(Call._fields)), ("geometry", _record(Geometry._fields))]
)


def blob_of(call: Call, geometry: Geometry) -> "np.ndarray[Any, np.dtype[np.int64]]":
    """The params blob of one launch, with one int64 word for each field."""
    return np.array([0, *call, *geometry], np.int64)
