"""Operator: the compiled kernels of one Layout, which prepares launches for arrays.

An operator holds what does not change between calls: entries, kernel table, scratch layout. It
prepares a launch for arrays of given strides; a call of the launch fills in addresses. Each family
of kernels has its own subclass, which names the parts and entries that it needs.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any, ClassVar, NamedTuple

import numpy as np

from implicit_conv.kernels import schedule
from implicit_conv.kernels.activation import CLAMP
from implicit_conv.kernels.cpu.runtime import table
from implicit_conv.kernels.cpu.runtime.call import Call
from implicit_conv.kernels.cpu.runtime.launch import Launch
from implicit_conv.kernels.cpu.runtime.layout import Layout, ScratchLayout
from implicit_conv.kernels.cpu.runtime.pool import aligned_bytes
from implicit_conv.kernels.cpu.tile.epilogue import (
    FILTER_ROWS,
    PIXEL_ROW,
    PIXEL_ROWS,
    SPREAD,
    compile_spread_row,
    compile_store_tile,
    row_axis,
)
from implicit_conv.kernels.cpu.tile.finish import Finish, compile_finish
from implicit_conv.kernels.cpu.tile.load import compile_load_tile
from implicit_conv.kernels.cpu.tile.storage import SIZES, Format
from implicit_conv.kernels.cpu.tile.transpose import transposes

PACKED_BYTES_PER_THREAD = 256 << 10  # bytes to pack that pay for another thread: about 10 us
Axes = tuple[int, ...]  # positions of n, h, w, c in an array, or of k, c, r, s in a filter


class Build(NamedTuple):
    """What compiled code depends on besides its Layout."""

    form: Format
    fma: bool  # whether the CPU has fused multiply-adds
    channels: int  # channels of x in all groups; a Geometry may count pairs of channels
    end: tuple[int, int]  # the true (P, Q); a Geometry may be rounded up
    flushes: bool = False  # whether subnormals are treated as zero
    recording: bool = False  # whether a debug build records its loads


class Operands(NamedTuple):
    """The arrays of one launch, as views that the kernels take, and the positions of their axes."""

    x: Any
    w: Any  # None if the filter is packed
    y: Any
    residual: Any
    axes: Axes  # of x, y and residual
    filter_axes: Axes  # of w


class Epilogue(NamedTuple):
    """What is done to sums before they are stored."""

    # (kind, low, high)
    activation: tuple[float, float, float] = (float(CLAMP), -math.inf, math.inf)
    biased: bool = False


class Operator(ABC):
    """One Layout compiled for one CPU."""

    winograd: int = 0  # outputs of a Winograd tile along an axis; 0 for other families
    rounds: ClassVar[bool] = False  # whether microkernels round sums to the dtype of y
    transposes: ClassVar[bool] = True  # whether loads and packing may have to transpose
    stages_planes: bool = False  # whether a staging tile holds the pixels of one filter
    pixel_step: int = 1  # stride in elements between pixels of x and y, for planes

    def __init__(self, layout: Layout, lanes: int, build: Build) -> None:
        g = layout.g
        self.layout, self.lanes, self.build = layout, lanes, build
        self.g, self.form, self.fma = g, build.form, build.fma
        self.itemsize = layout.itemsize
        self.table = self._kernel_table()
        chunks = schedule.ceil_div(schedule.panel_count(g), layout.chunk)
        self.items = g.groups * schedule.tile_count(g) * chunks
        self.zeros = aligned_bytes(g.tile_k * self.itemsize)
        self.zeros[:] = 0
        self.constant: dict[str, Any] = {
            "kernels": self.table.ctypes.data,
            "itemsize": self.itemsize,
            "lanes": lanes,
            "panel_group": layout.group_bytes,
            "zeros": self.zeros.ctypes.data,
            "channels": build.channels,
            "p_end": build.end[0],
            "q_end": build.end[1],
            "winograd": self.winograd,
            "flushes": build.flushes,
        }

    def _own_parts(self) -> dict[int, Any]:
        """The family's own parts of the kernel table, by slot; none by default."""
        return {}

    @abstractmethod
    def _entry(self) -> int:
        """The address of the entry that convolves."""

    def _packer(self) -> int:
        """The address of the entry that packs a filter.

        Raises
        ------
        TypeError
            The family reads filters that are not packed.
        """
        raise TypeError(f"{type(self).__name__} packs no filters")

    def pack(self, w: Any, axes: Axes, threads: int) -> Any:
        """The packed panels of `w`, whose axes k, c, r, s are at `axes`: an aligned byte array."""
        packed = aligned_bytes(self.layout.packed_bytes)
        packed[:] = 0  # gaps between panels are pickled too
        self.prepare_packing(w, axes, threads).run(w, w, w, packed.ctypes.data)
        return packed

    def prepare_packing(self, w: Any, axes: Axes, threads: int, record: int = 0) -> Launch:
        """Prepare a launch that packs filters with the strides of `w`."""
        layout = self.layout.packing_scratch
        self._require_for_filters(w, axes)
        return Launch(
            self._packer(),
            self.g,
            layout.total,
            min(threads, 1 + self.layout.packed_bytes // PACKED_BYTES_PER_THREAD),
            _call(
                **self.constant,
                **_filter(w, axes),
                **_parts(layout),
                record=record,
                items=self.g.groups * schedule.panel_count(self.g),
            ),
            (w.dtype, w.dtype),
        )

    def prepare(
        self, operands: Operands, epilogue: Epilogue, threads: int, record: int = 0
    ) -> Launch:
        """Prepare a launch of y = activation(conv(x, w) + bias + residual) for these strides.

        If `operands.w` is a filter, the launch reads it, and packs it panel by panel if the family
        packs; if it is None, the launch reads packed panels. The strides must be ones that the
        method accepts. A debug build writes its loads to the address `record`.
        """
        x, w, y, residual, axes, filter_axes = operands
        x_n, x_h, x_w, x_c = (x.strides[axis] for axis in axes)
        y_n, y_p, y_q, y_k = (y.strides[axis] for axis in axes)
        z = [residual.strides[axis] for axis in axes] if residual is not None else [0] * 4
        activation, biased = epilogue
        bounds = np.array(activation, np.float64)
        clamps = residual is None and activation[0] == CLAMP
        narrow = self.form.y != self.form.sums
        filters = {}
        if w is not None:
            filters = _filter(w, filter_axes)
            self._require_for_filters(w, filter_axes)
        if self.transposes and x_c != x.itemsize:
            self._require(table.TRANSPOSE_IN, min(2, self.g.step_w))
        finish = self._finish(
            (y_q, y_k), z[2:] if residual is not None else None, int(activation[0])
        )
        scratch = self.layout.scratch(w is not None)
        return Launch(
            self._entry(),
            self.g,
            scratch.total,
            threads,
            _call(
                **self.constant,
                **filters,
                **_parts(scratch),
                **finish,
                **self._bias_steps(biased),
                activation=bounds.ctypes.data,
                record=record,
                x_n=x_n,
                x_h=x_h,
                x_w=x_w,
                x_c=x_c,
                x_element=x_c * self.form.channels,
                y_n=y_n,
                y_p=y_p,
                y_q=y_q,
                y_k=y_k,
                residual_n=z[0],
                residual_p=z[1],
                residual_q=z[2],
                residual_k=z[3],
                bias=self.zeros.ctypes.data,
                items=self.items,
                chunk=self.layout.chunk,
                in_place=self.layout.in_place,
                clamps=clamps,
                rounds=narrow,
                staged=y_k != SIZES[self.form.y] or not clamps or (narrow and not self.rounds),
            ),
            (x.dtype, y.dtype),
            keep=(bounds, self),
        )

    def _bias_steps(self, biased: bool) -> dict[str, int]:
        """The stride in bytes between the initial sums of panels, as fields of a Call."""
        return {"bias_panel": self.g.tile_k * self.itemsize if biased else 0}

    def _finish(
        self, y_steps: tuple[int, int], residual_steps: list[int] | None, kind: int
    ) -> dict[str, Any]:
        """Compile the parts that finish staging tiles, and return the fields of a Call for them.

        `y_steps` and `residual_steps` are strides in bytes of (pixels, filters); `kind` is the
        number of the activation.
        """
        axis = row_axis(*y_steps, SIZES[self.form.y], self.stages_planes, self.pixel_step)
        along = {PIXEL_ROWS: 0, PIXEL_ROW: 0, FILTER_ROWS: 1}.get(axis)
        joins = residual_steps is not None and along is not None
        joins = joins and residual_steps[along] == SIZES[self.form.x]  # type: ignore[index]
        clamps = kind == CLAMP and residual_steps is None
        part = Finish(kind, joins, self.form, self.lanes, self.fma)
        if axis == SPREAD:
            spread = compile_spread_row(self.pixel_step, self.lanes, self.form)
            self.table[table.SPREAD_ROW] = spread.address
        if axis == PIXEL_ROWS:
            self._require(table.TRANSPOSE_OUT if clamps else table.TRANSPOSE_WORDS)
        if axis != PIXEL_ROWS or not clamps:
            self.table[part.slot] = compile_finish(part).address
        adds_first = residual_steps is not None and not joins
        return {"row_axis": axis, "finish": part.slot, "adds_first": adds_first}

    def initial_sums(self, bias: Any) -> Any:
        """The initial sums of a launch with a bias: `bias` in whole panels, padded with zeros."""
        g = self.g
        width = schedule.panel_count(g) * g.tile_k
        if width == g.K:
            return bias
        sums = np.zeros(g.groups * width, self.form.sums)
        sums.reshape(g.groups, width)[:, : g.K] = bias.reshape(g.groups, g.K)
        return sums

    def _kernel_table(self) -> Any:
        """The kernel table with all parts except transposes, compiled or loaded from the cache."""
        parts = {
            table.LOAD_TILE: compile_load_tile(self.lanes, self.form, self.build.recording),
            table.STORE_TILE: compile_store_tile(self.lanes, self.form),
            **self._own_parts(),
        }
        addresses = np.zeros(table.SLOTS, np.int64)
        for slot, part in parts.items():
            addresses[slot] = part.address
        return addresses

    def _require(self, way: int, step: int = 1) -> None:
        """Compile transposes into the table; which ones depends on the strides of arrays."""
        for slot, part in transposes(way, step, self.lanes, self.form).items():
            self.table[slot] = part.address

    def _require_for_filters(self, w: Any, axes: Axes) -> None:
        """Compile the transposes that pack filters with the strides of `w`.

        For pairs of channels, 32-bit words are transposed.
        """
        if not self.transposes:
            return
        self._require(table.TRANSPOSE_WORDS if self.form.channels > 1 else table.TRANSPOSE_TAPS)
        if w.strides[axes[1]] == w.itemsize:
            self._require(table.TRANSPOSE_IN)


def _filter(w: Any, axes: Axes) -> dict[str, int]:
    """The fields of a Call for a plain filter: its strides, and a mark that there is one."""
    strides = zip(("w_k", "w_c", "w_r", "w_s"), (w.strides[axis] for axis in axes), strict=True)
    return {"w": 1, **dict(strides)}


def _parts(layout: ScratchLayout) -> dict[str, int]:
    """The fields of a Call for a thread's scratch memory: its size and the offsets of its parts."""
    offsets = layout.offsets()
    del offsets["buffer"]  # its offset is 0
    return {"scratch_bytes": layout.total, **offsets}


_NOTHING: dict[str, int] = dict.fromkeys(Call._fields, 0)


def _call(**fields: Any) -> Call:
    return Call(**{**_NOTHING, **fields})
