"""Input gradients and transposed convolutions as one convolution for each stride phase.

GEMM mapping: A = output gradient, gemm_m = N*D*H*W; B = filter, gemm_n = C; C = input gradient;
gemm_k = T*R*S*K. A phase has its own part of gemm_m and of the taps; see `problem.phases`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from implicit_conv.arrays.arrays import Array, numpy_dtype
from implicit_conv.cpu.candidates.candidate import Candidate, Choice, Given
from implicit_conv.cpu.candidates.problem_views import spatial
from implicit_conv.cpu.candidates.query import Query, Refusal, Request
from implicit_conv.cpu.engines import phase_packing
from implicit_conv.cpu.engines.phase_packing import (
    copied_bytes,
    filter_layout,
    pixels_of,
    space,
    stand_ins,
    swapped,
    swapped_copy,
    swapped_shape,
    taps_of,
)
from implicit_conv.cpu.machine.arch import CpuArch
from implicit_conv.cpu.plan import planner
from implicit_conv.cpu.plan.composite import Composite, Derived, begin, part_of
from implicit_conv.cpu.plan.planner import steps_of
from implicit_conv.cpu.run.call import Arrays, stand_in
from implicit_conv.cpu.run.packed import PackedOrder
from implicit_conv.kernels.cpu.runtime.program import Copied, Step, copied, located
from implicit_conv.kernels.cpu.runtime.table import MOST_APART
from implicit_conv.problem.options import ITEMSIZES
from implicit_conv.problem.phases import (
    MOST_PHASES,
    is_covered,
    phase_count,
    phases_of,
    without_channels,
)
from implicit_conv.problem.problem import Problem
from implicit_conv.problem.schedule import Load


@dataclass(frozen=True)
class Phases(Composite):
    """One convolution for each phase that taps reach, after one without channels that writes
    pixels which no tap reaches; one launch packs the filters of all if they are packed `together`.
    """

    name: ClassVar[str] = "stride phases"
    kind: ClassVar[str] = "phases"
    together: bool = False

    @property
    def summary(self) -> str:
        """The method in a few words, for tables."""
        packed = ", one pass over w packs the filters of all phases" if self.together else ""
        return f"one convolution for each stride phase{packed}"

    @property
    def order(self) -> str:
        """A name for the order of its sums."""
        return "taps and channels of each stride phase"

    @property
    def needs(self) -> str:
        """What it needs of the strides of arrays, in words."""
        return "filters and taps of a channel in a row" if self.together else ""

    @classmethod
    def candidates(
        cls, problem: Problem, arch: CpuArch, request: Request
    ) -> Iterator[Candidate | Refusal]:
        """The phases, and if their filters can be packed together, that too."""
        found = _planned(problem, arch, request)
        if isinstance(found, Refusal):
            yield found
            return
        yield cls()._of(problem, arch, found)
        empty = len(found) - len(phases_of(problem))
        joined = phase_packing.together(problem, found[empty:])
        if joined:
            yield cls(together=True)._of(problem, arch, [*found[:empty], *joined])

    def _of(self, problem: Problem, arch: CpuArch, parts: Sequence[Choice]) -> Candidate:
        costs, seconds = arch.costs.transposed, 0.0
        if set(problem.stride) != {1}:
            seconds = len(parts) * costs.phase_launch + spread_cycles(problem, arch) / arch.hertz
        if self.together:
            elements = costs.pack * math.prod(problem.weight_shape)
            found = self.composed(problem, arch, parts, seconds)
            packed = found.packed_cycles + elements * found.threads
            return replace(found, cycles=packed, packing=elements * found.threads)
        elements = costs.spread_tap * len(parts) * math.prod(problem.weight_shape)
        return self.composed(problem, arch, parts, seconds, elements / arch.hertz)

    def resized(self, c: Candidate, problem: Problem, derived: Derived) -> Candidate | None:
        """The phases of a near size, which have the same taps."""
        before, phases = phases_of(c.problem), phases_of(problem)
        if len(c.parts) > len(before) or [p.taps for p in phases] != [p.taps for p in before]:
            return None
        known, found = dict[Problem, Choice | None](), list[Choice]()
        for phase, part in zip(phases, c.parts, strict=True):
            choice = known.get(phase.problem)
            if choice is None:
                choice = known[phase.problem] = derived(part, phase.problem)
            if choice is None:
                return None
            found.append(choice)
        return self._of(problem, c.arch, found)

    def packing_parts(self, c: Candidate) -> Sequence[Choice]:
        """Those of phases: no tap reaches the pixels of another one."""
        return c.parts[len(c.parts) - len(phases_of(c.problem)) :]

    def packed(self, c: Candidate) -> PackedOrder:
        """The packed filters of the phases, and which taps each one has."""
        order = super().packed(c)
        slices = [each for phase in phases_of(c.problem) for each in phase.taps]
        taps = tuple((each.start, each.stop, each.step) for each in slices)
        return replace(order, key=(*order.key, taps))

    def part_arrays(self, problem: Problem, arch: CpuArch) -> list[Arrays]:
        """The taps and pixels of the phases."""
        phases = phases_of(problem)
        found = [stand_ins(problem, phase) for phase in phases]
        if not (phases and is_covered(problem, phases)):
            empty = without_channels(problem)
            x = stand_in(empty.input_shape, empty.dtype)
            w = stand_in(empty.weight_shape, empty.filter_dtype)
            found.insert(0, Arrays(x, w, stand_in(problem.input_shape, problem.dtype)))
        return found

    def titles(self, c: Candidate) -> list[str]:
        """The pixels of the phases."""
        phases, found = phases_of(c.problem), []
        for number, phase in enumerate(phases, 1):
            pixels = ", ".join(
                f"{axis}={found.start}::{found.step}"
                for axis, found in zip(space(c.problem.layout), phase.pixels, strict=True)
            )
            found.append(f"phase {number} of {len(phases)}: pixels {pixels}")
        return ["pixels that no tap reaches"] * (len(c.parts) - len(phases)) + found

    def copied_bytes(self, c: Candidate) -> int:
        """Bytes of the copy of w."""
        return copied_bytes(c.problem)

    def call_bytes(self, c: Candidate, w: Array | None = None) -> int:
        """Bytes that a call with a plain filter takes besides its arrays."""
        if self.together:
            panels = phase_packing.panel_starts(c.problem, self.packing_parts(c))[-1]
            return panels + self.workspace_bytes(c)
        return super().call_bytes(c, w)

    def accepts(self, c: Candidate, arrays: Arrays) -> bool:
        """Whether it can compute arrays of these strides; its parts may not."""
        w = arrays.w
        return not self.together or w is None or phase_packing.serves(c.problem, w.strides)

    def filters(self, c: Candidate, w: Array) -> list[Array]:
        """The taps of the phases."""
        w, axes = swapped_copy(c.problem, w), filter_layout(c.problem)
        return [taps_of(phase, w, axes) for phase in phases_of(c.problem)]

    def loads(self, c: Candidate) -> list[Load]:
        """The loads of all phases, with the coordinates of each phase's own fprop."""
        parts = zip(phases_of(c.problem), self.packing_parts(c), strict=True)
        return [load for phase, part in parts for load in part.best.trace(phase.problem)]

    def steps(self, c: Candidate, given: Given) -> list[Step]:
        """The steps of all phases. Those with equal problems have the same launches."""
        arrays, _, formats, room, _ = given
        problem, w, found = c.problem, arrays.w, list[Step]()
        phases, parts = phases_of(problem), self.packing_parts(c)
        if len(c.parts) > len(phases):
            found += _empty_steps(c.parts[0], problem, given)
        filters: Sequence[Array | int]
        if w is None:
            filters = self.panels(c, arrays)
        elif self.together:
            filters = phase_packing.packed_filters(
                problem, phases, parts, w, formats.compiler, room, found
            )
        else:
            if problem.groups > 1:
                w = copied(swapped(problem, w), room, found).reshape(swapped_shape(problem))
            filters = [taps_of(phase, w, filter_layout(problem)) for phase in phases]
        known: dict[Problem, tuple[list[Step], list[int]]] = {}
        end = room.end
        for phase, part, own in zip(phases, parts, filters, strict=True):
            y, residual = pixels_of(phase, arrays.y, problem.array_layout), None
            if arrays.residual is not None:
                residual = pixels_of(phase, arrays.residual, problem.array_layout)
            begins = [begin(each) for each in (own, y, residual) if each is not None]
            if phase.problem not in known:
                room.end = end
                of_part = part_of(own, arrays.x, y, residual)
                steps = _phase_steps(part, arrays.y, given._replace(arrays=of_part))
                known[phase.problem] = steps, begins
                found += steps
                continue
            steps, firsts = known[phase.problem]
            moves = zip(begins, firsts, strict=True)
            by = {located(first)[0]: at - first for at, first in moves}
            found += [step.moved(by) for step in steps]
        return found


