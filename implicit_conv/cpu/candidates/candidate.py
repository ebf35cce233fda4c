"""Method: how a convolution is computed. Candidate: a method with its estimated cost. Choice: the
candidates for a problem.

A method is a value. All code that depends on a method is in its file under `methods`; no other code
asks which method a candidate has. What every method must define is abstract here; `kernel_method`
has what those with compiled kernels must define.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeAlias

from implicit_conv.arrays.arrays import Array, ordered
from implicit_conv.cpu.candidates.problem_views import in_own_axes
from implicit_conv.cpu.candidates.query import Formats, Query, Refusal, Request, Serves
from implicit_conv.cpu.candidates.tiling import Estimate, Near, Tiling, output_pixels
from implicit_conv.cpu.machine.arch import CpuArch
from implicit_conv.cpu.run.call import Arrays, bits, ordered_arrays
from implicit_conv.cpu.run.packed import PackedFilter, PackedOrder, PlainOrder, packed_copy
from implicit_conv.kernels.cpu.runtime.layout import Layout
from implicit_conv.kernels.cpu.runtime.program import Room, Step
from implicit_conv.kernels.geometry import Geometry
from implicit_conv.problem.options import ITEMSIZES
from implicit_conv.problem.problem import Problem
from implicit_conv.problem.schedule import Load
from implicit_conv.process.cache import cached_property
from implicit_conv.process.preparation import prepare

if TYPE_CHECKING:
    from implicit_conv.kernels.geometry import Epilogue

Words: TypeAlias = "dict[str, str]"  # rows of an explanation: name, value


CLEAR = 0.98  # of two estimates, a ratio that tells them apart
# What geometries that differ in sizes alone have in common.
FIXED = itemgetter(
    *(
        Geometry._fields.index(name)
        for name in (
            *("C", "K", "groups", "T", "R", "S", "stride_d", "stride_h", "stride_w"),
            *("dilation_d", "dilation_h", "dilation_w", "pad_d", "pad_h", "pad_w"),
            *("step_w", "remainders_w", "tile_m", "tile_c", "tile_k", "padding_mode"),
        )
    )
)


class Given(NamedTuple):
    """What steps are made for.

    Attributes
    ----------
    arrays : Arrays
        `views` of `placed` ones: they have no memory, so that none of their elements may be read or
        copied before steps run.
    epilogue : Epilogue
    formats : Formats
    room : Room
        It has what steps pass to each other.
    record : int
        The address to which a debug build writes its loads.
    """

    arrays: Arrays
    epilogue: Epilogue
    formats: Formats
    room: Room
    record: int = 0


@dataclass(frozen=True)
class Candidate:
    """A way to compute a problem: a method, with its cheapest tiling if it has kernels.

    Attributes
    ----------
    method : Method
    algorithm : str
        The name that `conv2d` takes.
    problem : Problem
        The problem with three spatial axes; one that has parts may take it as it was given.
    view : Problem
        The problem as the method sees it: with other dtypes or merged axes.
    arch : CpuArch
    threads : int
        The number of threads that run it.
    cycles : float
        The estimate for the whole problem with a plain filter, in cycles of one core.
    packing : float
        Of these cycles, those that a packed filter saves.
    tiling : Tiling, optional
        The tiling of the view; a method without kernels has none.
    parts : tuple of Choice
        Those of the convolutions of which it consists, if it does; see `plan.composite`.
    """

    method: Method
    algorithm: str
    problem: Problem
    view: Problem
    arch: CpuArch
    threads: int
    cycles: float
    packing: float = 0.0
    tiling: Tiling | None = None
    parts: tuple[Choice, ...] = ()

    @property
    def name(self) -> str:
        """The algorithm, and the method in a few words; of parts also the longest one's."""
        most = self.most_work
        name = f"{most.algorithm}: {most.method.summary}"
        return name if most is self else f"{self.method.summary}; {name}"

    @property
    def most_work(self) -> Candidate:
        """The candidate itself, or that of the part with most work."""
        if not self.parts:
            return self
        return max((part.best for part in self.parts), key=lambda c: c.cycles).most_work

    @property
    def packed_cycles(self) -> float:
        """The estimate with a packed filter, in cycles of one core."""
        return self.cycles - self.packing

    @property
    def seconds(self) -> float:
        """The estimate in seconds, on `threads` threads at the CPU's nominal clock."""
        return self.cycles / self.threads / self.arch.hertz

    @cached_property
    def itemsize(self) -> int:
        """Bytes of an element of buffers, panels and sums."""
        return ITEMSIZES[self.problem.sum_dtype]

    @cached_property
    def lanes(self) -> int:
        """Elements of a vector of sums."""
        return self.arch.lanes(self.itemsize)

    @property
    def geometry(self) -> Geometry:
        """The geometry of the tiling."""
        assert self.tiling is not None
        return self.tiling.geometry

    @property
    def chunk(self) -> int:
        """The number of filter panels per work item."""
        assert self.tiling is not None
        return self.tiling.chunk

    @cached_property
    def layout(self) -> Layout:
        """Sizes of scratch memory and packed filters; a method without kernels has none."""
        method: Any = self.method
        layout: Layout = method.layout(self)
        return layout

    @cached_property
    def packed(self) -> PackedOrder:
        """The order of the elements of packed filters."""
        return self.method.packed(self)

    @cached_property
    def kind(self) -> tuple[object, ...]:
        """What candidates of all sizes have in common whose kernels, and packed filters, are the
        same; a view, whose geometry it is, may hide taps and strides of its problem.
        """
        problem = self.problem
        dtypes = problem.dtype, problem.w_dtype, problem.sum_dtype
        fixed = problem.C, problem.K, problem.groups, problem.layout
        window = problem.kernel, problem.stride, problem.dilation
        return self.method, FIXED(self.geometry), dtypes, fixed, window, self.arch

    def share(self, near: Candidate) -> None:
        """Share what the kind of the candidate of a near size decides, if they are of one kind."""
        if self.kind == near.kind:
            vars(self).update(
                kind=near.kind, packed=near.packed, itemsize=near.itemsize, lanes=near.lanes
            )

    @property
    def workspace_bytes(self) -> int:
        """Bytes of scratch memory of all threads, without the packed filter."""
        return self.method.workspace_bytes(self)

    def call_bytes(self, w: Array | None = None) -> int:
        """Bytes that a call with a plain filter takes besides its arrays."""
        return self.method.call_bytes(self, w)

    def bytes_for(self, arrays: Arrays | None) -> int:
        """Those of a call with a filter of the strides of that of `arrays`, if there are any."""
        if arrays is None or arrays.w is None:
            return self.call_bytes()
        return self.call_bytes(self.method.views(self, arrays).w)

    def trace(self, problem: Problem) -> list[Load]:
        """The loads for contiguous arrays, in the coordinates of `problem`, of which it has a view;
        those of parts in the coordinates of each one's own problem.
        """
        loads = self.method.loads(self)
        return loads if self.parts else in_own_axes(problem, self.problem, loads)


