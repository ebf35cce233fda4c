"""Method, how a convolution is computed; Candidate, a method with a tiling and what it costs.

A method is a value. All that depends on it stands in its file under `methods`: nothing else asks
which method a candidate has.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple, TypeAlias

from implicit_conv.arrays import Array, numpy_dtype
from implicit_conv.cache import OPERATORS
from implicit_conv.cpu.arch import CpuArch
from implicit_conv.cpu.call import Arrays, Call, CallForm, KernelCall
from implicit_conv.cpu.packed import PackedFilter, PackedOrder, PlainOrder, packed_copy
from implicit_conv.cpu.tiling import Estimate, thread_count
from implicit_conv.cpu.views import is_pointwise
from implicit_conv.kernels.cpu.runtime.layout import Layout, ScratchLayout
from implicit_conv.kernels.geometry import Geometry
from implicit_conv.options import ITEMSIZES, LAYOUTS, WEIGHT_LAYOUTS
from implicit_conv.problem import Problem
from implicit_conv.schedule import Load, tiles_trace

if TYPE_CHECKING:
    from implicit_conv.kernels.cpu.operator import Build, Epilogue, Operands, Operator

Words: TypeAlias = "dict[str, str]"  # what: how, the lines of an explanation


@dataclass(frozen=True)
class Request:
    """What a caller asks of the planner: precision and algorithm, as in `conv2d`."""

    precision: str = "standard"
    algorithm: str = "auto"

    @property
    def strict(self) -> bool:
        """Whether sums must have one fixed order."""
        return self.precision == "strict"

    def admits(self, algorithm: str) -> bool:
        """Whether the caller lets `algorithm` run."""
        return self.algorithm in ("auto", algorithm)

    def gemm_algorithm(self, problem: Problem) -> str | None:
        """The name of implicit GEMM of `problem`: "pointwise" unless the caller asks for the other;
        None where the caller lets neither run.
        """
        pointwise = is_pointwise(problem) and self.algorithm != "implicit_gemm"
        name = "pointwise" if pointwise else "implicit_gemm"
        return name if self.admits(name) else None


class Refusal(NamedTuple):
    """A method or algorithm that cannot run, and the rule that says so."""

    name: str
    reason: str


class Formats(NamedTuple):
    """What kernels are compiled for besides a candidate."""

    y_dtype: str
    flushes: bool = False  # subnormals count as zero
    recording: bool = False  # a debug build that writes down its loads


@dataclass(frozen=True)
class Candidate:
    """A method with the tiling of a problem that costs least.

    Attributes
    ----------
    method : Method
    algorithm : str
        The name by which `conv2d` can be asked for it.
    problem, view : Problem
        As the caller states it, and as the method sees it.
    arch : CpuArch
    geometry : Geometry
        Of the view.
    threads : int
    chunk : int
        Filter panels of a work item.
    cycles : float
        The estimate, in cycles of one core.
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

    @property
    def name(self) -> str:
        """Algorithm and method in a few words."""
        return f"{self.algorithm}: {self.method.summary}"

    @property
    def seconds(self) -> float:
        """The estimate, at the CPU's nominal clock."""
        return self.cycles / self.threads / self.arch.hertz

    @property
    def itemsize(self) -> int:
        """Bytes of an element of buffers, panels and sums."""
        return ITEMSIZES[self.problem.sum_dtype]

    @property
    def lanes(self) -> int:
        """Elements of one vector of sums."""
        return self.arch.lanes(self.itemsize)

    @functools.cached_property
    def layout(self) -> Layout:
        """Sizes of scratch memory and packed filters."""
        return self.method.layout(self)

    @property
    def packed(self) -> PackedOrder:
        """The order of filters packed for it."""
        return self.method.packed(self)

    @property
    def scratch(self) -> ScratchLayout:
        """Scratch memory of a thread, for a plain filter."""
        return self.layout.scratch(self.layout.packs_in_loop)

    @property
    def workspace_bytes(self) -> int:
        """Scratch memory of all threads, without the packed filter."""
        return self.method.workspace_bytes(self)


