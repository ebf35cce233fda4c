"""Plan: the object that users hold for every engine. It explains, packs filters and convolves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from numpy.typing import ArrayLike

from implicit_conv.arrays.arrays import Array, Operand, Y
from implicit_conv.arrays.libraries import as_library_of
from implicit_conv.problem.problem import Problem
from implicit_conv.problem.schedule import Load
from implicit_conv.process.cache import CALLS, PLANS, cached_property, keep_first
from implicit_conv.process.preparation import imports

if TYPE_CHECKING:
    from implicit_conv.cpu.engines.engine import CpuEngine
    from implicit_conv.cpu.run.packed import PackedFilter
    from implicit_conv.gpu.run.engine import GpuEngine
    from implicit_conv.gpu.run.run import GpuFilter
    from implicit_conv.gpu.run.wgrad import GpuWgradEngine

Engine: TypeAlias = (
    "CpuEngine | GpuEngine | GpuWgradEngine"  # the planned computation behind a Plan
)
Packed: TypeAlias = "PackedFilter | GpuFilter"  # a filter that `Plan.pack` returned


@imports
def _brief() -> Any:
    from implicit_conv.operators.brief import brief

    return brief


@imports
def _table() -> Any:
    from implicit_conv.operators.table import table

    return table


@dataclass(frozen=True)
class Plan:
    """How one convolution is computed on one machine.

    Attributes
    ----------
    engine : CpuEngine, GpuEngine or GpuWgradEngine
        Problem, machine and candidates.

    Examples
    --------
    >>> import numpy as np
    >>> from implicit_conv import plan_conv2d
    >>> x = np.ones((1, 3, 32, 32), np.float32)
    >>> w = np.ones((8, 3, 3, 3), np.float32)
    >>> plan = plan_conv2d(x.shape, w.shape, padding=1)
    >>> packed = plan.pack(w)  # once, for many calls
    >>> plan(x, packed).shape, plan.flops
    ((1, 8, 32, 32), 442368)
    """

    engine: Engine

    def __getstate__(self) -> dict[str, object]:
        """Pickles and copies leave out calls, which hold addresses of this process."""
        return {"engine": self.engine}

    @cached_property
    def _calls(self) -> list[Any]:
        """The latest `RepeatedCall`s."""
        return []

    @property
    def problem(self) -> Problem:
        """The convolution: N, C, H, W, K, R, S, P, Q and options."""
        return self.engine.problem

    @property
    def arch(self) -> Any:
        """The machine that the plan is for."""
        return self.engine.arch

    @property
    def candidates(self) -> tuple[Any, ...]:
        """The kernels that were considered; `explain` prints them."""
        return self.engine.candidates

    @property
    def algorithm(self) -> str:
        """The name of the algorithm that runs for contiguous arrays, as `conv2d` takes it."""
        return self.engine.algorithm

    @property
    def workspace_bytes(self) -> int:
        """Bytes of scratch memory of a call, without arrays and packed filter."""
        return self.engine.workspace_bytes

    @property
    def packed_bytes(self) -> int:
        """Bytes of the packed filter."""
        return self.engine.packed_bytes

    @property
    def peak_bytes(self) -> int:
        """Bytes that a call with a plain filter takes at its peak: scratch memory, the filter that
        it packs or copies, and the output.

        Such a call packs nothing if it packs panel by panel in scratch memory. A call with the
        result of `pack`, which has `packed_bytes` besides, takes as much at most.
        """
        return self.engine.peak_bytes

    @property
    def flops(self) -> int:
        """The number of multiplications and additions of the direct sum, padding included."""
        return self.problem.flops

    @property
    def bytes(self) -> int:
        """Bytes of x, w and y, each counted once."""
        return self.problem.bytes

    def __repr__(self) -> str:
        return f"<Plan of {self.problem}: {self.algorithm}>"

    def _repr_html_(self) -> str:
        """What a notebook shows: the candidates, and which one runs."""
        html: str = _table()(self.engine.facts())
        return html

    def explain(self, brief: bool = False) -> str:
        """A text for people. It begins with three lines: what runs; how long it takes by estimate,
        on how many threads, and at what share of the machine's limit; and why: the next best
        candidate and its time. Then it says what is read, and lists every candidate with its
        estimated time or the rule that refuses it.

        The limit is the rate of fused multiply-adds that one thread was measured at in this
        process, times the threads. Times are estimates; ``implicit-conv bench`` measures.

        Parameters
        ----------
        brief : bool
            Only the three lines.
        """
        lines: str = _brief()(self.engine.facts())
        return lines if brief else f"{lines}\n\n{self.engine.explain()}"

    def facts(self) -> dict[str, object]:
        """What `explain` says, as names and numbers for programs; ``json.dumps`` takes it.

        Returns
        -------
        facts : dict
            "problem", "device", "algorithm", "kernel", "asked" (the algorithm was named), "tuned"
            (what was measured, in words), "threads" (None on a GPU), "milliseconds" (an estimate),
            "flops" and "bytes" (of a direct sum), "peak" (operations a second at most on these
            threads, None on a GPU), "peak_is_measured", "packed" (the kernel with packed filters,
            and its milliseconds), "candidates" and "refused" (lists of dicts), and "parts": the
            facts of each of the convolutions that this one is computed by, where there are some.
        """
        return self.engine.facts()

    def trace(self) -> list[Load]:
        """The loads that the engine executes for contiguous arrays of the problem's layout.

        A coordinate outside the image is one of padding, whose mode is that of the problem.

        Algorithm "gemm_im2col" has none, because numpy copies the windows.

        Raises
        ------
        PlanError
            There are too many loads to list.
        """
        return self.engine.trace()

    def pack(self, w: ArrayLike) -> Packed:
        """Pack a filter once, for many calls.

        Packing is not part of these calls, so that another kernel may be the fastest one for them
        than for plain filters; `explain` says so. The two may round differently, but not under
        precision "strict".

        Parameters
        ----------
        w : array of shape (K, C / groups, R, S), or in the problem's weight layout

        Returns
        -------
        packed : PackedFilter
            The filter in the layout that the chosen kernel expects; pass it to the plan as `w`.

        Raises
        ------
        ShapeError, DTypeError
            The shape or dtype of `w` is not the one that the plan was made for.
        PlanError, DriverError
            No GPU can hold the packed filter.
        """
        return self.engine.pack(w)

    def prepare(
        self,
        x: Array,
        w: ArrayLike | Packed,
        out: Array,
        bias: ArrayLike | None = None,
        *,
        scale: ArrayLike | None = None,
        residual: Array | None = None,
    ) -> Callable[[], Array]:
        """A call of fixed arrays, which costs less time than one of the plan: each call computes
        `out` anew from what x, w and the residual hold then.

        The first result is computed at once.

        Parameters
        ----------
        x, out, residual : arrays
            As in a call of the plan. They are kept, and read and written in place.
        w : array, or the result of `pack`
        bias, scale : arrays of shape (K,), or one number for all filters, optional
            As in a call of the plan. They are copied.

        Returns
        -------
        prepared : function without parameters
            It returns `out`, and raises a `PlanError` if an array has been resized since, or has
            got another shape, strides or dtype. Two threads that call it at once write the same
            `out`.

        Raises
        ------
        ShapeError, DTypeError
            A shape or dtype is not the one that the plan was made for.
        PlanError
            The arrays cannot be used in place, or the plan is one for a GPU.
        """
        return self.engine.prepared(x, w, bias, residual, out, scale)

    def tune(self, filters: Literal["packed", "plain"] = "packed") -> Plan:
        """Measure the best few candidates on this machine, and keep the fastest one on disk.

        Later plans and calls of the same problem with the same options use it too, in this and in
        other processes, as long as CPU and versions are the same. Packed filters of this plan may
        not fit the new one. Under precision "strict" results have the same bits as before; under
        others they may differ in rounding, because another algorithm may run.

        Measuring takes one or two seconds for most problems, and as long as 250 calls of large
        ones. The first time, the kernels of all these candidates are compiled as well, which takes
        seconds. Let nothing else run meanwhile.

        Parameters
        ----------
        filters : {"packed", "plain"}
            Measure calls with the result of `pack`, or calls that pack a plain filter, as `conv2d`
            does. Weight gradients have no filter.

        Returns
        -------
        plan : Plan
            The tuned plan; this one stays as it is.

        Raises
        ------
        PlanError
            `filters` is unknown, or the plan is one for a GPU.
        """
        tuned = Plan(self.engine.tuned(filters))
        CALLS.clear()
        PLANS.clear()
        return tuned

    def __call__(
        self,
        x: Operand[Y],
        w: ArrayLike | Packed,
        bias: ArrayLike | None = None,
        *,
        scale: ArrayLike | None = None,
        residual: ArrayLike | None = None,
        out: Array | None = None,
    ) -> Y:
        """Convolve as `conv2d` does, with the options of the plan.

        Parameters
        ----------
        x : array of the problem's input shape and dtype
        w : array of the problem's filter shape and dtype, or the result of `pack`
        bias, scale, residual, out
            As in `conv2d`.

        Returns
        -------
        y : array of the problem's output shape, of the library of `x` as in `conv2d`

        Raises
        ------
        ShapeError, DTypeError
            A shape or dtype is not the one that the plan was made for.
        PlanError, DriverError
            No GPU can run the plan.
        """
        filters: Any = w
        packed = hasattr(type(w), "key")  # only filters packed for the CPU have one
        read, key = (filters.panels, filters.key) if packed else (w, None)
        if scale is None:
            for call in self._calls:
                if call.key is key or call.key == key:
                    found = call.again(x, read, bias, residual, out, w)
                    if found is not None:
                        return found  # type: ignore[no-any-return]
        operands = first, second = self.engine.operands(x, w)
        y: Any = self.engine.run(first, second, bias, residual, out, scale)
        if scale is None:
            call = self.engine.repeated((x, w), operands, bias, residual, out, y)
            if call is not None:
                keep_first(self._calls, call)
        return y if out is not None else as_library_of(x, y)  # type: ignore[no-any-return]
