"""For doors: calls as programs, which compiled code of another library starts without Python."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, TypeAlias

from implicit_conv.arrays.arrays import Array, Binding, numpy_dtype
from implicit_conv.errors import PlanError
from implicit_conv.kernels.cpu.runtime.objects import differing, offset_of
from implicit_conv.kernels.cpu.runtime.program import Program, Room, Step, reserved
from implicit_conv.kernels.cpu.runtime.runner import Runner
from implicit_conv.kernels.cpu.runtime.torch_calls import FUNCTIONS as TORCH_FUNCTIONS
from implicit_conv.kernels.cpu.runtime.torch_calls import TorchCalls
from implicit_conv.kernels.cpu.runtime.xla import Buffer, Target
from implicit_conv.operators.plan import Plan
from implicit_conv.operators.preparation import prepare

Views: TypeAlias = tuple[Array, Array, Array]
__all__ = [
    "TORCH_FUNCTIONS",
    "Buffer",
    "TorchCalls",
    "Views",
    "bound_program",
    "buffer_array",
    "differing",
    "make_program",
    "offset_of",
    "runner",
    "xla_target",
]


def buffer_array(buffer: Buffer) -> Array:
    """A reserved array that stands for a contiguous buffer of a call."""
    return reserved(buffer.shape, numpy_dtype(buffer.dtype))


def make_program(
    plan: Plan, parts: Sequence[Views], buffers: tuple[Array, Array, Array]
) -> Program:
    """The program of a plan of two arrays, which runs for each of `parts`: views of the reserved
    `buffers`, which are those of the arrays and of the result.

    Raises
    ------
    PlanError
        No method takes arrays of these strides, or the call consists of more than launches.
    """
    engine: Any = plan.engine
    if engine.out_dtype != engine.y_dtype:
        raise PlanError("the result takes more than one call")
    room, steps = Room(), list[Step]()
    try:
        for a, b, y in parts:
            room.end = 0
            call = engine.bind(Binding(a.strides, b.strides, y.strides))
            steps += call.steps(a, b, y, room)
        return Program(steps, room, buffers)
    except PlanError:
        raise
    except ValueError as error:
        raise PlanError(str(error)) from error


def bound_program(call: Any, arrays: Sequence[tuple[Any, ...]], dtypes: Sequence[str]) -> Program:
    """The program of a bound call of arrays (a, b, y) with these shapes and strides in bytes.

    Raises
    ------
    ValueError
        The call consists of more than launches.
    """
    given = [
        reserved(shape, numpy_dtype(dtype), strides)
        for (shape, strides), dtype in zip(arrays, dtypes, strict=True)
    ]
    room = Room()
    return Program(call.steps(*given, room), room, given)


@functools.cache
def runner() -> Runner:
    """What runs programs."""
    return prepare(Runner)


@functools.cache
def xla_target(minor: int) -> Target:
    """The function that XLA calls, for version 0.`minor` of its interface."""
    return prepare(Target, minor)