def _planned(problem: Problem, arch: CpuArch, request: Request) -> list[Choice] | Refusal:
    """The choices of the phases, after that of pixels that no tap reaches, if there are any."""
    if phase_count(problem) > MOST_PHASES:
        return Refusal(
            Phases.name,
            f"the stride {problem.stride} divides the result into {phase_count(problem)} phases "
            f"that taps reach; at most {MOST_PHASES} are supported; divide the filter into parts, "
            "and add their results",
        )
    phases = phases_of(problem)
    for phase in phases:
        phase.problem.check_sizes()
    reserved = request.reserved_bytes + copied_bytes(problem)
    request, found = replace(request, reserved_bytes=reserved), list[Choice]()
    if not (phases and is_covered(problem, phases)):
        # Any algorithm may write them.
        own = Request(max_workspace=request.max_workspace, reserved_bytes=reserved)
        empty, *_ = Phases().part_arrays(problem, arch)
        query = Query(spatial(without_channels(problem)), arch, own, empty)
        choice = planner.of_part(query, Phases.name)
        assert isinstance(choice, Choice)
        found.append(choice)
    known: dict[Problem, Choice] = {}
    for phase in phases:
        if phase.problem not in known:
            view = spatial(phase.problem, request.precision)
            query = Query(view, arch, request, stand_ins(problem, phase))
            choice = planner.of_part(query, Phases.name)
            if isinstance(choice, Refusal):
                return choice
            known[phase.problem] = choice
        found.append(known[phase.problem])
    return found


