"""Near sizes of transposed convolutions and input gradients: their phases, their folds, or the one
pass that computes them.
"""

from __future__ import annotations

from typing import Any

from implicit_conv.cpu.candidates.problem_views import spatial
from implicit_conv.cpu.engines.engine import CpuEngine
from implicit_conv.cpu.engines.fold import NO_ACTIVATION, Fold, Folds, ProductEngine
from implicit_conv.cpu.engines.fold_blocks import blocks_of, fold_cycles, product_problem
from implicit_conv.cpu.engines.kinds import CandidateRange, Range, Shape, may_serve
from implicit_conv.cpu.engines.stride_phases import Part
from implicit_conv.cpu.plan import planner
from implicit_conv.cpu.plan.planner import Choice
from implicit_conv.problem.options import SPACE
from implicit_conv.problem.phases import phases_of
from implicit_conv.problem.problem import Problem


def sized_problem(near: Problem, read_shape: Shape, shape: Shape | None) -> Problem | None:
    """The convolution whose result has `read_shape`, that a gradient reads, if `near` is another of
    its kind; None if it is not.

    `shape` is that of the gradient or its spatial extents; without it, the gradient grows by the
    stride for each pixel that is read.
    """
    if len(read_shape) != len(near.array_layout) or isinstance(shape, int):
        return None
    extents = dict(zip(near.array_layout, read_shape, strict=True))
    read = tuple([extents[axis] for axis in SPACE[near.rank]])
    if shape is None:
        each = zip(near.size, read, near.output, near.stride, strict=True)
        size = tuple([own + (now - before) * step for own, now, before, step in each])
    elif len(shape) == near.rank:
        size = shape
    else:
        whole = dict(zip(near.array_layout, shape, strict=True))
        size = tuple([whole[axis] for axis in SPACE[near.rank]])
        if whole["C"] != near.C or whole.get("N") != extents.get("N"):
            return None
    # Axes of one pixel may be in another order: see `problem_views.spatial`.
    if extents["C"] != near.K or min(*read, *size, *near.output, *near.size) < 2:
        return None
    problem = near.changed(N=extents.get("N", 1), size=size)
    return problem if problem.output == read else None


class OnePassRange(CandidateRange):
    """Depthwise transposed convolutions and input gradients in one pass."""

    def _problem(self, x_shape: Shape, shape: Shape | None) -> Problem | None:
        return sized_problem(self.engine.problem, x_shape, shape)


class PhaseRange(Range):
    """Transposed convolutions and input gradients that have one fprop for each stride phase."""

    def __init__(self, engine: Any) -> None:
        super().__init__(engine)
        self._ranges = [CandidateRange(part.engine) for part in engine.plain_parts]

    @property
    def _planned(self) -> tuple[CpuEngine, ...]:
        return tuple(part.engine for part in self.engine.plain_parts)

    def sized(self, x_shape: Shape, shape: Shape | None = None) -> Any:
        """See `Range`."""
        near = self.engine
        problem = sized_problem(near.problem, x_shape, shape)
        if problem is None:
            return None
        phases = phases_of(problem)
        if [phase.taps for phase in phases] != [part.phase.taps for part in near.parts]:
            return None
        engines: dict[Problem, CpuEngine] = {}
        for phase, of_phase in zip(phases, self._ranges, strict=True):
            if phase.problem not in engines:
                engine = of_phase.derived(phase.problem)
                if engine is None:
                    return None
                engines[phase.problem] = engine
        parts = tuple([Part(phase, engines[phase.problem]) for phase in phases])
        return type(near)(problem, parts, None, near.out_dtype, near.refusal)


class FoldRange(Range):
    """Transposed convolutions and input gradients whose products are folded."""

    def __init__(self, engine: Any) -> None:
        super().__init__(engine)
        self._fold: Fold = engine.folds.plain
        self._request = planner.near(self._fold.product.request, self._fold.product.best)

    @property
    def _planned(self) -> tuple[CpuEngine, ...]:
        return (self._fold.product,)

    @property
    def seconds(self) -> float:
        """The estimate of a call."""
        return self._fold.seconds(packed=False)

    def sized(self, x_shape: Shape, shape: Shape | None = None) -> Any:
        """See `Range`."""
        near, old = self.engine.problem, self._fold
        problem = sized_problem(near, x_shape, shape)
        if problem is None:
            return None
        view = spatial(problem)
        blocks = blocks_of(view, old.product.arch)
        products = product_problem(view, blocks)
        c = planner.like(old.product.best, products, self._request)
        if c is None:
            return None
        choice = Choice((c,), (), near=old.product.choice.near or planner.words(near))
        options = old.product.arch, old.product.request, choice, NO_ACTIVATION
        product = ProductEngine(products, *options, products.dtype)
        block = c.packed_cycles + fold_cycles(view, blocks, c.lanes)
        packed = view.N * len(blocks.all) * block
        fold = Fold(view, product, blocks, old.activation, packed + c.packing, packed)
        found = Folds(plain=fold)
        return type(self.engine)(problem, (), None, self.engine.out_dtype, folds=found)


def range_of(engine: Any) -> Range | None:
    """The range of an engine; None if each size needs a plan of its own."""
    folds, parts = getattr(engine, "folds", None), getattr(engine, "parts", None)
    if parts is None:
        return OnePassRange(engine) if may_serve(engine) else None
    if folds is not None and folds.plain is not None:
        return FoldRange(engine) if may_serve(folds.plain.product) else None
    has_all = engine.empty is None and len(parts) > 0
    serves = has_all and all(may_serve(part.engine) for part in engine.plain_parts)
    return PhaseRange(engine) if serves else None
