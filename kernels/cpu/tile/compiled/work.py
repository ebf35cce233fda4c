"""Work items: what all launchable operators do to fetch and to describe one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from implicit_conv.kernels import schedule
from implicit_conv.kernels.cpu.emit import memory
from implicit_conv.kernels.cpu.runtime.call import Call
from implicit_conv.kernels.cpu.runtime.compiled.entry import Blob, fields, next_item
from implicit_conv.kernels.cpu.runtime.compiled.source import Source, entry
from implicit_conv.kernels.geometry import Geometry, Place


def tile_and_panels(call: Call, g: Geometry, item: int) -> tuple[int, Place, int, int]:
    """(group, origin of the load tile, first panel, end of its panels) of a work item.

    Chunks of panels vary fastest, then load tiles, then groups.
    """
    panels, tiles = schedule.panel_count(g), schedule.tile_count(g)
    chunks = schedule.ceil_div(panels, call.chunk)
    first = item % chunks * call.chunk
    tile, group = item // chunks % tiles, item // (chunks * tiles)
    return group, schedule.tile_origin(g, tile), first, min(first + call.chunk, panels)


def bounds(call: Call) -> tuple[float, float]:
    """(low, high) that a microkernel clamps its sums to; infinite if the staging tile is finished
    later.
    """
    if call.stores.clamps:
        return memory.read_float(call.activation + 8), memory.read_float(call.activation + 16)
    return -np.inf, np.inf


def is_staged(call: Call) -> int:
    """Whether rows of pixels must go through the staging tile, since y differs from the sums."""
    return not call.stores.clamps or call.stores.rounds or call.y.q != call.itemsize


def operator(run_item: Callable[..., Any]) -> Source:
    """The entry whose work items, (group, load tile, chunk of panels), `run_item` executes."""

    def every_item(blob: Blob, thread: int) -> None:
        call, g = fields(blob).call, fields(blob).geometry
        scratch = call.scratch.address + thread * call.scratch.bytes
        item = next_item(blob, thread)
        if item < call.items:
            memory.zero(scratch, call.scratch.unloaded)
        while item < call.items:
            group, origin, first, end = tile_and_panels(call, g, item)
            run_item(blob, group, origin, first, end, scratch)
            item = next_item(blob, thread)

    return entry(every_item)