class Method(ABC):
    """How a convolution is computed: what the planner and the engine ask.

    A subclass is a frozen dataclass, whose fields tell the variants of the method apart.
    """

    name: ClassVar[str]  # in refusals
    algorithms: ClassVar[tuple[str, ...]]  # the names by which `conv2d` can ask for the method
    serves: ClassVar[Serves] = Serves()
    channels: int = 1  # of an element of buffers and panels, which dot products multiply
    multiplier: str = ""  # what multiplies several pixels at once, if something does; see `Gemm`

    @property
    @abstractmethod
    def summary(self) -> str:
        """The method in a few words, for tables."""

    @property
    def order(self) -> str:
        """A name for the order of its sums; precision "strict" mixes no two of them."""
        return "taps and channels"

    @property
    def block(self) -> int:
        """Outputs along an axis that are transformed together and share errors; 0 for direct
        sums.
        """
        return 0

    @property
    def needs(self) -> str:
        """What it needs of the strides of arrays, in words; empty if it accepts all strides."""
        return ""

    @classmethod
    def lack(cls, arch: CpuArch) -> str:
        """Why the method computes no problem at all on such a CPU, or an empty string."""
        return ""

    @classmethod
    @abstractmethod
    def candidates(
        cls, problem: Problem, arch: CpuArch, request: Request
    ) -> Iterator[Candidate | Refusal]:
        """The best candidates of each variant, or the reason why it cannot run. The problem is one
        that it `serves`, and the caller allows one of its `algorithms`.
        """

    def fallbacks(self, c: Candidate, limit: float = math.inf) -> Iterator[Candidate]:
        """Candidates that read the same packed filters as `c` and accept more strides; they take at
        most `limit` bytes if a tiling does, see `best`.
        """
        yield from ()

    @abstractmethod
    def workspace_bytes(self, c: Candidate) -> int:
        """Bytes of scratch memory of all threads, without the packed filter."""

    def filter_bytes(self, c: Candidate, w: Array | None = None) -> int:
        """Bytes of the copy or the packed filter that a call with a plain filter makes.

        `w` has the axes (k, c, t, r, s) and the strides of that filter, which is contiguous if
        there is no `w`.
        """
        return 0

    def call_bytes(self, c: Candidate, w: Array | None = None) -> int:
        """Bytes that a call with a plain filter takes besides its arrays: scratch memory of all
        threads, and the filter that it packs or copies; see `filter_bytes`.
        """
        return self.workspace_bytes(c) + self.filter_bytes(c, w)

    def packed(self, c: Candidate) -> PackedOrder:
        """The order of packed filters; by default that of a contiguous KCRS filter."""
        return PlainOrder.of(c.problem)

    def pack(self, c: Candidate, w: Array, formats: Formats) -> PackedFilter:
        """Pack `w`, a filter in the problem's weight layout, in the order of `packed`."""
        order = self.packed(c)
        assert isinstance(order, PlainOrder)
        return packed_copy(order.copied(ordered(bits(w), c.problem.filter_axes)), order)

    def views(
        self, c: Candidate, arrays: Arrays, filter_axes: tuple[int, ...] | None = None
    ) -> Arrays:
        """The arrays of a call as the method takes them: with the axes (n, d, h, w, c) and, of w,
        (k, c, t, r, s), whose positions in w are `filter_axes`, by default the problem's own.
        """
        return ordered_arrays(c.problem, arrays, filter_axes)

    def accepts(self, c: Candidate, arrays: Arrays) -> bool:
        """Whether it can compute `views` of these strides."""
        return True

    @abstractmethod
    def steps(self, c: Candidate, given: Given) -> list[Step]:
        """The steps for arrays of these strides, which the method must accept; they compute the
        whole epilogue.

        Raises
        ------
        StridesError
            A part takes no arrays of these strides.
        """

    def spare(self, g: Geometry) -> Geometry:
        """The tiling with small register tiles, of one or two kernels for all sizes; `g` itself if
        there are none.
        """
        return g

    def loads(self, c: Candidate) -> list[Load]:
        """The loads of the schedule that it executes for contiguous arrays."""
        return []

    @abstractmethod
    def describe(self, c: Candidate) -> Words:
        """The rows of `explain`: load tile, loads, k-blocks, work items."""


