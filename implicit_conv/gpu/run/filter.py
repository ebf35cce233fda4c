"""Filters on the GPU, packed as K, R, S, C: the order that tensor maps and 16-byte copies need."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from implicit_conv.arrays.arrays import as_array
from implicit_conv.arrays.libraries import library
from implicit_conv.errors import PlanError, ShapeError
from implicit_conv.gpu.cuda import driver
from implicit_conv.gpu.cuda.arrays import Operand, is_device_array, operand
from implicit_conv.gpu.cuda.transfer import sent
from implicit_conv.gpu.plan.candidate import Choice


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
    """A device filter in the view's order: packed by torch or CuPy, otherwise with its strides."""
    problem = choice.problem
    given = operand(w, "w").expect("w", problem.weight_shape, problem.dtype)
    axes = choice.filter_axes
    if not given.view(axes).packed:
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
