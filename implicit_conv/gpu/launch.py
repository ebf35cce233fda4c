"""The GPU engine's host side: a plan and device arrays in, one launch out.

A plan's kernel is compiled, linked and loaded once; its tensor maps are encoded once for each
array. A launch then fills the params blob and calls the driver: nothing is allocated, nothing
synchronised.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from implicit_conv.gpu import driver, load
from implicit_conv.gpu.arrays import Operand, current_stream, empty_like, operand
from implicit_conv.gpu.call import NOWHERE, DeviceArray, call_of
from implicit_conv.gpu.encode import encode
from implicit_conv.gpu.maps import activation_map, filter_map
from implicit_conv.gpu.plan import GpuPlan
from implicit_conv.gpu.plan import plan as make_plan
from implicit_conv.kernels.variant import Variant
from implicit_conv.problem import WEIGHT_LAYOUTS, Problem

MAPS_KEPT = 64  # encoded maps of a problem: one a tensor address
VECTOR_BYTES = 16  # what 16-byte copies and stores want addresses and strides to be multiples of


@functools.lru_cache(maxsize=MAPS_KEPT)
def _encoded_activation(problem: Problem, v: Variant, address: int) -> bytes:
    return encode(activation_map(problem, v, address))


@functools.lru_cache(maxsize=MAPS_KEPT)
def _encoded_filter(problem: Problem, v: Variant, address: int) -> bytes:
    return encode(filter_map(problem, v, address))


@dataclass(frozen=True)
class Arrays:
    """The operands of one launch."""

    x: Operand
    w: Operand
    y: Operand
    bias: Operand | None = None
    residual: Operand | None = None


def run(
    plan: GpuPlan,
    x: Any,
    w: Any,
    bias: Any = None,
    *,
    residual: Any = None,
    out: Any = None,
    stream: int | None = None,
) -> Any:
    """y = activation(conv(x, w) + bias + residual) on the caller's stream.

    Parameters
    ----------
    x, w, bias, residual, out : device arrays in the problem's layouts and dtype
        By __cuda_array_interface__ or DLPack; `bias` contiguous. Without `out` a new array of x's
        library is made.
    stream : int, optional
        A CUstream; by default that of x's library.

    Raises
    ------
    ShapeError, DTypeError
        Arrays that are not those of the plan.
    PlanError, DriverError
        A GPU, driver or array that the plan's kernel cannot use.
    """
    problem = plan.problem
    if out is None:
        out = empty_like(x, problem.output_shape, problem.dtype)
    if 0 not in problem.output_shape:
        arrays = _operands(plan, x, w, bias, residual, out)
        launch(plan, arrays, current_stream(x) if stream is None else stream)
    return out


def _operands(plan: GpuPlan, x: Any, w: Any, bias: Any, residual: Any, out: Any) -> Arrays:
    problem, dtype = plan.problem, plan.problem.dtype
    x_shape, w_shape = shapes(problem)
    return Arrays(
        operand(x).expect("x", x_shape, dtype),
        operand(w).expect("w", w_shape, dtype),
        operand(out).expect("out", problem.output_shape, dtype),
        None if bias is None else operand(bias).expect("bias", (problem.K,), dtype),
        None
        if residual is None
        else operand(residual).expect("residual", problem.output_shape, dtype),
    )


def shapes(problem: Problem) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shapes of x and w in the problem's layouts."""
    n, c, (h, w) = problem.N, problem.C, problem.size
    x = (n, c, h, w) if problem.layout == "NCHW" else (n, h, w, c)
    sizes = (problem.K, c // problem.groups, *problem.kernel)  # k, c, r, s
    axes = WEIGHT_LAYOUTS[problem.weight_layout]
    return x, tuple(size for _, size in sorted(zip(axes, sizes, strict=True)))


def misfit(plan: GpuPlan, arrays: Arrays) -> str:
    """Why the plan's kernel cannot take these arrays (alignment, strides), or an empty string."""
    return next(_misfits(plan.variant, arrays), "")


def _misfits(v: Variant, arrays: Arrays) -> Iterator[str]:
    sources = {"x": arrays.x, "w": arrays.w} if v.producer != "elements" else {}
    wide = {**sources, "out": arrays.y} if v.packed else sources
    for name, array in wide.items():
        if any(value % VECTOR_BYTES for value in (array.address, *array.strides[:-1])):
            yield f"{name} is not aligned to {VECTOR_BYTES} bytes"
        if array.strides[-1] != v.itemsize:
            yield f"the channels of {name} do not lie side by side"
        if v.producer == "tma" and name != "out" and not array.packed:
            yield f"{name} is not contiguous, which its tensor map takes it to be"
    if v.plain and arrays.residual is not None:
        yield "the plan was made without a residual"


def fitting(plan: GpuPlan, arrays: Arrays) -> GpuPlan:
    """The plan, or for arrays that it cannot take one of the slower kernels that copy elements."""
    if not misfit(plan, arrays):
        return plan
    consumer = "fma" if plan.problem.dtype == "float32" else "mma"
    v = Variant(
        "im2col", "elements", consumer, plan.problem.dtype, 64, 64, plan.variant.row_bytes, 2, 2
    )
    kind = (float(plan.variant.activation), *plan.limits)
    made = make_plan(plan.problem, plan.arch, variant=v, activation=kind)
    return replace(made, candidates=plan.candidates)


def launch(plan: GpuPlan, arrays: Arrays, stream: int) -> None:
    """Enqueue the kernel on `stream`; arrays it cannot take go to the element kernel, and are
    logged.
    """
    reason = misfit(plan, arrays)
    if reason:
        logging.getLogger("implicit_conv").debug("%s: element by element instead", reason)
        plan = fitting(plan, arrays)
    device = driver.current_device()
    kernel = load.loaded(plan.variant, plan.arch.cc, device)
    blob = np.frombuffer(_blob(plan, arrays), np.uint8)
    load.enqueue(kernel, blob, plan.blocks, plan.variant.threads, plan.layout.total, stream)


def _blob(plan: GpuPlan, arrays: Arrays) -> bytes:
    from implicit_conv.kernels import blob

    problem, v = plan.problem, plan.variant
    maps: tuple[bytes | None, bytes | None] = (None, None)
    if v.producer == "tma":
        maps = (
            _encoded_activation(problem, v, arrays.x.address),
            _encoded_filter(problem, v, arrays.w.address),
        )
    call = call_of(
        plan, _place(arrays.x), _place(arrays.w), _place(arrays.y),
        bias=arrays.bias.address if arrays.bias else 0, residual=_place(arrays.residual),
    )  # fmt: skip
    packed: bytes = blob.pack(*maps, call, plan.geometry, plan.limits)
    return packed


def _place(array: Operand | None) -> DeviceArray:
    return NOWHERE if array is None else DeviceArray(array.address, array.strides)
