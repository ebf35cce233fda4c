"""The CPU planner: the candidates of all methods, cheapest first, and the steps of the first that
takes the arrays of a call. It sees shapes and strides, not elements.

Problems that differ in their sizes alone, the batch and the spatial extents, are of one kind. Sizes
are near if they differ by less than a factor of two along each axis, and then the choice for one
serves another, so that a kind is searched once for each such range: a search asks all methods for
all their tilings, which takes milliseconds. What is taken over is the method, about the extents of
its load tile, and whether taps are left out; all that depends on a size is derived anew.
"""

from __future__ import annotations

import logging
import math
import sys
from dataclasses import replace
from operator import attrgetter
from typing import Any

from implicit_conv.arrays.arrays import Array, numpy_dtype
from implicit_conv.cpu.candidates.candidate import Candidate, Choice, Given, Method, near
from implicit_conv.cpu.candidates.query import Query, Refusal, Request
from implicit_conv.cpu.methods.depthwise import Depthwise
from implicit_conv.cpu.methods.few_outputs import FewOutputs
from implicit_conv.cpu.methods.gemm import Gemm
from implicit_conv.cpu.methods.im2col import Im2col
from implicit_conv.cpu.methods.planar_depthwise import PlanarDepthwise
from implicit_conv.cpu.methods.planar_gemm import PlanarGemm
from implicit_conv.cpu.methods.shifted_rows import ShiftedRows
from implicit_conv.cpu.methods.small_groups import SmallGroups
from implicit_conv.cpu.methods.transposed_gemm import TransposedGemm
from implicit_conv.cpu.methods.window_gemm import WindowGemm
from implicit_conv.cpu.methods.winograd import LargeWinograd, Winograd
from implicit_conv.cpu.run.call import Arrays
from implicit_conv.cpu.run.packed import PlainOrder
from implicit_conv.errors import PlanError
from implicit_conv.kernels.cpu.runtime.program import Step, array_at
from implicit_conv.kernels.geometry import Epilogue
from implicit_conv.problem.options import ALGORITHMS, ITEMSIZES, PRECISIONS, contiguous_strides
from implicit_conv.problem.parse import choice
from implicit_conv.problem.problem import Problem
from implicit_conv.process.cache import KINDS
from implicit_conv.process.disk import store
from implicit_conv.process.disk_folder import CHOICE
from implicit_conv.process.preparation import imports, prepare

# Under precision "strict" the first method that can run fixes the order of sums; later methods with
# another order are refused.
METHODS: tuple[type[Method], ...] = (
    PlanarDepthwise,
    ShiftedRows,
    Depthwise,
    Gemm,
    WindowGemm,
    TransposedGemm,
    PlanarGemm,
    SmallGroups,
    FewOutputs,
    Winograd,
    LargeWinograd,
    Im2col,
)

PRODUCTS: tuple[type[Method], ...] = (Gemm,)  # stores rows of filters, for any strides of x

TUNING_CACHE = f"{__package__}.tuning_cache"
# What problems of one kind have in common.
FIXED = attrgetter(
    *("C", "K", "groups", "kernel", "stride", "dilation", "pad_lo", "pad_hi"),
    *("dtype", "layout", "weight_layout", "padding_mode", "batched", "w_dtype", "wide"),
)


@imports
def _tuning_cache() -> Any:
    from implicit_conv.cpu.plan import tuning_cache

    return tuning_cache


LOG = logging.getLogger("implicit_conv")


class NoMethodError(PlanError):
    """No method can run, for these `reasons`."""

    def __init__(self, algorithm: str, reasons: str) -> None:
        super().__init__(f"algorithm {algorithm!r} cannot compute this problem: {reasons}")
        self.reasons = reasons


def plan(query: Query) -> Choice:
    """The candidates of `estimated`, with the one first that `tuning` found to be the fastest.

    Raises
    ------
    PlanError
        As `estimated`.
    """
    request, measured = query.request, None
    if request.searches or (has_choices() and is_measured(kind_name(query))):
        measured = _tuning_cache().load(entry(query))
    if measured is None:
        return estimated(query) if request.searches else _of_kind(query)
    choice = estimated(query)
    for c in measurable(query, choice):
        if _tuning_cache().name_of(c) == measured.candidate:
            others = (other for other in choice.candidates if other != c)
            return replace(choice, candidates=(c, *others), tuned=measured.words)
    return choice