@dataclass(frozen=True)
class Choice:
    """The candidates for a problem, best first, and the refusals.

    Attributes
    ----------
    query : Query
        What was planned, without arrays.
    candidates : tuple of Candidate
    refusals : tuple of Refusal
    tuned : str
        What was measured, in words, if the first candidate was chosen by `tuning`.
    near : str
        From which size the only candidate was taken over, if it was.
    temporary : bool
        Whether that, or a part of it, has small register tiles, since others were not loaded.
    """

    query: Query
    candidates: tuple[Candidate, ...]
    refusals: tuple[Refusal, ...] = ()
    tuned: str = ""
    near: str = ""
    temporary: bool = False

    @property
    def best(self) -> Candidate:
        """The candidate for plain filters."""
        return self.candidates[0]

    @cached_property
    def best_packed(self) -> Candidate:
        """The candidate for packed filters: `best`, unless it is slower than another one by more
        than estimates can tell. One that was measured is best for both.
        """
        if len(self.candidates) == 1:
            return self.best
        found = min(self.candidates, key=lambda candidate: candidate.packed_cycles)
        clear = found.packed_cycles < CLEAR * self.best.packed_cycles
        return found if clear and not self.tuned else self.best

    @cached_property
    def fallbacks(self) -> tuple[Candidate, ...]:
        """Candidates for strides that others do not accept.

        They are made on first use, because most arrays are contiguous.
        """
        limit, chosen = self.query.request.limit, self.candidates
        found = (fallback for c in chosen for fallback in c.method.fallbacks(c, limit))
        new = (c for c in found if c.call_bytes() <= limit and c not in chosen)
        return tuple(dict.fromkeys(new))

    def in_order(self, first: Candidate) -> Iterator[Candidate]:
        """All candidates in the order in which they are tried; fallbacks are made if the `first`
        one cannot run.
        """
        yield first
        others = [c for c in self.candidates if c is not first]
        yield from sorted((*others, *self.fallbacks), key=lambda candidate: candidate.cycles)

    def seconds(self, packed: bool = False) -> float:
        """The estimate with a plain or a packed filter, at the CPU's nominal clock."""
        c = self.best_packed if packed else self.best
        return (c.packed_cycles if packed else c.cycles) / c.threads / c.arch.hertz

    @property
    def workspace_bytes(self) -> int:
        """Bytes of scratch memory of all threads, without the packed filter."""
        return max(self.best.workspace_bytes, self.best_packed.workspace_bytes)

    @property
    def packed_bytes(self) -> int:
        """Bytes of the packed filter."""
        return self.best_packed.packed.bytes

    def call_bytes(self, arrays: Arrays | None = None) -> int:
        """Bytes of scratch memory and of the filter that a call with a plain filter packs, or of a
        call with a packed filter if it takes more; the filter is contiguous, or one of `arrays`.
        """
        return max(self.best.bytes_for(arrays), self.best_packed.workspace_bytes)

    def pack(self, w: Array, formats: Formats) -> PackedFilter:
        """The filter `w` in the order that the best candidate for it reads; see `Plan.pack`."""
        c = self.best_packed
        if c.parts:  # which are prepared one by one
            return c.method.pack(c, w, formats)
        return prepare(c.method.pack, c, w, formats)

    @cached_property
    def nearby(self) -> Request:
        """The request for a size that takes the best candidate over."""
        return near(self.query.request, self.best)


def near(request: Request, c: Candidate) -> Request:
    """The request for a size that takes the choice `c` over."""
    estimate = Estimate(c.cycles, c.chunk, c.packing)
    return replace(request, near=Near(c.method, c.geometry, estimate, output_pixels(c.view)))
