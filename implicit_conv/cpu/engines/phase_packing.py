"""Packing the filters of all stride phases at once: one pass over w serves all of them.

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
from implicit_conv.cpu.candidates.candidate import Refusal
from implicit_conv.cpu.candidates.problem_views import spatial
from implicit_conv.cpu.engines.engine import CpuEngine
from implicit_conv.cpu.engines.fold_blocks import is_row
from implicit_conv.cpu.engines.stride_phases import Part, filter_layout, phase_steps
from implicit_conv.cpu.plan.planner import FIXED, Choice
from implicit_conv.cpu.run.call import Placed
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
from implicit_conv.problem.problem import Problem
from implicit_conv.process.cache import SIZED
from implicit_conv.process.preparation import first, prepare

if TYPE_CHECKING:
    from implicit_conv.kernels.cpu.runtime.launch import Launch

DTYPES = ("float32", "float64")
# Cycles per element of w that is packed in one pass, and for each phase that reads its taps, which
# lie a stride apart, besides its estimate (EPYC 9004, Zen 4, 2026-11).
PACK_CYCLES = 1.0
SPREAD_TAP_CYCLES = 0.75


def together(problem: Problem, engines: Sequence[CpuEngine]) -> tuple[CpuEngine, ...]:
    """Plans of these phases whose filters one launch packs, if a plain filter is then faster by
    estimate; else none.

    All read the same kind of panels, each tap is in one of them, and memory is not limited, of
    which it takes more.
    """
    if problem.groups > 1 or problem.dtype not in DTYPES or len(engines) < 2:
        return ()
    if any(engine.request.max_workspace is not None for engine in engines):
        return ()
    if sum(math.prod(engine.problem.kernel) for engine in engines) != math.prod(problem.kernel):
        return ()
    found = tuple([own for own in map(_of_panels, engines) if own is not None])
    if len(found) < len(engines):
        return ()
    return found if one_pass_seconds(problem, found) <= own_seconds(problem, engines) else ()


def _of_panels(engine: CpuEngine) -> CpuEngine | None:
    """The plan of a phase that reads panels; None if no method does, or a measured one does not."""
    if isinstance(engine.best_packed.packed, PanelOrder):
        return engine
    choice = engine.choice
    able = [c for c in choice.candidates if isinstance(c.packed, PanelOrder) and not choice.tuned]
    if not able:
        return None
    best = min(able, key=lambda c: c.packed_cycles)
    others = [c for c in choice.candidates if c is not best]
    slower = (c for c in others if c.packed_cycles >= best.packed_cycles)
    reason = "one pass over w does not pack its filter"
    refused = (Refusal(c.name, reason) for c in others if c.packed_cycles < best.packed_cycles)
    return replace(engine, choice=Choice((best, *slower), (*choice.refusals, *refused)))


def one_pass_seconds(problem: Problem, engines: Sequence[CpuEngine]) -> float:
    """The estimate of phases whose filters one launch packs."""
    best = [engine.best_packed for engine in engines]
    elements = math.prod(problem.weight_shape) * PACK_CYCLES
    return sum(c.packed_cycles / c.threads / c.arch.hertz for c in best) + (
        elements / best[0].arch.hertz
    )


def own_seconds(problem: Problem, engines: Sequence[CpuEngine]) -> float:
    """The estimate of phases that pack for themselves."""
    elements = len(engines) * math.prod(problem.weight_shape) * SPREAD_TAP_CYCLES
    gathered = elements / engines[0].arch.hertz if engines else 0.0
    return gathered + sum(engine.best.seconds for engine in engines)


def panel_starts(problem: Problem, engines: Sequence[CpuEngine]) -> list[int]:
    """The byte offset of the panels of each phase, after the table of taps; then their end."""
    starts = [round_up(PHASE_TAP_BYTES * math.prod(problem.kernel))]
    for engine in engines:
        starts.append(starts[-1] + round_up(engine.packed_bytes))
    return starts


def serves(problem: Problem, strides: tuple[int, ...]) -> bool:
    """Whether a w of these strides can be packed: the filters and taps of a channel are a row."""
    return is_row(spatial(problem), strides)


def tap_table(problem: Problem, parts: Sequence[Part], w: Array) -> Any:
    """The table of taps of a filter with the strides of `w`; see `kernels.cpu.gemm`."""
    starts = panel_starts(problem, [part.engine for part in parts])
    found = np.zeros((math.prod(problem.kernel), PHASE_TAP_BYTES // 8), np.int64)
    for start, part in zip(starts, parts, strict=False):
        c = part.engine.best_packed
        g = c.geometry
        taps = ordered(part.taps(w, filter_layout(problem)), c.problem.filter_axes)
        place = address_of(taps) - address_of(w)
        for row in range(g.T * g.R):
            for number in range(g.S):
                indices = *divmod(row, g.R), schedule.column_tap(g, number)
                steps = zip(indices, taps.strides[2:], strict=True)
                element = (place + sum(i * step for i, step in steps)) // w.itemsize
                found[element] = start, g.T * g.R * g.S, row * g.S + number, g.tile_c
    return found


def packed_steps(
    problem: Problem, parts: Sequence[Part], of: Placed, w: Array, room: Room
) -> list[Step]:
    """The steps of phases whose filters one launch packs: it reads a table of taps behind which it
    writes the panels of all.
    """
    engines = [part.engine for part in parts]
    settings = engines[0].best_packed.threads, engines[0].request.compiler
    panels = [engine.packed_key for engine in engines]
    key = "phases", FIXED(problem), w.strides, settings, *panels
    found = SIZED.get(key)
    if found is None:
        starts = panel_starts(problem, engines)
        taps = tap_table(problem, parts, w).reshape(-1).view(np.uint8)
        found = starts, taps, prepare(_launch, problem, engines[0], w)
        SIZED.keep(key, found)
    starts, taps, launch = found
    block, of_w = room.take(starts[-1]), address_of(w)
    table = array_at(block, taps.shape, taps.dtype, taps.strides)
    packing: list[Step] = [Copied(taps, table), launched(launch, room, of_w, of_w, of_w, block)]
    filters = [block + start for start in starts[:-1]]
    return packing + phase_steps(problem, parts, of, filters, room)


def _launch(problem: Problem, engine: CpuEngine, w: Array) -> Launch:
    """The launch that packs."""
    first("packing of phases")
    from implicit_conv.kernels.cpu.gemm.phase_packing import prepare_phase_packing

    c = engine.best_packed
    k, channels = (w.strides[axis] for axis in spatial(problem).filter_axes[1::-1])
    g = c.geometry._replace(T=1, R=1, S=math.prod(problem.kernel))
    given = g, c.lanes, problem.dtype, (k, channels), c.threads, engine.request.compiler
    return prepare_phase_packing(*given)
