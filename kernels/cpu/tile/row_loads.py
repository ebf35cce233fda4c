"""The parts that load rows of pixels, which planes and pixel lanes share."""

from __future__ import annotations

from typing import Any

from implicit_conv.kernels.cpu.runtime import table
from implicit_conv.kernels.cpu.tile import plane_loads
from implicit_conv.kernels.cpu.tile.storage import Format


def compile_row_loads(step: int, lanes: int, form: Format, recording: bool) -> dict[int, Any]:
    """Parts by slot: for rows whose pixels are `step` elements apart, and for any other stride."""
    return {
        table.LOAD_ROWS: plane_loads.compile_load_rows(step, lanes, form),
        table.GATHER_ROWS: plane_loads.compile_gather_rows(form),
        table.WRITE_LOADS: plane_loads.compile_write_loads(recording),
    }
