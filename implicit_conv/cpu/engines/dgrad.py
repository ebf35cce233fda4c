"""Plans of input gradients and transposed convolutions: one fprop for each stride phase.

GEMM mapping: A = output gradient, gemm_m = N*D*H*W; B = filter, gemm_n = C; C = input gradient;
gemm_k = T*R*S*K. A phase has its own part of gemm_m and of the taps; see `phases`.

Where phases have few taps or filters, one GEMM for all taps is faster, whose products are then
added; see `fold`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import numpy as np

from implicit_conv.arrays.arrays import numpy_dtype
from implicit_conv.cpu.candidates.candidate import Candidate, Query, Request
from implicit_conv.cpu.candidates.phrases import gradient_text
from implicit_conv.cpu.candidates.problem_views import spatial
from implicit_conv.cpu.engines import engine as fprop
from implicit_conv.cpu.engines.engine import CpuEngine
from implicit_conv.cpu.engines.runner import parse_out_dtype
from implicit_conv.cpu.engines.stride_phases import (
    Part,
    copied_bytes,
    empty_steps,
    filter_layout,
    phase_steps,
    space,
    stand_ins,
    swapped,
    swapped_copy,
    swapped_shape,
    without_channels,
)
from implicit_conv.cpu.engines.sums import SumEngine
from implicit_conv.cpu.machine.arch import CpuArch
from implicit_conv.cpu.plan.planner import least_workspace, workspace_error
from implicit_conv.cpu.run.call import Placed
from implicit_conv.cpu.run.packed import PackedFilter, packed_parts, part_starts
from implicit_conv.errors import PlanError
from implicit_conv.kernels.cpu.runtime.program import Room, Step, copied
from implicit_conv.problem.options import Activation
from implicit_conv.problem.phases import MOST_PHASES, Phase, is_covered, phase_count, phases_of
from implicit_conv.problem.problem import Problem
from implicit_conv.problem.schedule import Load
from implicit_conv.process.cache import cached_property
from implicit_conv.process.preparation import imports

if TYPE_CHECKING:
    from implicit_conv.cpu.engines.fold import Fold, Folds


@imports
def _tuning() -> Any:
    from implicit_conv.cpu.plan import tuning

    return tuning


@imports
def _folds_of() -> Any:
    from implicit_conv.cpu.engines.fold import folds_of

    return folds_of


@imports
def _range_of() -> Any:
    from implicit_conv.cpu.engines.gradient_kinds import range_of

    return range_of


@imports
def _phase_packing() -> Any:
    from implicit_conv.cpu.engines import phase_packing

    return phase_packing


@imports
def _one_pass() -> Callable[..., CpuEngine | str]:
    from implicit_conv.cpu.engines import one_pass

    return one_pass.plan


@dataclass(frozen=True)
class DgradEngine(SumEngine):
    """The plan of an input gradient.

    Attributes
    ----------
    problem : Problem
        The convolution whose input gradient this is.
    parts : tuple of Part
        The phases that taps reach.
    empty : CpuEngine or None
        The plan that computes activation(bias + residual), if some pixels are in no phase.
    out_dtype : str
        The dtype of results.
    refusal : str
        Why several phases do not take one pass; empty if no kernel has all phases of such filters.
    folds : Folds or None
        What runs in place of the phases.
    """

    problem: Problem
    parts: tuple[Part, ...]
    empty: CpuEngine | None
    out_dtype: str
    refusal: str = ""
    folds: Folds | None = None
    names: ClassVar[tuple[str, str]] = ("dy", "w")
    has_epilogue: ClassVar[bool] = False
    kind: ClassVar[str] = "phases"
    result: ClassVar[str] = "dx"

    @property
    def engines(self) -> tuple[CpuEngine, ...]:
        """The plans of all launches with a plain filter, in their order."""
        fold = self.fold(packed=False)
        if fold is not None:
            return (fold.product,)
        found = tuple(part.engine for part in self.plain_parts)
        return found if self.empty is None else (self.empty, *found)

    def fold(self, packed: bool) -> Fold | None:
        """What runs in place of the phases with a filter that is `packed` or plain."""
        if self.folds is None:
            return None
        return self.folds.packed if packed else self.folds.plain

    def range_of_sizes(self) -> Any:
        """The range of near sizes that the plan serves, or None; see `kinds`."""
        return _range_of()(self)

    @property
    def _engines(self) -> tuple[CpuEngine, ...]:
        """The plans of the phases that taps reach."""
        return tuple(part.engine for part in self.parts)

    @cached_property
    def together(self) -> tuple[Part, ...]:
        """The phases as they run with a plain filter, if one launch packs it for all of them."""
        if len(self.parts) < 2:
            return ()
        engines = _phase_packing().together(self.problem, self._engines)
        each = zip(self.parts, engines, strict=False)  # there may be none
        return tuple(Part(part.phase, engine) for part, engine in each)

    @property
    def plain_parts(self) -> tuple[Part, ...]:
        """The phases as they run with a plain filter."""
        return self.together or self.parts

    @property
    def phases(self) -> tuple[CpuEngine, ...]:
        """The plans of all phases, after that of pixels which no tap reaches."""
        found = self._engines
        return found if self.empty is None else (self.empty, *found)

    @property
    def candidates(self) -> tuple[Candidate, ...]:
        """The candidates of all launches."""
        return tuple(candidate for engine in self.engines for candidate in engine.candidates)

    @property
    def algorithm(self) -> str:
        """The algorithm of the launch with most work."""
        return max(self.engines, key=lambda engine: engine.best.cycles).algorithm

    @property
    def copied_bytes(self) -> int:
        """Bytes of the copy of w."""
        return copied_bytes(self.problem)

    @property
    def packed_key(self) -> tuple[object, ...]:
        """The keys of the filters of all phases, or of that of the products."""
        fold = self.fold(packed=True)
        if fold is not None:
            return self.kind, fold.product.packed_key
        return self.kind, *(part.engine.packed_key for part in self.parts)

    @property
    def starts(self) -> list[int]:
        """Where the filters of phases begin in a packed one; then its end."""
        fold = self.fold(packed=True)
        engines = self._engines if fold is None else (fold.product,)
        return part_starts([engine.packed_bytes for engine in engines])

    @property
    def workspace_bytes(self) -> int:
        """Bytes of scratch memory of the launch that needs most, of a tile, and of copies."""
        tile = 0 if self.folds is None else self.folds.tile_bytes
        packed = max((engine.workspace_bytes for engine in self._engines), default=0)
        return max(super().workspace_bytes, packed + self.copied_bytes) + tile

    @property
    def call_bytes(self) -> int:
        """Bytes that the launch which needs most takes besides its arrays, with a tile, and of the
        copy of w.
        """
        folded = 0 if self.folds is None else self.folds.call_bytes
        if self.fold(packed=False) is not None:
            return folded
        if self.together:
            engines = [part.engine for part in self.together]
            panels: int = _phase_packing().panel_starts(self.problem, engines)[-1]
            return max(panels + self.workspace_bytes, folded)
        taken = [
            part.engine.call_bytes_of(
                stand_ins(self.problem, part.phase, part.engine.best.problem).w
            )
            for part in self.parts
        ]
        if self.empty is not None:
            taken.append(self.empty.call_bytes)
        return max(*taken, folded) + self.copied_bytes

    @property
    def x_shape(self) -> tuple[int, ...]:
        """The shape of dy."""
        return self.problem.output_shape

    @property
    def w_shape(self) -> tuple[int, ...]:
        """The shape of w."""
        return self.problem.weight_shape

    @property
    def y_shape(self) -> tuple[int, ...]:
        """The shape of dx."""
        return self.problem.input_shape

    @property
    def summed(self) -> Problem:
        """The fprop of the phase with most taps; that of a fold of a near size has all."""
        if not self.phases:
            return self.problem.changed(C=self.problem.K, K=self.problem.C)
        return max((engine.problem for engine in self.phases), key=lambda fprop: fprop.terms)

    def explain(self) -> str:
        """The text of `Plan.explain`: the explanation of every phase."""
        return "\n".join(self._explained())

    def _explained(self) -> Iterator[str]:
        yield f"problem     {self._problem_text()}"
        if self.folds is not None and self.folds.plain is not None:
            yield from self.folds.plain.explained(self.result, self.folds.phases_seconds)
            return
        count = len(self.parts)
        each = "one fprop" if count == 1 else f"{count} fprops, one for each stride phase of"
        yield f"algorithm   {each if count else 'none: no tap reaches a pixel of'} {self.result}"
        if self.refusal:
            yield f"            not in one pass: {self.refusal}"
        if self.together:
            yield "            one pass over w packs the filters of all phases"
        if self.empty is not None:
            yield "            pixels that no tap reaches are written first"
        shown: dict[Problem, int] = {}
        for number, part in enumerate(self.plain_parts, 1):
            pixels = ", ".join(
                f"{axis}={found.start}::{found.step}"
                for axis, found in zip(space(self.problem.layout), part.phase.pixels, strict=True)
            )
            first = shown.setdefault(part.engine.problem, number)
            yield f"\nphase {number} of {count}: pixels {pixels} of {self.result}"
            yield part.engine.explain() if first == number else f"as phase {first}"

    def facts(self) -> dict[str, Any]:
        """The facts of `Plan.facts`."""
        if self.folds is None or self.folds.plain is None:
            return super().facts()
        facts = self.folds.plain.facts(self.folds.phases_seconds)
        return {**facts, "problem": self._problem_text()}

    def _problem_text(self) -> str:
        return gradient_text(self.problem, self.names, self.result)

    def trace(self) -> list[Load]:
        """The loads of all phases, with the coordinates of each phase's own fprop of dy; of a fold,
        those of its products.
        """
        fold = self.fold(packed=False)
        if fold is not None:
            return fold.trace()
        return [load for part in self.plain_parts for load in part.engine.trace()]

    def pack(self, w: object) -> PackedFilter:
        """The packed filters of all phases as one, or that of the products; see `Plan.pack`."""
        fold = self.fold(packed=True)
        if fold is not None:
            return packed_parts(self.kind, [fold.pack(self.plain_filter(w))])
        array = swapped_copy(self.problem, self.plain_filter(w))
        axes = filter_layout(self.problem)
        packed = [part.engine.pack(part.taps(array, axes)) for part in self.parts]
        return packed_parts(self.kind, packed)

    def tuned(self, filters: str) -> DgradEngine:
        """The plan with the fastest candidate of each launch; see `Plan.tune`."""
        tuning = _tuning()
        fold = self.fold(tuning.parse_filters(filters))
        if self.folds is not None and fold is not None:
            return replace(self, folds=self.folds.tuned(filters, fold))
        problem = self.problem
        dy = tuning.example(self.x_shape, problem.dtype, 0)
        w = swapped_copy(problem, tuning.example(problem.weight_shape, problem.filter_dtype, 1))
        dx = np.empty(self.y_shape, numpy_dtype(self.y_dtype))
        engines: dict[Problem, CpuEngine] = {}
        for part in self.parts:
            if part.engine.problem not in engines:
                taps = part.taps(w, filter_layout(problem))
                pixels = part.pixels(dx, problem.array_layout)
                engines[part.engine.problem] = part.engine.tuned(filters, (dy, taps, pixels))
        parts = (replace(part, engine=engines[part.engine.problem]) for part in self.parts)
        return replace(self, parts=tuple(parts))

    def steps(self, of: Placed, room: Room) -> list[Step]:
        """The steps of all phases, or of what runs in their place."""
        fold = self.fold(packed=of.w is None)
        if fold is not None and fold.takes(of.w):
            return fold.steps(of, room)
        problem, found = self.problem, list[Step]()
        if self.empty is not None:
            found += empty_steps(self.empty, of, room)
        if of.w is None:
            panels = [of.panels + start for start in self.starts[:-1]]
            return found + phase_steps(problem, self.parts, of, panels, room)
        if self.together and _phase_packing().serves(problem, of.w.strides):
            packed: list[Step] = _phase_packing().packed_steps(
                problem, self.together, of, of.w, room
            )
            return found + packed
        w = of.w
        if problem.groups > 1:
            w = copied(swapped(problem, w), room, found).reshape(swapped_shape(problem))
        taps = [part.taps(w, filter_layout(problem)) for part in self.parts]
        return found + phase_steps(problem, self.parts, of, taps, room)


@dataclass(frozen=True)
class TransposedEngine(DgradEngine):
    """The plan of a transposed convolution, which is the input gradient of `problem`."""

    names: ClassVar[tuple[str, str]] = ("x", "w")
    has_epilogue: ClassVar[bool] = True
    result: ClassVar[str] = "y"


InputGradEngine: TypeAlias = DgradEngine | CpuEngine


def plan(
    problem: Problem,
    arch: CpuArch,
    request: Request,
    kind: type[DgradEngine] = DgradEngine,
    *,
    activation: Activation = None,
    out_dtype: object = None,
) -> InputGradEngine:
    """Plan the input gradient of `problem`: in one pass, or as one fprop for each phase.

    Raises
    ------
    PlanError, DTypeError
        The precision, algorithm, activation or out_dtype is unknown, or is not supported for this
        problem; or there are too many phases.
    """
    refusal = ""
    if problem.groups == problem.C == problem.K and max(problem.stride) > 1:
        options = {"activation": activation, "out_dtype": out_dtype}
        found = _one_pass()(problem, arch, request, has_epilogue=kind.has_epilogue, **options)
        if not isinstance(found, str):
            return found
        refusal = found
    if phase_count(problem) > MOST_PHASES:
        raise PlanError(
            f"the stride {problem.stride} divides {kind.result} into {phase_count(problem)} phases "
            f"that taps reach; at most {MOST_PHASES} are supported; divide the filter into parts, "
            "and add their results"
        )
    phases = phases_of(problem)
    if problem.is_integer and out_dtype is None:
        # The default counts all taps, of which a phase may have a part: it must not change with
        # the stride.
        out_dtype = parse_out_dtype(None, replace(problem, C=problem.K, K=problem.C))
    empty = None if phases and is_covered(problem, phases) else without_channels(problem)
    reserved = request.reserved_bytes + copied_bytes(problem)
    request = replace(request, reserved_bytes=reserved)
    for phase in phases:
        phase.problem.check_sizes()
    _check_workspace(problem, phases, empty, arch, request)
    engines: dict[Problem, CpuEngine] = {}

    def engine(phase: Phase) -> CpuEngine:
        if phase.problem not in engines:
            engines[phase.problem] = fprop.plan(
                phase.problem,
                arch,
                request,
                activation=activation,
                out_dtype=out_dtype,
                arrays=stand_ins(problem, phase, spatial(phase.problem, request.precision)),
            )
        return engines[phase.problem]

    parts = tuple(Part(phase, engine(phase)) for phase in phases)
    folds = None
    if set(problem.stride) != {1}:
        given = problem, arch, request, activation, [part.engine for part in parts]
        folds = _folds_of()(*given)
    first = None
    if empty is not None:
        first = fprop.plan(
            empty, arch, _of_empty(request), activation=activation, out_dtype=out_dtype
        )
    dtype = (first or parts[0].engine).out_dtype
    return kind(problem, parts, first, dtype, refusal, folds)


def _of_empty(request: Request) -> Request:
    """The request for pixels that no tap reaches: any algorithm may write them."""
    limits = request.max_workspace, request.reserved_bytes
    return Request(max_workspace=limits[0], reserved_bytes=limits[1])


def _check_workspace(
    problem: Problem,
    phases: Sequence[Phase],
    empty: Problem | None,
    arch: CpuArch,
    request: Request,
) -> None:
    """Check that every phase can be planned with `max_workspace`.

    Raises
    ------
    PlanError
        One cannot: the message says what the phase with the largest need takes.
    """
    if request.max_workspace is None:
        return
    different = {phase.problem: phase for phase in phases}.values()
    needs = []
    for phase in different:
        view = spatial(phase.problem, request.precision)
        needs.append(least_workspace(Query(view, arch, request, stand_ins(problem, phase, view))))
    if empty is not None:
        needs.append(least_workspace(Query(spatial(empty), arch, _of_empty(request))))
    least = max(needs)
    if least > request.max_workspace:
        raise workspace_error(least, request)