class Method(ABC):
    """How a convolution is computed; subclasses are frozen dataclasses of what they vary."""

    algorithms: ClassVar[tuple[str, ...]]  # names under which `conv2d` can ask for it
    pairs: bool = False  # whether an element of buffers and panels is a pair of bfloat16 channels
    flushes: ClassVar[bool] = True  # whether it can treat subnormals as zero

    @property
    @abstractmethod
    def summary(self) -> str:
        """A few words for tables."""

    @property
    def order(self) -> str:
        """The order of its sums, which precision "strict" fixes."""
        return "taps and channels"

    @property
    def needs(self) -> str:
        """What it needs of the strides of arrays, in words; empty if it takes any."""
        return ""

    @classmethod
    @abstractmethod
    def candidates(
        cls, problem: Problem, arch: CpuArch, request: Request
    ) -> Iterator[Candidate | Refusal]:
        """The best candidate of each variant, or the rule that refuses it."""

    def fallbacks(self, c: Candidate) -> Iterator[Candidate]:
        """Candidates that read the same packed filters as `c` and accept more strides."""
        yield from ()

    @abstractmethod
    def layout(self, c: Candidate) -> Layout:
        """Sizes of scratch memory and packed filters."""

    def workspace_bytes(self, c: Candidate) -> int:
        """Scratch memory of all threads, without the packed filter."""
        return c.threads * c.scratch.total

    def end(self, c: Candidate) -> tuple[int, int]:
        """Output rows and columns of the view that exist: its geometry may be rounded up."""
        return c.geometry.P, c.geometry.Q

    @abstractmethod
    def operator(self, c: Candidate, build: Build) -> Operator:
        """The compiled kernels."""

    def packed(self, c: Candidate) -> PackedOrder:
        """The order of packed filters: by default the filter as it is."""
        return PlainOrder.of(c.problem)

    def accepts(self, c: Candidate, arrays: Arrays) -> bool:
        """Whether it can take arrays of these strides."""
        return True

    def arguments(self, c: Candidate, arrays: Arrays) -> Iterable[Operands]:
        """The operands of each launch, as views that kernels take."""
        from implicit_conv.kernels.cpu.operator import Operands

        x, w, filter_axes, y, residual = arrays
        yield Operands(x, w, y, residual, LAYOUTS[c.problem.layout], filter_axes)

    def loads(self, c: Candidate) -> list[Load]:
        """The loads that its kernels execute for contiguous arrays."""
        g = c.geometry
        return self.as_problem(c, tiles_trace(g, c.itemsize, c.layout.in_place, c.chunk))

    def as_problem(self, c: Candidate, loads: Sequence[Load]) -> list[Load]:
        """Loads of the view's geometry in the terms of the problem."""
        return list(loads)

    @abstractmethod
    def describe(self, c: Candidate) -> Words:
        """What `explain` says of it: tile, loads, k-blocks, work items."""

    def pack(self, c: Candidate, w: Array, formats: Formats) -> PackedFilter:
        """A filter, in the problem's weight layout, in the order of `packed`."""
        order, layout = self.packed(c), c.problem.weight_layout
        if isinstance(order, PlainOrder):
            return packed_copy(order.copied(w, layout), order)
        panels = operator(c, formats).pack(w, WEIGHT_LAYOUTS[layout], c.threads)
        return PackedFilter(panels, order)

    def bind(
        self, c: Candidate, arrays: Arrays, epilogue: Epilogue, formats: Formats, record: int = 0
    ) -> Call:
        """The launches for arrays of these strides, which the method must accept."""
        compiled = operator(c, formats)
        operands = next(iter(self.arguments(c, arrays)))
        in_loop = operands.w if compiled.layout.packs_in_loop else None
        main = compiled.prepare(operands._replace(w=in_loop), epilogue, c.threads, record)
        packing = None
        if operands.w is not None and in_loop is None:
            packing = compiled.prepare_packing(operands.w, operands.filter_axes, c.threads, record)
        split = None if operands.w is arrays.w else functools.partial(self.arguments, c)
        form = CallForm(c.problem, arrays.y.shape, numpy_dtype(formats.y_dtype), arrays.filter_axes)
        return KernelCall(form, compiled, main, packing, split)


@OPERATORS
def operator(c: Candidate, formats: Formats) -> Operator:
    """The compiled operator of a candidate; the first of its kind in a process compiles or loads
    it.
    """
    from implicit_conv.kernels.cpu.operator import Build
    from implicit_conv.kernels.cpu.tile.storage import HARD_BFLOAT16, SOFT_FLOAT16, Format

    ways = {} if c.arch.f16c else {"float16": SOFT_FLOAT16}
    if c.arch.rounds_bfloat16:
        ways["bfloat16"] = HARD_BFLOAT16
    x, y = (ways.get(dtype, dtype) for dtype in (c.problem.dtype, formats.y_dtype))
    sums = c.problem.sum_dtype
    build = Build(
        Format(x, x if c.method.pairs else sums, sums, y),
        c.arch.fma,
        c.problem.C,
        c.method.end(c),
        formats.flushes,
        formats.recording,
    )
    return c.method.operator(c, build)


def best(
    method: Method,
    algorithm: str,
    problem: Problem,
    view: Problem,
    arch: CpuArch,
    costs: Sequence[tuple[Estimate, Geometry]],
    *,
    threads: int | None = None,
) -> Candidate:
    """The candidate of the tiling of `view` that costs least."""
    (cycles, chunk), g = min(costs)
    threads = thread_count(problem, arch) if threads is None else threads
    return Candidate(method, algorithm, problem, view, arch, g, threads, chunk, cycles)
