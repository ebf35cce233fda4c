"""The operator of weight gradients whose lanes are filters."""

from __future__ import annotations

from typing import Any, NamedTuple

from implicit_conv.kernels import schedule
from implicit_conv.kernels.cpu.operator import Operator
from implicit_conv.kernels.cpu.runtime import table
from implicit_conv.kernels.cpu.runtime.call import Call, Filter, Gradient, Output
from implicit_conv.kernels.cpu.runtime.code import Code, code
from implicit_conv.kernels.cpu.runtime.launch import Launch
from implicit_conv.kernels.cpu.runtime.layout import Layout, ScratchLayout
from implicit_conv.kernels.cpu.wgrad.layout import (
    LANE_TAPS,
    NEAR_PIXEL_BYTES,
    LanesLayout,
    PlanesLayout,
    PlaneTaps,
    RegisterTile,
    WeightGradLayout,
    register_tiles,
)
from implicit_conv.kernels.geometry import Geometry

MICROKERNEL = ".wgrad.compiled.microkernel:make_microkernel"
PLANES, PLANE_SUMS = ".wgrad.compiled.planes:", ".wgrad.compiled.plane_sums:"
WINDOWS = ".wgrad.compiled.windows:make_microkernel"


class Gradients(NamedTuple):
    """The arrays of one launch, as views with the axes (n, d, h, w, c) and (k, c, t, r, s)."""

    x: Any
    dy: Any
    dw: Any


class WeightGrad(Operator):
    """Filters are vector lanes, and rows of a register tile are channels."""

    layout: WeightGradLayout

    def _part_kind(self) -> Any:
        return self.layout.strided

    def _parts(self) -> dict[int, Code]:
        lanes, form = self.lanes, self.form
        return {
            table.LOAD_PIXELS: code(".tile.compiled.load:make_load_pixels", lanes, form),
            table.LOAD_PANELS: code(
                ".wgrad.compiled.panels:make_load_panels", lanes, form, self.g.tile_k
            ),
            table.ADD_SUMS: code(".wgrad.compiled.sums:make_add_sums", lanes, self.itemsize),
            table.STORE_SUMS: code(".wgrad.compiled.sums:make_store_sums", lanes, form),
            **self._own_parts(),
        }

    def _own_parts(self) -> dict[int, Code]:
        return {
            table.microkernel_slot(vectors, 1, rows): code(
                MICROKERNEL,
                RegisterTile(
                    *(rows, vectors, self.lanes, self.itemsize, self.fma),
                    strided=self.layout.strided,
                ),
            )
            for rows, vectors in register_tiles(self.g, self.lanes, self.layout.joined)
        }

    def _entry(self) -> Code:
        return code(".wgrad.compiled.wgrad:WGRAD")

    def _adder(self) -> Code:
        """The entry that adds the sums of parts."""
        return code(".wgrad.compiled.wgrad:ADD_PARTS")

    def _require_transposes(self, operands: Gradients) -> None:
        """Compile the transposes that arrays of these strides need."""
        x, dy, dw = operands
        if x.strides[-1] != x.itemsize and not self.layout.in_place:
            self._require(table.TRANSPOSE_IN, min(2, self.g.step_w))
        if dy.strides[-1] != dy.itemsize:
            self._require(table.TRANSPOSE_IN)
        if dw.strides[0] != dw.itemsize:
            self._require(table.TRANSPOSE_OUT)

    def prepare_gradient(self, operands: Gradients, threads: int) -> tuple[Launch, Launch | None]:
        """Prepare the launch that sums, and the one that adds the sums of parts if there are any.

        The strides must be ones that the method accepts.
        """
        x, dy, dw = operands
        layout, g = self.layout, self.g
        y_q, y_k = dy.strides[3:]
        w_k, w_c, w_t, w_r, w_s = dw.strides
        self._require_transposes(operands)
        taps_inside = (
            not layout.joined
            and (g.S == 1 or w_s == dw.itemsize)
            and (g.R == 1 or w_r == g.S * dw.itemsize)
            and (g.T == 1 or w_t == g.R * g.S * dw.itemsize)
            and w_c == schedule.taps(g) * dw.itemsize
        )
        # Pixels with a large stride share few sets of a cache, so their panels are copied.
        dy_in_place = (
            y_k == dy.itemsize and self.form.x == self.form.buffer and abs(y_q) <= NEAR_PIXEL_BYTES
        )
        scratch = layout.scratch(packs=False)
        gradient = Gradient(
            parts=layout.parts,
            part_tiles=layout.part_tiles,
            part_items=layout.items,
            item_sums=layout.item_sums,
            panel_sums=layout.panel_sums,
            panel_bytes=layout.panel_bytes,
            levels=layout.levels,
            joined=layout.joined,
            taps_inside=taps_inside,
            dy_in_place=dy_in_place,
            direct=layout.parts == layout.part_tiles == 1
            and w_k == dw.itemsize
            and self.form.y == self.form.sums
            and not layout.joined,
            unpadded=is_unpadded(g),
        )
        call = Call(
            **self.constant,
            x=self._input(x),
            w=Filter(1, *dw.strides),
            y=Output(0, *dy.strides),
            load_tile=self._load_tile(x),
            items=layout.parts * layout.items,
            chunk=layout.chunk,
            in_place=layout.in_place,
            gradient=gradient,
        )
        main = Launch(self._address(self._entry()), g, scratch, threads, call, keep=self)
        if layout.parts == 1:
            return main, None
        adder, own = self._address(self._adder()), call._replace(items=layout.items)
        threads = min(threads, layout.items)
        return main, Launch(adder, g, ScratchLayout(), threads, own, keep=self)


