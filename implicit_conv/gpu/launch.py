"""A plan and device arrays in, one launch out.

A plan's kernel is compiled, linked and loaded once; its tensor maps are encoded once for each
array. A launch then fills the params blob and calls the driver: nothing is allocated, nothing
synchronised.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from implicit_conv.gpu import driver, load
from implicit_conv.gpu.arch import GpuArch
from implicit_conv.gpu.arrays import Operand
from implicit_conv.gpu.call import NOWHERE, DeviceArray, call_of
from implicit_conv.gpu.encode import encode
from implicit_conv.gpu.maps import activation_map, filter_map
from implicit_conv.gpu.plan import GpuPlan
from implicit_conv.gpu.plan import plan as make_plan
from implicit_conv.kernels.variant import Variant
from implicit_conv.problem import Problem

LOG = logging.getLogger("implicit_conv")
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
    """The operands of one launch, their axes in the order of the plan's problem."""

    x: Operand
    w: Operand
    y: Operand
    bias: Operand | None = None
    residual: Operand | None = None

    def named(self) -> Iterator[tuple[str, Operand]]:
        """(what the caller calls it, operand) of those that are there."""
        for name in ("x", "w", "bias", "residual"):
            array = getattr(self, name)
            if array is not None:
                yield name, array
        yield "out", self.y


def misfit(v: Variant, arrays: Arrays) -> str:
    """Why a kernel cannot load these arrays (alignment, strides), or an empty string."""
    if v.producer == "elements":
        return ""
    for name, array in (("x", arrays.x), ("w", arrays.w)):
        reason = unaligned(array, v.itemsize)
        if reason:
            return f"{name} {reason}"
        if v.producer == "tma" and not array.packed:
            return f"{name} is not contiguous, which its tensor map takes it to be"
    return ""


def unaligned(array: Operand, itemsize: int) -> str:
    """Why an array cannot be read or written 16 bytes at a time, or an empty string."""
    if array.strides[-1] != itemsize:
        return "has channels that do not lie side by side"
    if any(value % VECTOR_BYTES for value in (array.address, *array.strides[:-1])):
        return f"is not aligned to {VECTOR_BYTES} bytes"
    return ""


def fitting(plan: GpuPlan, arrays: Arrays) -> GpuPlan:
    """The plan, changed as far as these arrays need: epilogue, stores, and in the end loads."""
    v = plan.variant
    v = replace(
        v, plain=v.plain and arrays.residual is None,
        packed=v.packed and not unaligned(arrays.y, v.itemsize),
    )  # fmt: skip
    reason = misfit(v, arrays)
    if not reason:
        return plan if v == plan.variant else replace(plan, variant=v)
    slower = (_slower(v, producer) for producer in ("cp_async", "elements"))
    chosen = next(other for other in slower if not misfit(other, arrays))
    LOG.debug("%s: %s instead of %s", reason, chosen.name, v.name)
    made = _planned(plan.problem, plan.arch, chosen, plan.limits)
    return replace(made, candidates=plan.candidates)


def _slower(v: Variant, producer: str) -> Variant:
    """The kernel of 64 x 64 tiles that loads by `producer`; the rest as in `v`."""
    consumer = "fma" if v.dtype == "float32" else "mma"
    return Variant(
        "im2col", producer, consumer, v.dtype, 64, 64, v.row_bytes, 2, 2, plain=v.plain,
        activation=v.activation, packed=v.packed,
    )  # fmt: skip


@functools.lru_cache(maxsize=512)
def _planned(problem: Problem, arch: GpuArch, v: Variant, limits: tuple[float, float]) -> GpuPlan:
    return make_plan(problem, arch, variant=v, activation=(float(v.activation), *limits))


def launch(plan: GpuPlan, arrays: Arrays, stream: int) -> None:
    """Enqueue the plan's kernel on `stream` of the current device.

    Arrays that the kernel cannot load go to a slower one, which a DEBUG line tells.
    """
    plan = fitting(plan, arrays)
    kernel = load.loaded(plan.variant, plan.arch.cc, driver.current_device())
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
