"""One launch: a choice and device arrays whose axes have the view's order.

The kernel of a choice is compiled, linked and loaded once; tensor maps are encoded once for each
pair of addresses. A launch then fills the params blob and calls the driver: it allocates no device
memory and waits for nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from implicit_conv.gpu.arguments import NOWHERE, DeviceArray, arguments
from implicit_conv.gpu.arrays import Operand
from implicit_conv.gpu.candidate import Choice
from implicit_conv.gpu.cuda import cubin as load
from implicit_conv.gpu.cuda import driver
from implicit_conv.gpu.cuda.encode import encode
from implicit_conv.gpu.folded import fold_misfit
from implicit_conv.gpu.maps import activation_map, filter_map
from implicit_conv.kernels.gpu.call import Call as KernelCall
from implicit_conv.kernels.gpu.sizes import MAP_BYTES, VECTOR_BYTES
from implicit_conv.kernels.gpu.variant import Variant

MAPS_KEPT = 64  # pairs of encoded maps of a launcher, one for each pair of addresses
CALL_AT = 2 * MAP_BYTES  # offset in the blob of the Call, which follows two tensor maps
ADDRESSES = np.dtype((np.int64, 5))  # the first fields of the Call
assert KernelCall._fields[:5] == ("x", "w", "bias", "residual", "y")


@dataclass(slots=True)
class Arrays:
    """The operands of one launch."""

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
        """(name of the caller's argument, operand) of those that were given."""
        for name in ("x", "w", "bias", "residual"):
            array = getattr(self, name)
            if array is not None:
                yield name, array
        yield "out", self.y


def misfit(v: Variant, arrays: Arrays) -> str:
    """The reason why a kernel cannot load these arrays, or an empty string."""
    if v.producer == "elements" and not v.folded:
        return ""
    for name, array in (("x", arrays.x), ("w", arrays.w)):
        reason = (fold_misfit if v.folded else unaligned)(array, v.itemsize)
        if reason:
            return f"{name} {reason}"
        if v.producer == "tma" and not array.packed:
            return f"{name} is not contiguous, as its tensor map would need it to be"
    return ""


def unaligned(array: Operand, itemsize: int) -> str:
    """The reason why an array cannot be read or written 16 bytes at a time, or an empty string."""
    if array.strides[-1] != itemsize:
        return "is not contiguous along its channels"
    if any(value % VECTOR_BYTES for value in (array.address, *array.strides[:-1])):
        return f"is not aligned to {VECTOR_BYTES} bytes"
    return ""


class Launcher:
    """The kernel of a choice and its params blob, for arrays of the strides of `arrays`."""

    def __init__(self, choice: Choice, arrays: Arrays) -> None:
        self.view, self.variant = choice.view, choice.variant
        handle = load.loaded(choice.variant, choice.arch.cc, driver.current_device())
        threads, smem_bytes = choice.variant.threads, choice.layout.total
        self.kernel = load.Kernel(handle, choice.blocks, threads, smem_bytes)
        self.blob = np.frombuffer(_blob(choice, arrays), np.uint8)
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
                encode(activation_map(self.view, self.variant, x)),
                encode(filter_map(self.view, self.variant, w)),
            )
            maps = self.maps[x, w] = np.frombuffer(b"".join(both), np.uint8)
        return maps


def _blob(choice: Choice, arrays: Arrays) -> bytes:
    """The params blob without tensor maps."""
    from implicit_conv.kernels.gpu import blob

    x, w, y, _, residual = (_place(array) for array in arrays.all)
    call = arguments(choice, x, w, y, residual=residual)
    packed: bytes = blob.pack(None, None, call, choice.geometry, choice.limits)
    return packed


def _place(array: Operand | None) -> DeviceArray:
    return NOWHERE if array is None else DeviceArray(array.address, array.strides)
