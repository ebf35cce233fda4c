"""Method: how a convolution is computed. Candidate: a method with a tiling and its estimated cost.

A method is a value. All code that depends on a method is in its file under `methods`; no other code
asks which method a candidate has.
"""

from __future__ import annotations

import functools
import heapq
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple, TypeAlias

from implicit_conv.arrays import Array, ordered
from implicit_conv.cache import OPERATORS, cached_property
from implicit_conv.cpu.arch import CpuArch
from implicit_conv.cpu.call import Arrays, Call, CallForm, KernelCall
from implicit_conv.cpu.compiler import check_enabled
from implicit_conv.cpu.packed import PackedFilter, PackedOrder, PlainOrder, packed_copy
from implicit_conv.cpu.problem_views import is_pointwise
from implicit_conv.cpu.tiling import Estimate, thread_count
from implicit_conv.kernels.cpu.runtime.layout import Layout, ScratchLayout
from implicit_conv.kernels.geometry import Geometry
from implicit_conv.options import ITEMSIZES
from implicit_conv.problem import Problem
from implicit_conv.schedule import Load, tiles_trace

if TYPE_CHECKING:
    from implicit_conv.kernels.activation import Epilogue
    from implicit_conv.kernels.cpu.operator import Build, Operands, Operator

Words: TypeAlias = "dict[str, str]"  # rows of an explanation: name, value


@dataclass(frozen=True)
class Request:
    """The options of `conv2d` that decide which methods may run.

    `flushes` says that subnormals are treated as zero. `max_workspace` is the limit of a
    candidate's `call_bytes`, of which the operator itself takes `reserved_bytes`. Each variant of a
    method proposes its `tilings` cheapest tilings.
    """

    precision: str = "standard"
    algorithm: str = "auto"
    flushes: bool = False
    max_workspace: int | None = None
    reserved_bytes: int = 0
    tilings: int = 1

    @property
    def strict(self) -> bool:
        """Whether every sum must have one fixed order."""
        return self.precision == "strict"

    @property
    def limit(self) -> float:
        """Bytes that a candidate may take: infinite without `max_workspace`."""
        limit = math.inf if self.max_workspace is None else self.max_workspace
        return limit - self.reserved_bytes

    def admits(self, algorithm: str) -> bool:
        """Whether the caller allows `algorithm`."""
        return self.algorithm in ("auto", algorithm)

    def gemm_algorithm(self, problem: Problem) -> str | None:
        """The algorithm name of implicit GEMM for `problem`; None if the caller does not allow it.

        A problem whose filter is 1x1, with stride 1 and no padding, is "pointwise", unless the
        caller asks for "implicit_gemm".
        """
        pointwise = is_pointwise(problem) and self.algorithm != "implicit_gemm"
        name = "pointwise" if pointwise else "implicit_gemm"
        return name if self.admits(name) else None


class Refusal(NamedTuple):
    """A method or algorithm that cannot run, and the reason."""

    name: str
    reason: str


class Formats(NamedTuple):
    """The properties of compiled kernels that are not part of a candidate."""

    y_dtype: str
    flushes: bool = False  # whether subnormals are treated as zero
    recording: bool = False  # whether a debug build records its loads


