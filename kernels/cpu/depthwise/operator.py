"""The operator of depthwise convolution and of groups of a few channels."""

from __future__ import annotations

from typing import Any

import numpy as np

from implicit_conv.kernels import schedule
from implicit_conv.kernels.cpu.depthwise.layout import (
    DepthwiseLayout,
    Row,
    Rows,
    Variant,
    depthwise_row,
    row_pieces,
    row_shapes,
)
from implicit_conv.kernels.cpu.operator import Operator
from implicit_conv.kernels.cpu.runtime import table
from implicit_conv.kernels.cpu.runtime.call import Depthwise as DepthwiseFields
from implicit_conv.kernels.cpu.runtime.code import Code, code
from implicit_conv.kernels.cpu.runtime.layout import Layout, tile_extents


class Depthwise(Operator):
    """The geometry has the channels of all groups in one; a panel is the filters of a block."""

    rounds = True

    def _size(self, layout: Layout) -> None:
        assert isinstance(layout, DepthwiseLayout)
        self.group, self.together = layout.group, layout.together
        row = depthwise_row(layout.g, layout.in_place, layout.group[0])
        self._row = None if layout.by_columns else row
        super()._size(layout)
        self.pieces = self._pieces() if layout.in_place and self._row else np.empty(0, np.int64)
        self.constant |= {
            "group_channels": layout.group[0],
            "depthwise": DepthwiseFields(
                self._row is not None, layout.rows, self.pieces.ctypes.data
            ),
        }

    def _filter_fields(self, w: Any) -> dict[str, Any]:
        self._require(table.TRANSPOSE_FILTERS)
        return super()._filter_fields(w)

    def _part_kind(self) -> Any:
        if self.layout.in_place and self._row:  # kernels have slots in the order of their shapes
            return self._row, self.together, tuple(row_shapes(self.g))
        return self._row

    def _extents(self) -> Any:
        return frozenset(self._kernels())

    def _own_parts(self) -> dict[int, Code]:
        in_place, form = self.layout.in_place, self.form
        stored = form.x if in_place else form.buffer, form.sums, form.rounded
        parts = {
            table.PACK_BLOCK: code(".depthwise.compiled.fprop:make_pack_channels", self.lanes, form)
        }
        chain = self._chain()
        for slot, (pixels, row, rows) in self._kernels().items():
            variant = Variant(pixels, row, self.group, *stored, chain, rows)
            parts[slot] = code(
                ".depthwise.compiled.microkernel:make_microkernel", variant, self.lanes, self.fma
            )
        return parts

    def _chain(self) -> int:
        """Entries of a tap table, taps or filter rows, in a chain; 0 if one chain has all, as those
        of integers, which are exact.
        """
        g, channels = self.g, self.group[0]
        if self.form.integers or channels * schedule.taps(g) <= schedule.CHAIN:
            return 0
        return max(1, schedule.CHAIN // (channels * (g.S if self._row else 1)))

    def _kernels(self) -> dict[int, tuple[int, Row | None, Rows | None]]:
        """By slot: pixels of a register tile, and the filter row that it multiplies at once and its
        output rows, if any.
        """
        g, row, in_place = self.g, self._row, self.layout.in_place
        extents = tile_extents(g)
        if row and in_place:
            ways: list[tuple[int, Rows | None]] = []
            if self.together:
                ways.append((table.DEPTHWISE_ROWS, self.together))
            if not self.together or any(rows % self.together.tile for _, rows, _ in extents):
                ways.append((table.DEPTHWISE_ROW, None))
            return {
                first + i: (
                    shape.pixels,
                    Row(*row, shape.before, shape.after, shape.sources),
                    together,
                )
                for first, together in ways
                for i, shape in enumerate(row_shapes(g))
            }
        widths = {(g.tile_m, q) for *_, q in extents}
        heights = {h for m, q in widths for h in (min(m, q), q % m)} - {0}
        if row:
            return {table.DEPTHWISE_ROW + h: (h, Row(*row), None) for h in heights}
        if in_place:  # pixels at the border are single tiles, and any number is left between them
            heights = set(range(1, min(g.tile_m, g.Q) + 1))
        return {table.DEPTHWISE + h: (h, None, None) for h in heights}

    def _pieces(self) -> Any:
        """The table of the pieces of rows: indices at which the pieces of each load tile begin and
        end, then (first column, register tiles, number of the shape) of each piece.
        """
        shapes, tiles = row_shapes(self.g), row_pieces(self.g)
        ends = np.cumsum([0, *map(len, tiles)])
        words = [
            (piece.column, piece.tiles, shapes.index(piece.shape))
            for pieces in tiles
            for piece in pieces
        ]
        return np.concatenate([ends, np.ravel(words)]).astype(np.int64)

    def _entry(self) -> Code:
        return code(".depthwise.compiled.fprop:FPROP")

    def _packer(self) -> Code:
        return code(".depthwise.compiled.fprop:PACK")
