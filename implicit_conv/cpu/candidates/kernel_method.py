"""KernelMethod: a method with compiled kernels, and its candidates by their cheapest tilings."""

from __future__ import annotations

import contextlib
import heapq
import math
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, ClassVar

from implicit_conv.arrays.arrays import Array, ordered
from implicit_conv.cpu.candidates.candidate import Candidate, Given, Method
from implicit_conv.cpu.candidates.query import Formats, Request
from implicit_conv.cpu.candidates.tiling import Estimate, Tiling, thread_count
from implicit_conv.cpu.machine.arch import CpuArch
from implicit_conv.cpu.machine.compiler import check_enabled
from implicit_conv.cpu.run.call import bits
from implicit_conv.cpu.run.packed import PackedFilter, PlainOrder
from implicit_conv.kernels.cpu.runtime.layout import Layout
from implicit_conv.kernels.cpu.runtime.program import (
    Launched,
    Step,
    address_of,
    copied,
    launched,
)
from implicit_conv.kernels.geometry import Geometry
from implicit_conv.problem.problem import Problem
from implicit_conv.problem.schedule import Load, tiles_trace
from implicit_conv.process.cache import SIZED
from implicit_conv.process.preparation import COMPILING, first, may_load

if TYPE_CHECKING:
    from implicit_conv.kernels.cpu.operator import Build, Operands, Operator
    from implicit_conv.kernels.cpu.tile.storage import Stored


class KernelMethod(Method):
    """A method with compiled kernels, which execute a tiling.

    Kernels that write their sums to a staging tile, which `store_tile` finishes, compute every
    epilogue.
    """

    copies_filters: ClassVar[bool] = False  # whether those of each launch must be contiguous

    @abstractmethod
    def repriced(self, c: Candidate, arch: CpuArch) -> Estimate:
        """The estimate of the candidate's tiling on a CPU, whose costs alone may be others."""

    @abstractmethod
    def layout(self, c: Candidate) -> Layout:
        """Sizes of scratch memory and packed filters."""

    @abstractmethod
    def operator(self, c: Candidate, build: Build) -> Operator:
        """The compiled kernels of a candidate."""

    def workspace_bytes(self, c: Candidate) -> int:
        """Bytes of scratch memory of all threads, without the packed filter."""
        return c.threads * c.layout.scratch(c.layout.packs_in_loop).total

    def filter_bytes(self, c: Candidate, w: Array | None = None) -> int:
        """Bytes of the packed filter, unless the main launch packs panels or nothing is packed."""
        order = self.packed(c)
        in_place = isinstance(order, PlainOrder) or c.layout.packs_in_loop
        return 0 if in_place else order.bytes

    def call_bytes(self, c: Candidate, w: Array | None = None) -> int:
        """Bytes that a call with a plain filter takes besides its arrays; the launch that packs the
        filter has scratch memory of its own, which the main launch then reuses.
        """
        filter_bytes = self.filter_bytes(c, w)
        packing = c.threads * c.layout.packing_scratch.total if filter_bytes else 0
        return max(self.workspace_bytes(c), packing) + filter_bytes

    def pack(self, c: Candidate, w: Array, formats: Formats) -> PackedFilter:
        """Pack `w`, a filter in the problem's weight layout, in the order of `packed`."""
        order = self.packed(c)
        if isinstance(order, PlainOrder):
            return super().pack(c, w, formats)
        filters = ordered(bits(w), c.problem.filter_axes)
        return PackedFilter(operator(c, formats).pack(filters, c.threads), order)

    def arguments(self, c: Candidate, operands: Operands) -> Iterable[Operands]:
        """The operands of each launch, as views that the kernels take, of those of a call."""
        yield operands

    def steps(self, c: Candidate, given: Given) -> list[Step]:
        """The launches for arrays of these strides, which the method must accept, and before each
        one what packs or copies its filter.
        """
        arrays, epilogue, formats, room, record = given
        compiled, main = operator(c, formats), None  # which checks that code may be loaded
        from implicit_conv.kernels.cpu.operator import Operands

        of_call = Operands(arrays.x, arrays.w, arrays.y, arrays.residual)
        sums = compiled.initial_sums if epilogue.biased else None
        found, end = list[Step](), room.end
        for operands in self.arguments(c, of_call):
            x, w, y, residual = operands
            room.end = end
            if w is not None and self.copies_filters and not w[:1].flags.c_contiguous:
                w = copied(w, room, found)
            packs = w is not None and not compiled.layout.packs_in_loop
            of_w, panels = address_of(x if w is None else w), arrays.panels if w is None else 0
            if packs:
                panels = room.take(compiled.packed_bytes)
                packing = compiled.prepare_packing(w, c.threads, record)
                found.append(launched(packing, room, of_w, of_w, of_w, panels))
                of_w = address_of(x)
            added = 0 if residual is None else address_of(residual)
            places = address_of(x), of_w, address_of(y), panels, added
            if main is None:
                read = Operands(x, None if packs else w, y, residual)
                launch = compiled.prepare(read, epilogue, c.threads, record)
                main = launched(launch, room, *places, sums, scaled=epilogue.scaled)
                found.append(main)
            else:  # the same strides
                found.append(Launched(main.launch, main.scratch, *places, sums, epilogue.scaled))
        return found

    def loads(self, c: Candidate) -> list[Load]:
        """The loads that the kernels execute for contiguous arrays."""
        g = c.geometry
        return self.as_problem(c, tiles_trace(g, c.itemsize, c.layout.in_place, c.chunk))

    def as_problem(self, c: Candidate, loads: Sequence[Load]) -> list[Load]:
        """Convert loads of the view's geometry to coordinates of the problem."""
        return list(loads)