def spread_cycles(problem: Problem, arch: CpuArch) -> float:
    """Cycles that phases take to store pixels of rows a stride apart, besides their estimates; if
    channels are last, pixels are vectors.
    """
    costs = arch.costs.transposed
    if problem.stride[-1] == 1 or (problem.channels_last and problem.C > 1):
        return 0.0
    elements = math.prod(problem.input_shape)
    beyond = max(0.0, elements - arch.l2_bytes / ITEMSIZES[problem.dtype])
    far_apart = problem.stride[-1] > MOST_APART
    stores = costs.slow_spread_store if far_apart else costs.spread_store
    return elements * stores + beyond * problem.stride[-1] * costs.spread_pixel


def _phase_steps(part: Choice, whole: Array, given: Given) -> list[Step]:
    """The steps of a phase of `whole`. Kernels add a residual to whole vectors of a contiguous
    output: of pixels that lie a stride apart, both are copied.
    """
    found, arrays, room = list[Step](), given.arrays, given.room
    pixels = arrays.y
    if arrays.residual is not None and pixels.shape != whole.shape:
        y = room.array(pixels.shape, pixels.dtype)
        arrays = arrays._replace(y=y, residual=copied(arrays.residual, room, found))
    found += steps_of(part, given._replace(arrays=arrays))
    if arrays.y is not pixels:
        found.append(Copied(arrays.y, pixels))
    return found


def _empty_steps(empty: Choice, problem: Problem, given: Given) -> list[Step]:
    """The steps of pixels that no tap reaches: its other arrays have no channels."""
    own = without_channels(problem)
    x = np.empty(own.input_shape, numpy_dtype(own.dtype))
    w = np.empty(own.weight_shape, numpy_dtype(own.filter_dtype))
    return steps_of(empty, given._replace(arrays=given.arrays._replace(x=x, w=w, panels=0)))
