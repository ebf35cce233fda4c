"""Bytes of what a launch needs besides its arrays: packed panels and a thread's scratch."""

import itertools
from typing import NamedTuple

from implicit_conv.kernels import schedule
from implicit_conv.kernels.geometry import Geometry

LINE = 64  # bytes of a cache line; every part begins on one
PLANE_ROWS = 8  # output rows of a register tile: enough sums to hide the latency of an FMA
ROWS_TOGETHER = 8  # filter rows of a pass over planes, at most: each has a weight in a register
TAPS_TOGETHER = 128  # of a pass, which are unrolled
LOAD_BYTES = 40  # an entry of the table of loads
RUN_BYTES = 24  # and of a run table
FAR_INPUT_BYTES = 1 << 20  # of planes that come from beyond L2, where they are long enough
FAR_PLANE_BYTES = 1 << 10  # for prefetchers to lose them from one to the next
AHEAD_BYTES = 12 << 10  # of the next register tile's pixels: a quarter of L1
WAITING_FILTERS = 64  # of long rows: whole cache lines of y, in NHWC,
WAITING_BYTES = 128 << 10  # but no more than stay near
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
    tail: int = 0  # long rows: channels of a tile's last pixels, and their sums

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
        runs=run_table_bytes(g) * schedule.segment_count(g),
        packing=packing_bytes(g, lanes, itemsize, paired),
        panel=g.R * g.S * min(g.C, g.tile_c) * g.tile_k * itemsize if packs else 0,
    )


def winograd_layout(g: Geometry, itemsize: int, lanes: int, m: int, packs: bool) -> ScratchLayout:
    """What Winograd F(m x m, 3x3) needs; `g` is rounded up to whole boxes."""
    boxes = g.tile_n * g.tile_p * g.tile_q // m**2
    xis = schedule.box_products(g, m)
    channels = schedule.ceil_div(g.C, lanes) * lanes
    panel = g.C * g.tile_k * itemsize
    few = g.R * g.S * min(g.C, lanes) * g.tile_k * itemsize
    return ScratchLayout(
        buffer=buffer_bytes(g, itemsize) + lanes * itemsize,  # the last pixel's vector may run over
        staging=g.tile_n * g.tile_p * g.tile_q * g.tile_k * itemsize,
        runs=RUN_BYTES,
        packing=packing_bytes(g, lanes, itemsize) if packs else 0,
        panel=few if packs else 0,
        boxes=xis * (boxes * channels * itemsize + LINE),
        products=xis * boxes * g.tile_k * itemsize,
        transformed=xis * (panel + LINE) if packs else 0,
    )


def run_table_bytes(g: Geometry) -> int:
    """How many runs a filter row has, and the runs of all of them."""
    return 8 + RUN_BYTES * g.R * g.S


def depthwise_layout(
    g: Geometry, itemsize: int, lanes: int, in_place: bool, packs: bool, group_channels: int = 1
) -> ScratchLayout:
    """What depthwise, or groups of a few channels, need; fewer channels than lanes may run over the
    buffer's end.
    """
    pixels = g.tile_n * g.tile_p * g.tile_q
    return ScratchLayout(
        buffer=0 if in_place else buffer_bytes(g, itemsize) + lanes * itemsize,
        staging=pixels * g.tile_k * itemsize,
        runs=16 * g.R * (g.S + 1),
        packing=0,
        panel=depthwise_packed_bytes(g, itemsize, group_channels) if packs else 0,
    )


def planes_layout(g: Geometry, itemsize: int, lanes: int, packs: bool) -> ScratchLayout:
    """What depthwise needs over planes: two buffers that take turns, of whole vectors."""
    plain = depthwise_layout(g, itemsize, lanes, in_place=False, packs=packs)
    rows = schedule.image_rows(g) * g.phases_w
    return plain._replace(
        buffer=2 * rows * schedule.plane_vectors(g, lanes) * lanes * itemsize,
        runs=16 * g.R, loads=8 + LOAD_BYTES * rows,
    )  # fmt: skip


