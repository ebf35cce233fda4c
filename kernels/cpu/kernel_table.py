"""KernelTable: the parts of compiled code that an operator calls, by their slots.

Which of them a launch needs depends on the strides of its arrays: they are compiled, or loaded from
the disk cache, when the first one asks for them.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from implicit_conv.kernels.cpu.runtime import table
from implicit_conv.kernels.cpu.runtime.call import Stores
from implicit_conv.kernels.cpu.runtime.code import Code, code
from implicit_conv.kernels.cpu.runtime.layout import Layout
from implicit_conv.kernels.cpu.tile.storage import SIZES, Format
from implicit_conv.kernels.cpu.tile.variants import (
    FILTER_ROWS,
    PIXEL_BLOCKS,
    PIXEL_ROW,
    PIXEL_ROWS,
    SCALED_COLUMNS,
    SCALED_ROWS,
    SINGLE,
    SPREAD_ROW,
    SPREAD_ROWS,
    UNSCALED,
    Finish,
    load_tile_slot,
    row_axis,
    transposes,
)
from implicit_conv.kernels.geometry import CLAMP, ZEROS, Geometry


class KernelTable:
    """The parts of one operator, which those of other sizes share."""

    loads_tiles: ClassVar[bool] = True  # whether the part `load_tile` is called
    stages_planes: bool = False  # whether a staging tile holds the pixels of one filter
    build: Any  # what compiled code depends on besides its Layout
    form: Format
    lanes: int
    fma: bool
    g: Geometry
    layout: Layout
    table: np.ndarray[Any, np.dtype[np.int64]]  # addresses
    _filled: set[Any]  # what was asked for, of which the table has all parts
    _finishes: dict[Any, Stores]  # what `_finish` returned for what it was asked

    def _fill(self, parts: dict[int, Code]) -> None:
        """Compile or load parts into the kernel table, which other sizes may share: a slot keeps
        its part.
        """
        for slot, part in parts.items():
            address = self._address(part)
            assert self.table[slot] in (0, address), f"two parts for slot {slot}: {part}"
            self.table[slot] = address

    def _address(self, wanted: Code) -> int:
        return wanted.address(self.build.compiler)

    def _require(self, way: int, step: int = 1) -> None:
        """Compile transposes into the table; which ones depends on the strides of arrays."""
        if (way, step) not in self._filled:
            self._fill(transposes(way, step, self.lanes, self.form))
            self._filled.add((way, step))

    def _load_tile(self, x: Any) -> int:
        """The slot of the part that loads tiles of `x`, now compiled."""
        kind = x.strides[-1] != x.itemsize, self.g.padding_mode != ZEROS
        slot, part = load_tile_slot(*kind), code(".tile.compiled.load:LOAD_NOTHING")
        if not self.loads_tiles:
            return 0
        if self.layout.in_place and not self.build.recording:
            slot = table.LOAD_NOTHING
        else:
            made = self.lanes, self.form, *kind, self.build.recording
            part = code(".tile.compiled.load:make_load_tile", *made)
        if slot not in self._filled:
            self._fill({slot: part})
            self._filled.add(slot)
        return slot

    def _finish(
        self,
        y_steps: tuple[int, int],
        residual_steps: tuple[int, ...] | None,
        kind: int,
        scaled: bool,
    ) -> Stores:
        """Compile the parts that store staging tiles, and say how a launch calls them.

        `y_steps` and `residual_steps` are strides in bytes of (pixels, filters); `kind` is the
        number of the activation, and `scaled` says that sums are scaled.
        """
        size = SIZES[self.form.y]
        clamps = self._clamps(kind, residual_steps is not None or scaled)
        axis = row_axis(*y_steps, size, self.stages_planes, clamps)
        if axis == SPREAD_ROW and scaled and residual_steps is not None:
            axis = FILTER_ROWS  # a scale comes before the residual, which spread rows add first
        along = {PIXEL_BLOCKS: 0, PIXEL_ROW: 0, FILTER_ROWS: 1}.get(axis)
        joins = residual_steps is not None and along is not None
        joins = joins and residual_steps[along] == SIZES[self.form.residual]  # type: ignore[index]
        by_row = axis not in (FILTER_ROWS, SINGLE)
        scale = (SCALED_ROWS if by_row else SCALED_COLUMNS) if scaled else UNSCALED
        step = y_steps[0] // size if axis in (SPREAD_ROW, SPREAD_ROWS) else 0
        asked = axis, kind, joins, scale, step, residual_steps is not None
        if asked not in self._finishes:
            store = code(".tile.compiled.epilogue:make_store_tile", self.lanes, self.form)
            self._fill({table.STORE_TILE: store})
            self._finishes[asked] = self._finished(*asked)
        return self._finishes[asked]

    def _finished(
        self, axis: int, kind: int, joins: bool, scale: int, step: int, added: bool
    ) -> Stores:
        """What `_finish` returns, with a row spread by `step` elements, and a residual if one is
        `added`, which `joins` the part that finishes sums or is added first.
        """
        part = Finish(kind, joins, scale, self.form, self.lanes, self.fma)
        spread = table.SPREAD + step if step else 0
        if step:
            made = step, self.lanes, self.form
            self._fill({spread: code(".tile.compiled.epilogue:make_spread_row", *made)})
        if axis in (PIXEL_BLOCKS, SPREAD_ROWS):
            self._require(table.TRANSPOSE_WORDS)
        if axis == PIXEL_ROWS:
            self._require(table.TRANSPOSE_OUT)
        else:
            self._fill({part.slot: code(".tile.compiled.finish:make_finish", part)})
        first = added and not joins
        return Stores(row_axis=axis, finish=part.slot, spread=spread, adds_first=first)

    def _clamps(self, kind: int, changed: bool) -> bool:
        """Whether all that is left to do to sums is to clamp and to round them; `changed` says that
        they are scaled, or that a residual is added.
        """
        return kind == CLAMP and not changed and self.form.rounded == self.form.y
