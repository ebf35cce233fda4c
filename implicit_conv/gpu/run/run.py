"""Run a choice on arrays: device arrays in place, numpy arrays through copies.

Which kernel fits depends on the order of elements in memory, not on the names of the axes: a
channels_last tensor of torch has the shape N, C, H, W and is read as the channels-last array that
it is. A filter is packed as K, R, S, C, the order that tensor maps and 16-byte copies need, unless
it has that order already. A numpy array is reordered on its way to the GPU; a device array x in
another order goes to a slower kernel instead.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from implicit_conv.arrays.arrays import as_array, check_out
from implicit_conv.arrays.libraries import library
from implicit_conv.errors import PlanError, ShapeError
from implicit_conv.gpu.cuda import driver
from implicit_conv.gpu.cuda.arrays import (
    Operand,
    current_stream,
    empty_like,
    is_device_array,
    operand,
)
from implicit_conv.gpu.cuda.transfer import STREAM, Buffer, fetched, sent
from implicit_conv.gpu.plan.candidate import Choice
from implicit_conv.gpu.run.call import Call, bind
from implicit_conv.gpu.run.launch import Arrays
from implicit_conv.process.cache import keep_call


@dataclass(frozen=True)
class GpuFilter:
    """A packed filter in the memory of `device`, for plans of its shape and dtype."""

    operand: Operand
    device: int


def pack(choice: Choice, w: Any, device: int | None) -> GpuFilter:
    """`w` as a packed filter: a numpy array on `device`, a device array on its own device."""
    if not is_device_array(w):
        with driver.on(device) as number:
            return GpuFilter(host_filter(choice, w), number)
    given = operand(w, "w")
    number = given.device if given.device is not None else driver.device_of(given.address)
    with driver.on(number):
        return GpuFilter(device_filter(choice, w), number)


def host_filter(choice: Choice, w: Any) -> Operand:
    """A packed copy of a numpy filter on the current device."""
    array, shape = as_array("w", w), choice.problem.weight_shape
    if array.shape != shape:
        raise ShapeError(f"w has shape {array.shape}, but the plan is for {shape}")
    packed = array.transpose(choice.filter_axes)
    return sent("w", packed, packed.shape, choice.view.dtype)


def device_filter(choice: Choice, w: Any) -> Operand:
    """A device filter in the view's order: packed by torch or CuPy, otherwise with its strides.

    A kernel by rows takes any strides.
    """
    problem = choice.problem
    given = operand(w, "w").expect("w", problem.weight_shape, problem.dtype)
    axes = choice.filter_axes
    if not given.view(axes).packed and not choice.variant.band:
        package = library(given.owner)
        if package == "torch":
            return operand(given.owner.permute(axes).contiguous())
        if package == "cupy":
            return operand(given.owner.transpose(axes).copy())
    return given.view(axes)


def packed_filter(choice: Choice, w: GpuFilter, device: int) -> Operand:
    """The operand of a packed filter, checked against the choice and the device of x."""
    if w.device != device:
        raise PlanError(f"the packed filter is on cuda:{w.device}, but x is on cuda:{device}")
    return w.operand.expect("the packed filter", choice.view.weight_shape, choice.view.dtype)


def run_in_place(
    choice: Choice, calls: dict[object, object], x: Any, w: Any, bias: Any, residual: Any, out: Any
) -> Any:
    """y = activation(conv(x, w) + bias + residual) of device arrays, on the GPU that holds x.

    `calls` keeps the plan's calls by the kind of their arrays.
    """
    source = operand(x)
    number = source.device
    if number is None and source.address:
        number = driver.device_of(source.address)
    with driver.on(number) as device:
        packed = isinstance(w, GpuFilter)
        filters = w.operand if packed else operand(w, "w")
        if out is None:
            out = _empty_output(choice, source)
        given = Arrays(
            x=source,
            w=filters,
            y=operand(out, "out"),
            bias=None if bias is None else operand(bias, "bias"),
            residual=None if residual is None else operand(residual, "residual"),
        )
        kind = (
            device,
            w.device if packed else None,
            *[None if array is None else array.kind for array in given.all],
        )
        call = calls.get(kind)
        if not isinstance(call, Call):
            call = _call(choice, given, w, device)
            keep_call(calls, kind, call)
        if call.packs:
            given.w = device_filter(choice, w)
        call(given, current_stream(source.owner))
    return out


def _call(choice: Choice, given: Arrays, w: Any, device: int) -> Call:
    """A call for arrays like these, on GPU `device`."""
    check_arch(choice, device)
    packed = isinstance(w, GpuFilter)
    filters = packed_filter(choice, w, device) if packed else device_filter(choice, w)
    packs = filters.address != given.w.address
    return Call(choice, replace(given, w=filters), device, packs)


def check_arch(choice: Choice, device: int) -> None:
    """PlanError where GPU `device` is not what the choice was made for."""
    here = driver.device_arch(device)
    if here.cc != choice.arch.cc:
        raise PlanError(
            f"the plan is for {choice.arch.target}, but {here.device} is {here.target}; plan with "
            "device='cuda'"
        )


def _empty_output(choice: Choice, x: Operand) -> Any:
    """A result array of x's library, channels last in memory if x is."""
    problem = choice.problem
    channels = choice.axes[3] - choice.unbatched
    channels_last = problem.C > 1 and x.strides[channels] == problem.itemsize
    if not channels_last or problem.layout == "NHWC":
        y = empty_like(x.owner, problem.output_shape, problem.dtype)
    else:
        n, k, p, q = problem.output_shape
        y = empty_like(x.owner, (n, p, q, k), problem.dtype)
        y = (getattr(y, "permute", None) or y.transpose)(0, 3, 1, 2)
    return y[0] if choice.unbatched else y


