"""Method: how a convolution is computed. Candidate: a method with its estimated cost.

A method is a value. All code that depends on a method is in its file under `methods`; no other code
asks which method a candidate has. What every method must define is abstract here; `kernel_method`
has what those with compiled kernels must define.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeAlias, cast

from implicit_conv.arrays.arrays import Array, ordered
from implicit_conv.cpu.candidates.problem_views import is_pointwise
from implicit_conv.cpu.candidates.tiling import Near, Tiling
from implicit_conv.cpu.machine.arch import CpuArch
from implicit_conv.cpu.run.call import Arrays
from implicit_conv.cpu.run.packed import PackedFilter, PackedOrder, PlainOrder, packed_copy
from implicit_conv.kernels.cpu.runtime.layout import Layout
from implicit_conv.kernels.cpu.runtime.program import Room, Step
from implicit_conv.kernels.geometry import Geometry
from implicit_conv.kernels.sources import TRANSLATOR
from implicit_conv.problem.options import ACTIVATIONS, DTYPES, FLOAT_DTYPES, ITEMSIZES, PRECISIONS
from implicit_conv.problem.problem import Problem
from implicit_conv.problem.schedule import Load
from implicit_conv.process.cache import cached_property

if TYPE_CHECKING:
    from implicit_conv.kernels.geometry import Epilogue

Words: TypeAlias = "dict[str, str]"  # rows of an explanation: name, value


OPERANDS = ("bias", "residual", "scale")  # arrays of an epilogue
# Why a method does not serve a precision, by the strictest one that it serves.
TOO_STRICT = {
    "standard": "its order of sums is not that of precision {!r}; ask for 'standard'",
    "fast": "its error exceeds that of precision {!r}; ask for 'fast'",
}


class Serves(NamedTuple):
    """The problems that a method computes; it is given no other.

    Attributes
    ----------
    dtypes : tuple of str
        Of x.
    precision : str
        The strictest one; the method serves those that allow more, too.
    activations : tuple of str
        Kinds of activations, of ACTIVATIONS. Every method can do without one.
    operands : tuple of str
        Arrays of the epilogue, of OPERANDS. A method that scales adds a bias after that.
    """

    dtypes: tuple[str, ...] = DTYPES
    precision: str = "strict"
    activations: tuple[str, ...] = ACTIVATIONS
    operands: tuple[str, ...] = OPERANDS

    @property
    def precisions(self) -> tuple[str, ...]:
        """All precisions that it serves."""
        return PRECISIONS[PRECISIONS.index(self.precision) :]

    def refusal(self, dtype: str, precision: str, activation: str) -> str:
        """Why the planner does not give it a problem with these options, or an empty string."""
        if dtype not in self.dtypes:
            return f"it supports {_listed(self.dtypes)}, not {dtype}"
        if precision not in self.precisions:
            return TOO_STRICT[self.precision].format(precision)
        if activation not in ("", *self.activations):
            served = _listed(self.activations) if self.activations else "none"
            return f"of the activations it supports {served}, not {activation}"
        return ""

    def takes(self, epilogue: Epilogue, added: bool) -> bool:
        """Whether it computes an epilogue with these operands, and a residual if `added`."""
        given = {"bias": epilogue.biased, "residual": added, "scale": epilogue.scaled}
        return all(name in self.operands for name, is_given in given.items() if is_given)


def _listed(words: Sequence[str]) -> str:
    *others, last = words
    return f"{', '.join(others)} and {last}" if others else last


FLOATS = Serves(FLOAT_DTYPES)


@dataclass(frozen=True)
class Request:
    """The options of `conv2d` that decide which methods may run.

    `activation` is the kind of the activation, one of ACTIVATIONS, or "" for none. `flushes` says
    that subnormals are treated as zero. `max_workspace` is the limit of a candidate's `call_bytes`,
    of which the operator itself takes `reserved_bytes`. Each variant of a method proposes its
    `tilings` cheapest tilings. Unless it `searches`, the choice for a near size serves, if there is
    one; `near` is then that choice, and the only tiling that is tried is most like its own.
    """

    precision: str = "standard"
    algorithm: str = "auto"
    flushes: bool = False
    max_workspace: int | None = None
    reserved_bytes: int = 0
    tilings: int = 1
    activation: str = ""
    compiler: str = TRANSLATOR  # of COMPILERS
    searches: bool = True
    near: Near | None = None

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
    compiler: str = TRANSLATOR  # of COMPILERS


@dataclass(frozen=True)
class Candidate:
    """A way to compute a problem: a method, with its cheapest tiling if it has kernels.

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
    threads : int
        The number of threads that run it.
    cycles : float
        The estimate for the whole problem with a plain filter, in cycles of one core.
    packing : float
        Of these cycles, those that a packed filter saves.
    tiling : Tiling, optional
        The tiling of the view; a method without kernels has none.
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
        layout: Layout = cast("Any", self.method).layout(self)
        return layout

    @cached_property
    def packed(self) -> PackedOrder:
        """The order of the elements of packed filters."""
        return self.method.packed(self)

    @property
    def workspace_bytes(self) -> int:
        """Bytes of scratch memory of all threads, without the packed filter."""
        return self.method.workspace_bytes(self)

    def call_bytes(self, w: Array | None = None) -> int:
        """Bytes that a call with a plain filter takes besides its arrays."""
        return self.method.call_bytes(self, w)


class Method(ABC):
    """How a convolution is computed: what the planner and the engine ask.

    A subclass is a frozen dataclass, whose fields tell the variants of the method apart.
    """

    name: ClassVar[str]  # in refusals
    algorithms: ClassVar[tuple[str, ...]]  # the names by which `conv2d` can ask for the method
    serves: ClassVar[Serves] = Serves()
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
        return packed_copy(order.copied(ordered(w, c.problem.filter_axes)), order)

    def accepts(self, c: Candidate, arrays: Arrays) -> bool:
        """Whether it can compute arrays of these strides."""
        return True

    @abstractmethod
    def steps(
        self,
        c: Candidate,
        arrays: Arrays,
        epilogue: Epilogue,
        formats: Formats,
        room: Room,
        record: int = 0,
    ) -> list[Step]:
        """The steps for arrays of these strides, which the method must accept; they compute the
        whole epilogue.

        `arrays` are `placed`, or views of such arrays: they have no memory, so that none of their
        elements may be read or copied here. What steps pass to each other is in `room`.
        """

    def loads(self, c: Candidate) -> list[Load]:
        """The loads of the schedule that it executes for contiguous arrays."""
        return []

    @abstractmethod
    def describe(self, c: Candidate) -> Words:
        """The rows of `explain`: load tile, loads, k-blocks, work items."""


class Query(NamedTuple):
    """What the planner is asked.

    `arrays` have the strides that the best candidate must accept; without them it may need
    contiguous arrays. `methods` are by default those of convolutions.
    """

    problem: Problem
    arch: CpuArch
    request: Request
    arrays: Arrays | None = None
    methods: tuple[type[Method], ...] | None = None

    def bytes_of(self, c: Candidate) -> int:
        """Bytes that a call of a candidate takes besides its arrays."""
        return c.call_bytes(None if self.arrays is None else self.arrays.w)
