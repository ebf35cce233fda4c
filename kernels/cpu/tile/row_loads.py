"""The parts that load rows of pixels, which planes and pixel lanes share."""

from __future__ import annotations

from implicit_conv.kernels import schedule
from implicit_conv.kernels.cpu.runtime import table
from implicit_conv.kernels.cpu.runtime.code import Code, code
from implicit_conv.kernels.cpu.tile.storage import Format
from implicit_conv.kernels.geometry import Geometry


def row_loads(
    g: Geometry, pixel_step: int, lanes: int, form: Format, recording: bool
) -> dict[int, Code]:
    """Parts by slot: for rows whose pixels have a stride of `pixel_step` elements, and for any
    other stride.
    """
    step = pixel_step * g.step_w
    parts = {
        table.LOAD_ROWS: code(".tile.plane_loads:make_load_rows", step, lanes, form),
        table.GATHER_ROWS: code(".tile.plane_loads:make_gather_rows", form),
        table.WRITE_LOADS: code(".tile.plane_loads:make_write_loads", recording),
    }
    if schedule.edge_columns(g):
        parts[table.REPEAT_EDGES] = code(".tile.plane_loads:make_repeat_edges", form)
    return parts
