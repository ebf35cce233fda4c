"""The parts that load rows of pixels, which planes and pixel lanes share."""

from __future__ import annotations

from typing import Any

from implicit_conv.kernels import schedule
from implicit_conv.kernels.cpu.runtime import table
from implicit_conv.kernels.cpu.tile import plane_loads
from implicit_conv.kernels.cpu.tile.storage import Format
from implicit_conv.kernels.geometry import Geometry


def compile_row_loads(
    g: Geometry, pixel_step: int, lanes: int, form: Format, recording: bool
) -> dict[int, Any]:
    """Parts by slot: for rows whose pixels have a stride of `pixel_step` elements, and for any
    other stride.
    """
    parts = {
        table.LOAD_ROWS: plane_loads.compile_load_rows(pixel_step * g.step_w, lanes, form),
        table.GATHER_ROWS: plane_loads.compile_gather_rows(form),
        table.WRITE_LOADS: plane_loads.compile_write_loads(recording),
    }
    if schedule.edge_columns(g):
        parts[table.REPEAT_EDGES] = plane_loads.compile_repeat_edges(form)
    return parts
