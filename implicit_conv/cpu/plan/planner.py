"""The CPU planner: the candidates of all methods, cheapest first. It sees shapes, not arrays."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from implicit_conv.cpu.candidates.candidate import Candidate, Method, Refusal, Request
from implicit_conv.cpu.machine.arch import CpuArch
from implicit_conv.cpu.methods.depthwise import Depthwise
from implicit_conv.cpu.methods.few_outputs import FewOutputs
from implicit_conv.cpu.methods.gemm import Gemm
from implicit_conv.cpu.methods.im2col import Im2col
from implicit_conv.cpu.methods.planar_depthwise import PlanarDepthwise
from implicit_conv.cpu.methods.planar_gemm import PlanarGemm
from implicit_conv.cpu.methods.small_groups import SmallGroups
from implicit_conv.cpu.methods.transposed_gemm import TransposedGemm
from implicit_conv.cpu.methods.weight_grad import WeightGrad, WeightGradLanes
from implicit_conv.cpu.methods.window_gemm import WindowGemm
from implicit_conv.cpu.methods.winograd import LargeWinograd, Winograd
from implicit_conv.cpu.plan import tuning_cache
from implicit_conv.cpu.run.call import Arrays
from implicit_conv.errors import PlanError
from implicit_conv.problem.options import ALGORITHMS, PRECISIONS
from implicit_conv.problem.parse import choice
from implicit_conv.problem.problem import Problem

# Under precision "strict" the first method that can run fixes the order of sums; later methods with
# another order are refused.
METHODS: tuple[type[Method], ...] = (
    PlanarDepthwise,
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

CLEAR = 0.98  # of two estimates, a ratio that tells them apart

WEIGHT_GRADIENTS: tuple[type[Method], ...] = (WeightGrad, WeightGradLanes)


class Choice(NamedTuple):
    """The candidates, best first, and the refusals.

    `tuned` says in words what was measured, if the first candidate was chosen by `tuning`.
    """

    candidates: tuple[Candidate, ...]
    refusals: tuple[Refusal, ...]
    tuned: str = ""

    @property
    def best(self) -> Candidate:
        """The candidate for plain filters."""
        return self.candidates[0]

    @property
    def best_packed(self) -> Candidate:
        """The candidate for packed filters: `best`, unless it is slower than another one by more
        than estimates can tell. One that was measured is best for both.
        """
        found = min(self.candidates, key=lambda candidate: candidate.packed_cycles)
        clear = found.packed_cycles < CLEAR * self.best.packed_cycles
        return found if clear and not self.tuned else self.best


def plan(
    problem: Problem,
    arch: CpuArch,
    request: Request,
    arrays: Arrays | None = None,
    methods: tuple[type[Method], ...] | None = None,
) -> Choice:
    """The candidates of `estimated`, with the one first that `tuning` found to be the fastest.

    Raises
    ------
    PlanError
        As `estimated`.
    """
    choice = estimated(problem, arch, request, arrays, methods)
    measured = tuning_cache.load(entry(problem, arch, request, arrays, methods))
    if measured is None:
        return choice
    wide = estimated(problem, arch, replace(request, tilings=tuning_cache.TILINGS), arrays, methods)
    for c in wide.candidates:
        if tuning_cache.name_of(c) == measured.candidate:
            others = (other for other in choice.candidates if other != c)
            return Choice((c, *others), choice.refusals, measured.words)
    return choice


def entry(
    problem: Problem,
    arch: CpuArch,
    request: Request,
    arrays: Arrays | None = None,
    methods: tuple[type[Method], ...] | None = None,
) -> str:
    """The name under which a measured choice is kept; see `tuning_cache`."""
    return tuning_cache.entry_of(problem, arch, _parsed(problem, request), arrays, methods)


def estimated(
    problem: Problem,
    arch: CpuArch,
    request: Request,
    arrays: Arrays | None = None,
    methods: tuple[type[Method], ...] | None = None,
) -> Choice:
    """The candidates of `methods`, by default METHODS, for `problem` on `arch`, sorted by their
    estimate of cycles.

    `arrays` have the strides that the best candidate must accept; without them it may need
    contiguous arrays.

    Raises
    ------
    PlanError
        The precision or algorithm is unknown, the algorithm does not support the problem, or no
        candidate needs as little memory as `max_workspace`.
    """
    request = _parsed(problem, request)
    for threads in _halves(arch.threads):
        machine = replace(arch, threads=threads)
        able, refusals, unserved = _able(problem, machine, request, arrays, methods)
        if not able:
            reasons = "; ".join(refusal.reason for refusal in refusals or unserved)
            raise PlanError(
                f"algorithm {request.algorithm!r} cannot compute this problem: {reasons}"
            )
        fitting = [c for c in able if _bytes(c, arrays) <= request.limit]
        if fitting:
            large = [c for c in able if _bytes(c, arrays) > request.limit]
            refusals += [_too_large(c, _bytes(c, arrays), request) for c in large] + unserved
            fitting.sort(key=lambda candidate: candidate.cycles)
            return Choice(tuple(fitting), tuple(refusals))
    raise workspace_error(least_workspace(problem, arch, request, arrays, methods), request)


def _parsed(problem: Problem, request: Request) -> Request:
    """`request` with the words of the options as they are defined."""
    precision = choice("precision", request.precision, PRECISIONS, error=PlanError)
    if problem.is_integer:  # sums are exact in any order
        precision = "standard"
    algorithm = choice("algorithm", request.algorithm, ("auto", *ALGORITHMS), error=PlanError)
    return replace(request, precision=precision, algorithm=algorithm)


def _able(
    problem: Problem,
    arch: CpuArch,
    request: Request,
    arrays: Arrays | None,
    methods: tuple[type[Method], ...] | None,
) -> tuple[list[Candidate], list[Refusal], list[Refusal]]:
    """The best candidates of all methods, whatever memory they take, the refusals, and those of
    methods that do not serve the problem; the caller's algorithm admits all of them.
    """
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
            elif arrays is None or found.method.accepts(found, arrays):
                able.append(found)
            else:
                refusals.append(Refusal(found.name, f"it needs {found.method.needs}"))
                others = found.method.fallbacks(found, request.limit)
                able += [other for other in others if other.method.accepts(other, arrays)]
    return able, refusals, unserved


def _halves(threads: int) -> Iterator[int]:
    """`threads`, then half as many, down to one: threads have scratch memory of their own."""
    while threads:
        yield threads
        threads //= 2


def _bytes(c: Candidate, arrays: Arrays | None) -> int:
    """Bytes that a call of `c` takes besides its arrays."""
    return c.call_bytes(None if arrays is None else arrays.w)


def _too_large(c: Candidate, taken: int, request: Request) -> Refusal:
    needed = taken + request.reserved_bytes
    reason = f"it needs {needed} bytes, and max_workspace is {request.max_workspace}"
    return Refusal(c.name, reason)


def least_workspace(
    problem: Problem,
    arch: CpuArch,
    request: Request,
    arrays: Arrays | None = None,
    methods: tuple[type[Method], ...] | None = None,
) -> int:
    """The least `max_workspace` with which `problem` can be planned; 0 if no method can run."""
    # No tiling takes as little as -1 bytes, so methods choose the one that takes least.
    smallest = replace(_parsed(problem, request), max_workspace=-1)
    able, *_ = _able(problem, replace(arch, threads=1), smallest, arrays, methods)
    least = min((_bytes(c, arrays) for c in able), default=0)
    return least + request.reserved_bytes


def workspace_error(least: int, request: Request) -> PlanError:
    """The error of a request whose `max_workspace` is below `least`."""
    return PlanError(
        f"max_workspace is {request.max_workspace} bytes, but algorithm {request.algorithm!r} with "
        f"precision {request.precision!r} needs at least {least} bytes of scratch memory and "
        f"packed filter; pass max_workspace={least} or more, or None for no limit"
    )
