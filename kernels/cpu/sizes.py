"""Bytes of what a launch needs besides its arrays: packed panels and a thread's scratch."""

from typing import NamedTuple

from implicit_conv.kernels import schedule
from implicit_conv.kernels.geometry import Geometry

LINE = 64  # bytes of a cache line; every part begins on one


class ScratchLayout(NamedTuple):
    """Byte offsets in a thread's scratch, which begins with the row buffers; its size."""

    staging: int  # sums of one panel (of a chunk of panels, where channel blocks add up)
    runs: int  # the run table
    packing: int  # a table of taps and one transposed block
    panel: int  # one channel block of one panel, packed just before it is used
    total: int


def round_up(size: int) -> int:
    """The next multiple of a cache line."""
    return -(-size // LINE) * LINE


def buffer_bytes(g: Geometry, itemsize: int) -> int:
    """Row buffers of one load tile and channel block."""
    pixels = g.tile_n * schedule.image_rows(g) * schedule.row_pitch(g)
    return pixels * min(g.C, g.tile_c) * itemsize


def scratch_layout(
    g: Geometry, itemsize: int, lanes: int, chunk: int, in_place: bool, packs: bool
) -> ScratchLayout:
    """How one thread's scratch is divided.

    Nothing is buffered that is read in place, and no panel where filters come packed.
    """
    slots = chunk if schedule.block_count(g) > 1 else 1
    tile = g.tile_n * g.tile_p * g.tile_q * g.tile_k * itemsize
    panel = g.R * g.S * min(g.C, g.tile_c) * g.tile_k * itemsize
    staging = 0 if in_place else round_up(buffer_bytes(g, itemsize))
    runs = staging + round_up(slots * tile)
    packing = runs + round_up(16 * g.R * g.S)
    panel_at = packing + packing_bytes(g, lanes, itemsize)
    return ScratchLayout(
        staging, runs, packing, panel_at, panel_at + (round_up(panel) if packs else 0)
    )


def panel_bytes(g: Geometry, lanes: int, itemsize: int) -> int:
    """Packed filters of one group: whole panels, the last a single vector wide where that is
    enough.
    """
    panels, rest = divmod(g.K, g.tile_k)
    width = panels * g.tile_k + schedule.ceil_div(rest, lanes) * lanes
    return width * g.C * g.R * g.S * itemsize


def packing_bytes(g: Geometry, lanes: int, itemsize: int) -> int:
    """Scratch of one packing thread: a table of taps and one transposed block."""
    return round_up(8 * g.R * g.S + lanes * lanes * itemsize)
