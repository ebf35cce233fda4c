"""Run a plan on arrays: device arrays in place, numpy arrays by copies.

What decides is how arrays lie in memory, not how their axes are called: torch's channels_last
tensor has the shape N, C, H, W and is read as the channels-last array it is. A filter that lies
otherwise is rearranged first, numpy arrays on their way to the GPU; a device array x never is, but
goes to a slower kernel.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from implicit_conv.arrays import as_array
from implicit_conv.errors import PlanError, ShapeError
from implicit_conv.gpu.arrays import Operand, current_stream, empty_like, is_device_array, operand
from implicit_conv.gpu.cuda import driver
from implicit_conv.gpu.cuda.transfer import STREAM, Buffer, fetched, sent
from implicit_conv.gpu.filter import GpuFilter, device_filter, host_filter, packed_filter
from implicit_conv.gpu.launch import Arrays, Launcher, launch
from implicit_conv.gpu.plan import GpuPlan
from implicit_conv.problem import Problem

PREPARED_KEPT = 64  # of a plan


def run_plan(
    made: GpuPlan, x: Any, w: Any, bias: Any = None, residual: Any = None, out: Any = None
) -> Any:
    """y = activation(conv(x, w) + bias + residual), on the GPU that holds x, or by copies."""
    if not isinstance(x, Operand) and not is_device_array(x):
        return _run_on_copies(made, x, w, bias, residual, out)
    source = operand(x)
    at = source.device
    if at is None and source.address:
        at = driver.device_of(source.address)
    with driver.on(at) as device:
        _check_arch(made, device)
        return _run_in_place(made, source, w, bias, residual, out, device)


def _check_arch(made: GpuPlan, device: int) -> None:
    here = driver.device_arch(device)
    if here.cc != made.arch.cc:
        raise PlanError(
            f"the plan is for {made.arch.target}, but {here.device} is {here.target}; plan with "
            "device='cuda'"
        )


def _run_in_place(
    made: GpuPlan, x: Operand, w: Any, bias: Any, residual: Any, out: Any, device: int
) -> Any:
    filters = packed_filter(made, w, device) if isinstance(w, GpuFilter) else device_filter(made, w)
    if out is None:
        out = _new(made, x)
    given = Arrays(
        x, filters, operand(out), None if bias is None else operand(bias),
        None if residual is None else operand(residual),
    )  # fmt: skip
    alike = device, *(None if array is None else array.kind for array in given.all)
    prepared = made.prepared.get(alike)
    if prepared is None:
        prepared = Prepared(made, given, device)
        if len(made.prepared) >= PREPARED_KEPT:
            made.prepared.clear()
        made.prepared[alike] = prepared
    prepared.check_overlap(given)
    if prepared.launcher is not None:
        prepared.launcher(given, current_stream(x.owner))
    return out


class Prepared:
    """Arrays of one kind checked against a plan, and the launch for them.

    `launcher` is None where there is nothing to compute.
    """

    def __init__(self, made: GpuPlan, given: Arrays, device: int) -> None:
        names, shape = made.names, made.names.output_shape
        for name, array in given.named():
            if array.device not in (None, device):
                raise PlanError(f"{name} lies on cuda:{array.device}, but x on cuda:{device}")
        bias, residual = given.bias, given.residual
        pieces = Arrays(
            _images(made, given.x, "x", names.input_shape), given.w,
            _images(made, given.y, "out", shape),
            None if bias is None else _contiguous("bias", bias, names),
            None if residual is None else _images(made, residual, "residual", shape),
        )  # fmt: skip
        self.launcher = None if 0 in shape else Launcher(made, pieces)
        self.reach = [None if array is None else array.reach for array in given.all]

    def check_overlap(self, given: Arrays) -> None:
        """ShapeError where y shares memory with what blocks read while others write it."""
        x, w, y, bias, _ = zip(given.all, self.reach, strict=True)
        low, high = (given.y.address + at for at in y[1])  # type: ignore[union-attr]
        for name, (array, reach) in (("x", x), ("w", w), ("bias", bias)):
            if array is None or reach is None:
                continue
            if array.address + reach[0] < high and low < array.address + reach[1]:
                raise ShapeError(f"out overlaps {name} in memory; pass another array")


def _images(made: GpuPlan, array: Operand, name: str, shape: tuple[int, ...]) -> Operand:
    """An array like x or y with a batch axis, its axes in the problem's order."""
    array.expect(name, shape[1:] if made.unbatched else shape, made.problem.dtype)
    if made.unbatched:
        array = replace(array, shape=shape, strides=(0, *array.strides))
    return array.view(made.axes)


def _contiguous(name: str, array: Operand, problem: Problem) -> Operand:
    if not array.expect(name, (problem.K,), problem.dtype).packed:
        raise ShapeError(f"{name} must be contiguous on a GPU; its stride is {array.strides[0]}")
    return array


def _new(made: GpuPlan, x: Operand) -> Any:
    """A result array of x's library: channels last in memory if x is, in shape as its layout
    says.
    """
    names = made.names
    channels = made.axes[3] - made.unbatched
    channels_last = names.C > 1 and x.strides[channels] == names.itemsize
    if not channels_last or names.layout == "NHWC":
        y = empty_like(x.owner, names.output_shape, names.dtype)
    else:
        n, k, p, q = names.output_shape
        y = empty_like(x.owner, (n, p, q, k), names.dtype)
        y = (getattr(y, "permute", None) or y.transpose)(0, 3, 1, 2)
    return y[0] if made.unbatched else y


def _run_on_copies(made: GpuPlan, x: Any, w: Any, bias: Any, residual: Any, out: Any) -> Any:
    """numpy arrays, rearranged to channels-last on the way there and back."""
    names, dtype = made.names, made.problem.dtype
    shape = names.output_shape[1:] if made.unbatched else names.output_shape
    if out is not None and out.shape != shape:
        raise ShapeError(f"out has shape {out.shape} but the output has {shape}")
    x = as_array("x", x)
    with driver.on(made.device) as device:
        _check_arch(made, device)
        image = functools.partial(_sent_images, made)
        filters = packed_filter(made, w, device) if isinstance(w, GpuFilter) else None
        y = Buffer(int(np.prod(shape)) * names.itemsize)
        pieces = Arrays(
            image("x", x, names.input_shape), filters or host_filter(made, w),
            y.operand(made.problem.output_shape, dtype, names.itemsize),
            None if bias is None else sent("bias", as_array("bias", bias), (names.K,), dtype),
            None if residual is None else image("residual", residual, names.output_shape),
        )  # fmt: skip
        if 0 not in shape:
            launch(made, pieces, STREAM)
        found = fetched(y, made.problem.output_shape, x.dtype)
    back = tuple(made.axes.index(axis) for axis in range(4))
    result = np.ascontiguousarray(found.transpose(back)).reshape(shape)
    if out is None:
        return result
    np.copyto(out, result, casting="no")
    return out


def _sent_images(made: GpuPlan, name: str, array: Any, shape: Sequence[int]) -> Operand:
    here = as_array(name, array)
    expected = tuple(shape[1:] if made.unbatched else shape)
    if here.shape != expected:
        raise ShapeError(f"{name} has shape {here.shape}, but the plan is for {expected}")
    whole = here.reshape(shape)
    turned = whole.transpose(made.axes)
    return sent(name, turned, turned.shape, made.problem.dtype)