def of_part(query: Query, name: str) -> Choice | Refusal:
    """The choice for a part of a candidate, which `name` needs: of candidates that all take more
    memory than there is, the one that takes least.
    """
    try:
        if query.request.max_workspace is not None:
            small = smallest(query)
            if small is not None and small.bytes_for(query.arrays) > query.request.limit:
                return Choice(query._replace(arrays=None), (small,))
        return plan(query)
    except NoMethodError as error:
        return Refusal(name, error.reasons)


def _of_kind(query: Query) -> Choice:
    """The choice for a near size of the same kind, or the candidates of `estimated`."""
    key = key_of(query)
    found = reused_choice(query, key)
    if found is not None:
        return found
    choice = estimated(query)
    remember_choice(query, key, choice)
    return choice


def measurable(query: Query, choice: Choice) -> list[Candidate]:
    """The candidates that may be measured: those of `choice`, which is `estimated` for the query,
    and those of as many tilings as are measured. One with parts tunes these instead.
    """
    wide = query._replace(request=replace(query.request, tilings=_tuning_cache().TILINGS))
    more = (c for c in estimated(wide).candidates if not c.parts)
    return list(dict.fromkeys((*choice.candidates, *more)))


def entry(query: Query) -> str:
    """The name under which a measured choice is kept; see `tuning_cache`."""
    name: str = _tuning_cache().entry_of(_parsed(query))
    return name


def has_choices() -> bool:
    """Whether any size may have been measured: by this process, or before it first asked."""
    return TUNING_CACHE in sys.modules or store().has(CHOICE)


def kind_name(query: Query) -> str:
    """The name of a kind, whose entries begin with it; see `tuning_cache`."""
    name: str = _tuning_cache().kind_of(_parsed(query))
    return name


def is_measured(kind: str) -> bool:
    """Whether a size of a kind of this name was measured."""
    found: bool = _tuning_cache().has_kind(kind)
    return found


def estimated(query: Query) -> Choice:
    """The candidates of all methods, sorted by their estimate of cycles.

    Raises
    ------
    PlanError
        The precision or algorithm is unknown, the algorithm does not support the problem, or no
        candidate needs as little memory as `max_workspace`.
    """
    asked = query._replace(arrays=None)
    query = _parsed(query)
    request, threads = query.request, query.arch.threads
    while threads:  # then half as many, down to one: threads have scratch memory of their own
        query = query._replace(arch=replace(query.arch, threads=threads))
        able, refusals, unserved = _able(query)
        if not able:
            reasons = "; ".join(refusal.reason for refusal in refusals or unserved)
            raise NoMethodError(request.algorithm, reasons)
        fitting = able
        if request.limit < math.inf:
            fitting = [c for c in able if c.bytes_for(query.arrays) <= request.limit]
        if fitting:
            large = [c for c in able if c not in fitting]
            refusals += [
                _too_large(c, c.bytes_for(query.arrays), request) for c in large
            ] + unserved
            fitting.sort(key=lambda candidate: candidate.cycles)
            return Choice(asked, tuple(fitting), tuple(refusals))
        threads //= 2
    raise workspace_error(least_workspace(query), request)


def _parsed(query: Query) -> Query:
    """`query` with the words of the options as they are defined."""
    request = query.request
    precision = choice("precision", request.precision, PRECISIONS, error=PlanError)
    if query.problem.is_integer:  # sums are exact in any order
        precision = "standard"
    algorithm = choice("algorithm", request.algorithm, ("auto", *ALGORITHMS), error=PlanError)
    return query._replace(request=replace(request, precision=precision, algorithm=algorithm))