def plane_pass_rows(filter_rows: int, filter_columns: int) -> int:
    """Filter rows of a pass of planes' microkernels, whose taps are unrolled."""
    most = min(ROWS_TOGETHER, max(1, TAPS_TOGETHER // filter_columns))
    return -(-filter_rows // -(-filter_rows // most))


def pixel_lanes_layout(
    g: Geometry, itemsize: int, lanes: int, in_place: bool, channels_last: bool
) -> ScratchLayout:
    """What fprop needs where lanes are pixels: rows of all channels, in whole vectors."""
    if schedule.is_single_tap(g):
        return _long_rows_layout(g, itemsize, lanes, in_place, channels_last)
    rows = schedule.image_rows(g) * g.phases_w
    return ScratchLayout(
        buffer=g.C * rows * schedule.plane_vectors(g, lanes) * lanes * itemsize,
        staging=g.tile_k * g.tile_p * g.tile_q * itemsize, runs=0, packing=0, panel=0,
        loads=8 + LOAD_BYTES * rows,
    )  # fmt: skip


def _long_rows_layout(
    g: Geometry, itemsize: int, lanes: int, in_place: bool, channels_last: bool
) -> ScratchLayout:
    """Likewise where all pixels of a tile are one row, for each channel, unless x is read in place.

    The vector that an image row is loaded by may run over its end: into rows that are loaded later,
    and over the end of the last one.
    """
    row = long_row_bytes(g, itemsize, lanes)
    waiting = waiting_filters(g, itemsize, lanes, channels_last)
    transposed = waiting * g.tile_p * g.tile_q * itemsize if channels_last else 0
    return ScratchLayout(
        buffer=0 if in_place else g.C * row + lanes * itemsize,
        staging=waiting * row + transposed, runs=0, packing=0, panel=0,
        loads=0 if in_place else 8 + LOAD_BYTES * schedule.image_rows(g),
        tail=tail_pixels(lanes) * (g.C + g.tile_k) * itemsize,
    )  # fmt: skip


def is_far(g: Geometry, itemsize: int) -> bool:
    """Whether planes that are read in place come from far, too late without being asked for."""
    plane = g.H * g.W * itemsize
    return plane >= FAR_PLANE_BYTES and g.N * g.groups * g.C * plane > FAR_INPUT_BYTES


def asks_ahead(g: Geometry, itemsize: int, lanes: int) -> bool:
    """Whether the next register tile's pixels are worth asking for: they come from far, or L1 keeps
    them beside this one's. Else they would come from L2 twice.
    """
    tile = g.C * schedule.pixel_rows(g) * lanes * itemsize
    return is_far(g, itemsize) or tile <= AHEAD_BYTES


def long_row_bytes(g: Geometry, itemsize: int, lanes: int) -> int:
    """The pixels of a load tile as one row, in whole vectors."""
    return schedule.ceil_div(g.tile_p * g.tile_q, lanes) * lanes * itemsize


def waiting_filters(g: Geometry, itemsize: int, lanes: int, channels_last: bool) -> int:
    """Filters of a staging tile of long rows: one panel, or several to be transposed together."""
    if not channels_last:
        return g.tile_k
    near = WAITING_BYTES // long_row_bytes(g, itemsize, lanes)
    return max(1, min(WAITING_FILTERS, near) // g.tile_k) * g.tile_k


def tail_pixels(lanes: int) -> int:
    """Pixels of a long row beyond whole vectors that dot products take, at most; more are a vector
    of their own.
    """
    return lanes // 4


def tail_filters(g: Geometry, lanes: int) -> int:
    """Filters of a register tile of those dot products: a power of two."""
    return min(lanes, 1 << (min(g.K, g.tile_k).bit_length() - 1))


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


def depthwise_panel_bytes(g: Geometry, itemsize: int, group_channels: int = 1) -> int:
    """Packed filters of one block of channels, a multiple of vectors."""
    return group_channels * g.R * g.S * g.tile_k * itemsize


def depthwise_packed_bytes(g: Geometry, itemsize: int, group_channels: int = 1) -> int:
    """Packed filters of all blocks of channels."""
    return depthwise_panel_bytes(g, itemsize, group_channels) * schedule.block_count(g)


def depthwise_packs(g: Geometry, itemsize: int, group_channels: int = 1) -> bool:
    """Whether each thread packs a plain filter for itself: sooner done than another launch."""
    return depthwise_packed_bytes(g, itemsize, group_channels) <= DEPTHWISE_PACK_BYTES


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
