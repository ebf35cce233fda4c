"""The GPU engine: what a public plan delegates to on a GPU.

`plan` answers the public functions; a `GpuEngine` explains, traces, packs and runs its choice.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, field
from typing import Any, Generic, NoReturn, TypeVar

from implicit_conv.arrays.arrays import dtype_key, dtype_name
from implicit_conv.errors import DTypeError, PlanError
from implicit_conv.gpu.cuda import driver
from implicit_conv.gpu.cuda.arch import GpuArch, device_number, gpu_arch, is_target
from implicit_conv.gpu.cuda.arrays import Seen, is_device_array
from implicit_conv.gpu.plan.candidate import Request
from implicit_conv.gpu.plan.explain import explain, facts_of
from implicit_conv.gpu.plan.phases import AnyChoice, Gradient, choose_gradient
from implicit_conv.gpu.plan.planner import choose
from implicit_conv.gpu.plan.trace import trace
from implicit_conv.gpu.plan.views import images
from implicit_conv.gpu.plan.wgrad import WgradChoice
from implicit_conv.gpu.run.run import GpuFilter, pack, pairs, run_in_place, run_on_copies
from implicit_conv.kernels.gpu.variant import Variant
from implicit_conv.problem.operand_checks import NO_EPILOGUE
from implicit_conv.problem.options import (
    ALGORITHMS,
    GPU_DTYPES,
    ITEMSIZES,
    PRECISIONS,
    parse_activation,
)
from implicit_conv.problem.problem import Problem
from implicit_conv.problem.schedule import Load
from implicit_conv.process.cache import PLANS

LOG = logging.getLogger("implicit_conv")


C = TypeVar("C", bound=AnyChoice | WgradChoice)


@dataclass(frozen=True)
class GpuPlan(Generic[C]):
    """A choice of kernel, with what engines of all operators answer alike.

    numpy arrays are computed on GPU number `device`, by default the current one; device arrays on
    their own GPU. `calls` keeps the calls made so far, by the kind of their arrays.
    """

    choice: C
    device: int | None = None
    algorithm: str = "implicit_gemm"
    calls: dict[object, Any] = field(default_factory=dict, init=False, compare=False, repr=False)

    def __getstate__(self) -> dict[str, object]:
        """Pickles and copies leave out calls, which hold handles of this process."""
        return {**self.__dict__, "calls": {}}

    @property
    def problem(self) -> Problem:
        """The convolution in the caller's layouts."""
        return self.choice.problem

    @property
    def arch(self) -> GpuArch:
        """The GPU that the plan is for."""
        return self.choice.arch

    @property
    def candidates(self) -> tuple[Any, ...]:
        """All kernels that were considered."""
        return self.choice.candidates

    @property
    def workspace_bytes(self) -> int:
        """Device memory that a call uses besides the arrays: an input gradient copies a plain
        filter, and a weight gradient has sums of all splits.
        """
        return self.choice.workspace_bytes

    def facts(self) -> dict[str, Any]:
        """The facts of `Plan.facts`; times are estimates by the nominal clock."""
        return facts_of(self.choice)

    def tuned(self, filters: str) -> NoReturn:
        """Candidates are measured on CPUs only.

        Raises
        ------
        PlanError
            Always.
        """
        raise PlanError(
            "candidates are measured on CPUs only; leave out tune(), or plan with device='cpu'"
        )

    def operands(self, x: Any, w: Any) -> tuple[Any, Any]:
        """`x` and `w` themselves: `run` reads them."""
        return x, w

    def repeated(self, *arrays: Any) -> None:
        """A call that could be repeated without checks: there is none on a GPU."""

    def prepared(self, *arrays: Any) -> NoReturn:
        """Refuse to prepare calls.

        Raises
        ------
        PlanError
            Always.
        """
        raise PlanError("only calls on the CPU can be prepared; call the plan instead")


@dataclass(frozen=True)
class GpuEngine(GpuPlan[AnyChoice]):
    """A convolution, or an input gradient, that can be run."""

    @property
    def variant(self) -> Variant:
        """The chosen kernel; that of the phase of a gradient that takes longest."""
        return self.choice.variant

    @property
    def packed_bytes(self) -> int:
        """Device memory of a packed filter."""
        return math.prod(self.problem.weight_shape) * self.problem.itemsize

    @property
    def peak_bytes(self) -> int:
        """Device memory of the output and of a packed filter, which also is the workspace."""
        y = math.prod(self.choice.y_shape) * ITEMSIZES[self.choice.y_dtype]
        return y + self.packed_bytes

    def explain(self) -> str:
        """The choice and its reasons, in words."""
        return explain(self.choice)

    def trace(self) -> list[Load]:
        """All loads of a launch, tile by tile, in the order of each tile's producer; those of a
        gradient, phase by phase.
        """
        if isinstance(self.choice, Gradient):
            return [load for part in self.choice.parts for load in trace(part.choice)]
        return trace(self.choice)

    def pack(self, w: Any) -> GpuFilter:
        """A filter on the GPU in the kernels' order K, R, S, C, or that of a gradient's phases.

        A device array that has this order already is not copied; it must then stay alive and
        unchanged.

        Raises
        ------
        ShapeError, DTypeError
            The filter's shape or dtype differs from the plan's.
        PlanError, DriverError
            There is no GPU or driver to hold it.
        """
        return pack(self.choice, w, self.device)

    def run(
        self,
        x: Any,
        w: Any,
        bias: Any = None,
        residual: Any = None,
        out: Any = None,
        scale: Any = None,
    ) -> Any:
        """y = activation(scale * conv(x, w) + bias + residual), with `w` packed or plain.

        Device arrays are read and written in place, numpy arrays through copies. A `scale` that is
        Seen has the pairs (scale, bias) of all filters, in float32.

        Raises
        ------
        ShapeError, DTypeError
            An array's shape or dtype differs from the plan's.
        PlanError, DriverError
            No GPU or driver can run the plan.
        """
        if not (self.choice.has_epilogue or (bias is residual is scale is None)):
            raise PlanError(NO_EPILOGUE)
        scaled = scale is not None
        if scaled:
            bias = scale if type(scale) is Seen else pairs(self.choice, scale, bias)
        if type(x) is Seen or is_device_array(x):
            return run_in_place(self.choice, self.calls, x, w, bias, residual, out, scaled)
        return run_on_copies(self.choice, self.device, x, w, bias, residual, out, scaled)


