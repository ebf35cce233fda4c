"""Bytes of what a launch needs besides its arrays: packed panels and a thread's scratch."""

import itertools
from typing import NamedTuple

from implicit_conv.kernels import schedule
from implicit_conv.kernels.geometry import Geometry

LINE = 64  # bytes of a cache line; every part begins on one
PLANE_ROWS = 8  # output rows of a register tile: enough sums to hide the latency of an FMA
LOAD_BYTES = 40  # an entry of the table of loads
DEPTHWISE_PACK_BYTES = 64 << 10  # packed in about 3 us


class ScratchLayout(NamedTuple):
    """Bytes of the parts of a thread's scratch, in their order; it begins with the row buffers."""

    buffer: int
    staging: int  # sums of one panel (of a chunk of panels, where channel blocks add up)
    runs: int  # the run table
    packing: int  # a table of where taps go; for pairs a transposed block too
    panel: int  # one channel block of one panel, packed just before it is used
    boxes: int = 0  # Winograd: transformed input, products, a transformed panel
    products: int = 0
    transformed: int = 0
    loads: int = 0  # planes: the table of a tile's loads

    @property
    def total(self) -> int:
        """Bytes of one thread's scratch."""
        return sum(map(round_up, self))

    def offsets(self) -> dict[str, int]:
        """Byte offset of each part, by name."""
        starts = itertools.accumulate(map(round_up, self), initial=0)
        return dict(zip(self._fields, starts, strict=False))


