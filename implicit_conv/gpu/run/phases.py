"""The launches of an input gradient: a copy of the filter, and one for each stride phase."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from implicit_conv.gpu.cuda import cubin as load
from implicit_conv.gpu.cuda import driver
from implicit_conv.gpu.cuda.arrays import Operand
from implicit_conv.gpu.cuda.kernel import Kernel
from implicit_conv.gpu.cuda.transfer import pool
from implicit_conv.gpu.plan.candidate import Choice
from implicit_conv.gpu.plan.phases import Gradient, Part, steps
from implicit_conv.gpu.plan.views import reshaped
from implicit_conv.gpu.run.launch import BLOBS_KEPT, Addresses, Arrays, Launcher
from implicit_conv.kernels.geometry import NO_GEOMETRY
from implicit_conv.kernels.gpu.call import NO_CALL, pack
from implicit_conv.kernels.gpu.sizes import COPY_BLOCKS, COPY_WARPS, WARP
from implicit_conv.problem.options import contiguous_strides

ALIGNMENT = 256  # of memory from a pool, bytes


class Zeros(NamedTuple):
    """What sets an array that has no gaps to zero, in the place of a launcher."""

    size: int  # bytes

    def __call__(self, addresses: Addresses, stream: int) -> None:
        """Enqueue it for the array y at the last of the addresses."""
        driver.call("cuMemsetD8Async", addresses[-1], 0, self.size, stream)


class PhaseLaunch(NamedTuple):
    """The launch of one phase; its w, y and residual begin so many bytes after the gradient's."""

    launcher: Launcher | Zeros
    w: int
    y: int
    residual: int


class GradientLauncher:
    """The launches of an input gradient for arrays of the strides of `arrays`.

    Parameters
    ----------
    arrays : Arrays
        dy and dx in the shapes of the gradient's view; w packed, or K, (R,) S, C with any strides.
    bind : function (choice, arrays) -> launcher
    """

    def __init__(
        self, gradient: Gradient, arrays: Arrays, bind: Callable[[Choice, Arrays], Launcher]
    ) -> None:
        self.size, w = gradient.workspace_bytes, arrays.w
        self.copy = self.pool = None
        if w.shape != gradient.packed_shape:
            self.copy, self.pool = filter_copy(gradient, w), pool(driver.current_device())
            # A tensor map describes the copy, which has no address yet.
            arrays.w = w._replace(address=arrays.x.address // ALIGNMENT * ALIGNMENT or ALIGNMENT)
        self.phases = [*_phases(gradient, arrays, bind)]
        self.blobs: dict[Addresses, Addresses] = {}  # those that calls have checked

    def __call__(self, addresses: Addresses, stream: int) -> None:
        """Enqueue all launches for arrays at `addresses` on `stream` of the current device."""
        x, w, bias, residual, y = addresses
        if self.copy is None:
            return self._enqueue(addresses, stream)
        room = int(driver.call("cuMemAllocFromPoolAsync", self.size, self.pool, stream))
        try:
            self.copy((None, w, None, None, room), stream)
            self._enqueue((x, room, bias, residual, y), stream)
        finally:
            driver.call("cuMemFreeAsync", room, stream)

    enqueue = __call__

    def moved(self, addresses: Addresses) -> Addresses:
        """As of `Launcher`: the addresses are kept as known."""
        if len(self.blobs) >= BLOBS_KEPT:
            self.blobs.clear()
        self.blobs[addresses] = addresses
        return addresses

    def _enqueue(self, addresses: Addresses, stream: int) -> None:
        x, w, bias, residual, y = addresses
        for launcher, w_at, y_at, residual_at in self.phases:
            added = None if residual is None else residual + residual_at
            launcher((x, (w or 0) + w_at, bias, added, (y or 0) + y_at), stream)


def _phases(
    gradient: Gradient, arrays: Arrays, bind: Callable[[Choice, Arrays], Launcher]
) -> Iterator[PhaseLaunch]:
    for part, own, zeros in sections(gradient, arrays):
        w, y = own.w.address - arrays.w.address, own.y.address - arrays.y.address
        if zeros:
            yield PhaseLaunch(Zeros(zeros), w, y, 0)
            continue
        residual = 0
        if own.residual is not None and arrays.residual is not None:
            residual = own.residual.address - arrays.residual.address
        yield PhaseLaunch(bind(part.choice, own), w, y, residual)


def sections(gradient: Gradient, arrays: Arrays) -> Iterator[tuple[Part, Arrays, int]]:
    """The parts with their arrays, and for those that need no kernel the bytes that are zeros."""
    bare = arrays.bias is arrays.residual is None and gradient.keeps_zeros
    for part in gradient.parts:
        own = _of_part(part, arrays)
        size = math.prod(own.y.shape) * own.y.itemsize
        is_zero = bare and not part.choice.view.C and own.y.reach == (0, size)
        yield part, own, size if is_zero else 0


def _of_part(part: Part, arrays: Arrays) -> Arrays:
    """The filters and pixels of a phase; one without channels reads nothing of dy."""
    view, itemsize = part.choice.view, arrays.x.itemsize
    x = arrays.x
    if not view.C:
        x = _packed(x, x.address, view.input_shape)
    w = _packed(arrays.w, arrays.w.address + part.filter_at * itemsize, view.weight_shape)
    residual = arrays.residual and arrays.residual.section(part.pixels)
    y = arrays.y.section(part.pixels)
    return replace(arrays, x=x, w=w, y=y, residual=residual)


def _packed(array: Operand, address: int, shape: tuple[int, ...]) -> Operand:
    """A contiguous array of this shape at an address in the memory of `array`."""
    strides = contiguous_strides(shape, array.itemsize)
    return array._replace(address=address, shape=shape, strides=strides)


def filter_copy(gradient: Gradient, w: Operand) -> Launcher | None:
    """What copies filters like w, in the order K, R, S, C, as the phases read them: w to y."""
    view = gradient.view
    if not gradient.workspace_bytes:
        return None
    rows = view.C * view.kernel[0] * view.kernel[1]
    phases_h, phases_w = steps(view)
    strides = reshaped(w.shape, w.strides, w.itemsize, view.weight_shape)
    assert strides is not None  # only axes of one element are added
    k, r, s, c = strides
    call = NO_CALL._replace(rows=rows, w_k=k, w_r=r, w_s=s, w_c=c)
    (R, S), groups = view.kernel, view.groups
    sizes = {"K": view.K // groups, "C": view.C // groups, "groups": groups, "R": R, "S": S}
    geometry = NO_GEOMETRY._replace(**sizes, phases_h=phases_h, phases_w=phases_w)
    handle = load.loaded_filters(view.itemsize, gradient.arch.cc, driver.current_device())
    blocks = min(-(-rows // COPY_WARPS), COPY_BLOCKS * gradient.arch.sms)
    content = np.frombuffer(pack(None, None, call, geometry, (0.0, 0.0)), np.uint8)
    return Launcher(Kernel(handle, blocks, COPY_WARPS * WARP, 0), content)
