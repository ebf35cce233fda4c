"""Filters on the GPU: K, R, S, C side by side, as tensor maps and 16-byte copies take them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from implicit_conv.arrays import as_array
from implicit_conv.errors import PlanError, ShapeError
from implicit_conv.gpu.arrays import Operand, is_device_array, library, operand
from implicit_conv.gpu.cuda import driver
from implicit_conv.gpu.cuda.transfer import sent
from implicit_conv.gpu.plan import GpuPlan


@dataclass(frozen=True)
class GpuFilter:
    """A filter in device memory in kernels' order, for plans of its shape and dtype."""

    operand: Operand
    device: int


def pack(plan: GpuPlan, w: Any) -> GpuFilter:
    """`w`, numpy or on a device, as a packed filter; see `GpuPlan.pack`."""
    if not is_device_array(w):
        with driver.on(plan.device) as device:
            return GpuFilter(host_filter(plan, w), device)
    given = operand(w)
    at = given.device if given.device is not None else driver.device_of(given.address)
    with driver.on(at):
        return GpuFilter(device_filter(plan, w), at)


def host_filter(plan: GpuPlan, w: Any) -> Operand:
    """A copy on the current device of a filter of numpy's."""
    names, array = plan.names, as_array("w", w)
    if array.shape != names.weight_shape:
        raise ShapeError(f"w has shape {array.shape}, but the plan is for {names.weight_shape}")
    turned = array.transpose(plan.filter_axes)
    return sent("w", turned, turned.shape, plan.problem.dtype)


def device_filter(plan: GpuPlan, w: Any) -> Operand:
    """The filter as it lies, or rearranged by its own library; other libraries' go as they lie."""
    names = plan.names
    given = operand(w).expect("w", names.weight_shape, names.dtype)
    axes = plan.filter_axes
    if not given.view(axes).packed:
        package = library(given.owner)
        if package == "torch":
            return operand(given.owner.permute(axes).contiguous())
        if package == "cupy":
            return operand(given.owner.transpose(axes).copy())
    return given.view(axes)


def packed_filter(plan: GpuPlan, w: GpuFilter, device: int) -> Operand:
    """The operand of a packed filter, checked against the plan and the device x lies on."""
    if w.device != device:
        raise PlanError(f"the packed filter lies on cuda:{w.device}, but x on cuda:{device}")
    return w.operand.expect("the packed filter", plan.problem.weight_shape, plan.problem.dtype)