class WeightGradLanes(WeightGrad):
    """A vector has filters of several groups, and rows of a register tile are taps."""

    def _size(self, layout: Layout) -> None:
        assert isinstance(layout, LanesLayout)
        super()._size(layout)
        self.constant["group_channels"] = layout.group_channels

    def _own_parts(self) -> dict[int, Code]:
        g, lanes = self.g, self.lanes
        filters = {min(g.K, g.tile_k), g.K % g.tile_k} - {0}
        taps = {min(g.S, LANE_TAPS), g.S % LANE_TAPS} - {0}
        parts = {table.EXPAND: code(".wgrad.compiled.lanes:make_expand", self.itemsize)}
        for vectors in {schedule.ceil_div(count, lanes) for count in filters}:
            for rows in taps:
                tile = RegisterTile(rows, vectors, lanes, self.itemsize, self.fma, taps=True)
                if self.layout.in_place:
                    parts[table.microkernel_slot(1, vectors, rows)] = code(WINDOWS, tile)
                else:
                    parts[table.microkernel_slot(vectors, 1, rows)] = code(MICROKERNEL, tile)
        return parts

    def _entry(self) -> Code:
        return code(".wgrad.compiled.lanes:LANES")

    def _adder(self) -> Code:
        return code(".wgrad.compiled.lanes:ADD_PARTS")


class WeightGradPlanes(WeightGrad):
    """A vector has pixels of a row of one channel, and x and dy are read in place."""

    def _size(self, layout: Layout) -> None:
        self.lanes = layout.lanes  # which depends on the pixels of a row
        super()._size(layout)

    def _part_kind(self) -> Any:
        return self.lanes

    def _parts(self) -> dict[int, Code]:
        lanes, g, layout = self.lanes, self.g, self.layout
        assert isinstance(layout, PlanesLayout)
        parts = {
            table.ADD_SUMS: code(".wgrad.compiled.sums:make_add_sums", lanes, self.itemsize),
            table.REDUCE_SUMS: code(PLANE_SUMS + "make_reduce_sums", lanes, self.itemsize),
            table.STORE_SUMS: code(PLANES + "make_store_channels", lanes, self.form),
        }
        for rows in {layout.pass_rows, g.R % layout.pass_rows} - {0}:
            for columns in {layout.pass_columns, g.S % layout.pass_columns} - {0}:
                taps = PlaneTaps(rows, columns, g.stride_w, g.dilation_w)
                parts[table.microkernel_slot(1, rows, columns)] = code(
                    PLANE_SUMS + "make_microkernel", taps, lanes, self.itemsize, self.fma
                )
        return parts

    def _require_transposes(self, operands: Gradients) -> None:
        """Nothing is transposed."""

    def _load_tile(self, x: Any) -> int:
        """Nothing loads tiles."""
        return 0

    def _entry(self) -> Code:
        layout = self.layout
        assert isinstance(layout, PlanesLayout)
        return code(PLANES + "make_planes", layout.pass_rows, layout.pass_columns)

    def _adder(self) -> Code:
        return code(PLANES + "ADD_PARTS")


def is_unpadded(g: Geometry) -> bool:
    """Whether filters are 1x1, and no output pixel reads padding."""
    return bool(
        schedule.is_single_tap(g)
        and g.step_w == g.stride_w
        and min(-g.pad_d, -g.pad_h, -g.pad_w) >= 0
        and (g.Z - 1) * g.stride_d - g.pad_d < g.D
        and (g.P - 1) * g.stride_h - g.pad_h < g.H
        and (g.Q - 1) * g.stride_w - g.pad_w < g.W
    )
