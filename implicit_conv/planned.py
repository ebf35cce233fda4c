"""A plan for the CPU: what the planner chose, and what follows from it."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from implicit_conv import gemm_im2col
from implicit_conv.algorithms import winograd_size
from implicit_conv.arch import CpuArch
from implicit_conv.kernels import schedule as integers
from implicit_conv.kernels.cpu.sizes import (
    ScratchLayout,
    channel_lanes_layout,
    depthwise_layout,
    depthwise_packed_bytes,
    depthwise_packs,
    panel_bytes,
    pixel_lanes_layout,
    planes_layout,
    scratch_layout,
    winograd_layout,
    winograd_panel_bytes,
)
from implicit_conv.kernels.geometry import Geometry
from implicit_conv.problem import ITEMSIZES, Problem
from implicit_conv.schedule import Load, depthwise_trace, swap, tiles_trace, trace

if TYPE_CHECKING:
    from implicit_conv.arrays import Array
    from implicit_conv.kernels.cpu.runtime.prepared import Prepared
    from implicit_conv.known import Calls
    from implicit_conv.packed import PackedFilter


@dataclass(frozen=True)
class Plan:
    """What was chosen for one problem on one machine, and what follows from it.

    `threads` run `geometry`'s tiles, `chunk` filter panels a work item; `in_place` says that x is
    read where it lies. `collapsed` geometries take the pixels of an image (or of all images) as one
    row; with `pairs` the geometry's channels are pairs of channels, with `amx` multiplied by tiles.
    In `swapped` geometries filters and pixels have traded places: A is the filter, and its rows are
    read where they lie. The lanes of vectors are filters; or pixels (`pixel_lanes`), or channels
    (`channel_lanes`), or filters of several groups (`group_lanes`).
    """

    problem: Problem
    arch: CpuArch
    algorithm: str
    precision: str
    geometry: Geometry
    threads: int
    chunk: int
    in_place: bool
    collapsed: bool
    pairs: bool
    amx: bool
    cycles: float
    activation: tuple[float, float, float] = (0.0, -math.inf, math.inf)
    unbatched: bool = False
    swapped: bool = False
    pixel_lanes: bool = False
    channel_lanes: bool = False
    group_lanes: bool = False
    out_dtype: str | None = None
    subnormals: str = "keep"

    def __getstate__(self) -> dict[str, object]:
        """What pickles and copies take: all but launches, which hold addresses of this process."""
        launches = ("prepared", "known")
        return {name: value for name, value in self.__dict__.items() if name not in launches}

    @functools.cached_property
    def prepared(self) -> dict[object, Prepared]:
        """Launches made ready, by the strides of the arrays they are for."""
        return {}

    @functools.cached_property
    def known(self) -> Calls:
        """Calls met before, which these launches are all it takes to answer."""
        return {}

    @property
    def itemsize(self) -> int:
        """Bytes of an element of buffers, panels and sums."""
        return ITEMSIZES[self.problem.sum_dtype]

    @property
    def lanes(self) -> int:
        """Elements of one vector of sums."""
        return self.arch.lanes(self.itemsize)

    @functools.cached_property
    def y_dtype(self) -> str:
        """What the kernels round sums to: `out_dtype`, where they can."""
        served = (self.problem.dtype, self.problem.sum_dtype)
        wanted = self.out_dtype or self.problem.dtype
        return wanted if wanted in served else self.problem.sum_dtype

    @property
    def workspace_bytes(self) -> int:
        """Scratch of all threads, beside the packed filter."""
        if self.algorithm == "gemm_im2col":
            return gemm_im2col.workspace_bytes(self.problem)
        g, packs = self.geometry, self.packs_in_loop
        panels = panel_bytes(g, self.lanes, self.itemsize, 1) if self.swapped and not packs else 0
        return self.threads * self.scratch.total + panels

    @property
    def scratch(self) -> ScratchLayout:
        """Parts of one thread's scratch."""
        g, packs, itemsize, lanes = self.geometry, self.packs_in_loop, self.itemsize, self.lanes
        if self.planes:
            return planes_layout(g, itemsize, lanes, packs)
        if self.pixel_lanes:
            channels_last = self.problem.layout == "NHWC"
            return pixel_lanes_layout(g, itemsize, lanes, self.in_place, channels_last)
        if self.channel_lanes:
            return channel_lanes_layout(g, itemsize)
        if self.joins_groups:
            return depthwise_layout(g, itemsize, lanes, self.in_place, packs, self.group_channels)
        if self.winograd:
            return winograd_layout(g, itemsize, lanes, self.winograd, packs)
        return scratch_layout(g, itemsize, lanes, self.chunk, self.in_place, packs, self.pairs)

    @property
    def winograd(self) -> int:
        """Outputs of a Winograd box along an axis; 0 for other algorithms."""
        return winograd_size(self.algorithm)

    @property
    def planes(self) -> bool:
        """Whether a depthwise problem is computed a channel at a time, pixels as vector lanes."""
        return self.algorithm == "depthwise" and self.geometry.tile_c == 1

    @property
    def joins_groups(self) -> bool:
        """Whether the geometry takes all groups as channels of one, each lane summing its own."""
        return self.algorithm == "depthwise" or self.group_lanes

    @property
    def group_channels(self) -> int:
        """Channels of a group."""
        return self.problem.C // self.problem.groups

    @property
    def group_filters(self) -> int:
        """Filters of a group."""
        return self.problem.K // self.problem.groups

    @property
    def long_rows(self) -> bool:
        """Whether all pixels of a load tile are one row of lanes."""
        return self.pixel_lanes and integers.is_single_tap(self.geometry)

    @property
    def packs_in_loop(self) -> bool:
        """Whether a plain filter is packed panel by panel, just before the only item that uses it.

        A panel is then still in L2 when it is used, and no packed filter is kept. A small depthwise
        filter is packed by each thread as it starts.
        """
        if self.joins_groups:
            return depthwise_packs(self.geometry, self.itemsize, self.group_channels)
        if self.pixel_lanes or self.channel_lanes:
            return True
        return integers.tile_count(self.geometry) == 1

    @property
    def packed_bytes(self) -> int:
        """The packed filter."""
        lanes, itemsize = self.lanes, self.itemsize
        g = self.geometry
        if self.algorithm == "gemm_im2col":
            return gemm_im2col.packed_bytes(self.problem)
        if self.swapped or self.pixel_lanes or self.channel_lanes:
            return math.prod(self.problem.weight_shape) * self.problem.itemsize
        if self.joins_groups:
            return depthwise_packed_bytes(g, itemsize, self.group_channels)
        if self.winograd:
            return winograd_panel_bytes(g, lanes, itemsize, self.winograd)
        return g.groups * panel_bytes(g, lanes, itemsize, g.R * g.S)

    @property
    def peak_bytes(self) -> int:
        """Scratch, packed filter and output."""
        n, k, p, q = (self.problem.N, self.problem.K, *self.problem.output)
        return self.workspace_bytes + self.packed_bytes + n * k * p * q * ITEMSIZES[self.y_dtype]

    @property
    def flops(self) -> int:
        """Multiplications and additions of the problem, padding counted."""
        return self.problem.flops

    @property
    def bytes(self) -> int:
        """Bytes of x, w and y, each once."""
        return self.problem.bytes

    def explain(self) -> str:
        """What was chosen, and why; for people."""
        from implicit_conv.explain import explain

        return explain(self)

    def pack(self, w: object) -> PackedFilter:
        """Pack a filter once, for many calls.

        Parameters
        ----------
        w : array in the problem's weight layout and dtype

        Raises
        ------
        ShapeError, DTypeError
            A filter that is not the one the plan was made for.
        """
        from implicit_conv.run import pack_filter

        return pack_filter(self, w)

    def __call__(
        self,
        x: object,
        w: object,
        bias: object = None,
        *,
        residual: object = None,
        out: Array | None = None,
    ) -> Array:
        """Convolve `x` with the filter `w`, packed by `pack` or plain; as `conv2d` does.

        Raises
        ------
        ShapeError, DTypeError
            Arrays that are not those the plan was made for.
        """
        return _runner()(self, x, w, bias, residual, out)

    def trace(self) -> list[Load]:
        """The loads the engine executes for packed arrays of the problem's layout.

        "gemm_im2col" has none: numpy copies.
        """
        if self.algorithm == "gemm_im2col":
            return []
        if self.joins_groups:
            return depthwise_trace(self.geometry, self.itemsize, self.in_place)
        if self.pixel_lanes or self.channel_lanes:
            return tiles_trace(self.geometry, self.itemsize, self.in_place, self.chunk)
        counted = trace(self.geometry, self.itemsize, self.in_place, self.chunk)
        loads = [self.in_channels(load) for load in counted]
        if self.swapped:
            return [swap(load, n) for n in range(self.problem.N) for load in loads]
        return loads

    def in_channels(self, load: Load) -> Load:
        """`load`, which counts the geometry's channels, with its first channel counted singly."""
        *coords, c = load.coords
        return load._replace(coords=(*coords, 2 * c)) if self.pairs else load


@functools.cache
def _runner() -> Callable[..., Array]:
    """`run_plan`: an import statement would take a tenth of a small call, each time."""
    from implicit_conv.run import run_plan

    return run_plan
