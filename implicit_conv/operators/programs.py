"""For doors: calls as programs, which compiled code of another library starts without Python."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

from implicit_conv.arrays.arrays import Array, numpy_dtype
from implicit_conv.cpu.run.call import Arrays, compiled, repeat
from implicit_conv.errors import PlanError
from implicit_conv.kernels.cpu.runtime.known_calls import Made
from implicit_conv.kernels.cpu.runtime.objects import differing, offset_of
from implicit_conv.kernels.cpu.runtime.program import (
    Copied,
    Program,
    Room,
    Step,
    W,
    Words,
    X,
    Y,
    address_of,
    located,
    placed,
)
from implicit_conv.kernels.cpu.runtime.torch_calls import FUNCTIONS as TORCH_FUNCTIONS
from implicit_conv.kernels.cpu.runtime.torch_calls import TorchCalls
from implicit_conv.kernels.cpu.runtime.xla import Buffer, Target
from implicit_conv.operators.plan import Plan

Views: TypeAlias = tuple[Array, Array, Array]
__all__ = [
    "TORCH_FUNCTIONS",
    "Buffer",
    "Made",
    "Program",
    "Target",
    "TorchCalls",
    "Views",
    "buffer_arrays",
    "compiled",
    "differing",
    "make_words",
    "offset_of",
    "repeat",
]


def buffer_arrays(buffers: Sequence[Buffer]) -> Views:
    """Placed arrays for the contiguous buffers of a call, of which the last one is the result."""
    arrays = []
    for place, buffer in zip((X, W, Y), buffers, strict=True):
        dtype = numpy_dtype(buffer.dtype)
        strides = [
            dtype.itemsize * math.prod(buffer.shape[axis + 1 :])
            for axis in range(len(buffer.shape))
        ]
        arrays.append(placed(place, tuple(buffer.shape), dtype, tuple(strides)))
    x, w, y = arrays
    return x, w, y


def make_words(plan: Plan, parts: Sequence[Views], *, copies_filter: bool = True) -> Words:
    """The program of a plan of two arrays, which runs for each of `parts`: views of placed arrays,
    all with the same strides.

    Raises
    ------
    PlanError
        No method takes arrays of these strides, or the call takes Python, or, unless it
        `copies_filter`, a copy of the filter.
    """
    engine: Any = plan.engine
    if engine.out_dtype != engine.y_dtype:
        raise PlanError("the result takes more than one call")
    room, first = Room(), parts[0]
    own = engine.steps(Arrays(*first), room, biased=False, scaled=False)
    copies = (isinstance(step, Copied) and _is_filter(step.source) for step in own)
    if not copies_filter and any(copies):
        raise PlanError("the filter is copied")
    found = list[Step]()
    for part in parts:
        by = {
            located(address_of(here))[0]: address_of(here) - address_of(there)
            for here, there in zip(part, first, strict=True)
        }
        found += [step.moved(by) for step in own]
    words = Program(found, room).words
    if words is None:
        raise PlanError("the call takes Python")
    return words


def _is_filter(array: Array) -> bool:
    return located(address_of(array))[0] == W