@dataclass(frozen=True)
class Candidate:
    """A method with its cheapest tiling of a problem.

    Attributes
    ----------
    method : Method
    algorithm : str
        The name that `conv2d` takes.
    problem : Problem
        The problem with three spatial axes.
    view : Problem
        The problem as the method sees it: with other dtypes or merged axes.
    arch : CpuArch
    geometry : Geometry
        The tiling of the view.
    threads : int
        The number of threads that run it.
    chunk : int
        The number of filter panels per work item.
    cycles : float
        The estimate for the whole problem with a plain filter, in cycles of one core.
    packing : float
        Of these cycles, those that a packed filter saves.
    """

    method: Method
    algorithm: str
    problem: Problem
    view: Problem
    arch: CpuArch
    geometry: Geometry
    threads: int
    chunk: int
    cycles: float
    packing: float

    @property
    def name(self) -> str:
        """The algorithm, and the method in a few words."""
        return f"{self.algorithm}: {self.method.summary}"

    @property
    def packed_cycles(self) -> float:
        """The estimate with a packed filter, in cycles of one core."""
        return self.cycles - self.packing

    @property
    def seconds(self) -> float:
        """The estimate in seconds, on `threads` threads at the CPU's nominal clock."""
        return self.cycles / self.threads / self.arch.hertz

    @property
    def itemsize(self) -> int:
        """Bytes of an element of buffers, panels and sums."""
        return ITEMSIZES[self.problem.sum_dtype]

    @property
    def lanes(self) -> int:
        """Elements of a vector of sums."""
        return self.arch.lanes(self.itemsize)

    @cached_property
    def layout(self) -> Layout:
        """Sizes of scratch memory and packed filters."""
        return self.method.layout(self)

    @property
    def packed(self) -> PackedOrder:
        """The order of the elements of packed filters."""
        return self.method.packed(self)

    @property
    def scratch(self) -> ScratchLayout:
        """Scratch memory of one thread in a call with a plain filter."""
        return self.layout.scratch(self.layout.packs_in_loop)

    @property
    def workspace_bytes(self) -> int:
        """Bytes of scratch memory of all threads, without the packed filter."""
        return self.method.workspace_bytes(self)

    def call_bytes(self, w: Array | None = None) -> int:
        """Bytes that a call with a plain filter takes besides its arrays: scratch memory of all
        threads, and the filter that it packs or copies; see `Method.filter_bytes`.
        """
        filter_bytes = self.method.filter_bytes(self, w)
        packing = self.threads * self.layout.packing_scratch.total if filter_bytes else 0
        return max(self.workspace_bytes, packing) + filter_bytes


class Method(ABC):
    """How a convolution is computed.

    A subclass is a frozen dataclass, whose fields tell the variants of the method apart.
    """

    algorithms: ClassVar[tuple[str, ...]]  # the names by which `conv2d` can ask for the method
    scales: ClassVar[bool] = True  # whether its launches can scale the sums of each filter
    channels: int = 1  # of an element of buffers and panels, which dot products multiply

    @property
    @abstractmethod
    def summary(self) -> str:
        """The method in a few words, for tables."""

    @property
    def order(self) -> str:
        """A name for the order of its sums; precision "strict" mixes no two of them."""
        return "taps and channels"

    @property
    def needs(self) -> str:
        """What it needs of the strides of arrays, in words; empty if it accepts all strides."""
        return ""

    @classmethod
    @abstractmethod
    def candidates(
        cls, problem: Problem, arch: CpuArch, request: Request
    ) -> Iterator[Candidate | Refusal]:
        """The best candidates of each variant, or the reason why it cannot run."""

    def fallbacks(self, c: Candidate, limit: float = math.inf) -> Iterator[Candidate]:
        """Candidates that read the same packed filters as `c` and accept more strides; they take at
        most `limit` bytes if a tiling does, see `best`.
        """
        yield from ()

    @abstractmethod
    def layout(self, c: Candidate) -> Layout:
        """Sizes of scratch memory and packed filters."""

    def workspace_bytes(self, c: Candidate) -> int:
        """Bytes of scratch memory of all threads, without the packed filter."""
        return c.threads * c.scratch.total

    def filter_bytes(self, c: Candidate, w: Array | None = None) -> int:
        """Bytes of the copy or the packed filter that a call with a plain filter makes.

        `w` has the axes (k, c, t, r, s) and the strides of that filter, which is contiguous if
        there is no `w`.
        """
        in_place = isinstance(self.packed(c), PlainOrder)
        return 0 if in_place or c.layout.packs_in_loop else self.packed(c).bytes

    def end(self, c: Candidate) -> tuple[int, int]:
        """The true (P, Q) of the view; its geometry may be rounded up."""
        return c.geometry.P, c.geometry.Q

    @abstractmethod
    def operator(self, c: Candidate, build: Build) -> Operator:
        """The compiled kernels of a candidate."""

    def packed(self, c: Candidate) -> PackedOrder:
        """The order of packed filters; by default that of a contiguous KCRS filter."""
        return PlainOrder.of(c.problem)

    def accepts(self, c: Candidate, arrays: Arrays) -> bool:
        """Whether it can compute arrays of these strides."""
        return True

    def arguments(self, c: Candidate, arrays: Arrays) -> Iterable[Operands]:
        """The operands of each launch, as views that the kernels take."""
        from implicit_conv.kernels.cpu.operator import Operands

        yield Operands(*arrays)

    def loads(self, c: Candidate) -> list[Load]:
        """The loads that the kernels execute for contiguous arrays."""
        g = c.geometry
        return self.as_problem(c, tiles_trace(g, c.itemsize, c.layout.in_place, c.chunk))

    def as_problem(self, c: Candidate, loads: Sequence[Load]) -> list[Load]:
        """Convert loads of the view's geometry to coordinates of the problem."""
        return list(loads)

    @abstractmethod
    def describe(self, c: Candidate) -> Words:
        """The rows of `explain`: load tile, loads, k-blocks, work items."""

    def pack(self, c: Candidate, w: Array, formats: Formats) -> PackedFilter:
        """Pack `w`, a filter in the problem's weight layout, in the order of `packed`."""
        order = self.packed(c)
        filters = ordered(w, c.problem.filter_axes)
        if isinstance(order, PlainOrder):
            return packed_copy(order.copied(filters), order)
        return PackedFilter(operator(c, formats).pack(filters, c.threads), order)

    def bind(
        self,
        c: Candidate,
        form: CallForm,
        arrays: Arrays,
        epilogue: Epilogue,
        formats: Formats,
        record: int = 0,
    ) -> Call:
        """Prepare the launches for arrays of these strides, which the method must accept."""
        compiled = operator(c, formats)
        operands = next(iter(self.arguments(c, arrays)))
        split = None
        if operands.w is not arrays.w:
            split = functools.partial(self.arguments, c)
        in_loop = operands.w if compiled.layout.packs_in_loop else None
        main = compiled.prepare(operands._replace(w=in_loop), epilogue, c.threads, record)
        packing = None
        if operands.w is not None and in_loop is None:
            packing = compiled.prepare_packing(operands.w, c.threads, record)
        return KernelCall(form, compiled, main, packing, split)