def plan(
    x_shape: tuple[int, ...],
    w_shape: tuple[int, ...],
    dtype: object,
    request: Request,
    device: str | GpuArch,
) -> GpuEngine:
    """The plan of a convolution on a GPU of this machine or on any supported target.

    Parameters
    ----------
    device : str or GpuArch
        "cuda" or "cuda:1" for a GPU of this machine, or a target such as "sm_90a".

    Raises
    ------
    ShapeError, DTypeError, PlanError
        Sizes that do not go together; a dtype, device or option that is not supported.
    """
    return _plan(x_shape, w_shape, dtype_name_of(dtype), request, *located_arch(device))


def plan_gradient(
    problem: Problem, request: Request, device: str, transposed: bool, max_workspace: int | None
) -> GpuEngine:
    """The plan of the input gradient of `problem` on a GPU, as `plan`.

    Parameters
    ----------
    transposed : bool
        Whether it is a transposed convolution, which has an epilogue.
    max_workspace : int, optional
        The most bytes that a copy of the filter may take.

    Raises
    ------
    PlanError
        A device or option is not supported, or the copy is larger.
    """
    made = _plan_gradient(problem, request, *located_arch(device), transposed)
    if max_workspace is not None and max_workspace < made.workspace_bytes:
        raise PlanError(
            f"stride phases read a copy of the filter, of {made.workspace_bytes} bytes, more than "
            f"max_workspace={max_workspace}; allow as many"
        )
    return made


def located_arch(device: str | GpuArch) -> tuple[GpuArch, int | None]:
    """The GPU that `device` names, and its number here: None for the current one or a target."""
    if isinstance(device, GpuArch):
        return device, None
    if isinstance(device, str) and is_target(device):
        return gpu_arch(device), None
    number = device_number(device)
    return (driver.current_arch() if number is None else driver.device_arch(number)), number


@PLANS
def _plan_gradient(
    problem: Problem, request: Request, arch: GpuArch, device: int | None, transposed: bool
) -> GpuEngine:
    rounded = _is_rounded(request, problem.dtype)
    choice = choose_gradient(
        problem,
        arch,
        transposed=transposed,
        activation=_activation(request),
        strict=request.precision == "strict",
        rounded=rounded,
    )
    LOG.debug("gradient of %s: %s phases on %s", problem, len(choice.parts), arch.target)
    return GpuEngine(choice, device)


def _activation(request: Request) -> tuple[float, float, float] | None:
    return None if request.activation is None else parse_activation(request.activation)


@PLANS
def _plan(
    x_shape: tuple[int, ...],
    w_shape: tuple[int, ...],
    dtype: str,
    request: Request,
    arch: GpuArch,
    device: int | None,
) -> GpuEngine:
    rounded = _is_rounded(request, dtype)
    problem = Problem.parse(x_shape, w_shape, dtype, dtypes=GPU_DTYPES, **dict(request.convolution))
    choice = choose(
        problem,
        arch,
        view=images(problem),
        activation=_activation(request),
        strict=request.precision == "strict",
        rounded=rounded,
    )
    LOG.debug("%s: %s on %s", problem, choice.variant.name, arch.target)
    return GpuEngine(choice, device)


def dtype_name_of(dtype: object) -> str:
    """numpy's name of a dtype; "bfloat16" is taken as it is, since numpy may lack it."""
    if isinstance(dtype, str) and dtype in GPU_DTYPES:
        return dtype
    return dtype_name(dtype_key(dtype))


def _is_rounded(request: Request, dtype: str) -> bool:
    """Whether y has the dtype of x, else float32; options of a request are checked."""
    precision, algorithm, out_dtype = request.precision, request.algorithm, request.out_dtype
    if precision not in PRECISIONS:
        raise PlanError(f"precision {precision!r} is none of {', '.join(PRECISIONS)}")
    if algorithm not in ("auto", "implicit_gemm"):
        reason = "runs on the CPU alone" if algorithm in ALGORITHMS else "does not exist"
        raise PlanError(
            f"algorithm {algorithm!r} {reason}; a GPU supports 'auto' and 'implicit_gemm'"
        )
    name = dtype if out_dtype is None else dtype_name_of(out_dtype)
    if name not in (dtype, "float32"):
        raise DTypeError(
            f"out_dtype {name}: on a GPU y is float32, or has the dtype of x, {dtype}; convert y"
        )
    return name == dtype
