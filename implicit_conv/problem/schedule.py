"""Make a Geometry from a Problem and a tiling, and list the CPU's loads as Python values."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from implicit_conv.errors import PlanError
from implicit_conv.kernels import schedule
from implicit_conv.kernels.geometry import UNLIMITED, Geometry
from implicit_conv.problem.options import PADDING_MODES
from implicit_conv.problem.problem import Problem


class Load(NamedTuple):
    """One load: what is read, and where it goes.

    Coordinates outside the image are padding: the load fills its rows with zeros, or with the
    pixels that the padding mode of the problem repeats there.
    """

    operand: str  # "x" or "w"; for weight gradients "x" or "dy"
    mode: str  # of a tensor copy: "tile", "im2col", or "w" for im2col::w
    # Of the first element: n, the spatial axes and c of x; k, the taps and c of w.
    coords: tuple[int, ...]
    offsets: tuple[int, ...] | None  # (h, w) offsets of mode "im2col"
    w_halo: int  # pixels
    w_offset: int  # pixels
    buffer: int  # index of the row buffer (CPU) or phase buffer (GPU); -1 if read in place
    rows: int  # rows of the buffer that the load fills, such as pixels
    bytes: int


class Tap(NamedTuple):
    """Filter tap (t, r, s) reads `buffer` through a view that is shifted by `row_shift` rows."""

    r: int
    s: int
    buffer: int
    row_shift: int
    t: int = 0  # along D, which only problems with three spatial axes have


class KBlock(NamedTuple):
    """The loads of one step of the mainloop and the taps that multiply them."""

    loads: tuple[Load, ...]
    taps: tuple[Tap, ...]


# Largest halo and stride in pixels of im2col::w; beyond them no instruction shares a row.
LONGEST_HALO, LONGEST_STEP = 511, 8
MOST_LOADS = 1 << 22  # loads that a trace lists at most, which take about 1 GB


def slots_per_row(
    w: int, q: int, taps: int, stride: int, dilation: int, pad: int, offset_max: int
) -> int:
    """L, the slots of an image row in the (n, slot) order of im2col::w.

    L is the least integer >= Q for which every tap that runs over the end of its row reads zeros on
    both sides: its true position is at or past W, and the position it wraps to is before 0.
    """
    reach = (taps - 1) * dilation // stride
    if stride > LONGEST_STEP or reach - offset_max // stride > LONGEST_HALO:
        return q + reach
    phases = remainder_count(taps, stride, dilation)
    shifts = [
        (
            tap * dilation % stride,
            schedule.tap_shift(tap, phases, dilation, stride, offset_max),
            schedule.base_shift(tap % phases, dilation, stride, offset_max),
        )
        for tap in range(taps)
    ]
    farthest = max(shift for _, shift, _ in shifts)
    if farthest > LONGEST_HALO:
        return q + farthest
    slots = q
    while not all(
        _wraps_into_zeros(slots, w, q, stride, pad, phase, shift, base)
        for phase, shift, base in shifts
    ):
        slots += 1
    return slots


def _wraps_into_zeros(
    slots: int, w: int, q: int, stride: int, pad: int, phase: int, shift: int, base: int
) -> bool:
    for pixel in range(max(0, slots - shift), q):
        wraps = (pixel + shift) // slots
        position = (pixel + shift + base) * stride + phase - pad
        if position < w or position - wraps * slots * stride >= 0:
            return False
    return True


def remainder_count(taps: int, step: int, dilation: int) -> int:
    """The number of remainders of the taps of an axis modulo the step."""
    return min(taps, step // math.gcd(step, dilation))


@functools.lru_cache(256)  # candidates of a plan ask the same
def phase_count(taps: int, step: int, dilation: int, pixels: int) -> int:
    """The number of phase buffers of an axis for tiles of `pixels`: one per remainder of the taps
    modulo the stride, see `remainder_count`, or one per tap where that takes less memory.
    """
    phases = min(taps, step // math.gcd(step, dilation))
    if phases == taps:
        return taps
    halos = schedule.halo_before(phases, taps, phases, dilation, step, UNLIMITED)
    return taps if taps * pixels < phases * pixels + halos else phases


def check_load_count(count: int) -> None:
    """Raise PlanError if a trace of `count` loads would be too long to list."""
    if count > MOST_LOADS:
        raise PlanError(
            f"the plan has up to {count} loads, but a trace lists at most {MOST_LOADS}; trace a "
            "smaller problem, for instance a single image"
        )


def _tile_load_count(g: Geometry) -> int:
    """The number of loads of x of one tile and channel block, at most."""
    return int(schedule.tile_rows(g) * g.phases_w)


def trace(g: Geometry, itemsize: int, in_place: bool, chunk: int) -> list[Load]:
    """The loads of filters and x of a CPU launch whose work items take `chunk` panels each."""
    blocks = g.groups * schedule.panel_count(g) * schedule.block_count(g)
    check_load_count(blocks * schedule.taps(g))
    filters = [load for group in range(g.groups) for load in filter_loads(g, group, itemsize)]
    return filters + tiles_trace(g, itemsize, in_place, chunk)


def tiles_trace(g: Geometry, itemsize: int, in_place: bool, chunk: int) -> list[Load]:
    """The loads of x of a CPU launch: each work item of `chunk` panels loads its tile."""
    loads: list[Load] = []
    chunks = schedule.ceil_div(schedule.panel_count(g), chunk)
    items = g.groups * schedule.tile_count(g) * chunks
    check_load_count(items * schedule.block_count(g) * _tile_load_count(g))
    for item in range(items):
        group, tile = divmod(item // chunks, schedule.tile_count(g))
        for block in range(schedule.block_count(g)):
            loads += tile_loads(g, group, tile, block, itemsize, in_place)
    return loads


def depthwise_trace(g: Geometry, itemsize: int, in_place: bool) -> list[Load]:
    """The loads of x of a depthwise launch, whose work items are tiles and blocks of channels.

    Filters are gathered channel by channel, and not by loads of the schedule.
    """
    tiles, blocks = schedule.tile_count(g), schedule.block_count(g)
    check_load_count(tiles * blocks * _tile_load_count(g))
    items = itertools.product(range(tiles), range(blocks))
    return [load for item in items for load in tile_loads(g, 0, *item, itemsize, in_place)]


def filter_loads(g: Geometry, group: int, itemsize: int) -> Iterator[Load]:
    """Loads that pack the panels of one group: one per panel, channel block and tap."""
    for panel in range(schedule.panel_count(g)):
        filters = min(g.tile_k, g.K - panel * g.tile_k)
        for c in range(0, g.C, g.tile_c):
            channels = min(g.tile_c, g.C - c)
            for t, r, i in itertools.product(range(g.T), range(g.R), range(g.S)):
                coords = (group * g.K + panel * g.tile_k, t, r, schedule.column_tap(g, i), c)
                size = filters * channels * itemsize
                yield Load("w", "tile", coords, None, 0, 0, panel, channels, size)


def tile_loads(
    g: Geometry, group: int, tile: int, block: int, itemsize: int, in_place: bool
) -> Iterator[Load]:
    """The loads of x of one tile and channel block: one im2col::w walk per buffered row and phase
    buffer.
    """
    n0, p0, q0 = schedule.tile_origin(g, tile)
    planes, rows, columns = schedule.tile_extent(g, n0, p0, q0)
    c = block * g.tile_c
    channels = min(g.tile_c, g.C - c)
    mode = "w" if g.step_w == g.stride_w else "tile"
    buffered = schedule.buffered_planes(g, planes)
    for i, a in itertools.product(range(buffered), range(g.phases_h)):
        plane, t = schedule.buffered_plane(g, i, planes)
        n, d = (n0 + plane) // g.Z, schedule.input_plane(g, n0 + plane, t)
        above = i * schedule.plane_rows(g)
        for j in range(rows + schedule.row_halo(g, a)):
            if not schedule.row_needed(g, j, rows, a):
                continue
            h = schedule.first_row(g, p0, a) + j * g.stride_h
            row = above + schedule.buffer_row(g, a, j)
            for b in range(g.phases_w):
                halo = schedule.column_halo(g, b)
                pixels = schedule.column_pixels(g, columns) + halo
                coords = (n, d, h, q0 * g.stride_w - g.pad_w, group * g.C + c)
                buffer = -1 if in_place else row * g.phases_w + b
                offset = schedule.column_offset(g, b)
                size = pixels * channels * itemsize
                yield Load("x", mode, coords, None, halo, offset, buffer, pixels, size)


def geometry(
    problem: Problem,
    *,
    tile: tuple[int, int, int],
    tile_m: int,
    tile_c: int,
    tile_k: int,
    step_w: int | None = None,
    offset_max: int = UNLIMITED,
) -> Geometry:
    """The Geometry of `problem`, cut into load tiles of `tile` = (output planes, output rows,
    output columns).

    The problem has two or three spatial axes.
    """
    missing = 3 - len(problem.size)  # of two axes, that of depth
    one, zero = (1,) * missing, (0,) * missing
    d, h, w = *one, *problem.size
    t, r, s = *one, *problem.kernel
    z, p, q = *one, *problem.output
    stride_d, stride_h, stride_w = *one, *problem.stride
    dilation_d, dilation_h, dilation_w = *one, *problem.dilation
    pad_d, pad_h, pad_w = *zero, *problem.pad_lo
    step = step_w or stride_w
    tile_p, tile_q = min(tile[1], p), min(tile[2], q)
    # Phases are counted for the whole row.
    columns, slots = (q - 1) * (stride_w // step) + 1, q
    if offset_max != UNLIMITED:
        columns = UNLIMITED
        slots = slots_per_row(w, q, s, stride_w, dilation_w, pad_w, offset_max)
    return Geometry(
        N=problem.N,
        D=d,
        H=h,
        W=w,
        C=problem.C // problem.groups,
        K=problem.K // problem.groups,
        groups=problem.groups,
        T=t,
        R=r,
        S=s,
        Z=z,
        P=p,
        Q=q,
        stride_d=stride_d,
        stride_h=stride_h,
        stride_w=stride_w,
        dilation_d=dilation_d,
        dilation_h=dilation_h,
        dilation_w=dilation_w,
        pad_d=pad_d,
        pad_h=pad_h,
        pad_w=pad_w,
        step_w=step,
        phases_h=phase_count(r, stride_h, dilation_h, tile_p),
        phases_w=phase_count(s, step, dilation_w, columns),
        remainders_w=remainder_count(s, step, dilation_w),
        slots=slots,
        tile_n=min(tile[0], z if z > 1 else max(1, problem.N)),
        tile_p=tile_p,
        tile_q=tile_q,
        tile_m=tile_m,
        tile_c=tile_c,
        tile_k=tile_k,
        w_offset_max=offset_max,
        padding_mode=PADDING_MODES.index(problem.padding_mode),
    )


def window_copies(
    problem: Problem, pixels: NDArray[Any], columns: NDArray[Any]
) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
    """Yield (pixels of the image, entries of the columns that are their copies) of each tap.

    Both are views: of `pixels`, of shape (N, *size, C), and of `columns`, of shape
    (N, *output, C, *kernel). Entries of the padding are in none.
    """
    for tap in itertools.product(*(_inner_taps(problem, axis) for axis in range(problem.rank))):
        reaches = (_reach(problem, axis, position) for axis, position in enumerate(tap))
        outputs, inputs = zip(*reaches, strict=True)
        yield pixels[(slice(None), *inputs)], columns[(slice(None), *outputs, slice(None), *tap)]


def repeated_window_copies(
    problem: Problem, pixels: NDArray[Any], columns: NDArray[Any]
) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
    """Yield the pairs of `window_copies` where padding repeats pixels; the pixels are copies."""
    mode = PADDING_MODES.index(problem.padding_mode)
    for tap in itertools.product(*map(range, problem.kernel)):
        reads: list[list[int]] = []
        for axis, r in enumerate(tap):
            size, pad = problem.size[axis], problem.pad_lo[axis]
            step, start = problem.stride[axis], r * problem.dilation[axis] - pad
            positions = range(start, start + problem.output[axis] * step, step)
            reads.append([schedule.source(mode, at, size, pad, at) for at in positions])
        index: tuple[Any, ...] = (slice(None), *np.ix_(*reads))
        entries: tuple[Any, ...] = (..., *tap)
        yield pixels[index], columns[entries]


def _inner_taps(problem: Problem, axis: int) -> range:
    """The taps of an axis that may be inside the image; others read padding for all outputs."""
    dilation, pad = problem.dilation[axis], problem.pad_lo[axis]
    last = (problem.output[axis] - 1) * problem.stride[axis] - pad  # first pixel of its window
    first = schedule.ceil_div(-last, dilation)
    end = schedule.ceil_div(problem.size[axis] + pad, dilation)
    return range(max(0, first), min(problem.kernel[axis], end))


def _reach(problem: Problem, axis: int, tap: int) -> tuple[slice, slice]:
    """(outputs along an axis whose `tap` is inside the image, pixels that it reads for them)."""
    step = problem.stride[axis]
    start = tap * problem.dilation[axis] - problem.pad_lo[axis]
    first, end = schedule.valid_pixels(start, problem.size[axis], step, problem.output[axis])
    if first == end:
        return slice(0), slice(0)
    return slice(first, end), slice(start + first * step, start + (end - 1) * step + 1, step)
