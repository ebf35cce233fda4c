"""Kinds of calls, which differ in the size of x alone: their engines take choices over.

A call of a new size has the engine that another size of its range has, with its geometry derived
anew; see `planner`. The second size of a kind tells that sizes change: from then on another thread
compiles what other sizes take, so that no call waits for it.
"""

from __future__ import annotations

import functools
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from typing import Any

from implicit_conv.arrays.arrays import Binding
from implicit_conv.cache import ENGINES
from implicit_conv.cpu.candidates.candidate import Request
from implicit_conv.cpu.engines.engine import CpuEngine
from implicit_conv.cpu.plan import planner
from implicit_conv.cpu.plan.planner import Choice
from implicit_conv.cpu.run.call import contiguous_strides
from implicit_conv.kernels.preparation import is_prepared, prepare_later
from implicit_conv.problem.options import ITEMSIZES, SPACE

COMPILATION_SECONDS = 0.3  # that the kernels of a method take at most of one call
EXTENTS = 32  # along an axis, for which the kernels of a range are prepared

Shape = tuple[int, ...]


@dataclass
class Range:
    """The engine that serves near sizes of one kind, and the request for them."""

    engine: CpuEngine
    request: Request
    is_prepared: bool = field(default=False, init=False)

    @classmethod
    def of(cls, engine: Any) -> Range | None:
        """The range of an engine; None if each size needs a plan of its own."""
        if type(engine) is not CpuEngine:  # other operators have several plans, or other arrays
            return None
        c, request = engine.best, engine.request
        if request.searches or request.max_workspace is not None:
            return None
        if not planner.may_serve(c, request) or engine.problem.repeats:
            return None
        return cls(engine, planner.near(request, c))

    def sized(self, x_shape: Shape) -> CpuEngine | None:
        """The engine for an x of another shape, or None if it needs a plan of its own."""
        engine = self.engine
        problem, view = engine.problem.of_shape(x_shape), engine.best.problem
        # Axes of one pixel may be in another order: see `problem_views.spatial`.
        if problem is None or 1 in (*problem.size, *engine.problem.size):
            return None
        if min(problem.output) < 1:
            return None
        size = (*view.size[: 3 - problem.rank], *problem.size)
        c = planner.like(engine.best, view.changed(N=problem.N, size=size), self.request)
        if c is None:
            return None
        choice = Choice((c,), (), near=engine.choice.near or planner.words(engine.problem))
        options = engine.arch, engine.request, choice, engine.activation, engine.out_dtype
        return CpuEngine(problem, *options)

    def prepared(self) -> Iterator[None]:
        """Load the kernels that sizes of the range take, and then those of small sizes."""
        bind(self.engine)
        yield
        shape, problem = self.engine.x_shape, self.engine.problem
        axes = [problem.array_layout.index(letter) for letter in SPACE[problem.rank]]
        for small in (False, True):
            for axis in axes:
                low = 1 << (shape[axis].bit_length() - 1)
                own = range(low, 2 * low, -(-low // EXTENTS))
                for extent in range(2, EXTENTS) if small else own:
                    other = self.sized((*shape[:axis], extent, *shape[axis + 1 :]))
                    if other is not None:
                        bind(other)
                        yield


def bind(engine: CpuEngine) -> None:
    """Bind a call of contiguous arrays, in this thread, which loads its kernels."""
    each = (
        (engine.x_shape, engine.problem.dtype),
        (engine.w_shape, engine.problem.filter_dtype),
        (engine.y_shape, engine.y_dtype),
    )
    x, w, y = (contiguous_strides(shape, ITEMSIZES[dtype]) for shape, dtype in each)
    function, *arguments = engine.launches(Binding(x, w, y))
    function(*arguments)


def known_engine(kind: Hashable, x_shape: Shape) -> CpuEngine | None:
    """The engine for a size of a known kind, or None if it needs a plan.

    `kind` is all that tells calls apart but the shape of x.
    """
    found: Range | None = ENGINES.get((lengths(x_shape), kind))
    if found is None or planner.has_choices():
        return None
    engine = found.sized(x_shape)
    if engine is not None and not found.is_prepared:
        found.is_prepared = True
        prepare_later(found.prepared)
    return engine


def keep_engine(kind: Hashable, engine: Any) -> Any:
    """Keep the engine of the first size of a range, of any operator, for all others.

    It returns the engine to use: that which another range gives, as long as another thread
    compiles the kernels of `engine`.
    """
    own = Range.of(engine)
    if own is None:
        return engine
    key = lengths(engine.x_shape), kind
    first: Range | None = ENGINES.get(kind)
    if first is None:
        ENGINES.keep(kind, own)
    elif not is_prepared(functools.partial(bind, engine)):
        other = first.sized(engine.x_shape)
        taken = None if other is None else Range.of(other)
        if taken is not None and is_prepared(functools.partial(bind, taken.engine)):
            saved = taken.engine.best.seconds - engine.best.seconds
            if saved < COMPILATION_SECONDS:
                taken.is_prepared = True
                ENGINES.keep(key, taken)
                prepare_later(functools.partial(_exchanged, key, own))
                return taken.engine
    ENGINES.keep(key, own)
    return engine


def _exchanged(key: Hashable, own: Range) -> Iterator[None]:
    """Prepare a range, and have it serve from then on."""
    yield from own.prepared()
    own.is_prepared = True
    ENGINES.keep(key, own)


def lengths(x_shape: Shape) -> Shape:
    """What sizes of one range have in common."""
    return tuple(map(int.bit_length, x_shape))
