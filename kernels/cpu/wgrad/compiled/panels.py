"""Load pixels of dy into panels: ``[panel][plane][row][column][filter of the panel]``.

A panel is as wide as whole vectors need; filters past the last one are zero.
"""

from __future__ import annotations

from implicit_conv.kernels import schedule
from implicit_conv.kernels.cpu.emit import memory
from implicit_conv.kernels.cpu.runtime.compiled.entry import Blob, fields
from implicit_conv.kernels.cpu.runtime.compiled.part import declare
from implicit_conv.kernels.cpu.runtime.compiled.source import Source, translated
from implicit_conv.kernels.cpu.runtime.table import LOAD_PANELS
from implicit_conv.kernels.cpu.tile import storage
from implicit_conv.kernels.cpu.tile.compiled import convert
from implicit_conv.kernels.cpu.tile.compiled.load import load_pixels
from implicit_conv.kernels.cpu.tile.storage import Format

load_panels = declare(LOAD_PANELS, "load_panels", "blob target source planes rows columns filters")


def make_load_panels(lanes: int, form: Format, filters: int) -> Source:
    """The part that loads panels of `filters` filters; elements have the formats `form`."""
    if form.x == form.buffer:
        copy_panel = memory.copy_bytes(filters * storage.SIZES[form.buffer])
    else:
        copy_panel = convert.make_convert(form.x, form.buffer, filters)
    element_bytes = storage.SIZES[form.x]
    move = convert.make_move(form.x, form.buffer, lanes)

    def loaded_panels(
        blob: Blob, target: int, source: int, planes: int, rows: int, columns: int, filters: int
    ) -> None:
        """Load `filters` filters of a tile, whose first element is at
        `source`.

        Contiguous filters are copied pixel by pixel, so that memory is read in order.
        """
        call, g = fields(blob).call, fields(blob).geometry
        pixels = planes * rows * columns
        plane = schedule.plane_step(g, call.y.n, call.y.z)
        whole = filters // g.tile_k
        rest = filters - whole * g.tile_k
        pitch = g.tile_k * call.itemsize
        last = schedule.ceil_div(rest, call.lanes) * call.lanes * call.itemsize
        if last > rest * call.itemsize:
            memory.zero(target + whole * call.gradient.panel_bytes, pixels * last)
        if call.y.k != element_bytes:
            for panel in range(schedule.ceil_div(filters, g.tile_k)):
                load_pixels(
                    call.kernels,
                    blob=blob,
                    target=target + panel * call.gradient.panel_bytes,
                    pitch=pitch if panel < whole else last,
                    source=source + panel * g.tile_k * call.y.k,
                    plane=plane,
                    row=call.y.p,
                    column=call.y.q,
                    step=1,
                    channel=call.y.k,
                    planes=planes,
                    rows=rows,
                    columns=columns,
                    channels=min(g.tile_k, filters - panel * g.tile_k),
                )
            return
        pixel = 0
        for i in range(planes):
            for j in range(rows):
                for column in range(columns):
                    at = source + i * plane + j * call.y.p + column * call.y.q
                    to = target + pixel * pitch
                    for panel in range(whole):
                        copy_panel(
                            to + panel * call.gradient.panel_bytes,
                            at + panel * g.tile_k * element_bytes,
                        )
                    if rest > 0:
                        to = target + whole * call.gradient.panel_bytes + pixel * last
                        move(to, at + whole * g.tile_k * element_bytes, rest)
                    pixel += 1

    return translated(load_panels, loaded_panels)
