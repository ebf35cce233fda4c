"""Variants of the parts that all families share, and which of them a launch needs.

This is for hosts: nothing here emits code.

The parts that load rows of pixels, which planar GEMM and planar depthwise share.
"""

from __future__ import annotations

from typing import NamedTuple

from implicit_conv.kernels import schedule
from implicit_conv.kernels.cpu.runtime import table
from implicit_conv.kernels.cpu.runtime.code import Code, code
from implicit_conv.kernels.cpu.runtime.table import (
    FINISH,
    LOAD_TILE,
    MOST_APART,
    SCALES,
    TRANSPOSE_FILTERS,
    TRANSPOSE_IN,
    TRANSPOSE_OUT,
    TRANSPOSE_TAPS,
    TRANSPOSE_WORDS,
    transpose_slot,
)
from implicit_conv.kernels.cpu.tile.storage import Format, Stored
from implicit_conv.kernels.geometry import ACTIVATIONS, Geometry

# Values of Stores.row_axis. What is contiguous in y: filters; pixels, which are finished in blocks;
# pixels that are clamped already and only transposed; the pixels of a tile of one filter; nothing;
# nothing, but pixels have a small stride; the same in a tile of one filter.
FILTER_ROWS, PIXEL_BLOCKS, PIXEL_ROWS, PIXEL_ROW, SINGLE, SPREAD_ROWS, SPREAD_ROW = range(7)
CROWDED = 4096  # bytes (64 lines) from a filter of y to the next one: they share one set of L1

UNSCALED, SCALED_ROWS, SCALED_COLUMNS = range(SCALES)  # whose filters are scaled


def row_axis(y_q: int, y_k: int, size: int, single: bool, clamps: bool) -> int:
    """The value of Stores.row_axis for a y with elements of `size` bytes and these byte strides.

    With `single`, a tile has a single filter; `clamps` says that sums are only clamped.

    A set has fewer lines than a block has filters. A line that is stored in parts, as 16-bit or
    unaligned vectors are, would leave L1 before its next part, so filters that share a set are
    stored from a block, one after another.
    """
    if y_q == size and (single or y_k != size):
        if single:
            return PIXEL_ROW
        return PIXEL_ROWS if clamps and y_k % CROWDED else PIXEL_BLOCKS
    if y_k == size and not single:
        return FILTER_ROWS
    if y_q in range(2 * size, (MOST_APART + 1) * size, size):
        return SPREAD_ROW if single else SPREAD_ROWS
    return FILTER_ROWS if y_k == size else SINGLE


class Finish(NamedTuple):
    """What a part that finishes sums is compiled for."""

    kind: int  # the number of the activation
    added: bool  # whether a residual is added
    scaled: int  # UNSCALED, or whether a row or a column has one scale
    form: Format
    lanes: int
    fma: bool

    @property
    def slot(self) -> int:
        """The part's slot in the kernel table."""
        return FINISH + (self.scaled * ACTIVATIONS + self.kind) * 2 + self.added


class Transpose(NamedTuple):
    """What a transpose is compiled for."""

    lanes: int
    source: Stored
    target: Stored
    channels: int  # source rows of which an element of the target is made: 1, 2 or 4
    step: int  # every step-th column becomes a target row
    scattered: bool  # the target stride is the address of a table of row offsets
    full: bool  # the block has `lanes` columns, and rows for as many elements


def transposes(way: int, step: int, lanes: int, form: Format) -> dict[int, Code]:
    """The transposes of one kind, which keep every step-th column, by their slots."""
    kind = {
        TRANSPOSE_IN: (form.x, form.buffer, form.channels, step, False),
        TRANSPOSE_FILTERS: (form.w, form.panel, form.channels, step, False),
        TRANSPOSE_OUT: (form.sums, form.y, 1, step, False),
        TRANSPOSE_WORDS: (form.sums, form.sums, 1, step, False),
        TRANSPOSE_TAPS: (form.w, form.panel, 1, step, True),
    }[way]
    return {
        transpose_slot(way, step, not full): code(
            ".tile.compiled.transpose:make_transpose", Transpose(lanes, *kind, full)
        )
        for full in (True, False)
    }


def load_tile_slot(apart: bool, repeats: bool) -> int:
    """Slot of the part that loads tiles, whose channels are not contiguous if they are `apart`, and
    whose padding is pixels of x if it `repeats` them.
    """
    return LOAD_TILE + 2 * apart + repeats


def row_loads(
    g: Geometry, pixel_step: int, lanes: int, form: Format, recording: bool
) -> dict[int, Code]:
    """Parts by slot: for rows whose pixels have a stride of `pixel_step` elements, and for any
    other stride.
    """
    step = pixel_step * g.step_w
    parts = {
        table.LOAD_ROWS: code(".tile.compiled.plane_loads:make_load_rows", step, lanes, form),
        table.GATHER_ROWS: code(".tile.compiled.plane_loads:make_gather_rows", form),
        table.WRITE_LOADS: code(".tile.compiled.plane_loads:make_write_loads", recording),
    }
    if schedule.edge_columns(g):
        parts[table.REPEAT_EDGES] = code(".tile.compiled.plane_loads:make_repeat_edges", form)
    return parts