def round_up(size: int) -> int:
    """The next multiple of a cache line."""
    return -(-size // LINE) * LINE


def buffer_bytes(g: Geometry, itemsize: int) -> int:
    """Row buffers of one load tile and channel block."""
    pixels = g.tile_n * schedule.image_rows(g) * schedule.row_pitch(g)
    return pixels * min(g.C, g.tile_c) * itemsize


def scratch_layout(
    g: Geometry, itemsize: int, lanes: int, chunk: int, in_place: bool, packs: bool, paired: bool
) -> ScratchLayout:
    """What fprop needs: no buffer where x is read in place, no panel where filters come packed."""
    slots = chunk if schedule.block_count(g) > 1 else 1
    return ScratchLayout(
        buffer=0 if in_place else buffer_bytes(g, itemsize),
        staging=slots * g.tile_n * g.tile_p * g.tile_q * g.tile_k * itemsize,
        runs=16 * g.R * g.S,
        packing=packing_bytes(g, lanes, itemsize, paired),
        panel=g.R * g.S * min(g.C, g.tile_c) * g.tile_k * itemsize if packs else 0,
    )


def winograd_layout(g: Geometry, itemsize: int, lanes: int, m: int, packs: bool) -> ScratchLayout:
    """What Winograd F(m x m, 3x3) needs; `g` is rounded up to whole boxes."""
    boxes = g.tile_n * g.tile_p * g.tile_q // m**2
    xis = schedule.box_products(g, m)
    channels = schedule.ceil_div(g.C, lanes) * lanes
    panel = g.C * g.tile_k * itemsize
    return ScratchLayout(
        buffer=buffer_bytes(g, itemsize) + lanes * itemsize,  # the last pixel's vector may run over
        staging=g.tile_n * g.tile_p * g.tile_q * g.tile_k * itemsize,
        runs=16,
        packing=packing_bytes(g, lanes, itemsize) if packs else 0,
        panel=g.R * g.S * panel if packs else 0,
        boxes=xis * (boxes * channels * itemsize + LINE),
        products=xis * boxes * g.tile_k * itemsize,
        transformed=xis * (panel + LINE) if packs else 0,
    )


def depthwise_layout(
    g: Geometry, itemsize: int, lanes: int, in_place: bool, packs: bool
) -> ScratchLayout:
    """What depthwise needs; fewer channels than lanes may run over the buffer's end."""
    pixels = g.tile_n * g.tile_p * g.tile_q
    return ScratchLayout(
        buffer=0 if in_place else buffer_bytes(g, itemsize) + lanes * itemsize,
        staging=pixels * g.tile_c * itemsize,
        runs=16 * g.R * (g.S + 1),
        packing=0,
        panel=depthwise_packed_bytes(g, itemsize) if packs else 0,
    )


def planes_layout(g: Geometry, itemsize: int, lanes: int, packs: bool) -> ScratchLayout:
    """What depthwise needs over planes: two buffers that take turns, of whole vectors."""
    plain = depthwise_layout(g, itemsize, lanes, in_place=False, packs=packs)
    rows = schedule.image_rows(g) * g.phases_w
    return plain._replace(
        buffer=2 * rows * schedule.plane_vectors(g, lanes) * lanes * itemsize,
        runs=8 * g.R, loads=8 + LOAD_BYTES * rows,
    )  # fmt: skip


def pixel_lanes_layout(
    g: Geometry, itemsize: int, lanes: int, in_place: bool = False
) -> ScratchLayout:
    """What fprop needs where lanes are pixels: rows of all channels, in whole vectors."""
    rows = 0 if in_place else schedule.image_rows(g) * g.phases_w
    return ScratchLayout(
        buffer=g.C * rows * schedule.plane_vectors(g, lanes) * lanes * itemsize,
        staging=g.tile_k * g.tile_p * g.tile_q * itemsize, runs=0, packing=0, panel=0,
        loads=8 + LOAD_BYTES * rows,
    )  # fmt: skip


def channel_lanes_layout(g: Geometry, itemsize: int) -> ScratchLayout:
    """What fprop needs where lanes are channels: x and filters are read where they lie."""
    return ScratchLayout(
        buffer=0, staging=g.tile_q * g.tile_k * itemsize, runs=0, packing=0, panel=0
    )


def register_filters(g: Geometry, lanes: int) -> int:
    """Filters of a register tile whose lanes are channels: a power of two that makes, with tile_m
    pixels, at most a vector of sums.
    """
    return min(lanes // g.tile_m, 1 << (g.K.bit_length() - 1))


def depthwise_panel_bytes(g: Geometry, itemsize: int) -> int:
    """Packed filters of one block of channels, a multiple of vectors."""
    return g.R * g.S * g.tile_c * itemsize


def depthwise_packed_bytes(g: Geometry, itemsize: int) -> int:
    """Packed filters of all blocks of channels."""
    return depthwise_panel_bytes(g, itemsize) * schedule.block_count(g)


def depthwise_packs(g: Geometry, itemsize: int) -> bool:
    """Whether each thread packs a plain filter for itself: sooner done than another launch."""
    return depthwise_packed_bytes(g, itemsize) <= DEPTHWISE_PACK_BYTES


def panel_bytes(g: Geometry, lanes: int, itemsize: int, taps: int) -> int:
    """Packed filters of one group: whole panels, the last one vector wide where that will do."""
    panels, rest = divmod(g.K, g.tile_k)
    width = panels * g.tile_k + schedule.ceil_div(rest, lanes) * lanes
    return width * g.C * taps * itemsize


def winograd_panel_bytes(g: Geometry, lanes: int, itemsize: int, m: int) -> int:
    """Transformed filters of one group, a line behind each of a panel's products."""
    products = schedule.box_products(g, m)
    apart = schedule.panel_count(g) * products * LINE
    return panel_bytes(g, lanes, itemsize, products) + apart


def packing_bytes(g: Geometry, lanes: int, itemsize: int, paired: bool = False) -> int:
    """Scratch of one packing thread: where the numbers of a vector of channels go.

    For pairs of channels a table of taps and a transposed block, before pairs are joined.
    """
    taps, channels = g.R * g.S, min(lanes, max(1, g.C))
    if paired:
        return round_up(8 * taps + taps * channels * lanes * itemsize)
    return round_up(8 * taps * channels)
