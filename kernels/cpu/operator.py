"""Operator: the compiled kernels of one Layout, which prepares launches for arrays.

An operator holds what does not change between calls: entries, kernel table, scratch layout. It
prepares a launch for arrays of given strides; a call of the launch fills in addresses. Each family
of kernels has its own subclass, which names the parts and entries that it needs. Operators of
layouts that differ in sizes alone share one kernel table.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from implicit_conv.kernels import schedule
from implicit_conv.kernels.cpu.kernel_table import KernelTable
from implicit_conv.kernels.cpu.runtime import table
from implicit_conv.kernels.cpu.runtime.call import (
    Bias,
    Call,
    Filter,
    Input,
    Output,
    Panels,
    Scale,
    Scratch,
    Stores,
)
from implicit_conv.kernels.cpu.runtime.code import Code
from implicit_conv.kernels.cpu.runtime.launch import Launch
from implicit_conv.kernels.cpu.runtime.layout import Layout
from implicit_conv.kernels.cpu.runtime.pool import POOL, aligned_bytes
from implicit_conv.kernels.cpu.tile.storage import SIZES, Format
from implicit_conv.kernels.geometry import Epilogue
from implicit_conv.kernels.sources import TRANSLATOR

if TYPE_CHECKING:
    from typing_extensions import Self

NO_OUTPUT = Output()
PACKED_BYTES_PER_THREAD = 256 << 10  # bytes to pack that pay for another thread: about 10 us


class Build(NamedTuple):
    """What compiled code depends on besides its Layout."""

    form: Format
    fma: bool  # whether the CPU has fused multiply-adds
    channels: int  # channels of x in all groups; a Geometry may count words of several channels
    flushes: bool = False  # whether subnormals are treated as zero
    recording: bool = False  # whether a debug build records its loads
    compiler: str = TRANSLATOR  # of COMPILERS


class Operands(NamedTuple):
    """The arrays of one launch, as views with the axes (n, d, h, w, c) and (k, c, t, r, s)."""

    x: Any
    w: Any  # None if the filter is packed
    y: Any
    residual: Any


@functools.lru_cache(64)
def _bounds(activation: tuple[float, float, float]) -> tuple[Any, int]:
    """The numbers of an activation in memory, and their address."""
    bounds = np.array(activation, np.float64)
    return bounds, bounds.ctypes.data


class Operator(KernelTable, ABC):
    """One Layout compiled for one CPU.

    Parameters
    ----------
    layout : Layout
    lanes : int
        Elements of a vector of sums.
    build : Build
    """

    winograd: int = 0  # outputs of a Winograd tile along an axis; 0 for other families
    rounds: ClassVar[bool] = False  # whether microkernels round sums to the dtype of y
    transposes: ClassVar[bool] = True  # whether loads and packing may have to transpose

    def __init__(self, layout: Layout, lanes: int, build: Build) -> None:
        self.lanes, self.build, self.form, self.fma = lanes, build, build.form, build.fma
        self.itemsize = layout.itemsize
        self.zeros = aligned_bytes(layout.g.tile_k * self.itemsize)
        self.zeros[:] = 0
        self.packed_bytes, self._panels = layout.packed_bytes, Panels(group=layout.group_bytes)
        self._new_table()
        self._kind: Any = None
        self._ready: list[Any] = []  # that of one layout, without parts that are not loaded
        self._size(layout)

    def resized(self, layout: Layout) -> Self:
        """The operator of a layout that differs from this one in sizes alone."""
        for ready in self._ready.copy():
            if ready.layout is layout:
                return ready
        other = object.__new__(type(self))
        vars(other).update(vars(self))
        other._size(layout)
        return other

    def missing_parts(self, layout: Layout) -> int:
        """The number of parts of `resized` that are not loaded; if there are none, the operator is
        kept for those who ask next.
        """
        if any([ready.layout is layout for ready in self._ready.copy()]):
            return 0
        parts: dict[int, Code] = {}
        other = object.__new__(type(self))
        vars(other).update(vars(self), _filled=self._filled.copy(), _fill=parts.update)
        other._size(layout)
        packs = type(self)._packer is not Operator._packer and not layout.packs_in_loop
        packer_missing = packs and not other._packer().is_loaded(self.build.compiler)
        missing = sum([other.table[slot] == 0 for slot in parts])
        if not missing and other.table is self.table:
            self._filled.update(other._filled)
            del vars(other)["_fill"]
            other._filled = self._filled
            self._ready[:] = [other] * (not packer_missing)
        return packer_missing + missing

    def _new_table(self) -> None:
        self.table = np.zeros(table.SLOTS, np.int64)
        self._filled: set[Any] = set()  # what was asked for, of which the table has all parts
        self._finishes: dict[Any, Stores] = {}  # what `_finish` returned for what it was asked
        self._packings: dict[Any, Launch] = {}  # launches that pack filters, by strides and threads
        self._filters: dict[Any, dict[str, Any]] = {}  # what `_filter_fields` returned, by strides
        # The address of `_entry`, and the initial sums; by whether there is a bias.
        self._entries: dict[bool, tuple[int, Bias]] = {}
        self._fixed = {
            "kernels": self.table.ctypes.data,
            "panels": self._panels,
            "itemsize": self.itemsize,
            "scale": Scale(bytes=max(4, SIZES[self.form.finished])),
            "lanes": self.lanes,
            "zeros": self.zeros.ctypes.data,
            "winograd": self.winograd,
            "channels": self.build.channels,
            "flushes": self.build.flushes,
        }

    def _size(self, layout: Layout) -> None:
        """Set all that depends on sizes."""
        self.layout, self.g = layout, layout.g
        kind, extents = self._part_kind(), self._extents()
        if kind != self._kind:
            if self._kind is not None:
                self._new_table()
            self._kind = kind
        if extents not in self._filled:
            self._fill(self._parts())
            self._filled.add(extents)
        chunks = schedule.ceil_div(schedule.panel_count(self.g), layout.chunk)
        self.items = self.g.groups * layout.tiles * chunks
        p_end, q_end = layout.end
        self.constant: dict[str, Any] = {
            **self._fixed,
            "chain": layout.chain,
            "p_end": p_end,
            "q_end": q_end,
        }

    def _part_kind(self) -> Any:
        """A value that may differ between sizes, and on which it depends which part a slot of the
        table has: where it changes, the table is made anew.
        """
        return self.g

    def _extents(self) -> Any:
        """A value that may differ between sizes, and on which it depends which slots have parts:
        for each new one, the parts that it adds are compiled.
        """
        return ()

    def _own_parts(self) -> dict[int, Code]:
        """The family's own parts, by slot; none by default."""
        return {}

    @abstractmethod
    def _entry(self) -> Code:
        """The entry that convolves."""

    def _packer(self) -> Code:
        """The entry that packs a filter.

        Raises
        ------
        TypeError
            The family reads filters that are not packed.
        """
        raise TypeError(f"{type(self).__name__} packs no filters")

    def pack(self, w: Any, threads: int) -> Any:
        """The packed panels of `w`: an aligned byte array."""
        packed = aligned_bytes(self.packed_bytes)
        packed[:] = 0  # gaps between panels are pickled too
        packing, at = self.prepare_packing(w, threads), w.ctypes.data
        block = POOL.take(packing.bytes)
        try:
            packing.run(block.address, at, at, at, packed.ctypes.data)
        finally:
            POOL.give(block)
        return packed

    def prepare_packing(self, w: Any, threads: int, record: int = 0) -> Launch:
        """Prepare a launch that packs filters with the strides of `w`.

        All sizes have the same panels, and so the same launch.
        """
        threads = min(threads, 1 + self.packed_bytes // PACKED_BYTES_PER_THREAD)
        key = w.shape, w.strides, threads, record, self.build.flushes
        if key not in self._packings:
            self._packings[key] = Launch(
                self._address(self._packer()),
                self.g,
                self.layout.packing_scratch,
                threads,
                Call(
                    **self.constant,
                    **self._filter_fields(w),
                    record=record,
                    items=self.g.groups * schedule.panel_count(self.g),
                ),
                keep=self.table,
            )
        return self._packings[key]

    def prepare(
        self,
        operands: Operands,
        epilogue: Epilogue,
        threads: int,
        record: int = 0,
    ) -> Launch:
        """Prepare a launch of y = activation(conv(x, w) + bias + residual) for these strides.

        If `operands.w` is a filter, the launch reads it, and packs it panel by panel if the family
        packs; if it is None, the launch reads packed panels. The strides must be ones that the
        method accepts. A debug build writes its loads to the address `record`.
        """
        x, w, y, residual = operands
        y_q, y_k = y.strides[3:]
        added = None if residual is None else residual.strides
        activation, biased, scaled = epilogue
        bounds, address = _bounds(activation)
        kind = int(activation[0])
        clamps = self._clamps(kind, residual is not None or scaled)
        narrow = self.form.y != self.form.sums
        filters: dict[str, Any] = {}
        if w is not None:
            key = w.shape, w.strides
            if key not in self._filters:
                self._filters[key] = self._filter_fields(w)
            filters = self._filters[key]
        if self.transposes and x.strides[-1] != x.itemsize:
            self._require(table.TRANSPOSE_IN, min(2, self.g.step_w))
        finish = Stores()
        if not (clamps and not narrow and self._is_direct(y)):
            steps = None if added is None else added[3:]
            finish = self._finish((y_q, y_k), steps, kind, scaled)
        if biased not in self._entries:
            self._entries[biased] = self._address(self._entry()), self._bias(biased)
        entry, bias = self._entries[biased]
        scratch = self.layout.scratch(w is not None)
        return Launch(
            entry,
            self.g,
            scratch,
            threads,
            Call(
                **self.constant,
                **filters,
                x=self._input(x),
                y=Output(0, *y.strides),
                residual=NO_OUTPUT if added is None else Output(0, *added),
                bias=bias,
                scratch=Scratch(unloaded=scratch.buffer if self.layout.reads_unloaded else 0),
                stores=finish._replace(
                    staged=y_k != SIZES[self.form.y] or not clamps or (narrow and not self.rounds),
                    rounds=narrow,
                    clamps=clamps,
                    **self._large_result(y),
                ),
                activation=address,
                record=record,
                load_tile=self._load_tile(x),
                items=self.items,
                chunk=self.layout.chunk,
                in_place=self.layout.in_place,
            ),
            keep=(bounds, self),
        )

    def _large_result(self, y: Any) -> dict[str, int]:
        """The fields of Stores that say how microkernels store a result that caches do not keep."""
        return {}

    def _is_direct(self, y: Any) -> bool:
        """Whether no launch takes a staging tile for sums that are stored into `y` as they are."""
        return False

    def _bias(self, biased: bool) -> Bias:
        """The initial sums: those of panels, or zeros that all panels share."""
        zeros = self._fixed["zeros"]
        return Bias(zeros, panel=self.g.tile_k * self.itemsize if biased else 0)

    def initial_sums(self, bias: Any) -> Any:
        """The initial sums of a launch with a bias: `bias` in whole panels, padded with zeros."""
        g = self.g
        width = schedule.panel_count(g) * g.tile_k
        if width == g.K:
            return bias
        sums = np.zeros(g.groups * width, self.form.sums)
        sums.reshape(g.groups, width)[:, : g.K] = bias.reshape(g.groups, g.K)
        return sums

    def _parts(self) -> dict[int, Code]:
        """All parts that do not depend on strides, by slot."""
        return self._own_parts()

    def _input(self, x: Any) -> Input:
        """The strides of `x`."""
        n, d, h, w, c = x.strides
        return Input(0, n, d, h, w, c, c * self.form.channels)

    def _filter_fields(self, w: Any) -> dict[str, Any]:
        """The fields of a Call for a plain filter: its strides, and a mark that there is one.

        A family that packs compiles what it needs for these strides.
        """
        return {"w": Filter(1, *w.strides)}
