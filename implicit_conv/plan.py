"""Plan: what users hold, for every engine. It explains itself, packs filters and convolves."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from implicit_conv.cache import keep_call
from implicit_conv.problem import Problem
from implicit_conv.schedule import Load


class Engine(Protocol):
    """What answers one request: `cpu.engine.CpuEngine` or `gpu.engine.GpuEngine`."""

    @property
    def problem(self) -> Problem:
        """The problem in the caller's layouts."""

    @property
    def arch(self) -> Any:
        """The machine that was planned for."""

    @property
    def candidates(self) -> tuple[Any, ...]:
        """The kernels considered."""

    @property
    def algorithm(self) -> str:
        """The algorithm of the first candidate."""

    @property
    def workspace_bytes(self) -> int:
        """Memory besides arrays and packed filter."""

    @property
    def packed_bytes(self) -> int:
        """Bytes of the packed filter."""

    @property
    def peak_bytes(self) -> int:
        """Workspace, packed filter and output."""

    def explain(self) -> str:
        """See `Plan.explain`."""

    def trace(self) -> list[Load]:
        """See `Plan.trace`."""

    def pack(self, w: Any) -> Any:
        """See `Plan.pack`."""

    def run(self, x: Any, w: Any, bias: Any, residual: Any, out: Any) -> Any:
        """See `Plan.__call__`."""

    def ready(self, x: Any, w: Any, y: Any, biased: bool) -> Any:
        """A function of (x, w, bias) that computes ``y = run(x, w)`` again for arrays of the same
        shapes, strides and dtypes; None if there is none.
        """


@dataclass(frozen=True)
class Plan:
    """How one convolution is computed on one machine.

    Attributes
    ----------
    engine : CpuEngine or GpuEngine
        Problem, machine and candidates.
    """

    engine: Engine

    def __getstate__(self) -> dict[str, object]:
        """Pickles and copies leave out calls, which hold addresses of this process."""
        return {"engine": self.engine}

    @functools.cached_property
    def _calls(self) -> dict[object, Any]:
        """Calls with packed filters that are ready to run, by the layout of their arrays."""
        return {}

    @property
    def problem(self) -> Problem:
        """The convolution in the field's letters."""
        return self.engine.problem

    @property
    def arch(self) -> Any:
        """The machine that was planned for."""
        return self.engine.arch

    @property
    def candidates(self) -> tuple[Any, ...]:
        """The kernels considered; `explain` prints them."""
        return self.engine.candidates

    @property
    def algorithm(self) -> str:
        """The algorithm that runs for contiguous arrays, as `conv2d` takes it."""
        return self.engine.algorithm

    @property
    def workspace_bytes(self) -> int:
        """Memory of a call besides arrays and packed filter."""
        return self.engine.workspace_bytes

    @property
    def packed_bytes(self) -> int:
        """Bytes of the packed filter."""
        return self.engine.packed_bytes

    @property
    def peak_bytes(self) -> int:
        """Workspace, packed filter and output."""
        return self.engine.peak_bytes

    @property
    def flops(self) -> int:
        """Multiplications and additions of the problem, padding counted."""
        return self.problem.flops

    @property
    def bytes(self) -> int:
        """Bytes of x, w and y, each once."""
        return self.problem.bytes

    def __repr__(self) -> str:
        return f"<Plan of {self.problem}: {self.algorithm}>"

    def explain(self) -> str:
        """What was chosen, why, and what every other candidate would cost; for people."""
        return self.engine.explain()

    def trace(self) -> list[Load]:
        """The loads that the engine executes for contiguous arrays of the problem's layout.

        "gemm_im2col" has none: numpy copies.
        """
        return self.engine.trace()

    def pack(self, w: Any) -> Any:
        """Pack a filter once, for many calls.

        Parameters
        ----------
        w : array in the problem's weight layout and dtype

        Raises
        ------
        ShapeError, DTypeError
            A filter that is not the one the plan was made for.
        PlanError, DriverError
            On a GPU: none that can hold it.
        """
        return self.engine.pack(w)

    def __call__(
        self, x: Any, w: Any, bias: Any = None, *, residual: Any = None, out: Any = None
    ) -> Any:
        """Convolve `x` with the filter `w`, packed by `pack` or plain; as `conv2d` does.

        Raises
        ------
        ShapeError, DTypeError
            Arrays that are not those the plan was made for.
        PlanError, DriverError
            On a GPU: none that can run the plan.
        """
        key = None
        packed = hasattr(type(w), "key")  # for the CPU, whose calls with packed filters are kept
        if packed and type(x) is np.ndarray and residual is None and out is None:
            key = (x.shape, x.strides, x.dtype, w.key, bias is None)
            call = self._calls.get(key)
            if call is not None and x.flags.aligned:
                return call(x, w.operand, bias)
        y = self.engine.run(x, w, bias, residual, out)
        if key is not None and x.flags.aligned and x.dtype.isnative:
            call = self.engine.ready(x, w, y, bias is not None)
            if call is not None:
                keep_call(self._calls, key, call)
        return y