def _able(query: Query) -> tuple[list[Candidate], list[Refusal], list[Refusal]]:
    """The best candidates of all methods, whatever memory they take, the refusals, and those of
    methods that do not serve the problem; the caller's algorithm admits all of them.
    """
    problem, arch, request, arrays, methods = query
    able: list[Candidate] = []
    refusals: list[Refusal] = []
    unserved: list[Refusal] = []
    for method in METHODS if methods is None else methods:
        if not any(map(request.admits, method.algorithms)):
            continue
        reason = method.serves.refusal(problem.dtype, request.precision, request.activation)
        if reason:
            unserved.append(Refusal(method.name, reason))
            continue
        for found in method.candidates(problem, arch, request):
            if isinstance(found, Refusal):
                refusals.append(found)
            elif request.strict and able and found.method.order != able[0].method.order:
                reason = f"precision 'strict' fixes the order of sums to {able[0].method.order}"
                refusals.append(Refusal(found.name, reason))
            elif accepts(found, arrays):
                able.append(found)
            else:
                refusals.append(Refusal(found.name, f"it needs {found.method.needs}"))
                others = found.method.fallbacks(found, request.limit)
                able += [other for other in others if accepts(other, arrays)]
    return able, refusals, unserved


def accepts(c: Candidate, arrays: Arrays | None) -> bool:
    """Whether a candidate can compute arrays of these strides, if there are any."""
    return arrays is None or c.method.accepts(c, c.method.views(c, arrays))


def _too_large(c: Candidate, taken: int, request: Request) -> Refusal:
    needed = taken + request.reserved_bytes
    reason = f"it needs {needed} bytes, and max_workspace is {request.max_workspace}"
    return Refusal(c.name, reason)


def least_workspace(query: Query) -> int:
    """The least `max_workspace` with which a problem can be planned; 0 if no method can run."""
    small = smallest(query)
    return (0 if small is None else small.bytes_for(query.arrays)) + query.request.reserved_bytes


def smallest(query: Query) -> Candidate | None:
    """The candidate that takes least memory, whatever the limit; None if no method can run."""
    # No tiling takes as little as -1 bytes, so methods choose the one that takes least.
    request = replace(query.request, max_workspace=-1)
    query = query._replace(arch=replace(query.arch, threads=1), request=request)
    able, *_ = _able(_parsed(query))
    return min(able, key=lambda c: c.bytes_for(query.arrays), default=None)


def workspace_error(least: int, request: Request) -> PlanError:
    """The error of a request whose `max_workspace` is below `least`."""
    return PlanError(
        f"max_workspace is {request.max_workspace} bytes, but algorithm {request.algorithm!r} with "
        f"precision {request.precision!r} needs at least {least} bytes of scratch memory and "
        f"packed filter; pass max_workspace={least} or more, or None for no limit"
    )


def key_of(query: Query) -> Any:
    """What near sizes of one kind have in common."""
    problem, arch, request, _, methods = query
    sizes = problem.N, *problem.size
    return FIXED(problem), arch, request, methods, tuple(map(int.bit_length, sizes))


def reused_choice(query: Query, key: Any) -> Choice | None:
    """The choice that the one for a near size gives, with a candidate for plain and one for packed
    filters; None if there is none.
    """
    known = KINDS.get(key)
    if known is None:
        return None
    chosen, size = known
    found = []
    for c, request in chosen:
        other = closest_candidate(c, query.problem, request)
        if other is None or not _serves(query, other):
            return None
        found.append(other)
    return Choice(query._replace(arrays=None), tuple(found), near=size)


def _serves(query: Query, c: Candidate) -> bool:
    """Whether a candidate takes the arrays and the memory of a query."""
    if not accepts(c, query.arrays):
        return False
    return query.request.limit == math.inf or c.bytes_for(query.arrays) <= query.request.limit


def remember_choice(query: Query, key: Any, choice: Choice) -> None:
    """Keep the choice for near sizes, if they may take it over."""
    chosen = dict.fromkeys((choice.best, choice.best_packed))
    if all(may_serve(c, query.request) for c in chosen):
        requests = [(c, near(query.request, c)) for c in chosen]
        KINDS.keep(key, (requests, words(query.problem)))


