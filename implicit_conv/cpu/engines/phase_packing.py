"""The stride phases of arrays: their pixels and taps, and packing all taps in one pass over w.

The taps of a phase lie a stride apart, so that packing them phase by phase reads every cache line
of w several times, and takes 3 to 8 cycles per element (EPYC 9004, 2026-11).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from implicit_conv.arrays.arrays import Array, ordered
from implicit_conv.cpu.candidates.candidate import Choice
from implicit_conv.cpu.candidates.problem_views import spatial
from implicit_conv.cpu.candidates.query import Refusal
from implicit_conv.cpu.engines.fold_blocks import is_row
from implicit_conv.cpu.plan.planner import FIXED
from implicit_conv.cpu.run.call import Arrays, stand_in
from implicit_conv.cpu.run.packed import PanelOrder
from implicit_conv.kernels import schedule
from implicit_conv.kernels.cpu.gemm.layout import PHASE_TAP_BYTES
from implicit_conv.kernels.cpu.runtime.layout import round_up
from implicit_conv.kernels.cpu.runtime.program import (
    Copied,
    Room,
    Step,
    address_of,
    array_at,
    launched,
)
from implicit_conv.problem.options import ITEMSIZES, WEIGHT_LAYOUTS_OF, contiguous_strides
from implicit_conv.problem.phases import Phase
from implicit_conv.problem.problem import Problem
from implicit_conv.process.cache import SIZED
from implicit_conv.process.preparation import first, prepare

if TYPE_CHECKING:
    from implicit_conv.kernels.cpu.runtime.launch import Launch

DTYPES = ("float32", "float64")


def pixels_of(phase: Phase, array: Array, axes: str) -> Array:
    """The pixels of a phase in `array`, whose spatial axes are named in its layout `axes`."""
    return sliced(array, axes, phase.pixels)


def taps_of(phase: Phase, w: Array, axes: str) -> Array:
    """The taps of a phase in `w`, a filter with the layout `axes`."""
    return sliced(w, axes, phase.taps)


def sliced(array: Array, axes: str, slices: Sequence[slice]) -> Array:
    """`array` with its spatial axes, or those of taps, sliced."""
    of_axis = dict(zip(space(axes), slices, strict=True))
    return array[tuple([of_axis.get(letter, slice(None)) for letter in axes])]


def space(axes: str) -> list[str]:
    """The letters of the spatial axes, in the order D, H, W or T, R, S."""
    return [letter for letter in "DHWTRS" if letter in axes]


def filter_layout(problem: Problem) -> str:
    """The layout of the filter that phases slice: w, or with groups a copy of it."""
    return problem.weight_layout if problem.groups == 1 else WEIGHT_LAYOUTS_OF[problem.rank][0]


def swapped(problem: Problem, w: Array) -> Array:
    """A view of `w` with each group's filters and channels swapped, with the axes (group, channel,
    filter, taps); as an array of the shape `swapped_shape`, it is the filter that phases slice.
    """
    filters = ordered(w, tuple(map(problem.weight_layout.find, filter_layout(problem))))
    k, c, *taps = filters.shape
    return filters.reshape(problem.groups, k // problem.groups, c, *taps).swapaxes(1, 2)


def swapped_shape(problem: Problem) -> tuple[int, ...]:
    """The shape of the filter that phases slice."""
    if problem.groups == 1:
        return problem.weight_shape
    return problem.C, problem.K // problem.groups, *problem.kernel


def swapped_copy(problem: Problem, w: Array) -> Array:
    """The filter that phases slice: `w` itself, or with groups a copy."""
    if problem.groups == 1:
        return w
    return np.ascontiguousarray(swapped(problem, w)).reshape(swapped_shape(problem))


def stand_ins(problem: Problem, phase: Phase) -> Arrays:
    """Arrays with the strides of those that a phase gets if dy, w and dx are contiguous; they have
    no memory of their own.
    """
    w = stand_in(swapped_shape(problem), problem.filter_dtype)
    dy = stand_in(problem.output_shape, problem.dtype)
    dx = stand_in(problem.input_shape, problem.dtype)
    w = taps_of(phase, w, filter_layout(problem))
    return Arrays(dy, w, pixels_of(phase, dx, problem.array_layout))


def copied_bytes(problem: Problem) -> int:
    """Bytes of the copy of w with swapped filters and channels, which groups need."""
    itemsize = ITEMSIZES[problem.filter_dtype]
    return math.prod(problem.weight_shape) * itemsize if problem.groups > 1 else 0


def together(problem: Problem, parts: Sequence[Choice]) -> list[Choice]:
    """Choices of these phases whose filters one launch can pack; else none.

    All read the same kind of panels, each tap is in one of them, a contiguous filter can be packed
    so, and memory is not limited, of which it takes more.
    """
    if problem.groups > 1 or problem.dtype not in DTYPES or len(parts) < 2:
        return []
    if any(part.query.request.max_workspace is not None for part in parts):
        return []
    if sum(math.prod(part.query.problem.kernel) for part in parts) != math.prod(problem.kernel):
        return []
    strides = contiguous_strides(problem.weight_shape, ITEMSIZES[problem.dtype])
    if not serves(problem, strides):
        return []
    found = [own for own in map(_of_panels, parts) if own is not None]
    return found if len(found) == len(parts) else []


def _of_panels(choice: Choice) -> Choice | None:
    """That of a phase which reads panels, whose candidate is first; None if no method does, or a
    measured one does not.
    """
    best = choice.best_packed
    if not isinstance(best.packed, PanelOrder):
        able = [c for c in choice.candidates if isinstance(c.packed, PanelOrder)]
        if choice.tuned or not able:
            return None
        best = min(able, key=lambda c: c.packed_cycles)
    others = [c for c in choice.candidates if c is not best]
    slower = (c for c in others if c.packed_cycles >= best.packed_cycles)
    reason = "one pass over w does not pack its filter"
    refused = (Refusal(c.name, reason) for c in others if c.packed_cycles < best.packed_cycles)
    refusals = (*choice.refusals, *refused)
    return replace(choice, candidates=(best, *slower), refusals=refusals)


def panel_starts(problem: Problem, parts: Sequence[Choice]) -> list[int]:
    """The byte offset of the panels of each phase, after the table of taps; then their end."""
    starts = [round_up(PHASE_TAP_BYTES * math.prod(problem.kernel))]
    for part in parts:
        starts.append(starts[-1] + round_up(part.packed_bytes))
    return starts


def serves(problem: Problem, strides: tuple[int, ...]) -> bool:
    """Whether a w of these strides can be packed: the filters and taps of a channel are a row."""
    return is_row(problem, strides)


def tap_table(problem: Problem, phases: Sequence[Phase], parts: Sequence[Choice], w: Array) -> Any:
    """The table of taps of a filter with the strides of `w`; see `kernels.cpu.gemm`."""
    found = np.zeros((math.prod(problem.kernel), PHASE_TAP_BYTES // 8), np.int64)
    starts = panel_starts(problem, parts)
    for start, phase, part in zip(starts, phases, parts, strict=False):
        c = part.best_packed
        g = c.geometry
        taps = ordered(taps_of(phase, w, filter_layout(problem)), c.problem.filter_axes)
        place = address_of(taps) - address_of(w)
        for row in range(g.T * g.R):
            for number in range(g.S):
                indices = *divmod(row, g.R), schedule.column_tap(g, number)
                steps = zip(indices, taps.strides[2:], strict=True)
                element = (place + sum(i * step for i, step in steps)) // w.itemsize
                found[element] = start, g.T * g.R * g.S, row * g.S + number, g.tile_c
    return found


def packed_filters(
    problem: Problem,
    phases: Sequence[Phase],
    parts: Sequence[Choice],
    w: Array,
    compiler: str,
    room: Room,
    steps: list[Step],
) -> list[int]:
    """Where one launch writes the panels of all phases, behind the table of taps that it reads;
    `steps` get what packs.
    """
    threads = parts[0].best_packed.threads
    panels = [part.best_packed.packed.key for part in parts]
    key = "phases", FIXED(problem), w.strides, threads, compiler, *panels
    found = SIZED.get(key)
    if found is None:
        starts = panel_starts(problem, parts)
        taps = tap_table(problem, phases, parts, w).reshape(-1).view(np.uint8)
        found = starts, taps, prepare(_launch, problem, parts[0], w, compiler)
        SIZED.keep(key, found)
    starts, taps, launch = found
    block, of_w = room.take(starts[-1]), address_of(w)
    table = array_at(block, taps.shape, taps.dtype, taps.strides)
    steps += [Copied(taps, table), launched(launch, room, of_w, of_w, of_w, block)]
    return [block + start for start in starts[:-1]]


def _launch(problem: Problem, part: Choice, w: Array, compiler: str) -> Launch:
    """The launch that packs."""
    first("packing of phases")
    from implicit_conv.kernels.cpu.gemm.phase_packing import prepare_phase_packing

    c = part.best_packed
    k, channels = (w.strides[axis] for axis in spatial(problem).filter_axes[1::-1])
    g = c.geometry._replace(T=1, R=1, S=math.prod(problem.kernel))
    given = g, c.lanes, problem.dtype, (k, channels), c.threads, compiler
    return prepare_phase_packing(*given)