def run_on_copies(
    choice: Choice, device: int | None, x: Any, w: Any, bias: Any, residual: Any, out: Any
) -> npt.NDArray[Any]:
    """y of numpy arrays, copied to `device` in channels-last order and back."""
    problem, view, shape = choice.problem, choice.view, choice.output_shape
    if out is not None:
        check_out(out, shape, problem.dtype)
    x = as_array("x", x)
    with driver.on(device) as number:
        check_arch(choice, number)
        packed = isinstance(w, GpuFilter)
        filters = packed_filter(choice, w, number) if packed else host_filter(choice, w)
        y = Buffer(int(np.prod(shape)) * problem.itemsize)
        arrays = Arrays(
            x=_sent_images(choice, "x", x, problem.input_shape),
            w=filters,
            y=y.operand(view.output_shape, view.dtype, view.itemsize),
        )
        if bias is not None:
            arrays.bias = sent("bias", as_array("bias", bias), (problem.K,), view.dtype)
        if residual is not None:
            arrays.residual = _sent_images(choice, "residual", residual, problem.output_shape)
        if 0 not in shape:
            bind(choice, arrays)(arrays.addresses, STREAM)
        found = fetched(y, view.output_shape, x.dtype)
    order = tuple(choice.axes.index(axis) for axis in range(4))
    result = np.ascontiguousarray(found.transpose(order)).reshape(shape)
    if out is None:
        return result
    np.copyto(out, result, casting="equiv")
    return out  # type: ignore[no-any-return]


def _sent_images(choice: Choice, name: str, array: Any, shape: tuple[int, ...]) -> Operand:
    """A copy on the current device of an array like x or y, its axes in the view's order."""
    here, expected = as_array(name, array), shape[int(choice.unbatched) :]
    if here.shape != expected:
        raise ShapeError(f"{name} has shape {here.shape}, but the plan is for {expected}")
    ordered = here.reshape(shape).transpose(choice.axes)
    return sent(name, ordered, ordered.shape, choice.view.dtype)