def may_serve(c: Candidate, request: Request) -> bool:
    """Whether the choice `c` may serve near sizes.

    A method without tilings is chosen anew for each size. So is, under precision "strict", one of
    depthwise convolution, whose methods have several orders of sums.
    """
    return c.tiling is not None and not (request.strict and c.problem.groups == c.problem.C)


def words(problem: Problem) -> str:
    """The size of a problem in words."""
    return f"{problem.N} x {'x'.join(map(str, problem.size))}"


def closest_candidate(c: Candidate, problem: Problem, request: Request) -> Candidate | None:
    """The candidate for a near size that is most like `c`; None if the method cannot run."""
    for found in type(c.method).candidates(problem, c.arch, request):
        if isinstance(found, Candidate) and found.method == c.method:
            found.share(c)
            return found
    return None


class StridesError(PlanError):
    """No candidate takes arrays of these strides."""


def steps_of(choice: Choice, given: Given, names: tuple[str, str] = ("x", "w")) -> list[Step]:
    """The steps of the first candidate that takes the given arrays, which have the axes of the
    caller, and are called `names` in messages.

    Raises
    ------
    StridesError
        There is none.
    """
    arrays, epilogue, _, room, _ = given
    first, packed, filter_axes, end = choice.best, arrays.w is None, None, room.end
    if packed:
        first = choice.best_packed
        order = first.packed
        if isinstance(order, PlainOrder):  # which any method reads
            arrays, filter_axes = arrays._replace(w=_plain(order, arrays.panels)), order.axes
    refused: StridesError | None = None
    for c in choice.in_order(first):
        method = c.method
        if arrays.w is None and c is not first and c.packed.key != order.key:
            continue
        if not method.serves.takes(epilogue, arrays.residual is not None):
            continue
        views = method.views(c, arrays, filter_axes)
        if not method.accepts(c, views):
            continue
        if c is not first:
            LOG.debug("%s runs, because %s needs %s", c.name, first.name, first.method.needs)
        given_to = c, given._replace(arrays=views), end
        try:
            # Parts are prepared one by one: what is prepared within must not stop at checkpoints.
            return _steps(*given_to) if c.parts else prepare(_steps, *given_to)
        except StridesError as error:  # of a part
            refused = refused or error
    if choice.near and not packed:  # other methods were not asked
        room.end = end
        return steps_of(estimated(choice.query), given, names)
    raise refused or _refusal(choice, given.arrays, epilogue, names)


def _steps(c: Candidate, given: Given, end: int) -> list[Step]:
    """The steps of a candidate, whose room begins at `end`: `prepare` may ask for them twice."""
    given.room.end = end
    return c.method.steps(c, given)


def _plain(order: PlainOrder, panels: int) -> Array:
    """The packed filter at `panels`, whose elements are in a plain order."""
    strides = contiguous_strides(order.shape, ITEMSIZES[order.dtype])
    return array_at(panels, order.shape, numpy_dtype(order.dtype), strides)


def _refusal(
    choice: Choice, arrays: Arrays, epilogue: Epilogue, names: tuple[str, str]
) -> StridesError:
    """The error where no candidate takes the strides: for lack of memory, or for what else was
    given.
    """
    both, query = " and ".join(names), choice.query._replace(arrays=arrays)
    request, needs = query.request, choice.best.method.needs
    because = f", because {choice.best.name} needs {needs}" if needs else ""
    least = least_workspace(query)
    if request.max_workspace is not None and least > request.max_workspace:
        return StridesError(
            f"max_workspace is {request.max_workspace} bytes, but {both} of these strides need "
            f"{least}{because}; pass contiguous arrays, max_workspace={least}, or None for no limit"
        )
    given = {
        "packed filter": arrays.w is None,
        "bias": epilogue.biased,
        "scale": epilogue.scaled,
        "residual": arrays.residual is not None,
    }
    found = [name for name, is_given in given.items() if is_given]
    ways = ["contiguous arrays"] * bool(needs) + [f"no {name}" for name in found]
    return StridesError(
        f"no method takes {both} of these strides{''.join(f' and a {name}' for name in found)}"
        f"{because}; pass {' or '.join(ways)}"
    )
