"""A plan and device arrays in, one launch out.

A plan's kernel is compiled, linked and loaded once; its tensor maps are encoded once for each pair
of arrays. A launch then fills the params blob and calls the driver: no device memory is allocated,
nothing is synchronised.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from implicit_conv.gpu.arch import GpuArch
from implicit_conv.gpu.arrays import Operand
from implicit_conv.gpu.call import NOWHERE, DeviceArray, call_of
from implicit_conv.gpu.cuda import cubin as load
from implicit_conv.gpu.cuda import driver
from implicit_conv.gpu.cuda.encode import encode
from implicit_conv.gpu.maps import activation_map, filter_map
from implicit_conv.gpu.plan import GpuPlan
from implicit_conv.gpu.plan import plan as make_plan
from implicit_conv.kernels.gpu.call import MAP_BYTES, Call
from implicit_conv.kernels.gpu.variant import Variant
from implicit_conv.problem import Problem

LOG = logging.getLogger("implicit_conv")
MAPS_KEPT = 64  # pairs of encoded maps of a launcher: one for each pair of addresses
CALL_AT = 2 * MAP_BYTES  # of the blob: behind the tensor maps, the Call, addresses first
ADDRESSES = np.dtype((np.int64, 5))
assert Call._fields[:5] == ("x", "w", "bias", "residual", "y")
VECTOR_BYTES = 16  # what 16-byte copies and stores want addresses and strides to be multiples of


@dataclass(slots=True)
class Arrays:
    """The operands of one launch, their axes in the order of the plan's problem."""

    x: Operand
    w: Operand
    y: Operand
    bias: Operand | None = None
    residual: Operand | None = None

    @property
    def all(self) -> tuple[Operand | None, ...]:
        """x, w, y, bias and residual."""
        return self.x, self.w, self.y, self.bias, self.residual

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


class Launcher:
    """A launch made ready for arrays of the strides and alignment of `arrays`, wherever they lie.

    Arrays that the plan's kernel cannot load go to a slower one, which a DEBUG line tells.
    """

    def __init__(self, plan: GpuPlan, arrays: Arrays) -> None:
        plan = fitting(plan, arrays)
        self.problem, self.variant = plan.problem, plan.variant
        handle = load.loaded(plan.variant, plan.arch.cc, driver.current_device())
        self.kernel = load.Kernel(handle, plan.blocks, plan.variant.threads, plan.layout.total)
        self.blob = np.frombuffer(_blob(plan, arrays), np.uint8)
        self.maps: dict[tuple[int, int], npt.NDArray[np.uint8]] = {}

    def __call__(self, arrays: Arrays, stream: int) -> None:
        """Enqueue the kernel on `stream` of the current device."""
        x, w, y = arrays.x.address, arrays.w.address, arrays.y.address
        bias = arrays.bias.address if arrays.bias else 0
        residual = arrays.residual.address if arrays.residual else 0
        blob = self.blob.copy()
        blob[CALL_AT : CALL_AT + ADDRESSES.itemsize].view(np.int64)[:] = x, w, bias, residual, y
        if self.variant.producer == "tma":
            blob[:CALL_AT] = self._encoded(x, w)
        self.kernel.enqueue(blob, stream)

    def _encoded(self, x: int, w: int) -> npt.NDArray[np.uint8]:
        """The tensor maps of arrays at these addresses."""
        maps = self.maps.get((x, w))
        if maps is None:
            if len(self.maps) >= MAPS_KEPT:
                self.maps.clear()
            both = (
                encode(activation_map(self.problem, self.variant, x)),
                encode(filter_map(self.problem, self.variant, w)),
            )
            maps = self.maps[x, w] = np.frombuffer(b"".join(both), np.uint8)
        return maps


def launch(plan: GpuPlan, arrays: Arrays, stream: int) -> None:
    """Enqueue the plan's kernel, or one that can load these arrays, on `stream`."""
    Launcher(plan, arrays)(arrays, stream)


def _blob(plan: GpuPlan, arrays: Arrays) -> bytes:
    """The params blob without tensor maps."""
    from implicit_conv.kernels.gpu import blob

    call = call_of(
        plan, _place(arrays.x), _place(arrays.w), _place(arrays.y),
        residual=_place(arrays.residual),
    )  # fmt: skip
    packed: bytes = blob.pack(None, None, call, plan.geometry, plan.limits)
    return packed


def _place(array: Operand | None) -> DeviceArray:
    return NOWHERE if array is None else DeviceArray(array.address, array.strides)
