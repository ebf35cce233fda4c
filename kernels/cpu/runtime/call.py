"""Call: what a launch passes to CPU kernels besides the Geometry, as int64 fields of a params blob.

A launch passes a single blob, ``[next item, *Call, *Geometry]``, like the params blob of a GPU
kernel: arrays arrive as addresses and byte strides, and every thread fetches its items from the
first word.

The record that compiled code sees has the same fields in the same families: `call.x.n` is one load
at a fixed offset. Whoever prepares a launch gives the families that its method uses.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from implicit_conv.kernels.geometry import Geometry


class Input(NamedTuple):
    """x: its address, and byte strides."""

    address: int = 0
    n: int = 0
    d: int = 0
    h: int = 0
    w: int = 0
    c: int = 0
    element: int = 0  # of elements, which are channels or words of several channels
    apart: int = 0  # of the pixels of a row that vector loads of planes accept
    tap: int = 0  # windows: of pixels, since `w` is that of windows


class Filter(NamedTuple):
    """w: its address, which is 1 until a run sets it, and 0 where the launch reads no plain filter;
    byte strides.
    """

    address: int = 0
    k: int = 0
    c: int = 0
    t: int = 0
    r: int = 0
    s: int = 0


class Output(NamedTuple):
    """y, or the residual: its address, and byte strides."""

    address: int = 0
    n: int = 0
    z: int = 0
    p: int = 0
    q: int = 0
    k: int = 0


class Panels(NamedTuple):
    """Packed filters."""

    address: int = 0
    group: int = 0  # byte stride of the panels of a group


class Bias(NamedTuple):
    """Initial sums, as whole panels."""

    address: int = 0
    panel: int = 0  # byte stride of the initial sums of a panel; 0 if all panels share them
    pixel: int = 0  # byte stride of the initial sums of a pixel; 0 if all pixels share them


class Scale(NamedTuple):
    """A factor for each filter, and what is added to its products."""

    address: int = 0
    shift: int = 0  # the address of what is added
    bytes: int = 0  # of one of either


class Scratch(NamedTuple):
    """Scratch memory of all threads: its address, before a call its size in bytes; and the parts of
    a thread's, as offsets in bytes, of which those of the row buffers are 0.
    """

    address: int = 0
    bytes: int = 0  # of a thread
    unloaded: int = 0  # size of the row buffers, if vectors read what no load writes; else 0
    staging: int = 0  # the staging tile
    runs: int = 0  # the run table, or the tap tables of depthwise
    packing: int = 0  # what packing needs
    panel: int = 0  # a panel that is packed just before it is used
    boxes: int = 0  # Winograd: U, the transformed input
    products: int = 0  # Winograd: M, the products
    transformed: int = 0  # Winograd: V, a panel that is transformed just before it is used
    loads: int = 0  # of planes: the table of loads
    tail: int = 0  # long rows: the last pixels, and their sums


class Stores(NamedTuple):
    """How sums are finished and stored."""

    staged: int = 0  # 1: every panel goes through the staging tile; 0: only those that do not fit y
    rounds: int = 0  # 1: y is narrower than the sums, and microkernels may round to it
    streams: int = 0  # 1: microkernels store past the caches, where whole lines of y are sums
    fetches: int = 0  # 1: they fetch the lines of y before they compute what is stored there
    clamps: int = 0  # 1: the activation is a clamp, and no residual is added before it
    row_axis: int = 0  # the contiguous axis of y: see epilogue.py
    finish: int = 0  # slot of the part that finishes sums
    spread: int = 0  # slot of the part that spreads a row of pixels into y
    adds_first: int = 0  # 1: the residual has another contiguous axis than y, and is added first


class Windows(NamedTuple):
    """Windows of few channels."""

    before: int = 0  # pixels of padding before a row
    columns: int = 0  # pixels of a row


class Depthwise(NamedTuple):
    """Depthwise, and groups of a few channels."""

    row_kernels: int = 0  # 1: microkernels take one filter row per step
    rows: int = 1  # output rows of a register tile, where there are so many left
    pieces: int = 0  # in place: address of the table of the segments of a row


class PlanarGemm(NamedTuple):
    """Pixels as vector lanes."""

    views: int = 0  # address of the table of views
    filters_together: int = 0  # 1: filters are contiguous in the output, as in NHWC
    long_rows: int = 0  # 1: all pixels of a tile form one row
    plane: int = 0  # long rows: bytes of that row
    tail_pixels: int = 0  # long rows: pixels beyond whole vectors that dot products compute at most
    waiting_filters: int = 0  # long rows: filters of the staging tile
    keeps: int = 0  # long rows: 1: the first panel copies the pixels for the others


class Gradient(NamedTuple):
    """Weight gradients. Their strides are those of x, dy (y) and dw (w), and their addresses those
    of a launch: x, its second operand dy at `w`, and its result dw at `y`. Partial sums are at
    `panels`.
    """

    parts: int = 0  # ranges of load tiles that are summed apart
    part_tiles: int = 0  # load tiles of a part
    part_items: int = 0  # work items of a part
    item_sums: int = 0  # bytes of the sums of a work item
    panel_sums: int = 0  # bytes of the sums of a panel
    panel_bytes: int = 0  # bytes of a panel of dy
    levels: int = 0  # levels of sums
    joined: int = 0  # 1: the columns of a filter row are rows of one matrix
    taps_inside: int = 0  # 1: sums are [channel][tap], as in dw; 0: [tap][channel]
    dy_in_place: int = 0  # 1: whole panels of dy are read in place
    direct: int = 0  # 1: sums of whole panels are stored into dw itself
    unpadded: int = 0  # 1: 1x1 filters without padding, so that x is loaded like dy


class Call(NamedTuple):
    """Arrays, memory and the division of the work of one launch."""

    x: Input = Input()
    w: Filter = Filter()
    y: Output = Output()
    residual: Output = Output()
    panels: Panels = Panels()
    bias: Bias = Bias()
    scale: Scale = Scale()
    scratch: Scratch = Scratch()

    # Addresses.
    kernels: int = 0  # the kernel table
    activation: int = 0  # (kind, low, high) as float64
    record: int = 0  # debug build: [count, capacity, then the fields of each load]
    zeros: int = 0  # a panel of zeros
    image: int = 0  # what items of filters of images read: see images/layout.py
    thread_counts: int = 0  # how many threads run, and how many CPUs there are; see entry.py

    # Elements, and the division of the work.
    itemsize: int = 0  # bytes of a sum
    lanes: int = 0  # elements of a vector
    channels: int = 0  # channels of x; a Geometry may count words of them
    group_channels: int = 0  # channels of a group; 1 for depthwise
    p_end: int = 0  # rows and columns of the output; a Geometry may be rounded up for Winograd
    q_end: int = 0
    chain: int = 0  # elements whose products one chain adds up at most
    items: int = 0  # work items of the launch
    chunk: int = 0  # filter panels of a work item
    in_place: int = 0  # 1: x is read in place, without buffers
    flushes: int = 0  # 1: subnormals are treated as zeros
    heads: int = 0  # 1: panels have heads, which need the products of all taps
    winograd: int = 0  # outputs of a box along an axis; 0 for other methods
    tile_filters: int = 0  # few outputs, and the tails of long rows: filters of a register tile
    load_tile: int = 0  # slot of the part that loads tiles of such an x
    pack_block: int = 0  # slot of the part that packs such a filter

    stores: Stores = Stores()
    windows: Windows = Windows()
    depthwise: Depthwise = Depthwise()
    planar_gemm: PlanarGemm = PlanarGemm()
    gradient: Gradient = Gradient()


def _names(fields: Any, prefix: str = "") -> list[str]:
    """The names of all numbers of nested families, such as "x.address"."""
    found: list[str] = []
    for name, value in zip(fields._fields, fields, strict=True):
        own = prefix + name
        found += _names(value, f"{own}.") if isinstance(value, tuple) else [own]
    return found


def record_of(fields: Any) -> np.dtype[Any]:
    """The record with the fields of nested families."""
    return np.dtype(
        [
            (name, record_of(value) if isinstance(value, tuple) else np.int64)
            for name, value in zip(fields._fields, fields, strict=True)
        ]
    )


WORD = 8  # bytes of a word of the blob
# Indices of the blob's words that the host writes for each call, or reads; word 0 counts items.
WORDS = ["item", *_names(Call())]
X, W, Y, PANELS, BIAS, SCALE, SHIFT, RESIDUAL, SCRATCH, THREAD_COUNTS, FLUSHES = map(
    WORDS.index,
    (
        *("x.address", "w.address", "y.address", "panels.address", "bias.address"),
        *("scale.address", "scale.shift", "residual.address", "scratch.address"),
        *("thread_counts", "flushes"),
    ),
)

# The record that compiled code gets a pointer to.
_GEOMETRY = np.dtype([(name, np.int64) for name in Geometry._fields])
BLOB = np.dtype([("item", np.int64), ("call", record_of(Call())), ("geometry", _GEOMETRY)])


# The first fields of a Call are families, as are its last ones; those between are numbers.
_FAMILIES = [isinstance(default, tuple) for default in Call()]
FIRST, LAST = _FAMILIES.index(False), -_FAMILIES[::-1].index(False)
SCRATCH_FAMILY, COUNTS_FIELD = map(Call._fields.index, ("scratch", "thread_counts"))
_WORDS = struct.Struct(f"={len(WORDS) + len(Geometry._fields)}q")


def blob_of(call: Sequence[Any], geometry: Geometry) -> np.ndarray[Any, np.dtype[np.int64]]:
    """The params blob of one launch, with one int64 word for each number. The families of a call
    may be any tuples of their numbers.
    """
    numbers = chain(*call[:FIRST], call[FIRST:LAST], *call[LAST:])
    return np.frombuffer(bytearray(_WORDS.pack(0, *numbers, *geometry)), np.int64)
