"""Kinds of calls, which differ in the size of x alone: their engines take choices over.

A call of a new size has the engine that another size of its range has, with its geometry derived
anew; see `planner`. The second size of a kind tells that sizes change: its call compiles small
register tiles that any size can be cut into, if the method has such. From then on another thread
compiles those that sizes take; until it has, calls take the small ones.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Iterator
from dataclasses import replace
from typing import Any

from implicit_conv.arrays.arrays import Binding
from implicit_conv.cpu.candidates.candidate import Candidate, Choice
from implicit_conv.cpu.candidates.kernel_method import missing_parts
from implicit_conv.cpu.candidates.query import Formats, Query
from implicit_conv.cpu.engines.engine import CpuEngine
from implicit_conv.cpu.plan import planner
from implicit_conv.problem.options import ITEMSIZES, SPACE, contiguous_strides
from implicit_conv.problem.problem import Problem
from implicit_conv.process.cache import ENGINES, PREPARED, SIZES, cached_property
from implicit_conv.process.preparation import prepare_later, prepares_later

COMPILATION_SECONDS = 0.3  # that the kernels of a method take at most of one call
EXTENTS = 32  # along an axis, for which the kernels of a range are prepared
SPARE_EXTENTS = 4  # of neighbouring sizes, which have all heights of spare register tiles

Shape = tuple[int, ...]
Take = Callable[[Candidate, Formats], Candidate]  # what a near size takes of what suits it best


class SizeClass:
    """The engine that serves near sizes of one kind."""

    def __init__(self, engine: CpuEngine) -> None:
        self.engine = engine

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names of the kinds of what is planned, to which entries of measured sizes belong."""
        return tuple(planner.kind_name(each.query) for each in _all(self.engine.choice))

    def sized(
        self, x_shape: Shape, shape: Shape | None = None, take: Take | None = None
    ) -> CpuEngine | None:
        """The engine for an x of another shape, or None if it needs a plan of its own.

        `shape` is what else has a size, if the caller has given it: dy of a weight gradient, the
        result of a transposed convolution, or its spatial extents.
        """
        engine = self.engine
        problem = engine.of_shape(x_shape, shape)
        if problem is None:
            return None
        choice = derived(self.near, engine.formats, engine.choice, problem, take)
        return None if choice is None else engine.sized(problem, choice)

    @cached_property
    def near(self) -> str:
        """The size of the engine, in words."""
        return planner.words(self.engine.problem)

    @cached_property
    def has_spares(self) -> bool:
        """Load the spare register tiles of all sizes, on first use."""
        axis, extent = self._axes()[-1]
        for each in (*range(extent, extent + SPARE_EXTENTS), SPARE_EXTENTS * extent):
            self._bind(axis, each, spare)
        return True

    def prepared(self) -> Iterator[object]:
        """Load the kernels that sizes of the range take, and then those of small sizes."""
        bind(self.engine)
        yield self
        yield self.has_spares
        for small in (False, True):
            for axis, extent in self._axes():
                low = 1 << (extent.bit_length() - 1)
                own = range(low, 2 * low, -(-low // EXTENTS))
                for each in range(2, EXTENTS) if small else own:
                    if self._bind(axis, each):
                        yield each

    def _axes(self) -> list[tuple[int, int]]:
        """The spatial axes of x, and their extents."""
        problem, shape = self.engine.problem, self.engine.x_shape
        axes = [problem.array_layout.index(letter) for letter in SPACE[problem.rank]]
        return [(axis, shape[axis]) for axis in axes]

    def _bind(self, axis: int, extent: int, take: Take | None = None) -> bool:
        """Bind a call of x with another extent along an axis, if it needs no plan of its own, and
        kernels that are not loaded.
        """
        shape = self.engine.x_shape
        other = self.sized((*shape[:axis], extent, *shape[axis + 1 :]), None, take)
        if other is not None and missing(other):
            bind(other)
        return other is not None


def _all(choice: Choice) -> Iterator[Choice]:
    """A choice, and those of its parts."""
    yield choice
    for part in choice.best.parts:
        yield from _all(part)


def missing(engine: CpuEngine) -> int:
    """The number of parts of an engine's kernels that are not loaded."""
    return _missing_parts(engine.choice, engine.formats)


def _missing_parts(choice: Choice, formats: Formats) -> int:
    c = choice.best
    if not c.parts:
        return missing_parts(c, formats)
    method: Any = c.method  # a `Composite`
    own = method.part_formats(c, formats)
    return sum(_missing_parts(part, own) for part in c.parts)


def derived(
    size: str, formats: Formats, choice: Choice, problem: Problem, take: Take | None = None
) -> Choice | None:
    """The choice for a problem that differs in sizes alone, and a stride phase in its padding too;
    None if the method cannot run. `size` is that of the first one, in words.
    """
    c, temporary = choice.candidates[0], False
    if c.parts:
        method: Any = c.method  # a `Composite`
        of_part = functools.partial(derived, size, method.part_formats(c, formats), take=take)
        other = method.resized(c, problem, of_part)
        temporary = other is not None and any([part.temporary for part in other.parts])
    else:
        other = _resized(choice, c, problem)
        if other is not None and take is not None:
            wanted, other = other, take(other, formats)
            temporary = other is not wanted
    if other is None:
        return None
    # Methods of an operator that is no convolution may see a view of what was asked.
    asked = other.problem if choice.query.problem is c.problem else problem
    near = choice.near or size
    query = Query(asked, *choice.query[1:])
    return Choice(query, (other,), near=near, temporary=temporary)


def _resized(choice: Choice, c: Candidate, problem: Problem) -> Candidate | None:
    """The candidate like `c` for the view of a problem; see `derived`."""
    view, missing = c.problem, 3 - problem.rank
    own = view.changed(
        N=problem.N,
        size=(*view.size[:missing], *problem.size),
        pad_lo=(*view.pad_lo[:missing], *problem.pad_lo),
        pad_hi=(*view.pad_hi[:missing], *problem.pad_hi),
    )
    if own.output[missing:] != problem.output:  # the axes of `view` are in another order
        return None
    return planner.closest_candidate(c, own, choice.nearby)


def spare(c: Candidate, formats: Formats) -> Candidate:
    """The candidate with its spare register tiles, or itself if its method has none."""
    assert c.tiling is not None
    geometry = c.method.spare(c.geometry)
    if geometry == c.geometry:
        return c
    return replace(c, tiling=c.tiling._replace(geometry=geometry))


def loaded(c: Candidate, formats: Formats) -> Candidate:
    """The candidate, or the one with spare register tiles if its kernels are not loaded and those
    are, unless it takes long.
    """
    if c.seconds > COMPILATION_SECONDS or not missing_parts(c, formats):
        return c
    other = spare(c, formats)
    return c if missing_parts(other, formats) else other


def size_class_of(engine: Any) -> SizeClass | None:
    """The range of an engine; None if each size needs a plan of its own.

    Fixed are the strides of w, so that a fold takes those of all calls of the kind.
    """
    serves = isinstance(engine, CpuEngine) and may_serve(engine.choice)  # not of GPUs
    return SizeClass(engine) if serves else None


def may_serve(choice: Choice) -> bool:
    """Whether near sizes may take a choice over."""
    request, c = choice.query.request, choice.best
    if request.searches or request.max_workspace is not None:
        return False
    if c.parts:
        return all(map(may_serve, c.parts))
    return planner.may_serve(c, request) and not choice.query.problem.repeats


def bind(engine: Any) -> None:
    """Bind a call of contiguous arrays."""
    each = (
        (engine.x_shape, engine.problem.dtype),
        (engine.w_shape, engine.problem.filter_dtype),
        (engine.y_shape, engine.y_dtype),
    )
    x, w, y = (contiguous_strides(shape, ITEMSIZES[dtype]) for shape, dtype in each)
    engine.bound(Binding(x, w, y))


def known_engine(kind: Hashable, x_shape: Shape, shape: Shape | None = None) -> tuple[Any, bool]:
    """The engine for a size of a known kind, or None if it needs a plan, and whether the size comes
    again: to record the call of one that does not would be in vain.

    `kind` is all that tells calls apart but the shape of x, and the other `shape` that has a size;
    see `SizeClass.sized`.
    """
    kept = SIZES.get((x_shape, shape, kind))
    if kept is not None:
        return kept, True
    key = lengths(x_shape), kind
    found: SizeClass | None = ENGINES.get(key)
    if found is None or (planner.has_choices() and any(map(planner.is_measured, found.names))):
        return None, True
    first = found.engine
    sized = first.w_shape if first.names[1] == "dy" else first.y_shape
    if x_shape == first.x_shape and shape in (None, sized):
        return first, True  # its call failed, or was dropped
    if PREPARED.get(key) is None:
        PREPARED.keep(key, (ENGINES.get(kind) or found).has_spares)
        prepare_later(found.prepared)
    if not prepares_later():
        return found.sized(x_shape, shape), False
    engine = found.sized(x_shape, shape, loaded)
    kinds_first = ENGINES.get(kind)
    if engine is not None and kinds_first is not None and missing(engine):
        other = kinds_first.sized(x_shape, shape, loaded)
        engine = other if other is not None and not missing(other) else engine
    return engine, False


def keep_size(kind: Hashable, x_shape: Shape, shape: Shape | None, engine: Any) -> None:
    """Keep the engine of one size, whose call is not kept: the next one needs it again."""
    if not is_temporary(engine):
        SIZES.keep((x_shape, shape, kind), engine)


def is_temporary(engine: Any) -> bool:
    """Whether an engine has spare register tiles, until others are loaded."""
    return isinstance(engine, CpuEngine) and engine.choice.temporary


def keep_engine(kind: Hashable, engine: Any, shape: Shape | None = None) -> Any:
    """Keep the engine of the first size of a range, of any operator, for all others.

    It returns the engine to use: that which another range gives, if less of it is to be compiled,
    as long as another thread compiles the kernels of `engine`.
    """
    own = size_class_of(engine)
    if own is None:
        return engine
    key = lengths(engine.x_shape), kind
    first: SizeClass | None = ENGINES.get(kind)
    if first is None:
        ENGINES.keep(kind, own)
    elif first.has_spares and (lacking := missing(engine)):
        other = first.sized(engine.x_shape, shape, loaded)
        taken = size_class_of(other)
        if taken is not None and missing(taken.engine) < lacking:
            if taken.engine.choice.seconds() - engine.choice.seconds() < COMPILATION_SECONDS:
                PREPARED.keep(key, True)
                ENGINES.keep(key, taken)
                prepare_later(functools.partial(_exchanged, key, own))
                return taken.engine
    ENGINES.keep(key, own)
    return engine


def _exchanged(key: Hashable, own: SizeClass) -> Iterator[object]:
    """Prepare a range, and have it serve from then on."""
    yield from own.prepared()
    ENGINES.keep(key, own)


def lengths(x_shape: Shape) -> Shape:
    """What sizes of one range have in common."""
    return tuple(map(int.bit_length, x_shape))