def operator(c: Candidate, formats: Formats) -> Operator:
    """The compiled operator of a candidate.

    The first call for a candidate in a process compiles its kernels, or loads them from the disk
    cache.

    Raises
    ------
    PlanError
        NUMBA_DISABLE_JIT is set.
    """
    check_enabled()
    return _compiled_operator(c, formats)


@OPERATORS
def _compiled_operator(c: Candidate, formats: Formats) -> Operator:
    from implicit_conv.kernels.cpu.operator import Build
    from implicit_conv.kernels.cpu.tile.storage import HARD_BFLOAT16, SOFT_FLOAT16, Format

    ways = {} if c.arch.f16c else {"float16": SOFT_FLOAT16}
    if c.arch.rounds_bfloat16:
        ways["bfloat16"] = HARD_BFLOAT16
    problem, several = c.problem, c.method.channels > 1
    given = (problem.dtype, problem.filter_dtype, formats.y_dtype)
    x, w, y = (ways.get(dtype, dtype) for dtype in given)
    sums = problem.sum_dtype
    build = Build(
        Format(x, w, x if several else sums, w if several else sums, sums, y),
        c.arch.fma,
        c.problem.C,
        c.method.end(c),
        formats.flushes,
        formats.recording,
    )
    return c.method.operator(c, build)


def ranked(
    method: Method,
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
        return Candidate(method, algorithm, problem, view, arch, g, threads, chunk, cycles, packing)

    if request.limit == math.inf:
        return list(map(candidate, heapq.nsmallest(request.tilings, costs)))
    found = [candidate(cost) for cost in sorted(costs)]
    fitting = [c for c in found if c.call_bytes() <= request.limit]
    return fitting[: request.tilings] or [min(found, key=Candidate.call_bytes)]


def best(
    method: Method,
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