def operator(c: Candidate, formats: Formats) -> Operator:
    """The compiled operator of a candidate, whose method has kernels.

    The first call for a candidate in a process compiles its kernels, or loads them from the disk
    cache.

    Raises
    ------
    PlanError
        Code cannot be compiled; see `compiler.check_enabled`.
    """
    if may_load():  # else what this thread takes was loaded before
        check_enabled(formats.compiler)
    key = c.kind, formats
    like: Operator | None = SIZED.get(key)
    if like is not None:
        return like.resized(c.layout)
    first(f"operators of {type(c.method).__name__}")
    # A fork must wait for the imports of a thread that holds no other lock.
    with COMPILING if may_load() else contextlib.nullcontext():
        like = _new_operator(c, formats)
    SIZED.keep(key, like)
    return like


ALL_PARTS = 8  # about as many as an operator has that no size has made


def missing_parts(c: Candidate, formats: Formats) -> int:
    """The number of parts of a candidate that are not loaded, without those that strides decide."""
    assert isinstance(c.method, KernelMethod)
    like = SIZED.get((c.kind, formats))
    if like is None:
        return ALL_PARTS
    missing: int = like.missing_parts(c.layout)
    return missing


def stored(dtype: str, arch: CpuArch) -> Stored:
    """How a CPU converts elements of `dtype`."""
    from implicit_conv.kernels.cpu.tile.storage import HARD_BFLOAT16, SOFT_FLOAT16

    ways: dict[str, Stored] = {} if arch.f16c else {"float16": SOFT_FLOAT16}
    if arch.rounds_bfloat16:
        ways["bfloat16"] = HARD_BFLOAT16
    return ways.get(dtype, dtype)


def _new_operator(c: Candidate, formats: Formats) -> Operator:
    from implicit_conv.kernels.cpu.operator import Build
    from implicit_conv.kernels.cpu.tile.storage import Format

    assert isinstance(c.method, KernelMethod)
    problem, several = c.problem, c.method.channels > 1
    given = (problem.dtype, problem.filter_dtype, formats.y_dtype)
    x, w, y = (stored(dtype, c.arch) for dtype in given)
    sums = problem.sum_dtype
    build = Build(
        Format(x, w, x if several else sums, w if several else sums, sums, y),
        c.arch.fma,
        c.problem.C,
        formats.flushes,
        formats.recording,
        formats.compiler,
    )
    return c.method.operator(c, build)


def ranked(
    method: KernelMethod,
    algorithm: str,
    problem: Problem,
    view: Problem,
    arch: CpuArch,
    costs: Sequence[tuple[Estimate, Geometry]],
    request: Request,
    threads: int | None = None,
) -> list[Candidate]:
    """The candidates with the cheapest tilings `costs` of `view`, as many as `request` asks for and
    within its limit; if all tilings take more memory, the one that takes least.
    """
    threads = thread_count(problem, arch) if threads is None else threads

    def candidate(cost: tuple[Estimate, Geometry]) -> Candidate:
        (cycles, chunk, packing), g = cost
        tiling = Tiling(g, chunk)
        return Candidate(method, algorithm, problem, view, arch, threads, cycles, packing, tiling)

    if request.max_workspace is None:
        return list(map(candidate, heapq.nsmallest(request.tilings, costs)))
    found = [candidate(cost) for cost in sorted(costs)]
    fitting = [c for c in found if c.call_bytes() <= request.limit]
    return fitting[: request.tilings] or [min(found, key=Candidate.call_bytes)]


def best(
    method: KernelMethod,
    algorithm: str,
    problem: Problem,
    view: Problem,
    arch: CpuArch,
    costs: Sequence[tuple[Estimate, Geometry]],
    *,
    threads: int | None = None,
    limit: float = math.inf,
) -> Candidate:
    """The first of `ranked` for a request with this `limit` and no other options."""
    most = None if limit == math.inf else int(limit)
    request = Request(max_workspace=most)
    return ranked(method, algorithm, problem, view, arch, costs, request, threads)[0]
